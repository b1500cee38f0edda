//! The outcome of a comparison as a table for people.

use std::fmt::Write;

use crate::mix::Level;
use crate::report::{Latency, Measures, Row, blocks};

/// One block for each workload and load, best mean first; the best of a column has a `*`. If tasks have priorities, a
/// block for each of them follows, in the same order. Utilisation has no best: at the same load, a busier pool is not a
/// better one.
pub fn table(rows: &[Row]) -> String {
    let blocks = blocks(rows);
    let mut text = blocks.iter().map(|block| block_text(block)).collect::<Vec<_>>().join("\n");
    if !rows.is_empty() {
        text.push_str("\n* the best of its column");
        if rows.iter().any(|row| row.half_widths.is_some()) {
            text.push_str("; ± the 95 % confidence interval over the seeds");
        }
        text.push('\n');
    }
    text
}

/// A column of numbers of a `T`.
struct Column<T> {
    head: &'static str,
    value: fn(&T) -> f64,
    best: Best,
    /// `None`: decided by the magnitude of the numbers.
    decimals: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Best {
    Least,
    Most,
    None,
}

const LATENCY: [Column<Latency>; 6] = [
    latency("mean ms", |it| it.mean_ms),
    latency("p50 ms", |it| it.p50_ms),
    latency("p95 ms", |it| it.p95_ms),
    latency("p99 ms", |it| it.p99_ms),
    latency("p99.9 ms", |it| it.p999_ms),
    latency("max ms", |it| it.max_ms),
];

const SHARES: [Column<Measures>; 4] = [
    share("utilisation", |it| it.utilisation, Best::None),
    share("fairness", |it| it.fairness, Best::Most),
    share("mean/oracle", |it| it.oracle_ratio, Best::Least),
    share("mean/bound", |it| it.bound_ratio, Best::Least),
];

/// Shown only if a task failed.
const FAILED: Column<Measures> =
    Column { decimals: Some(5), ..share("failed", |it| it.failed, Best::Least) };

const fn latency(head: &'static str, value: fn(&Latency) -> f64) -> Column<Latency> {
    Column { head, value, best: Best::Least, decimals: None }
}

const fn share(head: &'static str, value: fn(&Measures) -> f64, best: Best) -> Column<Measures> {
    Column { head, value, best, decimals: Some(3) }
}

fn block_text(block: &[&Row]) -> String {
    let first = block[0];
    let seeds =
        if first.seeds == 1 { "1 seed".to_owned() } else { format!("{} seeds", first.seeds) };
    let head = format!("{}, load {:.2}", first.workload, first.load);
    let of_all: Vec<(&Measures, Option<&Measures>)> =
        block.iter().map(|row| (&row.measures, row.half_widths.as_ref())).collect();
    let mut columns = latency_columns(
        block
            .iter()
            .map(|row| (&row.measures.latency, row.half_widths.as_ref().map(|it| &it.latency))),
    );
    columns.extend(SHARES.iter().map(|column| column.cells(&of_all)));
    if block.iter().any(|row| row.measures.failed > 0.0) {
        columns.push(FAILED.cells(&of_all));
    }
    let mut text = lines(&format!("{head}, {seeds}"), block, columns);
    for (at, level) in first.levels.iter().enumerate() {
        let of_level = block.iter().filter_map(|row| row.levels.get(at));
        let columns = latency_columns(of_level.map(|it| (&it.latency, it.half_widths.as_ref())));
        text.push('\n');
        text.push_str(&lines(
            &format!("{head}, priority {}", Level(level.priority)),
            block,
            columns,
        ));
    }
    text
}

fn latency_columns<'a>(
    rows: impl Iterator<Item = (&'a Latency, Option<&'a Latency>)>,
) -> Vec<Vec<String>> {
    let rows: Vec<_> = rows.collect();
    LATENCY.iter().map(|column| column.cells(&rows)).collect()
}

/// A heading, and under it the names of the strategies and these columns.
fn lines(head: &str, block: &[&Row], columns: Vec<Vec<String>>) -> String {
    let names = left_aligned("strategy", block.iter().map(|row| row.strategy.clone()).collect());
    let mut text = format!("{head}\n");
    for (line, name) in names.iter().enumerate() {
        let mut cells = vec![name.as_str()];
        cells.extend(columns.iter().filter_map(|cells| cells.get(line)).map(String::as_str));
        let _infallible = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    text
}

impl<T> Column<T> {
    /// The heading and a cell for each row, all equally wide.
    fn cells(&self, rows: &[(&T, Option<&T>)]) -> Vec<String> {
        let values: Vec<f64> = rows.iter().map(|(row, _)| (self.value)(row)).collect();
        let decimals = self.decimals.unwrap_or_else(|| decimals_for(&values));
        let number = |value: f64| {
            if value.is_finite() { format!("{value:.decimals$}") } else { "-".to_owned() }
        };
        let best = self.best(&values).map(number);
        let shown: Vec<String> = values.iter().map(|value| number(*value)).collect();
        let half_width = |(_, half): &(&T, Option<&T>)| half.map(|half| number((self.value)(half)));
        let half_widths: Vec<Option<String>> = rows.iter().map(half_width).collect();
        let half_room = half_widths.iter().flatten().map(String::len).max().unwrap_or(0);
        let cell = |(value, half): (&String, &Option<String>)| {
            // Values that print the same are marked the same.
            let mark = if best.as_ref() == Some(value) { '*' } else { ' ' };
            match half {
                // A missing number has no confidence interval.
                Some(half) if value != "-" => format!("{value} ± {half:>half_room$}{mark}"),
                _ => format!("{value}{mark}"),
            }
        };
        let cells = shown.iter().zip(&half_widths).map(cell).collect();
        right_aligned(&format!("{} ", self.head), cells)
    }

    fn best(&self, values: &[f64]) -> Option<f64> {
        let finite = values.iter().copied().filter(|value| value.is_finite());
        match self.best {
            _ if values.len() < 2 => None,
            Best::Least => finite.min_by(f64::total_cmp),
            Best::Most => finite.max_by(f64::total_cmp),
            Best::None => None,
        }
    }
}

/// About four digits of the least value: enough to distinguish strategies, and no more than means hold.
fn decimals_for(values: &[f64]) -> usize {
    let finite = values.iter().map(|value| value.abs()).filter(|value| value.is_finite());
    match finite.fold(f64::INFINITY, f64::min) {
        least if least >= 1000.0 => 0,
        least if least >= 10.0 => 1,
        _ => 3,
    }
}

fn left_aligned(head: &str, cells: Vec<String>) -> Vec<String> {
    let room = width(&cells).max(head.chars().count());
    with_head(head, &cells).map(|cell| format!("{cell:<room$}")).collect()
}

fn right_aligned(head: &str, cells: Vec<String>) -> Vec<String> {
    let room = width(&cells).max(head.chars().count());
    with_head(head, &cells).map(|cell| format!("{cell:>room$}")).collect()
}

fn with_head<'a>(head: &'a str, cells: &'a [String]) -> impl Iterator<Item = &'a str> {
    std::iter::once(head).chain(cells.iter().map(String::as_str))
}

fn width(cells: &[String]) -> usize {
    cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::MeasuredRun;
    use hypha_model::Priority;

    fn run(mean_ms: f64) -> MeasuredRun {
        let latency = Latency {
            mean_ms,
            p50_ms: mean_ms / 2.0,
            p95_ms: mean_ms * 3.0,
            p99_ms: mean_ms * 4.0,
            p999_ms: mean_ms * 4.5,
            max_ms: mean_ms * 6.0,
        };
        let measures = Measures {
            latency,
            utilisation: 0.8,
            fairness: 1.0 - mean_ms / 1e6,
            failed: 0.0,
            oracle_ratio: mean_ms / 1000.0,
            bound_ratio: mean_ms / 500.0,
        };
        MeasuredRun { measures, levels: Vec::new() }
    }

    fn row(workload: &str, load: f64, strategy: &str, means_ms: &[f64]) -> Option<Row> {
        let runs: Vec<MeasuredRun> = means_ms.iter().map(|mean_ms| run(*mean_ms)).collect();
        Row::over_seeds(workload, load, strategy, &runs)
    }

    #[track_caller]
    fn check(rows: &[Option<Row>], expected: &[&str]) {
        let rows: Vec<Row> = rows.iter().flatten().cloned().collect();
        assert_eq!(table(&rows).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn blocks_are_sorted_by_mean_and_the_best_are_marked() {
        check(
            &[
                row("poisson", 0.8, "random", &[20_000.0]),
                row("pareto", 0.8, "random", &[5.0]),
                row("poisson", 0.8, "predictive", &[1500.25]),
                row("poisson", 0.5, "predictive", &[f64::NAN]),
                row("poisson", 0.8, "twin", &[1500.3]),
            ],
            &[
                "poisson, load 0.80, 1 seed",
                "  strategy    mean ms    p50 ms   p95 ms   p99 ms   p99.9 ms   max ms   utilisation   fairness   mean/oracle   mean/bound",
                "  predictive     1500*    750.1*    4501*    6001*      6751*    9002*        0.800      0.998*        1.500*       3.001*",
                "  twin           1500*    750.1*    4501*    6001*      6751*    9002*        0.800      0.998*        1.500*       3.001*",
                "  random        20000   10000.0    60000    80000      90000   120000         0.800      0.980        20.000       40.000",
                "",
                "pareto, load 0.80, 1 seed",
                "  strategy  mean ms   p50 ms   p95 ms   p99 ms   p99.9 ms   max ms   utilisation   fairness   mean/oracle   mean/bound",
                "  random      5.000    2.500     15.0     20.0       22.5     30.0         0.800      1.000         0.005        0.010",
                "",
                "poisson, load 0.50, 1 seed",
                "  strategy    mean ms   p50 ms   p95 ms   p99 ms   p99.9 ms   max ms   utilisation   fairness   mean/oracle   mean/bound",
                "  predictive        -        -        -        -          -        -         0.800          -             -            -",
                "",
                "* the best of its column",
            ],
        );
    }

    #[test]
    fn several_seeds_show_their_confidence() {
        check(
            &[row("burst", 0.95, "a", &[100.0, 110.0]), row("burst", 0.95, "bb", &[90.0, 91.0])],
            &[
                "burst, load 0.95, 2 seeds",
                "  strategy       mean ms        p50 ms          p95 ms          p99 ms        p99.9 ms          max ms     utilisation        fairness     mean/oracle      mean/bound",
                "  bb         90.5 ±  6.4*  45.2 ±  3.2*  271.5 ±  19.1*  362.0 ±  25.4*  407.2 ±  28.6*  543.0 ±  38.1*  0.800 ± 0.000   1.000 ± 0.000*  0.090 ± 0.006*  0.181 ± 0.013*",
                "  a         105.0 ± 63.5   52.5 ± 31.8   315.0 ± 190.6   420.0 ± 254.1   472.5 ± 285.9   630.0 ± 381.2   0.800 ± 0.000   1.000 ± 0.000*  0.105 ± 0.064   0.210 ± 0.127",
                "",
                "* the best of its column; ± the 95 % confidence interval over the seeds",
            ],
        );
        check(&[], &[]);
    }

    #[test]
    fn priorities_have_blocks_and_failures_a_column() {
        let with = |strategy: &str, mean_ms: f64, failed: f64| {
            let mut run = run(mean_ms);
            run.measures.failed = failed;
            // There is no bound where a task failed.
            run.measures.bound_ratio = if failed > 0.0 { f64::NAN } else { 2.0 };
            let latency = Latency { mean_ms: 30.0 - mean_ms, ..run.measures.latency };
            run.levels = vec![
                (Priority::from_milli(1_500), latency),
                (Priority::from_milli(0), run.measures.latency),
            ];
            Row::over_seeds("burst", 0.5, strategy, &[run])
        };
        check(
            &[with("a", 10.0, 0.0), with("b", 20.0, 0.0025)],
            &[
                "burst, load 0.50, 1 seed",
                "  strategy  mean ms   p50 ms   p95 ms   p99 ms   p99.9 ms   max ms   utilisation   fairness   mean/oracle   mean/bound    failed",
                "  a            10.0*   5.000*    30.0*    40.0*      45.0*    60.0*        0.800      1.000*        0.010*       2.000*  0.00000*",
                "  b            20.0   10.000     60.0     80.0       90.0    120.0         0.800      1.000*        0.020            -   0.00250",
                "",
                "burst, load 0.50, priority 1.5",
                "  strategy  mean ms   p50 ms   p95 ms   p99 ms   p99.9 ms   max ms",
                "  a            20.0    5.000*    30.0*    40.0*      45.0*    60.0*",
                "  b            10.0*  10.000     60.0     80.0       90.0    120.0",
                "",
                "burst, load 0.50, priority 0",
                "  strategy  mean ms   p50 ms   p95 ms   p99 ms   p99.9 ms   max ms",
                "  a            10.0*   5.000*    30.0*    40.0*      45.0*    60.0*",
                "  b            20.0   10.000     60.0     80.0       90.0    120.0",
                "",
                "* the best of its column",
            ],
        );
    }
}
