//! A configuration file to start with: every key with its documentation and its default.

use std::path::PathBuf;

use hypha_model::NodeRole;
use multiaddr::Multiaddr;

use crate::diagnostic::{Diagnostic, Diagnostics, SourceLocation};
use crate::key::{Key, Kind, Preset};
use crate::overlay::{self, Flags};
use crate::parse::{self, AddressUse};
use crate::sourced_value::{Origin, Table};
use crate::{keys, network};

/// How wide prose is wrapped, without the `# ` before it.
const WIDTH: usize = 98;

/// The values that a template is filled in with. Where none is given, certificates are named after the node,
/// as `hypha certutil node` names them, and addresses keep their defaults.
#[derive(Clone, Debug, Default)]
pub struct TemplateValues {
    /// The node's name.
    pub name: String,
    /// `cert_pem`.
    pub cert_pem: Option<PathBuf>,
    /// `key_pem`.
    pub key_pem: Option<PathBuf>,
    /// `trust_pem`.
    pub trust_pem: Option<PathBuf>,
    /// `crls_pem`.
    pub crls_pem: Option<PathBuf>,
    /// `gateway_addresses`.
    pub gateway_addresses: Vec<Multiaddr>,
    /// `listen_addresses`.
    pub listen_addresses: Vec<Multiaddr>,
}

impl TemplateValues {
    /// This with the gateways and listen addresses of `flags`.
    pub fn with_flags(mut self, flags: &Flags) -> Result<TemplateValues, Diagnostics> {
        let mut given = Table::new();
        overlay::flags(&mut given, flags);
        let read = |key: &str, purpose| match given.get(key) {
            None => Ok(Vec::new()),
            Some((_, given)) => parse::addresses(given, purpose).map_err(|problem| Diagnostic {
                location: match &given.origin {
                    Origin::Flag(flag) => SourceLocation::Flag(flag),
                    _ => SourceLocation::Variable(key.to_owned()),
                },
                message: problem.message,
            }),
        };
        self.gateway_addresses = read("gateway_addresses", AddressUse::Gateway)?;
        self.listen_addresses = read("listen_addresses", AddressUse::Listen)?;
        Ok(self)
    }
}

/// The commented configuration file of a `role`.
pub fn template(role: NodeRole, values: &TemplateValues) -> String {
    let mut out = String::new();
    let name: String = values.name.chars().filter(|c| !c.is_control()).collect();
    prose(&mut out, &format!("Configuration of the {role} node {name}."));
    out.push_str("#\n");
    prose(
        &mut out,
        "A line such as `#key = value` shows the default: remove the `#` to change it. Where there is no \
         default, the line ends in `# example`. Environment variables win over this file: \
         HYPHA_LOG_LEVEL for `log_level`, and with two underscores for a key in a section, \
         HYPHA_SECTION__KEY. Flags win over both.",
    );
    let (top, below): (Vec<&Key>, Vec<&Key>) =
        keys::of(role).partition(|key| !matches!(key.kind, Kind::Section(_) | Kind::Entries(_)));
    for key in top {
        entry(&mut out, key, role, Some(values));
    }
    for key in below {
        tables(&mut out, key, role, key.name, false);
    }
    out
}

/// A section's header is not commented out, so that its keys can be uncommented one by one. An entry's header
/// is, because an entry without its required keys is a fault; so is that of a section in an entry.
fn tables(out: &mut String, key: &Key, role: NodeRole, path: &str, in_entry: bool) {
    out.push('\n');
    prose(out, key.doc);
    let entries = matches!(key.kind, Kind::Entries(_));
    let header = match (entries, in_entry) {
        (true, _) => format!("#[[{path}]]\n"),
        (false, true) => format!("#[{path}]\n"),
        (false, false) => format!("[{path}]\n"),
    };
    out.push_str(&header);
    let (inner, below): (Vec<&Key>, Vec<&Key>) =
        key.below().iter().partition(|key| key.below().is_empty());
    for inner in inner {
        entry(out, inner, role, None);
    }
    for inner in below {
        tables(out, inner, role, &format!("{path}.{}", inner.name), in_entry || entries);
    }
}

fn entry(out: &mut String, key: &Key, role: NodeRole, values: Option<&TemplateValues>) {
    out.push('\n');
    prose(out, key.doc);
    let name = key.name;
    let line = match (values.and_then(|values| value(values, name)), key.preset) {
        (Some(value), _) => format!("{name} = {value}\n"),
        (None, Preset::Absent(example) | Preset::Required(example)) => {
            let example = values.map_or_else(|| example.to_owned(), |f| personal(f, name, example));
            format!("#{name} = {example} # example\n")
        }
        (None, Preset::Is(_) | Preset::OfRole(_)) => {
            let default = values.and_then(|values| derived(values, name));
            let default = default.as_deref().or_else(|| key.default_text(role)).unwrap_or("");
            format!("#{name} = {default}\n")
        }
    };
    out.push_str(&line);
}

/// The value of `filled` for a key.
fn value(values: &TemplateValues, name: &str) -> Option<String> {
    let named = |path: &Option<PathBuf>, what: &str| {
        let path = path.as_ref().map(|path| path.to_string_lossy().into_owned());
        Some(quoted(&path.unwrap_or_else(|| format!("{}-{what}.pem", values.name))))
    };
    match name {
        "cert_pem" => named(&values.cert_pem, "cert"),
        "key_pem" => named(&values.key_pem, "key"),
        "trust_pem" => named(&values.trust_pem, "trust"),
        "crls_pem" if values.crls_pem.is_some() => named(&values.crls_pem, "crls"),
        "gateway_addresses" => addresses(&values.gateway_addresses),
        "listen_addresses" => addresses(&values.listen_addresses),
        _ => None,
    }
}

/// An example that names the node.
fn personal(values: &TemplateValues, name: &str, example: &str) -> String {
    match name {
        "crls_pem" => quoted(&format!("{}-crls.pem", values.name)),
        _ => example.to_owned(),
    }
}

/// A default that depends on the filled-in values.
fn derived(values: &TemplateValues, name: &str) -> Option<String> {
    match name {
        "bulk_listen_addresses" => addresses(&network::bulk_default(&values.listen_addresses)),
        _ => None,
    }
}

fn addresses(addresses: &[Multiaddr]) -> Option<String> {
    let quoted: Vec<_> = addresses.iter().map(|address| quoted(&address.to_string())).collect();
    (!quoted.is_empty()).then(|| format!("[{}]", quoted.join(", ")))
}

/// A TOML string on one line, for any content: JSON's escapes are TOML's, but for one character that only
/// TOML forbids.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// `text` as comment lines.
fn prose(out: &mut String, text: &str) {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(&format!("# {line}\n"));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    out.push_str(&format!("# {line}\n"));
}
