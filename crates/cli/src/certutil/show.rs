//! `hypha certutil show`: prints certificates and revocation lists.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use hypha_pki::format_utc;
use hypha_pki::inspect::{ParsedCertificate, ParsedCrl, PemItem, inspect};

use crate::usage::{Failure, print, read_text};

pub(super) fn run(files: &[PathBuf], now: SystemTime) -> Result<(), Failure> {
    let mut text = String::new();
    for path in files {
        let named = |problem: &dyn std::fmt::Display| {
            Failure::usage(format!("{}: {problem}", path.display()))
        };
        let items = inspect(read_text(path)?.as_bytes()).map_err(|error| named(&error))?;
        let _ = writeln!(text, "{}", path.display());
        for item in &items {
            match item {
                PemItem::Certificate(parsed) => certificate(&mut text, parsed, now),
                PemItem::Crl(parsed) => list(&mut text, parsed),
                PemItem::PrivateKey => {
                    return Err(named(&"it contains a private key, which is never shown"));
                }
            }
        }
    }
    print(&text)
}

fn certificate(text: &mut String, parsed: &ParsedCertificate, now: SystemTime) {
    let kind = match (parsed.authority, parsed.self_issued) {
        (true, true) => "root certificate authority",
        (true, false) => "certificate authority",
        (false, _) => "node",
    };
    let _ = writeln!(text, "  {kind} {}", plain(&parsed.subject));
    if !parsed.authority {
        line(text, "role", &parsed.roles.join(", "));
    }
    line(text, "organisation", &parsed.organisations.join(", "));
    if let (false, Some(peer_id)) = (parsed.authority, parsed.peer_id()) {
        line(text, "peer id", &peer_id.to_string());
    }
    if !parsed.names.is_empty() {
        line(text, "names", &parsed.names.join(", "));
    }
    let state = if parsed.not_after < now {
        " (expired)"
    } else if parsed.not_before > now {
        " (not valid yet)"
    } else {
        ""
    };
    let (from, until) = (format_utc(parsed.not_before), format_utc(parsed.not_after));
    line(text, "valid", &format!("{from} to {until}{state}"));
    line(text, "serial", &parsed.serial);
    if !parsed.self_issued {
        line(text, "issued by", &parsed.issuer);
    }
    if let (false, Some(rejection)) = (parsed.authority, parsed.rejection()) {
        line(text, "problem", &rejection.to_string());
    }
}

fn list(text: &mut String, parsed: &ParsedCrl) {
    let _ = writeln!(text, "  revocation list of {}", plain(&parsed.issuer));
    line(text, "number", &parsed.number.to_string());
    line(text, "made", &format_utc(parsed.made));
    if parsed.revoked.is_empty() {
        line(text, "revoked", "none");
    }
    for entry in &parsed.revoked {
        line(text, "revoked", &format!("{} since {}", entry.serial, format_utc(entry.since)));
    }
}

fn line(text: &mut String, what: &str, value: &str) {
    let _ = writeln!(text, "    {what:<14}{}", plain(value));
}

/// Files come from anywhere: nothing in them may control the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
