//! Reports of measurements, as text and as JSON.

use serde_json::{Map, Value, json};

use crate::histogram::RoundStatistics;
use crate::noise::Noise;

/// The results of one benchmark.
pub(crate) struct Report {
    bench: &'static str,
    settings: Map<String, Value>,
    measurements: Vec<Measurement>,
    notes: Vec<String>,
    noise: Option<Noise>,
}

struct Measurement {
    name: String,
    value: f64,
    unit: Unit,
    rounds: Option<(f64, f64)>,
    goal: Option<Goal>,
}

/// The unit of a figure.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    PerSecond(&'static str),
    Micros,
    Seconds,
    Megabytes,
    Ratio,
    Count,
}

/// The goal of a figure.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    Below(f64),
}

impl Report {
    pub(crate) fn new(bench: &'static str) -> Report {
        Report {
            bench,
            settings: Map::new(),
            measurements: Vec::new(),
            notes: Vec::new(),
            noise: None,
        }
    }

    pub(crate) fn setting(mut self, name: &str, value: impl Into<Value>) -> Report {
        self.settings.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds the other load on the machine.
    pub(crate) fn noise(&mut self, noise: Noise) {
        self.noise = Some(noise);
    }

    pub(crate) fn measurement(&mut self, name: impl Into<String>, value: f64, unit: Unit) {
        self.measurements.push(Measurement {
            name: name.into(),
            value,
            unit,
            rounds: None,
            goal: None,
        });
    }

    /// Adds the median of several rounds, with the lowest and the highest if they differ.
    pub(crate) fn rounds(&mut self, name: impl Into<String>, rounds: RoundStatistics, unit: Unit) {
        self.measurement(name, rounds.median, unit);
        if let Some(figure) = self.measurements.last_mut().filter(|_| rounds.low < rounds.high) {
            figure.rounds = Some((rounds.low, rounds.high));
        }
    }

    /// Sets the goal of the figure that was added last.
    pub(crate) fn goal(&mut self, goal: Goal) {
        if let Some(figure) = self.measurements.last_mut() {
            figure.goal = Some(goal);
        }
    }

    pub(crate) fn text(&self) -> String {
        let width = self.measurements.iter().map(|figure| figure.name.chars().count()).max();
        let width = width.unwrap_or(0);
        let mut text = String::new();
        for figure in &self.measurements {
            let line = format!(
                "{:<width$}  {:>12} {:<11}{:<24}{}",
                figure.name,
                number(figure.value),
                figure.unit.word(),
                figure.rounds.map_or(String::new(), |(low, high)| {
                    format!("({} to {})", number(low), number(high))
                }),
                figure.goal.map_or(String::new(), |goal| {
                    let met = if goal.is_met(figure.value) { "met" } else { "missed" };
                    format!("goal: {} ({met})", goal.words())
                }),
            );
            text += line.trim_end();
            text += "\n";
        }
        self.notes.iter().for_each(|note| text += &format!("{note}\n"));
        if let Some(noise) = &self.noise {
            text += &format!("{noise}\n");
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let figures: Vec<_> = self.measurements.iter().map(Measurement::json).collect();
        json!({
            "bench": self.bench,
            "settings": self.settings,
            "figures": figures,
            "notes": self.notes,
            "noise": self.noise.as_ref().map(Noise::json),
        })
    }
}

impl Measurement {
    fn json(&self) -> Value {
        let mut json = json!({ "name": self.name, "value": self.value, "unit": self.unit.word() });
        if let Some((low, high)) = self.rounds {
            json["low"] = low.into();
            json["high"] = high.into();
        }
        if let Some(goal) = self.goal {
            json["goal"] = goal.words().into();
            json["met"] = goal.is_met(self.value).into();
        }
        json
    }
}

impl Unit {
    fn word(self) -> &'static str {
        match self {
            Unit::PerSecond(what) => what,
            Unit::Micros => "µs",
            Unit::Seconds => "s",
            Unit::Megabytes => "MB",
            Unit::Ratio => "",
            Unit::Count => "tasks",
        }
    }
}

impl Goal {
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(least) => value >= least,
            Goal::Below(bound) => value < bound,
        }
    }

    fn words(self) -> String {
        match self {
            Goal::AtLeast(least) => format!("at least {}", number(least)),
            Goal::Below(bound) => format!("below {}", number(bound)),
        }
    }
}

/// At least three significant digits, and commas between thousands.
fn number(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), ""), |(w, _)| (w, &text[w.len()..]));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        for (value, text) in [
            (0.0, "0"),
            (0.456, "0.46"),
            (12.34, "12.3"),
            (999.6, "1,000"),
            (1_234_567.8, "1,234,568"),
            (-1_234.0, "-1,234"),
            (15_000.0, "15,000"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn goals_are_reported_as_met_or_missed() {
        let mut report = Report::new("x").setting("rounds", 3);
        report.rounds(
            "submits",
            RoundStatistics::of([1.0, 2.0, 3.0]),
            Unit::PerSecond("requests/s"),
        );
        report.goal(Goal::AtLeast(2.0));
        report.measurement("p50", 60.0, Unit::Micros);
        report.goal(Goal::Below(60.0));
        report.note("nginx is not installed");
        let text = report.text();
        assert!(text.contains("(1 to 3)") && text.contains("goal: at least 2 (met)"), "{text}");
        assert!(text.contains("goal: below 60 (missed)"), "{text}");
        assert!(text.ends_with("nginx is not installed\n"), "{text}");
        let json = report.json();
        assert_eq!(json["figures"][0]["met"], true);
        assert_eq!(json["figures"][1]["met"], false);
        assert_eq!(json["settings"]["rounds"], 3);
    }
}
