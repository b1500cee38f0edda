//! A picture of a comparison: for each workload and load a panel, for each strategy a bar of its mean and
//! one of its p99.

use crate::axis::{Axis, duration, round_duration};
use crate::report::{Latency, Row, blocks};
use crate::svg::{Anchor, Svg, shorten};

const MARGIN: f64 = 24.0;
const HEAD: f64 = 64.0;
const PANEL: f64 = 500.0;
const PANEL_GAP: f64 = 32.0;
const PANEL_HEAD: f64 = 24.0;
const PANEL_FOOT: f64 = 36.0;
const NAMES: f64 = 136.0;
/// To the right of the longest bar, for its value.
const VALUES: f64 = 58.0;
const GROUP: f64 = 32.0;
const BAR: f64 = 11.0;
/// A bar longer than this many times the best p99 is broken off: the latency of an unstable strategy only
/// shows how long the run was, and its bar would leave no room to compare the others.
const BREAK_AT: f64 = 3.0;
/// How much longer a broken bar is than the longest whole one.
const BROKEN: f64 = 1.25;

/// An SVG of the rows: one panel for each workload and load, best mean first.
pub fn plot(rows: &[Row]) -> String {
    let blocks = blocks(rows);
    let columns = if blocks.len() > 1 { 2 } else { 1 };
    let lines: Vec<&[Vec<&Row>]> = blocks.chunks(columns).collect();
    let width = 2.0 * MARGIN + columns as f64 * PANEL + (columns - 1) as f64 * PANEL_GAP;
    let height = HEAD + lines.iter().map(|line| line_height(line)).sum::<f64>() + MARGIN;
    let mut svg = Svg::new(width, height);
    draw_head(&mut svg, width, rows);
    let mut top = HEAD;
    for line in lines {
        for (column, block) in line.iter().enumerate() {
            let left = MARGIN + column as f64 * (PANEL + PANEL_GAP);
            draw_panel(&mut svg, left, top, block);
        }
        top += line_height(line);
    }
    svg.finish("Mean and 99th percentile of latency by strategy, for each workload and load")
}

fn line_height(line: &[Vec<&Row>]) -> f64 {
    let most = line.iter().map(Vec::len).max().unwrap_or(0);
    PANEL_HEAD + most as f64 * GROUP + PANEL_FOOT
}

fn draw_head(svg: &mut Svg, width: f64, rows: &[Row]) {
    svg.text("head", Anchor::Start, (MARGIN, 30.0), "Latency by strategy");
    let mut says = "shorter is better".to_owned();
    if rows.iter().any(|row| row.half_widths.is_some()) {
        says.push_str("; lines: 95 % confidence over seeds");
    }
    svg.text("faint", Anchor::Start, (MARGIN, 47.0), &says);
    for (class, right) in [("mean", 116.0), ("p99", 44.0)] {
        let left = width - MARGIN - right;
        svg.rect(class, left, 19.5, BAR, BAR);
        svg.text("name", Anchor::Start, (left + 15.0, 29.0), class);
    }
}

fn draw_panel(svg: &mut Svg, left: f64, top: f64, block: &[&Row]) {
    let first = block[0];
    let title = format!("{}, load {:.2}", shorten(&first.workload, 48), first.load);
    svg.text("panel", Anchor::Start, (left, top + 10.0), &title);
    let scale = Scale { axis: axis_of(block), left: left + NAMES, width: PANEL - NAMES - VALUES };
    let (bars_top, bars_bottom) = (top + PANEL_HEAD, top + PANEL_HEAD + block.len() as f64 * GROUP);
    for tick in scale.axis.ticks() {
        let x = scale.x(tick);
        let class = if tick == 0.0 { "base" } else { "grid" };
        svg.line(class, (x, bars_top - 4.0), (x, bars_bottom));
        let label = round_duration(tick);
        svg.text("faint", Anchor::Middle, (x, bars_bottom + 14.0), &label);
    }
    for (index, row) in block.iter().enumerate() {
        let y = bars_top + index as f64 * GROUP + (GROUP - 2.0 * BAR) / 2.0;
        let name = shorten(&row.strategy, 20);
        svg.text("name", Anchor::End, (scale.left - 8.0, y + BAR + 4.0), &name);
        let half_widths = row.half_widths.map(|half| half.latency);
        let Latency { mean_ms, p99_ms, .. } = row.measures.latency;
        scale.draw_bar(svg, "mean", y, mean_ms, half_widths.map(|half| half.mean_ms));
        scale.draw_bar(svg, "p99", y + BAR, p99_ms, half_widths.map(|half| half.p99_ms));
    }
}

fn axis_of(block: &[&Row]) -> Axis {
    let finite = |value: &f64| value.is_finite();
    let latencies = block.iter().map(|row| row.measures.latency);
    let values = latencies.clone().flat_map(|it| [it.mean_ms, it.p99_ms]).filter(finite);
    let p99s = latencies.map(|it| it.p99_ms).filter(finite);
    let whole_to = BREAK_AT * p99s.fold(f64::INFINITY, f64::min);
    let longest = values.clone().fold(0.0, f64::max);
    let longest_whole = values.filter(|value| *value <= whole_to).fold(0.0, f64::max);
    Axis::from_zero(if longest > longest_whole { longest_whole * BROKEN } else { longest })
}

struct Scale {
    axis: Axis,
    left: f64,
    width: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        self.left + self.axis.at(value) * self.width
    }

    fn draw_bar(&self, svg: &mut Svg, class: &str, y: f64, value: f64, half_width: Option<f64>) {
        if !value.is_finite() {
            svg.text("value", Anchor::Start, (self.left + 5.0, y + BAR - 2.0), "not measured");
            return;
        }
        let mut end = self.x(value);
        // A pixel between the two bars of a strategy.
        svg.rect(class, self.left, y, end - self.left, BAR - 1.0);
        if value > self.axis.high() {
            let x = end - 14.0;
            let slant = [(x, y + BAR), (x + 4.0, y - 1.0), (x + 8.0, y - 1.0), (x + 4.0, y + BAR)];
            svg.polygon("bg", &slant);
        } else if let Some(half) = half_width.filter(|half| half.is_finite() && *half > 0.0) {
            let middle = y + (BAR - 1.0) / 2.0;
            let (from, to) = (self.x(value - half), self.x(value + half));
            svg.line("whisker", (from, middle), (to, middle));
            for x in [from, to] {
                svg.line("whisker", (x, middle - 2.5), (x, middle + 2.5));
            }
            end = to;
        }
        svg.text("value", Anchor::Start, (end + 5.0, y + BAR - 2.0), &duration(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{MeasuredRun, Measures};
    use crate::svg::tests::check_well_formed;

    fn row(workload: &str, strategy: &str, runs: &[(f64, f64)]) -> Option<Row> {
        let run = |(mean_ms, p99_ms): &(f64, f64)| {
            let latency = Latency { mean_ms: *mean_ms, p99_ms: *p99_ms, ..Measures::NONE.latency };
            MeasuredRun { measures: Measures { latency, ..Measures::NONE }, levels: Vec::new() }
        };
        Row::over_seeds(workload, 0.8, strategy, &runs.iter().map(run).collect::<Vec<_>>())
    }

    /// Checks the widths of the bars, in pixels, as they are drawn.
    #[track_caller]
    fn check(rows: &[Option<Row>], mean: &[&str], p99: &[&str]) -> String {
        let rows: Vec<Row> = rows.iter().flatten().cloned().collect();
        let svg = plot(&rows);
        check_well_formed(&svg);
        let widths = |class: &str| -> Vec<&str> {
            let bars =
                svg.lines().filter(|line| line.starts_with(&format!("<rect class=\"{class}\"")));
            // The first is in the legend.
            bars.skip(1).filter_map(|bar| bar.split("width=\"").nth(1)?.split('"').next()).collect()
        };
        assert_eq!((widths("mean").as_slice(), widths("p99").as_slice()), (mean, p99));
        svg
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let rows = [row("w", "slow", &[(200.0, 612.0)]), row("w", "fast", &[(100.0, 306.0)])];
        let svg = check(&rows, &["50.0", "100.0"], &["153.0", "306.0"]);
        assert!(svg.find("fast") < svg.find("slow"), "the best first");
        assert!(!svg.contains("polygon") && !svg.contains("confidence"), "{svg}");
    }

    #[test]
    fn very_long_bars_are_broken_off() {
        let rows = [row("w", "a", &[(10.0, 100.0)]), row("w", "b", &[(244.8, 9999.0)])];
        let svg = check(&rows, &["10.0", "244.8"], &["100.0", "306.0"]);
        assert_eq!(svg.matches("<polygon").count(), 1);
        assert!(svg.contains(">10.0 s<"), "its value is still shown: {svg}");
    }

    #[test]
    fn panels_are_separate_and_seeds_give_whiskers() {
        let runs = [(100.0, 300.0), (104.0, 306.0)];
        let svg =
            check(&[row("v", "a", &runs), row("w", "a", &runs)], &["103.0"; 2], &["306.0"; 2]);
        assert_eq!(svg.matches("class=\"panel\"").count(), 2);
        assert_eq!(svg.matches("class=\"whisker\"").count(), 12);
        assert!(svg.contains("confidence"));
    }

    #[test]
    fn degenerate_input_still_draws() {
        check(&[], &[], &[]);
        check(&[row("<&>", "\u{0}\"", &[(0.0, 0.0)])], &["0.0"], &["0.0"]);
        let svg = check(&[row("w", "s", &[(f64::NAN, f64::INFINITY)])], &[], &[]);
        assert_eq!(svg.matches("not measured").count(), 2);
    }
}
