//! The contents of a revocation list.

use std::time::SystemTime;

use data_encoding::HEXLOWER;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::{date, parsed};

/// The contents of a revocation list. Nothing of it is verified.
#[derive(Clone, Debug)]
pub struct ParsedCrl {
    /// The common name of the authority whose list it is.
    pub issuer: String,
    /// Grows with each new edition of the list.
    pub number: u64,
    /// When this edition was made.
    pub made: SystemTime,
    /// The revoked certificates, in the list's order.
    pub revoked: Vec<RevokedSerial>,
    /// The issuer's whole name, as encoded in the list.
    pub(crate) issuer_der: Vec<u8>,
}

/// One entry of a revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokedSerial {
    /// In hexadecimal.
    pub serial: String,
    /// Since when.
    pub since: SystemTime,
}

impl ParsedCrl {
    pub(crate) fn parse(der: &[u8]) -> Result<ParsedCrl, String> {
        let (rest, crl) =
            CertificateRevocationList::from_der(der).map_err(|error| error.to_string())?;
        if !rest.is_empty() {
            return Err("there are trailing bytes after the list".to_owned());
        }
        ParsedCrl::of(&crl)
    }

    pub(crate) fn of(crl: &CertificateRevocationList<'_>) -> Result<ParsedCrl, String> {
        let number = match crl.crl_number() {
            None => 0,
            Some(number) => u64::try_from(number).map_err(|_| "its number is too large")?,
        };
        let entries = crl.iter_revoked_certificates().map(|entry| RevokedSerial {
            serial: HEXLOWER.encode(entry.raw_serial()),
            since: date::from_seconds(entry.revocation_date.timestamp()),
        });
        Ok(ParsedCrl {
            issuer: parsed::common_name(crl.issuer()),
            number,
            made: date::from_seconds(crl.last_update().timestamp()),
            revoked: entries.collect(),
            issuer_der: crl.issuer().as_raw().to_vec(),
        })
    }
}
