//! The outcome of a comparison: for people as a table, for machines as JSON.

use serde::Serialize;

use crate::stats::Interval;

/// What one run, under one seed, was measured to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measures {
    /// Mean time from arrival to result.
    pub mean_ms: f64,
    /// Half of the requests took at most this.
    pub p50_ms: f64,
    /// 95 % took at most this.
    pub p95_ms: f64,
    /// 99 % took at most this.
    pub p99_ms: f64,
    /// The part of the pool's speed that was at work, 0 to 1.
    pub utilisation: f64,
    /// Jain's index, 0 to 1.
    pub fairness: f64,
    /// Mean latency over that of a scheduler that knows the true run times.
    pub oracle_ratio: f64,
}

/// One strategy under one workload and load: means over the seeds. A number that is not finite becomes
/// `null` in JSON and `-` in the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The workload's name.
    pub workload: String,
    /// Offered work over the pool's speed.
    pub load: f64,
    /// The strategy's name.
    pub strategy: String,
    /// See [`Measures::mean_ms`]; so for the following.
    pub mean_ms: f64,
    /// Median latency.
    pub p50_ms: f64,
    /// 95th percentile of latency.
    pub p95_ms: f64,
    /// 99th percentile of latency.
    pub p99_ms: f64,
    /// Speed at work over speed there is.
    pub utilisation: f64,
    /// Jain's index.
    pub fairness: f64,
    /// Mean latency over the oracle's.
    pub oracle_ratio: f64,
    /// How many seeds the means are over.
    pub seeds: usize,
    /// 95 % confidence of the means; none from a single seed.
    #[serde(flatten)]
    pub half_widths: Option<HalfWidths>,
}

/// Half the width of the 95 % confidence interval of each number of a [`Row`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "each is that of the row's field of the same name")]
pub struct HalfWidths {
    #[serde(rename = "mean_ms_ci")]
    pub mean_ms: f64,
    #[serde(rename = "p50_ms_ci")]
    pub p50_ms: f64,
    #[serde(rename = "p95_ms_ci")]
    pub p95_ms: f64,
    #[serde(rename = "p99_ms_ci")]
    pub p99_ms: f64,
    #[serde(rename = "utilisation_ci")]
    pub utilisation: f64,
    #[serde(rename = "fairness_ci")]
    pub fairness: f64,
    #[serde(rename = "oracle_ratio_ci")]
    pub oracle_ratio: f64,
}

impl Row {
    /// The row over these runs, one for each seed; `None` of no runs.
    pub fn over_seeds(workload: &str, load: f64, strategy: &str, runs: &[Measures]) -> Option<Row> {
        let over = |field: fn(&Measures) -> f64| {
            Interval::of(&runs.iter().map(field).collect::<Vec<f64>>())
        };
        let (mean, p50) = (over(|run| run.mean_ms)?, over(|run| run.p50_ms)?);
        let (p95, p99) = (over(|run| run.p95_ms)?, over(|run| run.p99_ms)?);
        let (utilisation, fairness) = (over(|run| run.utilisation)?, over(|run| run.fairness)?);
        let oracle_ratio = over(|run| run.oracle_ratio)?;
        let half_widths = || {
            Some(HalfWidths {
                mean_ms: mean.half_width?,
                p50_ms: p50.half_width?,
                p95_ms: p95.half_width?,
                p99_ms: p99.half_width?,
                utilisation: utilisation.half_width?,
                fairness: fairness.half_width?,
                oracle_ratio: oracle_ratio.half_width?,
            })
        };
        Some(Row {
            workload: workload.to_owned(),
            load,
            strategy: strategy.to_owned(),
            mean_ms: mean.mean,
            p50_ms: p50.mean,
            p95_ms: p95.mean,
            p99_ms: p99.mean,
            utilisation: utilisation.mean,
            fairness: fairness.mean,
            oracle_ratio: oracle_ratio.mean,
            seeds: runs.len(),
            half_widths: half_widths(),
        })
    }
}

/// `{"rows": [...]}` with a line for each row, in the order given.
pub fn json(rows: &[Row]) -> String {
    // Text and numbers under fixed keys: there is nothing in a row that serde_json refuses.
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
        block.sort_by(|a, b| a.mean_ms.total_cmp(&b.mean_ms));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mean_ms: f64) -> Measures {
        Measures {
            mean_ms,
            p50_ms: 2.0,
            p95_ms: 3.0,
            p99_ms: 4.0,
            utilisation: 0.5,
            fairness: 0.75,
            oracle_ratio: 1.25,
        }
    }

    #[track_caller]
    fn check(runs: &[Measures], expected: &str) {
        let row = Row::over_seeds("poisson", 0.8, "a \"b\"", runs);
        assert_eq!(json(row.as_slice()), expected);
    }

    #[test]
    fn json_has_the_promised_keys() {
        check(
            &[run(1.0)],
            r#"{"rows": [
  {"workload":"poisson","load":0.8,"strategy":"a \"b\"","mean_ms":1.0,"p50_ms":2.0,"p95_ms":3.0,"p99_ms":4.0,"utilisation":0.5,"fairness":0.75,"oracle_ratio":1.25,"seeds":1}
]}
"#,
        );
        check(
            &[run(1.0), run(2.0), run(3.0)],
            r#"{"rows": [
  {"workload":"poisson","load":0.8,"strategy":"a \"b\"","mean_ms":2.0,"p50_ms":2.0,"p95_ms":3.0,"p99_ms":4.0,"utilisation":0.5,"fairness":0.75,"oracle_ratio":1.25,"seeds":3,"mean_ms_ci":2.4843382083229595,"p50_ms_ci":0.0,"p95_ms_ci":0.0,"p99_ms_ci":0.0,"utilisation_ci":0.0,"fairness_ci":0.0,"oracle_ratio_ci":0.0}
]}
"#,
        );
        check(&[], "{\"rows\": [\n]}\n");
        let nan = Row::over_seeds("w", 1.0, "s", &[run(f64::NAN)]);
        assert!(json(nan.as_slice()).contains("\"mean_ms\":null"));
    }

    #[test]
    fn json_is_read_back() {
        let rows: Vec<Row> = (1..=3)
            .filter_map(|seeds| Row::over_seeds("é\n", 0.5, "s", &vec![run(1.5); seeds]))
            .collect();
        let value: serde_json::Value = serde_json::from_str(&json(&rows)).unwrap_or_default();
        assert_eq!(value["rows"].as_array().map(Vec::len), Some(3));
        assert_eq!(value["rows"][2]["workload"], "é\n");
        assert_eq!(value["rows"][2]["seeds"], 3);
    }
}
