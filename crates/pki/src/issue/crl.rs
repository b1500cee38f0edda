//! Revocation lists.

use std::time::SystemTime;

use data_encoding::HEXLOWER;
use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::{Authority, IssueError, Validity, authority};
use crate::parsed::common_name;
use crate::revocation::ParsedCrl;
use crate::{date, pem};

/// When the next list is due. Our verifiers do not refuse an old list: a network must not
/// stop because nothing was revoked. The field is mandatory, so it is far in the future.
const NEXT_LIST_DAYS: u32 = super::ROOT_DAYS;

/// The outcome of a revocation.
pub struct Revocation {
    /// The authority's new list; other authorities' lists in the same text are kept.
    pub crl_pem: String,
    /// The serials that were not in the list before.
    pub revoked: Vec<String>,
    /// The serials that already were.
    pub already: Vec<String>,
}

/// A list without entries: it shows that the authority has one.
pub fn empty_crl(authority: &Authority, now: SystemTime) -> Result<String, IssueError> {
    Ok(revoke(authority, None, &[], now)?.crl_pem)
}

/// Adds certificates to an authority's list.
///
/// Only the first certificate of each text in `certificates` is revoked: a node's file has its issuer's
/// after it. Everything in `existing` is kept, and the list's number grows.
pub fn revoke(
    authority: &Authority,
    existing: Option<&str>,
    certificates: &[&str],
    now: SystemTime,
) -> Result<Revocation, IssueError> {
    let subject = subject_of(authority)?;
    let mut others = String::new();
    let mut number = 0;
    let mut entries = Vec::new();
    for der in lists(existing.unwrap_or_default())? {
        let parsed = ParsedCrl::parse(&der).map_err(IssueError::BadRevocationList)?;
        if parsed.issuer_der != subject {
            others.push_str(&pem::encode("X509 CRL", &der));
            continue;
        }
        number = number.max(parsed.number);
        for entry in kept_entries(authority, &der)? {
            add_entry(&mut entries, entry);
        }
    }

    let mut outcome =
        Revocation { crl_pem: String::new(), revoked: Vec::new(), already: Vec::new() };
    for text in certificates {
        let serial = serial_of(authority, &subject, text)?;
        let hex = HEXLOWER.encode(&serial);
        let entry = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: authority::whole_seconds(now).into(),
            reason_code: None,
            invalidity_date: None,
        };
        let known = !add_entry(&mut entries, entry);
        if known { &mut outcome.already } else { &mut outcome.revoked }.push(hex);
    }

    let Validity { not_after, .. } = Validity::days(now, NEXT_LIST_DAYS);
    let list = CertificateRevocationListParams {
        this_update: authority::whole_seconds(now).into(),
        next_update: authority::whole_seconds(not_after).into(),
        crl_number: SerialNumber::from(number.saturating_add(1)),
        issuing_distribution_point: None,
        revoked_certs: entries,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&authority.issuer()?)?;
    outcome.crl_pem = format!("{}{others}", pem::encode("X509 CRL", list.der()).as_str());
    Ok(outcome)
}

/// Returns whether it is new.
fn add_entry(entries: &mut Vec<RevokedCertParams>, entry: RevokedCertParams) -> bool {
    let new = entries.iter().all(|other| other.serial_number != entry.serial_number);
    if new {
        entries.push(entry);
    }
    new
}

fn lists(text: &str) -> Result<Vec<CertificateRevocationListDer<'static>>, IssueError> {
    let lists: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_slice_iter(text.as_bytes()).collect();
    let bad = |reason: String| IssueError::BadRevocationList(reason);
    let lists = lists.map_err(|error| bad(format!("it is not PEM text: {error}")))?;
    // A wrong file must not be mistaken for a list without entries, and then be replaced.
    if lists.is_empty() && !text.trim().is_empty() {
        return Err(bad("there is no revocation list in it".to_owned()));
    }
    Ok(lists)
}

/// The entries of a list that the authority did sign: otherwise it would sign entries of another
/// party.
fn kept_entries(authority: &Authority, der: &[u8]) -> Result<Vec<RevokedCertParams>, IssueError> {
    let (_, list) = CertificateRevocationList::from_der(der)
        .map_err(|error| IssueError::BadRevocationList(error.to_string()))?;
    let signed =
        authority.key().public().verify(list.tbs_cert_list.as_ref(), &list.signature_value.data);
    if !signed {
        return Err(IssueError::ForeignRevocationList);
    }
    let entries = list.iter_revoked_certificates().map(|entry| RevokedCertParams {
        serial_number: SerialNumber::from_slice(entry.raw_serial()),
        revocation_time: date::from_seconds(entry.revocation_date.timestamp()).into(),
        reason_code: entry.reason_code().and_then(|(_, code)| reason(code.0)),
        invalidity_date: None,
    });
    Ok(entries.collect())
}

/// RFC 5280, section 5.3.1. Lists of other tools may give reasons; ours do not.
fn reason(code: u8) -> Option<RevocationReason> {
    Some(match code {
        1 => RevocationReason::KeyCompromise,
        2 => RevocationReason::CaCompromise,
        3 => RevocationReason::AffiliationChanged,
        4 => RevocationReason::Superseded,
        5 => RevocationReason::CessationOfOperation,
        6 => RevocationReason::CertificateHold,
        9 => RevocationReason::PrivilegeWithdrawn,
        10 => RevocationReason::AaCompromise,
        _ => return None,
    })
}

fn subject_of(authority: &Authority) -> Result<Vec<u8>, IssueError> {
    let (_, x509) = X509Certificate::from_der(authority.certificate())
        .map_err(|error| IssueError::BadAuthority(error.to_string()))?;
    Ok(x509.subject().as_raw().to_vec())
}

/// The serial of a certificate that the authority did issue. A wrong one would revoke nothing, and
/// the operator would believe otherwise.
fn serial_of(authority: &Authority, subject: &[u8], text: &str) -> Result<Vec<u8>, IssueError> {
    let bad = |reason: String| IssueError::BadCertificate(reason);
    let der = CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|error| bad(format!("it is not PEM text with a certificate: {error}")))?;
    let (_, x509) = X509Certificate::from_der(&der).map_err(|error| bad(error.to_string()))?;
    let issued = x509.issuer().as_raw() == subject
        && authority
            .key()
            .public()
            .verify(x509.tbs_certificate.as_ref(), &x509.signature_value.data);
    if !issued {
        return Err(IssueError::ForeignCertificate(common_name(x509.subject())));
    }
    Ok(x509.raw_serial().to_vec())
}
