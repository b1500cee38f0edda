//! The keys as a JSON schema, for editors.

use hypha_model::NodeRole;
use serde_json::{Map, Value, json};

use crate::key::{Key, Kind};
use crate::sourced_value::{Raw, SourcedValue};
use crate::{keys, parse};

/// The JSON schema (draft 2020-12) of a `role`'s configuration file.
pub fn schema(role: NodeRole) -> Value {
    let keys: Vec<_> = keys::of(role).collect();
    let mut schema = table(&keys, role);
    schema.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".into(), json!(format!("Configuration of a Hypha {role} node")));
    Value::Object(schema)
}

fn table(keys: &[&Key], role: NodeRole) -> Map<String, Value> {
    let properties: Map<_, _> =
        keys.iter().map(|key| (key.name.to_owned(), property(key, role))).collect();
    let required: Vec<_> = keys.iter().filter(|key| key.required()).map(|key| key.name).collect();
    let mut schema = Map::new();
    schema.insert("type".into(), json!("object"));
    schema.insert("properties".into(), Value::Object(properties));
    schema.insert("additionalProperties".into(), json!(false));
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    schema
}

fn property(key: &Key, role: NodeRole) -> Value {
    let below: Vec<_> = key.below().iter().collect();
    let mut schema = match kind(key.kind) {
        Value::Object(schema) => schema,
        _ => table(&below, role),
    };
    if let Kind::Entries(_) = key.kind {
        schema.insert("items".into(), Value::Object(table(&below, role)));
    }
    schema.insert("description".into(), json!(key.doc));
    if let Some(default) = key.default_value(role) {
        schema.insert("default".into(), plain(&default));
    }
    Value::Object(schema)
}

/// The TOML values that a kind accepts; null for a section, which its keys describe.
fn kind(kind: Kind) -> Value {
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    match kind {
        Kind::File | Kind::Path | Kind::Directory | Kind::Program | Kind::Label => {
            json!({ "type": "string", "minLength": 1 })
        }
        Kind::Switch => json!({ "type": "boolean" }),
        Kind::Addresses(_) => json!({
            "type": "array",
            "items": { "type": "string", "pattern": "^/(ip4|ip6|dns|dns4|dns6)/[^/]+/tcp/[0-9]+" },
        }),
        Kind::Networks
        | Kind::Hosts
        | Kind::Origins
        | Kind::Labels
        | Kind::Hours
        | Kind::Texts
        | Kind::Paths => texts,
        Kind::Environment => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        Kind::Priorities => {
            json!({ "type": "object", "additionalProperties": { "type": "number" } })
        }
        Kind::Socket
        | Kind::HostPort
        | Kind::LogFilter
        | Kind::Attributes
        | Kind::Headers
        | Kind::TimeZone => {
            json!({ "type": "string" })
        }
        Kind::Choice(names) => json!({ "enum": names() }),
        Kind::Choices(names) => json!({ "type": "array", "items": { "enum": names() } }),
        Kind::Strategy => json!({ "enum": parse::strategy_names() }),
        Kind::Url(_) => json!({ "type": "string", "pattern": "^https?://" }),
        Kind::UrlPath => json!({ "type": "string", "pattern": "^/" }),
        Kind::Ratio => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Kind::Share => json!({ "type": "number", "minimum": 0.01, "maximum": 0.99 }),
        Kind::Count { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Number => json!({ "type": "number" }),
        Kind::Seconds { min, max } => span(min.as_secs_f64(), max.as_secs_f64()),
        Kind::Millis { min, max } => span(min.as_secs_f64() * 1e3, max.as_secs_f64() * 1e3),
        Kind::Bytes => json!({ "type": ["integer", "string"], "minimum": 1 }),
        Kind::Size { min, max } => {
            json!({ "type": ["integer", "string"], "minimum": min, "maximum": max })
        }
        Kind::Cores => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Kind::Price => json!({ "type": "number", "minimum": 0 }),
        Kind::Section(_) => Value::Null,
        Kind::Entries(_) => json!({ "type": "array" }),
    }
}

/// A duration: a number within bounds, or a string with a unit.
fn span(min: f64, max: f64) -> Value {
    json!({ "type": ["number", "string"], "minimum": min, "maximum": max })
}

/// A default as JSON.
fn plain(given: &SourcedValue) -> Value {
    match &given.raw {
        Raw::Text(text) | Raw::Bare(text) => json!(text),
        Raw::Number(text) => text.parse::<i64>().map_or_else(
            |_| text.parse::<f64>().map_or(Value::Null, |number| json!(number)),
            |number| json!(number),
        ),
        Raw::Switch(switch) => json!(switch),
        Raw::List(items) => items.iter().map(plain).collect(),
        Raw::Table(_) | Raw::Date => Value::Null,
    }
}
