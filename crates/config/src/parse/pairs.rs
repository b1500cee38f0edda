//! `key=value,key=value`, the format of OpenTelemetry's attributes and headers, with `%20` and the like for
//! reserved characters.

use super::Problem;
use crate::sourced_value::SourcedValue;

const ATTRIBUTES: &str = "attributes such as \"service.name=node-1,deployment.environment=test\"";
const HEADERS: &str = "headers such as \"Authorization=Basic KEY\", with commas between several";

/// Pairs in the order given.
pub(crate) type Pairs = Vec<(String, String)>;

pub(crate) fn attributes(given: &SourcedValue) -> Result<Pairs, Problem> {
    pairs(given, ATTRIBUTES, |key, _| !key.chars().any(char::is_control))
}

/// Names and values that HTTP can carry.
pub(crate) fn headers(given: &SourcedValue) -> Result<Pairs, Problem> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let printable = |c: char| c == '\t' || c == ' ' || c.is_ascii_graphic();
    pairs(given, HEADERS, |key, value| key.chars().all(token) && value.chars().all(printable))
}

fn pairs(
    given: &SourcedValue,
    what: &str,
    fine: impl Fn(&str, &str) -> bool,
) -> Result<Pairs, Problem> {
    let text = given.text().ok_or_else(|| Problem::expected(what, given))?;
    let wrong = || Problem::new(format!("expected {what}"));
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let (key, value) = (key.trim().to_owned(), decoded(value.trim())?);
        (!key.is_empty() && fine(&key, &value)).then_some((key, value))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(|part| pair(part).ok_or_else(wrong)).collect()
}

/// `%20` as a space and so on; a percent sign that begins no such code stands for itself.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let code = others.get(..2).and_then(|code| {
            let digits = std::str::from_utf8(code).ok()?;
            let hex = *first == b'%' && code.iter().all(u8::is_ascii_hexdigit);
            if hex { u8::from_str_radix(digits, 16).ok() } else { None }
        });
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { others.get(2..).unwrap_or(&[]) } else { others };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sourced_value::{Origin, Raw};

    fn text(text: &str) -> SourcedValue {
        SourcedValue::new(Raw::Text(text.to_owned()), Origin::Default)
    }

    #[test]
    fn pairs_are_split_trimmed_and_decoded() {
        let pairs = attributes(&text("a=1, b = x%20y%2C ,c==%,,d=%c3%a4")).unwrap();
        let expected = [("a", "1"), ("b", "x y,"), ("c", "=%"), ("d", "ä")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        let header = headers(&text("Authorization=Basic dTpw==")).unwrap();
        assert_eq!(header, [("Authorization".to_owned(), "Basic dTpw==".to_owned())]);
        assert!(headers(&text("")).unwrap().is_empty());
    }

    #[test]
    fn what_http_cannot_carry_is_refused_without_repeating_it() {
        for bad in ["s3cret", "=s3cret", "a b=s3cret", "a=s3cret%0a", "a=s3cret%ff", "ä=s3cret"] {
            let problem = headers(&text(bad)).unwrap_err();
            assert!(!problem.message.contains("s3cret"), "{}", problem.message);
        }
    }
}
