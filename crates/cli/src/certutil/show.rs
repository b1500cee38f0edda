//! `hypha certutil show`: certificates and revocation lists in words.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use hypha_pki::inspect::{CrlFacts, Facts, Item, inspect};
use hypha_pki::utc;

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
                Item::Certificate(facts) => certificate(&mut text, facts, now),
                Item::Crl(facts) => list(&mut text, facts),
                Item::PrivateKey => {
                    return Err(named(&"it holds a private key, which is never shown"));
                }
            }
        }
    }
    print(&text)
}

fn certificate(text: &mut String, facts: &Facts, now: SystemTime) {
    let kind = match (facts.authority, facts.self_issued) {
        (true, true) => "root certificate authority",
        (true, false) => "certificate authority",
        (false, _) => "node",
    };
    let _ = writeln!(text, "  {kind} {}", plain(&facts.subject));
    if !facts.authority {
        line(text, "role", &facts.roles.join(", "));
    }
    line(text, "organisation", &facts.organisations.join(", "));
    if let (false, Some(peer_id)) = (facts.authority, facts.peer_id()) {
        line(text, "peer id", &peer_id.to_string());
    }
    if !facts.names.is_empty() {
        line(text, "names", &facts.names.join(", "));
    }
    let state = if facts.not_after < now {
        " (expired)"
    } else if facts.not_before > now {
        " (not valid yet)"
    } else {
        ""
    };
    let (from, until) = (utc(facts.not_before), utc(facts.not_after));
    line(text, "valid", &format!("{from} to {until}{state}"));
    line(text, "serial", &facts.serial);
    if !facts.self_issued {
        line(text, "issued by", &facts.issuer);
    }
    if let (false, Some(objection)) = (facts.authority, facts.objection()) {
        line(text, "problem", &objection.to_string());
    }
}

fn list(text: &mut String, facts: &CrlFacts) {
    let _ = writeln!(text, "  revocation list of {}", plain(&facts.issuer));
    line(text, "number", &facts.number.to_string());
    line(text, "made", &utc(facts.made));
    if facts.revoked.is_empty() {
        line(text, "revoked", "nobody");
    }
    for entry in &facts.revoked {
        line(text, "revoked", &format!("{} since {}", entry.serial, utc(entry.since)));
    }
}

fn line(text: &mut String, what: &str, value: &str) {
    let _ = writeln!(text, "    {what:<14}{}", plain(value));
}

/// Files come from anywhere: nothing in them may steer a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
