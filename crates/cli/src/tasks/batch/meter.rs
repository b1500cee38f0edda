//! How far a batch is: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::Tally;

/// Often enough to see that it goes on, seldom enough for a log.
const LINE_PAUSE: Duration = Duration::from_secs(10);

pub(super) enum Meter {
    Bar(ProgressBar),
    Lines { said: Instant },
}

impl Meter {
    pub(super) fn new(tally: &Tally) -> Meter {
        if !std::io::stderr().is_terminal() {
            return Meter::Lines { said: Instant::now() };
        }
        let bar = ProgressBar::new(tally.tasks);
        let template = "{bar:40} {pos}/{len} tasks, {per_sec}, {eta} left {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_position(tally.seen_to());
        // What an earlier run did says nothing about the speed of this one.
        bar.reset_eta();
        Meter::Bar(bar)
    }

    pub(super) fn show(&mut self, tally: &Tally) {
        match self {
            Meter::Bar(bar) => {
                bar.set_position(tally.seen_to());
                if tally.failed + tally.refused > 0 {
                    bar.set_message(format!("({} failed)", tally.failed + tally.refused));
                }
            }
            Meter::Lines { said } => {
                if said.elapsed() >= LINE_PAUSE {
                    eprintln!("{tally}");
                    *said = Instant::now();
                }
            }
        }
    }

    /// Says something besides.
    pub(super) fn say(&self, line: &str) {
        match self {
            Meter::Bar(bar) => bar.suspend(|| eprintln!("hypha: {line}")),
            Meter::Lines { .. } => eprintln!("hypha: {line}"),
        }
    }

    pub(super) fn finish(&self) {
        if let Meter::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
