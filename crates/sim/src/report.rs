//! The outcome of a comparison: as JSON for programs, and as rows for the table.

use hypha_model::{Priority, Span};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::mix::Level;
use crate::stats::{Interval, Summary};

/// The measurements of one run, under one seed.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRun {
    /// Of all tasks.
    pub measures: Measures,
    /// Of the tasks of each priority, the highest first; empty if all have the same.
    pub levels: Vec<(Priority, Latency)>,
}

/// Times from arrival to result, of the tasks that completed. NaN if there are none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// The mean.
    pub mean_ms: f64,
    /// Half of the tasks took at most this.
    pub p50_ms: f64,
    /// 95 % took at most this.
    pub p95_ms: f64,
    /// 99 % took at most this.
    pub p99_ms: f64,
    /// 99.9 % took at most this.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// The numbers of a run; over several seeds, their means or half the widths of their confidence intervals. A number that
/// is not finite becomes `null` in JSON and `-` in the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measures {
    /// Of all tasks that completed.
    pub latency: Latency,
    /// Work done over the work that the pool could have done, 0 to 1.
    pub utilisation: f64,
    /// Jain's index, 0 to 1.
    pub fairness: f64,
    /// The share of tasks that failed permanently, 0 to 1.
    pub failed: f64,
    /// Mean latency over that of a scheduler that knows the true run times.
    pub oracle_ratio: f64,
    /// Mean latency over the bound that no scheduler can go below. NaN if tasks failed: then the bound does not apply.
    pub bound_ratio: f64,
}

/// A number of a `T` under its JSON key.
type Field<T> = (&'static str, fn(&mut T) -> &mut f64);

impl Latency {
    const NONE: Latency = Latency {
        mean_ms: f64::NAN,
        p50_ms: f64::NAN,
        p95_ms: f64::NAN,
        p99_ms: f64::NAN,
        p999_ms: f64::NAN,
        max_ms: f64::NAN,
    };

    const FIELDS: [Field<Latency>; 6] = [
        ("mean_ms", |it| &mut it.mean_ms),
        ("p50_ms", |it| &mut it.p50_ms),
        ("p95_ms", |it| &mut it.p95_ms),
        ("p99_ms", |it| &mut it.p99_ms),
        ("p999_ms", |it| &mut it.p999_ms),
        ("max_ms", |it| &mut it.max_ms),
    ];

    /// Of these latencies.
    pub fn of(latencies: Vec<Span>) -> Latency {
        Summary::of(latencies).map_or(Latency::NONE, |summary| Latency {
            mean_ms: summary.mean.as_millis_f64(),
            p50_ms: summary.p50.as_millis_f64(),
            p95_ms: summary.p95.as_millis_f64(),
            p99_ms: summary.p99.as_millis_f64(),
            p999_ms: summary.p999.as_millis_f64(),
            max_ms: summary.max.as_millis_f64(),
        })
    }
}

impl Measures {
    /// Nothing was measured.
    pub const NONE: Measures = Measures {
        latency: Latency::NONE,
        utilisation: f64::NAN,
        fairness: f64::NAN,
        failed: f64::NAN,
        oracle_ratio: f64::NAN,
        bound_ratio: f64::NAN,
    };

    const FIELDS: [Field<Measures>; 11] = [
        ("mean_ms", |it| &mut it.latency.mean_ms),
        ("p50_ms", |it| &mut it.latency.p50_ms),
        ("p95_ms", |it| &mut it.latency.p95_ms),
        ("p99_ms", |it| &mut it.latency.p99_ms),
        ("p999_ms", |it| &mut it.latency.p999_ms),
        ("max_ms", |it| &mut it.latency.max_ms),
        ("utilisation", |it| &mut it.utilisation),
        ("fairness", |it| &mut it.fairness),
        ("failed", |it| &mut it.failed),
        ("oracle_ratio", |it| &mut it.oracle_ratio),
        ("bound_ratio", |it| &mut it.bound_ratio),
    ];
}

/// One strategy under one workload and load, over the seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The workload's name.
    pub workload: String,
    /// Offered work over the pool's speed.
    pub load: f64,
    /// The strategy's name.
    pub strategy: String,
    /// The means.
    pub measures: Measures,
    /// Half the width of the 95 % confidence interval of each mean; none from a single seed.
    pub half_widths: Option<Measures>,
    /// How many seeds the means are over.
    pub seeds: usize,
    /// The same of the tasks of each priority, the highest first; empty if all have the same.
    pub levels: Vec<LevelRow>,
}

/// The tasks of one priority.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelRow {
    /// The priority.
    pub priority: Priority,
    /// The means.
    pub latency: Latency,
    /// Half the width of the 95 % confidence interval of each mean; none from a single seed.
    pub half_widths: Option<Latency>,
}

impl Row {
    /// The row over these runs, one for each seed; `None` if there are no runs.
    pub fn over_seeds(
        workload: &str,
        load: f64,
        strategy: &str,
        runs: &[MeasuredRun],
    ) -> Option<Row> {
        let all: Vec<Measures> = runs.iter().map(|run| run.measures).collect();
        let (measures, half_widths) = over_seeds(&all, &Measures::FIELDS)?;
        let level = |at: usize, priority: Priority| {
            let latencies: Vec<Latency> =
                runs.iter().filter_map(|run| run.levels.get(at)).map(|(_, it)| *it).collect();
            let (latency, half_widths) = over_seeds(&latencies, &Latency::FIELDS)?;
            Some(LevelRow { priority, latency, half_widths })
        };
        let priorities = runs.first()?.levels.iter().map(|(priority, _)| *priority).enumerate();
        Some(Row {
            workload: workload.to_owned(),
            load,
            strategy: strategy.to_owned(),
            measures,
            half_widths,
            seeds: runs.len(),
            levels: priorities.filter_map(|(at, priority)| level(at, priority)).collect(),
        })
    }
}

/// The mean of each number, and half the width of its confidence interval; `None` if there are no runs.
fn over_seeds<T: Copy>(runs: &[T], fields: &[Field<T>]) -> Option<(T, Option<T>)> {
    let (mut means, mut half_widths) = (*runs.first()?, *runs.first()?);
    let mut is_sure = true;
    for (_, field) in fields {
        let values: Vec<f64> = runs.iter().map(|run| *field(&mut run.clone())).collect();
        let interval = Interval::of(&values)?;
        *field(&mut means) = interval.mean;
        match interval.half_width {
            Some(half_width) => *field(&mut half_widths) = half_width,
            None => is_sure = false,
        }
    }
    Some((means, is_sure.then_some(half_widths)))
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("workload", &self.workload)?;
        map.serialize_entry("load", &self.load)?;
        map.serialize_entry("strategy", &self.strategy)?;
        serialize_fields(&mut map, self.measures, &Measures::FIELDS, "")?;
        map.serialize_entry("seeds", &self.seeds)?;
        if let Some(half_widths) = self.half_widths {
            serialize_fields(&mut map, half_widths, &Measures::FIELDS, "_ci")?;
        }
        if !self.levels.is_empty() {
            map.serialize_entry("levels", &self.levels)?;
        }
        map.end()
    }
}

impl Serialize for LevelRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("priority", &Level(self.priority).number())?;
        serialize_fields(&mut map, self.latency, &Latency::FIELDS, "")?;
        if let Some(half_widths) = self.half_widths {
            serialize_fields(&mut map, half_widths, &Latency::FIELDS, "_ci")?;
        }
        map.end()
    }
}

fn serialize_fields<M: SerializeMap, T: Copy>(
    map: &mut M,
    mut numbers: T,
    fields: &[Field<T>],
    suffix: &str,
) -> Result<(), M::Error> {
    fields.iter().try_for_each(|(key, field)| {
        map.serialize_entry(&format!("{key}{suffix}"), field(&mut numbers))
    })
}

/// `{"rows": [...]}` with a line for each row, in the order given.
pub fn json(rows: &[Row]) -> String {
    // Text and numbers under fixed keys: a row holds nothing that serde_json refuses.
    let lines = rows.iter().map(|row| serde_json::to_string(row).unwrap_or_default());
    let lines = lines.map(|line| format!("\n  {line}")).collect::<Vec<_>>().join(",");
    format!("{{\"rows\": [{lines}\n]}}\n")
}

/// The rows of one workload and load, best mean first; blocks in the order of their first row.
pub(crate) fn blocks(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut blocks: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let same = |block: &&mut Vec<&Row>| {
            let first = block[0];
            first.workload == row.workload && first.load.total_cmp(&row.load).is_eq()
        };
        match blocks.iter_mut().find(same) {
            Some(block) => block.push(row),
            None => blocks.push(vec![row]),
        }
    }
    for block in &mut blocks {
        let mean_ms = |row: &&Row| row.measures.latency.mean_ms;
        block.sort_by(|a, b| mean_ms(a).total_cmp(&mean_ms(b)));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mean_ms: f64) -> MeasuredRun {
        let latency =
            Latency { mean_ms, p50_ms: 2.0, p95_ms: 3.0, p99_ms: 4.0, p999_ms: 5.0, max_ms: 6.0 };
        let measures = Measures {
            latency,
            utilisation: 0.5,
            fairness: 0.75,
            failed: 0.0,
            oracle_ratio: 1.25,
            bound_ratio: f64::NAN,
        };
        MeasuredRun { measures, levels: Vec::new() }
    }

    #[track_caller]
    fn check(runs: &[MeasuredRun], expected: &str) {
        let row = Row::over_seeds("poisson", 0.8, "a \"b\"", runs);
        assert_eq!(json(row.as_slice()), expected);
    }

    #[test]
    fn json_has_the_documented_keys() {
        check(
            &[run(1.0)],
            r#"{"rows": [
  {"workload":"poisson","load":0.8,"strategy":"a \"b\"","mean_ms":1.0,"p50_ms":2.0,"p95_ms":3.0,"p99_ms":4.0,"p999_ms":5.0,"max_ms":6.0,"utilisation":0.5,"fairness":0.75,"failed":0.0,"oracle_ratio":1.25,"bound_ratio":null,"seeds":1}
]}
"#,
        );
        check(
            &[run(1.0), run(2.0), run(3.0)],
            r#"{"rows": [
  {"workload":"poisson","load":0.8,"strategy":"a \"b\"","mean_ms":2.0,"p50_ms":2.0,"p95_ms":3.0,"p99_ms":4.0,"p999_ms":5.0,"max_ms":6.0,"utilisation":0.5,"fairness":0.75,"failed":0.0,"oracle_ratio":1.25,"bound_ratio":null,"seeds":3,"mean_ms_ci":2.4843382083229595,"p50_ms_ci":0.0,"p95_ms_ci":0.0,"p99_ms_ci":0.0,"p999_ms_ci":0.0,"max_ms_ci":0.0,"utilisation_ci":0.0,"fairness_ci":0.0,"failed_ci":0.0,"oracle_ratio_ci":0.0,"bound_ratio_ci":null}
]}
"#,
        );
        check(&[], "{\"rows\": [\n]}\n");
        let nan = Row::over_seeds("w", 1.0, "s", &[run(f64::NAN)]);
        assert!(json(nan.as_slice()).contains("\"mean_ms\":null"));
    }

    #[test]
    fn each_priority_has_its_numbers() {
        let with = |high_ms: f64| {
            let latency = |mean_ms: f64| Latency { mean_ms, ..run(0.0).measures.latency };
            let levels = vec![
                (Priority::from_milli(1_500), latency(high_ms)),
                (Priority::from_milli(0), latency(9.0)),
            ];
            MeasuredRun { levels, ..run(1.0) }
        };
        let row = Row::over_seeds("w", 1.0, "s", &[with(2.0), with(4.0)]);
        let text = json(row.as_slice());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let levels = &value["rows"][0]["levels"];
        assert_eq!((&levels[0]["priority"], &levels[0]["mean_ms"]), (&1.5.into(), &3.0.into()));
        assert_eq!((&levels[1]["priority"], &levels[1]["mean_ms"]), (&0.0.into(), &9.0.into()));
        assert_eq!((&levels[1]["mean_ms_ci"], &levels[1]["max_ms"]), (&0.0.into(), &6.0.into()));
        assert!(levels[0]["utilisation"].is_null());
    }

    #[test]
    fn json_round_trips() {
        let rows: Vec<Row> = (1..=3)
            .filter_map(|seeds| Row::over_seeds("é\n", 0.5, "s", &vec![run(1.5); seeds]))
            .collect();
        let value: serde_json::Value = serde_json::from_str(&json(&rows)).unwrap_or_default();
        assert_eq!(value["rows"].as_array().map(Vec::len), Some(3));
        assert_eq!(value["rows"][2]["workload"], "é\n");
        assert_eq!(value["rows"][2]["seeds"], 3);
    }
}
