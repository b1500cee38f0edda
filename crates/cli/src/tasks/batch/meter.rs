//! How far a batch is: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::Tally;

/// Often enough to see that it goes on, seldom enough for a log.
pub(super) const LINE_PAUSE: Duration = Duration::from_secs(10);

pub(super) enum Meter {
    /// A bar, and what was last said of the lines under way.
    Bar(ProgressBar, String),
    Lines,
}

impl Meter {
    pub(super) fn new(tally: &Tally) -> Meter {
        if !std::io::stderr().is_terminal() {
            return Meter::Lines;
        }
        let bar = ProgressBar::new(tally.tasks);
        let template = "{bar:40} {pos}/{len} tasks, {per_sec}, {eta} left {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_position(tally.seen_to());
        // What an earlier run did says nothing about the speed of this one.
        bar.reset_eta();
        Meter::Bar(bar, String::new())
    }

    pub(super) fn show(&mut self, tally: &Tally) {
        if let Meter::Bar(bar, _) = self {
            bar.set_position(tally.seen_to());
            if tally.failed + tally.refused > 0 {
                bar.set_message(format!("({} failed)", tally.failed + tally.refused));
            }
        }
    }

    /// Says every [`LINE_PAUSE`] how it is. Beside a bar the same is not said twice.
    pub(super) fn tell(&mut self, tally: &Tally, under_way: String) {
        match self {
            Meter::Bar(bar, said) => {
                if *said != under_way && under_way.contains(" wait") {
                    bar.suspend(|| eprintln!("{under_way}"));
                }
                *said = under_way;
            }
            Meter::Lines if under_way.is_empty() => eprintln!("{tally}"),
            Meter::Lines => eprintln!("{tally}; {under_way}"),
        }
    }

    /// Says something besides.
    pub(super) fn say(&self, line: &str) {
        match self {
            Meter::Bar(bar, _) => bar.suspend(|| eprintln!("hypha: {line}")),
            Meter::Lines => eprintln!("hypha: {line}"),
        }
    }

    pub(super) fn finish(&self) {
        if let Meter::Bar(bar, _) = self {
            bar.finish_and_clear();
        }
    }
}
