//! PEM text from DER bytes. rustls parses it.

use data_encoding::BASE64;
use zeroize::Zeroizing;

/// The width that every tool writes.
const LINE_CHARACTERS: usize = 64;

/// One PEM section. It may be a private key, so no copy of it is left in memory.
pub(crate) fn encode(label: &str, der: &[u8]) -> Zeroizing<String> {
    let body = Zeroizing::new(BASE64.encode(der));
    let lines = body.len() / LINE_CHARACTERS + 3;
    // With the full capacity: a string that grows leaves its earlier copies in memory.
    let mut text = Zeroizing::new(String::with_capacity(body.len() + 2 * label.len() + 64 + lines));
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE_CHARACTERS));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    #[test]
    fn pem_text_round_trips() {
        for length in [0, 1, 47, 48, 49, 500] {
            let der: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let text = encode("CERTIFICATE", &der);
            let read = CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
            assert_eq!(read.as_ref(), der);
            assert!(text.lines().all(|line| line.len() <= LINE_CHARACTERS));
        }
    }
}
