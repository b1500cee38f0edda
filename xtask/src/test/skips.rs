//! Tests that could not run. Such a test prints one line on standard error and returns:
//! `SKIPPED: <test name>: <reason> [needs: <capability>]`.

use std::fmt;

const MARK: &str = "SKIPPED: ";

/// A line of a test that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Skip {
    line: String,
    /// None if the line does not have the agreed form.
    needs: Option<String>,
}

impl Skip {
    fn parse(line: &str) -> Option<Self> {
        let rest = line.strip_prefix(MARK)?;
        let needs = rest.split_once(": ").and_then(|(test, rest)| {
            let (reason, needs) = rest.strip_suffix(']')?.rsplit_once(" [needs: ")?;
            let is_whole = !test.is_empty() && !reason.trim().is_empty();
            is_whole.then(|| needs.trim().to_owned())
        });
        Some(Self { line: line.to_owned(), needs })
    }

    /// Whether the skip is excused, given the capabilities of this machine (`None`: no such capability).
    pub(super) fn excuse(&self, has: impl Fn(&str) -> Option<bool>) -> Result<(), String> {
        let Some(needs) = &self.needs else {
            return Err(format!("write it as `{MARK}<test name>: <reason> [needs: <capability>]`"));
        };
        match has(needs) {
            Some(false) => Ok(()),
            Some(true) => Err(format!("this machine has `{needs}`; make the test run here")),
            None => Err(format!(
                "no capability is called `{needs}`; add its probe to xtask/src/test/machine.rs"
            )),
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.line.strip_prefix(MARK).unwrap_or(&self.line))
    }
}

/// The skips in a JUnit report that contains the output of the tests.
pub(super) fn find(report: &str) -> Vec<Skip> {
    // Output starts right after its tag.
    let lines = report.split(['\n', '>']).map(|line| line.split('<').next().unwrap_or(line));
    lines.filter_map(|line| Skip::parse(&unescape(line.trim()))).collect()
}

/// The ampersand last, or `&amp;lt;` would be unescaped twice.
fn unescape(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&#39;", "'").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(report: &str) -> Skip {
        let found = find(report);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }

    #[test]
    fn skips_are_found_in_a_report() {
        let report = "<testcase name=\"a\">\n<system-err>SKIPPED: net::dials: a &lt; b \
                      [needs: netns]\nmore\n</system-err></testcase>\n\
                      <system-out>noise SKIPPED: no</system-out>";
        assert_eq!(only(report).to_string(), "net::dials: a < b [needs: netns]");
        assert_eq!(only(report).needs.as_deref(), Some("netns"));
        let last = "<system-err>starting\nSKIPPED: a: b [needs: gpu]</system-err>";
        assert_eq!(only(last).needs.as_deref(), Some("gpu"));
    }

    #[test]
    fn a_skip_is_excused_only_where_the_capability_is_missing() {
        let has = |name: &str| match name {
            "netns" => Some(true),
            "gpu" => Some(false),
            _ => None,
        };
        for (line, excused) in [
            ("SKIPPED: a::b: no device [needs: gpu]", true),
            ("SKIPPED: a::b: not permitted [needs: netns]", false),
            ("SKIPPED: a::b: raining [needs: sunshine]", false),
            ("SKIPPED: a::b: raining", false),
            ("SKIPPED: a::b [needs: gpu]", false),
            ("SKIPPED: no device", false),
        ] {
            assert_eq!(only(line).excuse(has).is_ok(), excused, "{line}");
        }
    }
}
