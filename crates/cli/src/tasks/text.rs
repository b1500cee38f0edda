//! Formats values for people: ages, durations, and text that fits a line.

use std::time::{Duration, SystemTime};

use hypha_client::Timestamp;
use hypha_model::{Span, Time};

/// Fits most terminals, and a window beside another.
pub(crate) const MAX_COLUMNS: usize = 100;

/// The time by this machine's clock.
pub(crate) fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Time::from_micros(since.map_or(0, |since| since.as_micros() as u64))
}

/// `3s ago`. The clocks of two machines differ: a time in the future counts as now.
pub(crate) fn ago(now: Time, at: &Timestamp) -> String {
    format!("{} ago", length(now.since(at.time())))
}

/// A duration in its largest unit: `45s`, `12m`, `5h`, `3d`.
fn length(span: Span) -> String {
    let seconds = span.as_micros() / 1_000_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A duration in the unit that fits, with enough digits: `12.3 ms`, `1.20 s`, `12m`.
pub(crate) fn took(span: Span) -> String {
    match span {
        short if short < Span::from_secs(60) => short.to_string(),
        long => length(long),
    }
}

/// The same for milliseconds as the API writes them.
pub(crate) fn took_millis(millis: f64) -> String {
    let length = Duration::try_from_secs_f64(millis / 1_000.0).unwrap_or_default();
    took(Span::from_micros(u64::try_from(length.as_micros()).unwrap_or(u64::MAX)))
}

/// Untrusted text on one line: nothing in it moves the cursor.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `1 task`, `2 tasks`.
pub(crate) fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn and(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// At most `width` characters, with an ellipsis if some are missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// The same with a hint: `…abc… (4 MB; --json has all of it)`.
pub(crate) fn cut_saying(text: &str, width: usize, advice: &str) -> String {
    match text.chars().nth(width) {
        None => text.to_owned(),
        Some(_) => format!("{} ({}; {advice})", cut(text, width), bytes(text.len() as u64)),
    }
}

/// `512 bytes`, `4 MB`, `1.25 GB`.
pub(crate) fn bytes(amount: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.into_iter().find(|(size, _)| amount as f64 >= *size) {
        Some((size, name)) => format!("{} {name}", (amount as f64 / size * 100.0).round() / 100.0),
        None => count(amount, "byte"),
    }
}

/// Cuts one column of a table so that the whole fits [`MAX_COLUMNS`].
pub(crate) fn fit<const N: usize>(rows: &mut [[String; N]], column: usize) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let others: usize =
        (0..N).filter(|other| *other != column).map(|other| width(other).unwrap_or(0)).sum();
    // Two spaces between columns.
    let left = MAX_COLUMNS.saturating_sub(others + 2 * N.saturating_sub(1)).max(1);
    for row in rows {
        row[column] = cut(&row[column], left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |seconds| ago(at.time() + Span::from_secs(seconds), &at);
        assert_eq!(
            [0, 59, 60, 3_599, 3_600, 172_799, 172_800].map(after),
            ["0s ago", "59s ago", "1m ago", "59m ago", "1h ago", "47h ago", "2d ago"]
        );
        assert_eq!(ago(Time::ZERO, &at), "0s ago");
        assert_eq!(took_millis(12.34), "12.3 ms");
        assert_eq!(took_millis(90_000.0), "1m");
        assert_eq!(took_millis(f64::NAN), "0 s");
    }

    #[test]
    fn a_table_is_cut_to_the_width_of_a_terminal() {
        let row = |middle: usize| ["x".repeat(41), "é".repeat(middle), "z".repeat(30)];
        let mut rows = [row(5), row(200)];
        fit(&mut rows, 1);
        assert_eq!(rows[0][1], "é".repeat(5));
        assert_eq!(rows[1][1], format!("{}…", "é".repeat(24)));
        let widest: usize = rows[1].iter().map(|cell| cell.chars().count()).sum();
        assert_eq!(widest + 4, MAX_COLUMNS);
    }

    #[test]
    fn cut_text_shows_its_size() {
        let sizes = [0, 1, 999, 1_000, 1_234_567, 4_000_000, 1_250_000_000].map(bytes);
        let expected = ["0 bytes", "1 byte", "999 bytes", "1 kB", "1.23 MB", "4 MB", "1.25 GB"];
        assert_eq!(sizes, expected);
        assert_eq!(cut_saying("abc", 3, "more"), "abc");
        assert_eq!(cut_saying("abcé", 3, "more"), "ab… (5 bytes; more)");
    }

    #[test]
    fn numbers_and_lists_read_as_sentences() {
        assert_eq!([0, 1, 2].map(|number| count(number, "task")), ["0 tasks", "1 task", "2 tasks"]);
        let list = |items: &[&str]| and(&items.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!([list(&[]), list(&["a"])], ["", "a"]);
        assert_eq!([list(&["a", "b"]), list(&["a", "b", "c"])], ["a and b", "a, b and c"]);
    }

    #[test]
    fn nothing_from_elsewhere_moves_the_cursor() {
        assert_eq!(clean("a\x1b[2Jb\nc"), "a [2Jb c");
    }
}
