//! A picture of a trade-off: the mean of each strategy against its p99, and which of them are not dominated in
//! both.

use crate::axis::{Axis, duration, round_duration};
use crate::labels::{Area, place_labels};
use crate::report::Row;
use crate::svg::{Anchor, Svg, shorten};

/// One strategy, or one setting of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The text beside its dot.
    pub label: String,
    /// Mean latency.
    pub mean_ms: f64,
    /// 99th percentile of latency.
    pub p99_ms: f64,
}

impl From<&Row> for Point {
    fn from(row: &Row) -> Point {
        let latency = row.measures.latency;
        Point { label: row.strategy.clone(), mean_ms: latency.mean_ms, p99_ms: latency.p99_ms }
    }
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 28.0;
const TOP: f64 = 94.0;
const BOTTOM: f64 = HEIGHT - 60.0;
const RADIUS: f64 = 4.5;

/// A dominated point further off than this many times the furthest of the front is listed, not drawn: it would
/// leave no room to tell the others apart.
const OUTLIER_RATIO: f64 = 2.5;

/// An SVG with a dot for each point; a line joins the points that no other point beats in mean and p99. Points
/// that are not finite are left out.
pub fn frontier(points: &[Point]) -> String {
    let drawable = |point: &&Point| point.mean_ms.is_finite() && point.p99_ms.is_finite();
    let points: Vec<&Point> = points.iter().filter(drawable).collect();
    let (points, outliers) = split_outliers(points);
    let front = pareto_front(&points);
    let frame = Frame {
        x: Axis::around(points.iter().map(|point| point.mean_ms)),
        y: Axis::around(points.iter().map(|point| point.p99_ms)),
    };
    let mut svg = Svg::new(WIDTH, HEIGHT);
    draw_head(&mut svg, &outliers);
    frame.draw(&mut svg);
    let places: Vec<(f64, f64)> = points.iter().map(|point| frame.place(point)).collect();
    draw_front(&mut svg, front.iter().map(|index| places[*index]));
    for (index, place) in places.iter().enumerate() {
        let class = if front.contains(&index) { "mean" } else { "other" };
        svg.circle(class, *place, RADIUS);
    }
    draw_labels(&mut svg, &points, &places);
    svg.finish("Mean against 99th percentile of latency by strategy")
}

fn split_outliers(points: Vec<&Point>) -> (Vec<&Point>, Vec<&Point>) {
    let front = pareto_front(&points);
    let furthest = |value: fn(&Point) -> f64| {
        front.iter().map(|index| value(points[*index])).fold(0.0, f64::max) * OUTLIER_RATIO
    };
    let (mean_ms, p99_ms) = (furthest(|point| point.mean_ms), furthest(|point| point.p99_ms));
    points.into_iter().partition(|point| point.mean_ms <= mean_ms && point.p99_ms <= p99_ms)
}

fn draw_head(svg: &mut Svg, outliers: &[&Point]) {
    const MARGIN: f64 = 24.0;
    svg.text("head", Anchor::Start, (MARGIN, 30.0), "Mean against p99");
    let caption = "down and left is better; the line joins what nothing beats in both";
    svg.text("faint", Anchor::Start, (MARGIN, 47.0), caption);
    if !outliers.is_empty() {
        let tell = |point: &&Point| {
            format!("{} ({}, {})", point.label, duration(point.mean_ms), duration(point.p99_ms))
        };
        let listed = outliers.iter().map(tell).collect::<Vec<_>>().join("; ");
        let listed = shorten(&format!("far off: {listed}"), 115);
        svg.text("faint", Anchor::Start, (MARGIN, 62.0), &listed);
    }
}

struct Frame {
    x: Axis,
    y: Axis,
}

impl Frame {
    fn place(&self, point: &Point) -> (f64, f64) {
        (self.across(point.mean_ms), self.up(point.p99_ms))
    }

    fn across(&self, mean_ms: f64) -> f64 {
        LEFT + self.x.at(mean_ms) * (RIGHT - LEFT)
    }

    fn up(&self, p99_ms: f64) -> f64 {
        BOTTOM - self.y.at(p99_ms) * (BOTTOM - TOP)
    }

    fn draw(&self, svg: &mut Svg) {
        for tick in self.x.ticks() {
            let x = self.across(tick);
            svg.line("grid", (x, TOP), (x, BOTTOM));
            svg.text("faint", Anchor::Middle, (x, BOTTOM + 17.0), &round_duration(tick));
        }
        for tick in self.y.ticks() {
            let y = self.up(tick);
            svg.line("grid", (LEFT, y), (RIGHT, y));
            svg.text("faint", Anchor::End, (LEFT - 7.0, y + 4.0), &round_duration(tick));
        }
        svg.line("base", (LEFT, TOP), (LEFT, BOTTOM));
        svg.line("base", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        svg.text("name", Anchor::End, (RIGHT, BOTTOM + 38.0), "mean latency");
        svg.text("name", Anchor::Middle, (LEFT, TOP - 8.0), "p99 latency");
    }
}

/// The points that no other beats, from the least mean to the most.
fn pareto_front(points: &[&Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (points[*a], points[*b]);
        a.mean_ms.total_cmp(&b.mean_ms).then(a.p99_ms.total_cmp(&b.p99_ms))
    });
    let mut least_p99 = f64::INFINITY;
    order.retain(|index| {
        let better = points[*index].p99_ms < least_p99;
        least_p99 = least_p99.min(points[*index].p99_ms);
        better
    });
    order
}

/// In steps: nothing between two points of the front is known to be better than the corner.
fn draw_front(svg: &mut Svg, front: impl Iterator<Item = (f64, f64)>) {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for (x, y) in front {
        if let Some((_, before)) = steps.last() {
            steps.push((x, *before));
        }
        steps.push((x, y));
    }
    if steps.len() > 1 {
        svg.polyline("front", &steps);
    }
}

fn draw_labels(svg: &mut Svg, points: &[&Point], places: &[(f64, f64)]) {
    let names = points.iter().map(|point| shorten(&point.label, 28));
    let dots: Vec<(String, (f64, f64))> = names.zip(places.iter().copied()).collect();
    let room = Area { left: LEFT, top: TOP, right: WIDTH - 4.0, bottom: BOTTOM };
    for ((name, dot), label) in dots.iter().zip(place_labels(&dots, RADIUS, room)) {
        if label.is_detached {
            svg.line("leader", *dot, label.area.nearest(*dot));
        }
        svg.text("name", label.anchor, label.base(), name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::tests::check_well_formed;

    fn points(points: &[(&str, f64, f64)]) -> Vec<Point> {
        let point = |(label, mean_ms, p99_ms): &(&str, f64, f64)| Point {
            label: (*label).to_owned(),
            mean_ms: *mean_ms,
            p99_ms: *p99_ms,
        };
        points.iter().map(point).collect()
    }

    /// Checks which labels are on the front.
    #[track_caller]
    fn check(means: &[(&str, f64, f64)], front: &[&str]) {
        let points = points(means);
        let all: Vec<&Point> = points.iter().collect();
        let labels: Vec<&str> = pareto_front(&all).iter().map(|i| all[*i].label.as_str()).collect();
        assert_eq!(labels, front);
        let svg = frontier(&points);
        check_well_formed(&svg);
        assert_eq!(svg.matches("<circle class=\"mean\"").count(), front.len());
        assert_eq!(svg.matches("<polyline").count(), usize::from(front.len() > 1));
    }

    #[test]
    fn the_front_holds_the_points_that_no_other_beats() {
        check(&[], &[]);
        check(&[("a", 0.0, 0.0)], &["a"]);
        check(&[("a", 2.0, 2.0), ("b", 1.0, 3.0), ("c", 2.0, 3.0), ("d", 9.0, 9.0)], &["b", "a"]);
        check(&[("a", 1.0, 2.0), ("slower", 2.0, 2.0), ("same", 1.0, 2.0)], &["a"]);
        check(&[("a", 1.0, 2.0), ("same", 1.0, 2.0), ("<&\u{1}>", 1.0, 1.0)], &["<&\u{1}>"]);
    }

    #[test]
    fn distant_points_are_listed_but_not_drawn() {
        let all = [
            ("a", 10.0, 90.0),
            ("b", 30.0, 20.0),
            ("c", 74.0, 224.0),
            ("d", 76.0, 25.0),
            ("e", 11.0, 226.0),
        ];
        let svg = frontier(&points(&all));
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
        assert!(svg.contains("far off: d (76.0 ms, 25.0 ms); e (11.0 ms, 226 ms)<"), "{svg}");
        let svg = frontier(&points(&all[..3]));
        assert!(!svg.contains("far off"), "{svg}");
    }

    #[test]
    fn points_that_are_not_finite_are_left_out() {
        let svg = frontier(&points(&[("gone", f64::NAN, 1.0), ("kept", 1.0, 1.0)]));
        check_well_formed(&svg);
        assert!(svg.contains("kept") && !svg.contains("gone"));
    }
}
