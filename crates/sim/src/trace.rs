//! A recorded sequence of requests, read from CSV text in the form of the Azure LLM inference traces.

use hypha_model::{Span, Time};
use thiserror::Error;

use crate::timestamp::parse_timestamp;

/// Requests in order of arrival; there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    rows: Vec<TraceRow>,
}

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// Time since the first request of the trace.
    pub arrival: Span,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens of the answer.
    pub output_tokens: u32,
}

/// Why a text is not a trace. Lines count from 1, the header included.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    /// There is no header.
    #[error("trace: empty: expected the header `{HEADER}`")]
    Empty,
    /// The first line is not the header.
    #[error("trace: line 1: expected the header `{HEADER}`, found `{0}`")]
    Header(String),
    /// There are no rows after the header.
    #[error("trace: no rows after the header")]
    NoRows,
    /// A line is invalid.
    #[error("trace: line {line}: {problem}")]
    Line {
        /// Which line, from 1.
        line: usize,
        /// Why it is refused.
        problem: InvalidLine,
    },
}

/// Why a line of a trace is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidLine {
    /// Not three columns.
    #[error("expected 3 columns, found {0}")]
    Columns(usize),
    /// Not a time.
    #[error("bad timestamp `{0}`: expected e.g. 2023-11-16 18:17:03.9799600")]
    Timestamp(String),
    /// Not a whole number.
    #[error("{column}: `{text}` is not a whole number")]
    Number {
        /// The column's name.
        column: &'static str,
        /// The text in that column.
        text: String,
    },
    /// Negative.
    #[error("{column}: `{text}` is negative")]
    Negative {
        /// The column's name.
        column: &'static str,
        /// The text in that column.
        text: String,
    },
    /// Above [`Trace::MAX_TOKENS`].
    #[error("{column}: `{text}` is more than {max} tokens", max = Trace::MAX_TOKENS)]
    TooManyTokens {
        /// The column's name.
        column: &'static str,
        /// The text in that column.
        text: String,
    },
    /// Further before an earlier line than [`Trace::MAX_DISORDER`] allows.
    #[error("time runs backwards by {0}: sort the file by time")]
    Backwards(Span),
}

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

impl Trace {
    /// Ten times the longest context available; a larger value suggests that columns were mixed up.
    pub const MAX_TOKENS: u32 = 10_000_000;
    /// Several front ends that write into one log disorder it by this much; more suggests a file that was
    /// joined in the wrong order.
    pub const MAX_DISORDER: Span = Span::from_secs(1);

    /// Parses CSV with the header `TIMESTAMP,ContextTokens,GeneratedTokens` and times such as
    /// `2023-11-16 18:17:03.9799600` (any number of decimals, `T` for the blank, a `Z` at the end).
    /// Lines may end in CRLF; blank ones are skipped. Rows slightly out of order are sorted, and
    /// those of the same microsecond stay in the order of the file.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().enumerate();
        let header = lines.next().map_or("", |(_, header)| header.trim());
        if text.trim().is_empty() {
            return Err(TraceError::Empty);
        }
        if header != HEADER {
            return Err(TraceError::Header(shown(header)));
        }
        let mut rows: Vec<(Time, u32, u32)> = Vec::new();
        let mut latest = Time::ZERO;
        for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let at_line = |problem| TraceError::Line { line: index + 1, problem };
            let row = parse_row(line).map_err(at_line)?;
            let disorder = latest.since(row.0);
            if disorder > Trace::MAX_DISORDER {
                return Err(at_line(InvalidLine::Backwards(disorder)));
            }
            latest = latest.max(row.0);
            rows.push(row);
        }
        rows.sort_by_key(|(time, _, _)| *time);
        let start = rows.first().ok_or(TraceError::NoRows)?.0;
        let since_start = |(time, input_tokens, output_tokens): (Time, u32, u32)| TraceRow {
            arrival: time.since(start),
            input_tokens,
            output_tokens,
        };
        Ok(Trace { rows: rows.into_iter().map(since_start).collect() })
    }

    /// The requests in order of arrival; at least one.
    pub fn rows(&self) -> &[TraceRow] {
        &self.rows
    }
}

fn parse_row(line: &str) -> Result<(Time, u32, u32), InvalidLine> {
    let mut columns = line.split(',').map(str::trim);
    let (Some(time), Some(input), Some(output), None) =
        (columns.next(), columns.next(), columns.next(), columns.next())
    else {
        return Err(InvalidLine::Columns(line.split(',').count()));
    };
    let time = parse_timestamp(time).ok_or_else(|| InvalidLine::Timestamp(shown(time)))?;
    let input_tokens = parse_tokens("ContextTokens", input)?;
    let output_tokens = parse_tokens("GeneratedTokens", output)?;
    Ok((time, input_tokens, output_tokens))
}

fn parse_tokens(column: &'static str, text: &str) -> Result<u32, InvalidLine> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidLine::Number { column, text: shown(text) });
    }
    if digits.len() < text.len() {
        return Err(InvalidLine::Negative { column, text: shown(text) });
    }
    match digits.parse() {
        Ok(tokens) if tokens <= Trace::MAX_TOKENS => Ok(tokens),
        _ => Err(InvalidLine::TooManyTokens { column, text: shown(text) }),
    }
}

fn shown(text: &str) -> String {
    const ENOUGH_TO_RECOGNISE: usize = 60;
    text.chars().take(ENOUGH_TO_RECOGNISE).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the rows below a valid header, and shows them as `micros:input/output`.
    #[track_caller]
    fn check(rows: &str, expected: &str) {
        check_text(&format!("{HEADER}\n{rows}"), expected);
    }

    #[track_caller]
    fn check_text(text: &str, expected: &str) {
        let shown = match Trace::parse(text) {
            Ok(trace) => {
                let row = |row: &TraceRow| {
                    let micros = row.arrival.as_micros();
                    format!("{micros}:{}/{}", row.input_tokens, row.output_tokens)
                };
                trace.rows().iter().map(row).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{text:?}");
    }

    #[test]
    fn rows_are_parsed() {
        check(
            "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8",
            "0:4808/10 52000:3180/8",
        );
        check("2023-11-16T18:17:03Z,1,2\n\n2023-11-16 18:17:03.5,0,0\n\n", "0:1/2 500000:0/0");
        check(
            "2023-11-16 18:17:03.123456789123,1,2\n2023-11-16 18:17:03.2 , 3 ,4",
            "0:1/2 76544:3/4",
        );
        check_text(&format!("\u{feff}{HEADER}\r\n2023-11-16 18:17:03,1,2\r\n"), "0:1/2");
    }

    #[test]
    fn slight_disorder_is_sorted_and_ties_keep_file_order() {
        check(
            "2023-11-16 18:00:01,1,1\n2023-11-16 18:00:00,2,2\n2023-11-16 18:00:01,3,3\n2023-11-16 18:00:00,4,4",
            "0:2/2 0:4/4 1000000:1/1 1000000:3/3",
        );
        check(
            "2023-11-16 18:00:02,1,1\n2023-11-16 18:00:01,2,2\n2023-11-16 18:00:00.9,2,2",
            "trace: line 4: time runs backwards by 1.10 s: sort the file by time",
        );
    }

    #[test]
    fn refusals_name_the_line() {
        let good = "2023-11-16 18:17:03,1,2\n";
        let line = |row: &str, problem: &str| {
            check(&format!("{good}{row}"), &format!("trace: line 3: {problem}"))
        };
        line("2023-11-16 18:17:03,1", "expected 3 columns, found 2");
        line("2023-11-16 18:17:03,1,2,3", "expected 3 columns, found 4");
        line(
            "yesterday,1,2",
            "bad timestamp `yesterday`: expected e.g. 2023-11-16 18:17:03.9799600",
        );
        line("2023-11-16 18:17:03,1.5,2", "ContextTokens: `1.5` is not a whole number");
        line("2023-11-16 18:17:03,1,", "GeneratedTokens: `` is not a whole number");
        line("2023-11-16 18:17:03,1,-2", "GeneratedTokens: `-2` is negative");
        line(
            "2023-11-16 18:17:03,10000001,2",
            "ContextTokens: `10000001` is more than 10000000 tokens",
        );
        line(
            "2023-11-16 18:17:03,99999999999,2",
            "ContextTokens: `99999999999` is more than 10000000 tokens",
        );
        check("", "trace: no rows after the header");
        check_text(" \n", &format!("trace: empty: expected the header `{HEADER}`"));
        check_text(
            good,
            &format!(
                "trace: line 1: expected the header `{HEADER}`, found `2023-11-16 18:17:03,1,2`"
            ),
        );
    }
}
