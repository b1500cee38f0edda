//! The progress of a batch: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::Tally;

/// Often enough to show progress, seldom enough for a log.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(10);

pub(super) enum ProgressReporter {
    /// A bar, and the last report about the lines in flight.
    Bar(ProgressBar, String),
    Lines,
}

impl ProgressReporter {
    pub(super) fn new(tally: &Tally) -> ProgressReporter {
        if !std::io::stderr().is_terminal() {
            return ProgressReporter::Lines;
        }
        let bar = ProgressBar::new(tally.tasks);
        let template = "{bar:40} {pos}/{len} tasks, {per_sec}, {eta} left {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_position(tally.processed());
        // Lines of an earlier run do not count towards the speed of this one.
        bar.reset_eta();
        ProgressReporter::Bar(bar, String::new())
    }

    pub(super) fn show(&mut self, tally: &Tally) {
        if let ProgressReporter::Bar(bar, _) = self {
            bar.set_position(tally.processed());
            if tally.failed + tally.refused > 0 {
                bar.set_message(format!("({} failed)", tally.failed + tally.refused));
            }
        }
    }

    /// Reports the progress every [`REPORT_INTERVAL`]. Beside a bar, the same report is not repeated.
    pub(super) fn report(&mut self, tally: &Tally, in_flight_lines: String) {
        match self {
            ProgressReporter::Bar(bar, said) => {
                if *said != in_flight_lines && in_flight_lines.contains(" wait") {
                    bar.suspend(|| eprintln!("{in_flight_lines}"));
                }
                *said = in_flight_lines;
            }
            ProgressReporter::Lines if in_flight_lines.is_empty() => eprintln!("{tally}"),
            ProgressReporter::Lines => eprintln!("{tally}; {in_flight_lines}"),
        }
    }

    /// Prints a message beside the progress.
    pub(super) fn say(&self, line: &str) {
        match self {
            ProgressReporter::Bar(bar, _) => bar.suspend(|| eprintln!("hypha: {line}")),
            ProgressReporter::Lines => eprintln!("hypha: {line}"),
        }
    }

    pub(super) fn finish(&self) {
        if let ProgressReporter::Bar(bar, _) = self {
            bar.finish_and_clear();
        }
    }
}
