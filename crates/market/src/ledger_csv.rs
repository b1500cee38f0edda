//! The ledger as CSV, for spreadsheets. The scheduler and its workers write the same columns.

use std::fmt::Write;

use hypha_model::WorkerId;

use crate::receipt::LedgerSum;

const HEADER: &str = "organisation,worker,worker_name,leases,held_seconds,amount,\
                      unconfirmed_seconds,unconfirmed_amount\r\n";

/// The sums by organisation and worker, each with the name of the worker if it is known.
pub fn ledger_csv<'a>(
    rows: impl IntoIterator<Item = (&'a str, WorkerId, Option<&'a str>, &'a LedgerSum)>,
) -> String {
    let mut text = HEADER.to_owned();
    for (organisation, worker, name, sum) in rows {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{},{worker},{},{},{},{},{},{}\r\n",
            field(organisation),
            field(name.unwrap_or_default()),
            sum.leases,
            sum.held.as_secs_f64(),
            sum.amount,
            sum.unconfirmed_held.as_secs_f64(),
            sum.unconfirmed_amount,
        );
    }
    text
}

/// A text as a field. A spreadsheet must not take what others have chosen for a formula.
fn field(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t']) { "'" } else { "" };
    match guard.is_empty() && !text.contains([',', '"', '\n', '\r', ';']) {
        true => text.to_owned(),
        false => format!("\"{guard}{}\"", text.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    use hypha_model::{Money, Rng, Span, Time};

    use super::*;

    #[test]
    fn a_row_has_what_is_confirmed_and_the_rest_apart() {
        let worker = WorkerId::new(Time::ZERO, &mut Rng::new(1));
        let sum = LedgerSum {
            leases: 2,
            held: Span::from_millis(90_500),
            amount: Money::from_micros(2_750_000),
            unconfirmed_held: Span::from_secs(1),
            unconfirmed_amount: Money::from_micros(1),
        };
        let text =
            ledger_csv([("Lab, Inc.", worker, Some("w"), &sum), ("lab", worker, None, &sum)]);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[1], format!("\"Lab, Inc.\",{worker},w,2,90.5,2.75,1,0.000001"));
        assert_eq!(lines[2], format!("lab,{worker},,2,90.5,2.75,1,0.000001"));
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let cases = [
            ("lab", "lab"),
            ("a \"b\"", "\"a \"\"b\"\"\""),
            ("=1+1", "\"'=1+1\""),
            ("a\nb", "\"a\nb\""),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(field(text), expected);
        }
    }
}
