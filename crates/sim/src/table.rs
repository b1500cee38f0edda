//! The outcome of a comparison as a table for people.

use std::fmt::Write;

use crate::report::{HalfWidths, Row, blocks};

/// One block for each workload and load, best mean first; the best of a column has a `*`.
/// Utilisation has no best: at the same load, a busier pool is not a better one.
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

struct Column {
    head: &'static str,
    value: fn(&Row) -> f64,
    half_width: fn(&HalfWidths) -> f64,
    best: Best,
    /// `None`: as the size of the numbers asks.
    decimals: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Best {
    Least,
    Most,
    None,
}

const COLUMNS: [Column; 7] = [
    latency("mean ms", |row| row.mean_ms, |half| half.mean_ms),
    latency("p50 ms", |row| row.p50_ms, |half| half.p50_ms),
    latency("p95 ms", |row| row.p95_ms, |half| half.p95_ms),
    latency("p99 ms", |row| row.p99_ms, |half| half.p99_ms),
    share("utilisation", |row| row.utilisation, |half| half.utilisation, Best::None),
    share("fairness", |row| row.fairness, |half| half.fairness, Best::Most),
    share("mean/oracle", |row| row.oracle_ratio, |half| half.oracle_ratio, Best::Least),
];

const fn latency(
    head: &'static str,
    value: fn(&Row) -> f64,
    half_width: fn(&HalfWidths) -> f64,
) -> Column {
    Column { head, value, half_width, best: Best::Least, decimals: None }
}

const fn share(
    head: &'static str,
    value: fn(&Row) -> f64,
    half_width: fn(&HalfWidths) -> f64,
    best: Best,
) -> Column {
    Column { head, value, half_width, best, decimals: Some(3) }
}

fn block_text(block: &[&Row]) -> String {
    let first = block[0];
    let seeds =
        if first.seeds == 1 { "1 seed".to_owned() } else { format!("{} seeds", first.seeds) };
    let mut text = format!("{}, load {:.2}, {seeds}\n", first.workload, first.load);
    let names = block.iter().map(|row| row.strategy.clone());
    let mut columns = vec![left_aligned("strategy", names.collect())];
    columns.extend(COLUMNS.iter().map(|column| column.cells(block)));
    for line in 0..=block.len() {
        let cells: Vec<&str> = columns.iter().map(|cells| cells[line].as_str()).collect();
        let _infallible = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    text
}

impl Column {
    /// The head and a cell for each row, all equally wide.
    fn cells(&self, block: &[&Row]) -> Vec<String> {
        let values: Vec<f64> = block.iter().map(|row| (self.value)(row)).collect();
        let decimals = self.decimals.unwrap_or_else(|| decimals_for(&values));
        let number = |value: f64| {
            if value.is_finite() { format!("{value:.decimals$}") } else { "-".to_owned() }
        };
        let best = self.best(&values).map(number);
        let shown: Vec<String> = values.iter().map(|value| number(*value)).collect();
        let half_width = |row: &&Row| row.half_widths.map(|half| number((self.half_width)(&half)));
        let half_widths: Vec<Option<String>> = block.iter().map(half_width).collect();
        let half_room = half_widths.iter().flatten().map(String::len).max().unwrap_or(0);
        let cell = |(value, half): (&String, &Option<String>)| {
            // What looks the same is marked the same.
            let mark = if best.as_ref() == Some(value) { '*' } else { ' ' };
            match half {
                Some(half) => format!("{value} ± {half:>half_room$}{mark}"),
                None => format!("{value}{mark}"),
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

/// About four digits of the least value: enough to tell strategies apart, and no more than means hold.
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
    use crate::report::Measures;

    fn row(workload: &str, load: f64, strategy: &str, means_ms: &[f64]) -> Option<Row> {
        let run = |mean_ms: &f64| Measures {
            mean_ms: *mean_ms,
            p50_ms: mean_ms / 2.0,
            p95_ms: mean_ms * 3.0,
            p99_ms: mean_ms * 4.0,
            utilisation: 0.8,
            fairness: 1.0 - mean_ms / 1e6,
            oracle_ratio: mean_ms / 1000.0,
        };
        Row::over_seeds(workload, load, strategy, &means_ms.iter().map(run).collect::<Vec<_>>())
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
                "  strategy    mean ms    p50 ms   p95 ms   p99 ms   utilisation   fairness   mean/oracle",
                "  predictive     1500*    750.1*    4501*    6001*        0.800      0.998*        1.500*",
                "  twin           1500*    750.1*    4501*    6001*        0.800      0.998*        1.500*",
                "  random        20000   10000.0    60000    80000         0.800      0.980        20.000",
                "",
                "pareto, load 0.80, 1 seed",
                "  strategy  mean ms   p50 ms   p95 ms   p99 ms   utilisation   fairness   mean/oracle",
                "  random      5.000    2.500     15.0     20.0         0.800      1.000         0.005",
                "",
                "poisson, load 0.50, 1 seed",
                "  strategy    mean ms   p50 ms   p95 ms   p99 ms   utilisation   fairness   mean/oracle",
                "  predictive        -        -        -        -         0.800          -             -",
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
                "  strategy       mean ms        p50 ms          p95 ms          p99 ms     utilisation        fairness     mean/oracle",
                "  bb         90.5 ±  6.4*  45.2 ±  3.2*  271.5 ±  19.1*  362.0 ±  25.4*  0.800 ± 0.000   1.000 ± 0.000*  0.090 ± 0.006*",
                "  a         105.0 ± 63.5   52.5 ± 31.8   315.0 ± 190.6   420.0 ± 254.1   0.800 ± 0.000   1.000 ± 0.000*  0.105 ± 0.064",
                "",
                "* the best of its column; ± the 95 % confidence interval over the seeds",
            ],
        );
        check(&[], &[]);
    }
}
