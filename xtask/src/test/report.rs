//! How many tests ran, from nextest's JUnit report and from the output of `cargo test`.

use std::ops::Add;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: usize,
    pub(super) failed: usize,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

/// The totals in the outermost element of a JUnit report.
pub(super) fn counts(report: &str) -> Counts {
    let element = report.split_once("<testsuites").map_or("", |(_, rest)| rest);
    let element = element.split('>').next().unwrap_or_default();
    let total = |name: &str| -> usize {
        let value = element.split_once(&format!(" {name}=\"")).map_or("", |(_, rest)| rest);
        value.split('"').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    let failed = total("failures") + total("errors");
    Counts { passed: total("tests").saturating_sub(failed), failed }
}

/// What one line of `cargo test` adds: only its lines `test result: ok. 3 passed; 0 failed; …`
/// do.
pub(super) fn doc_test_counts(line: &str) -> Counts {
    let Some(result) = line.strip_prefix("test result: ") else {
        return Counts::default();
    };
    let words: Vec<_> = result.split_whitespace().collect();
    let before = |name: &str| -> usize {
        let at = words.windows(2).find(|pair| pair[1] == name);
        at.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
    };
    Counts { passed: before("passed;"), failed: before("failed;") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_from_the_outermost_element() {
        let report = "<?xml version=\"1.0\"?>\n<testsuites name=\"nextest-run\" tests=\"9\" \
                      failures=\"2\" errors=\"1\" uuid=\"x\">\n<testsuite tests=\"4\">";
        assert_eq!(counts(report), Counts { passed: 6, failed: 3 });
        assert_eq!(counts("not a report"), Counts::default());
    }

    #[test]
    fn result_lines_are_counted_and_no_others() {
        let line = "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(doc_test_counts(line), Counts { passed: 3, failed: 1 });
        assert_eq!(doc_test_counts("test a ... 5 passed; ok"), Counts::default());
    }
}
