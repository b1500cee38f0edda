//! The nearest of many rows: a k-d tree for each set of features that rows have.

use super::row::Row;
use crate::estimate::Estimate;
use crate::models::MAX_COLUMNS;

/// The squared distance of a row that lacks a feature of the task: the same as for a row that is off by a factor of e.
const MISSING_FEATURE_DISTANCE: f64 = 1.0;

type Point = [Option<f64>; MAX_COLUMNS];

/// Rows that are searched together; at least one.
#[derive(Clone, Debug)]
pub(super) struct NearestRows(Vec<KdTree>);

/// Rows that have the same features, as a balanced k-d tree: the middle row splits the rest by one
/// feature after the other.
#[derive(Clone, Debug)]
struct KdTree {
    /// The columns that these rows have.
    axes: Vec<usize>,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    at: [f64; MAX_COLUMNS],
    number: u32,
    /// The first row, in the file, of this part of the tree.
    first: u32,
    estimate: Estimate,
}

/// The nearest so far: by squared distance, then by the position in the file.
#[derive(Clone, Copy)]
struct Best {
    distance: f64,
    number: u32,
    estimate: Estimate,
}

impl NearestRows {
    pub(super) fn of(rows: Vec<Row>) -> NearestRows {
        let mut trees: Vec<(Vec<usize>, Vec<Node>)> = Vec::new();
        for row in rows {
            let axes: Vec<usize> =
                (0..MAX_COLUMNS).filter(|axis| row.features[*axis].is_some()).collect();
            let node = Node {
                at: row.features.map(Option::unwrap_or_default),
                number: row.number,
                first: row.number,
                estimate: row.estimate,
            };
            match trees.iter_mut().find(|(known, _)| *known == axes) {
                Some((_, nodes)) => nodes.push(node),
                None => trees.push((axes, vec![node])),
            }
        }
        let tree = |(axes, mut nodes): (Vec<usize>, Vec<Node>)| {
            arrange(&axes, &mut nodes, 0);
            KdTree { axes, nodes }
        };
        NearestRows(trees.into_iter().map(tree).collect())
    }

    pub(super) fn nearest(&self, point: &Point) -> Estimate {
        let start = Best { distance: f64::INFINITY, number: u32::MAX, estimate: Estimate::ZERO };
        let found = self.0.iter().fold(start, |best, tree| {
            let told = point.iter().filter(|value| value.is_some()).count();
            let shared = tree.axes.iter().filter(|axis| point[**axis].is_some()).count();
            let base_distance = MISSING_FEATURE_DISTANCE * (told - shared) as f64;
            tree.search(&tree.nodes, 0, point, base_distance, best)
        });
        found.estimate
    }
}

/// Puts the middle row by the axis of this depth into the middle, and so on in both halves.
fn arrange(axes: &[usize], nodes: &mut [Node], depth: usize) {
    let Some(first) = nodes.iter().map(|node| node.number).min() else { return };
    let middle = nodes.len() / 2;
    if let Some(&axis) = axes.get(depth % axes.len().max(1)) {
        let by_axis = |a: &Node, b: &Node| a.at[axis].total_cmp(&b.at[axis]);
        nodes.select_nth_unstable_by(middle, |a, b| by_axis(a, b).then(a.number.cmp(&b.number)));
    } else {
        nodes.sort_by_key(|node| node.number);
    }
    nodes[middle].first = first;
    let (low, rest) = nodes.split_at_mut(middle);
    arrange(axes, low, depth + 1);
    arrange(axes, &mut rest[1..], depth + 1);
}

impl KdTree {
    /// Searches a part of the tree whose rows are all at least `base_distance` away.
    fn search(
        &self,
        nodes: &[Node],
        depth: usize,
        point: &Point,
        base_distance: f64,
        best: Best,
    ) -> Best {
        let middle = nodes.len() / 2;
        let Some(node) = nodes.get(middle) else { return best };
        // Every row in here is at least `base_distance` away: none can win a tie against an earlier row.
        if base_distance > best.distance
            || (base_distance == best.distance && node.first > best.number)
        {
            return best;
        }
        let mut best = best.or(node, base_distance + self.distance(node, point));
        let (low, high) = (&nodes[..middle], &nodes[middle + 1..]);
        let axis = self.axes.get(depth % self.axes.len().max(1));
        let Some(value) = axis.and_then(|axis| point[*axis].map(|value| value - node.at[*axis]))
        else {
            // The task lacks this feature: both sides are equally near, so the one with the earliest row goes first.
            let first =
                |part: &[Node]| part.get(part.len() / 2).map_or(u32::MAX, |node| node.first);
            let (one, other) = if first(low) <= first(high) { (low, high) } else { (high, low) };
            best = self.search(one, depth + 1, point, base_distance, best);
            return self.search(other, depth + 1, point, base_distance, best);
        };
        let (near, far) = if value < 0.0 { (low, high) } else { (high, low) };
        best = self.search(near, depth + 1, point, base_distance, best);
        if base_distance + value * value <= best.distance {
            best = self.search(far, depth + 1, point, base_distance, best);
        }
        best
    }

    fn distance(&self, node: &Node, point: &Point) -> f64 {
        let squares = self.axes.iter().filter_map(|axis| {
            let difference = point[*axis]? - node.at[*axis];
            Some(difference * difference)
        });
        squares.sum()
    }
}

impl Best {
    fn or(self, node: &Node, distance: f64) -> Best {
        let nearer =
            distance < self.distance || (distance == self.distance && node.number < self.number);
        match nearer {
            true => Best { distance, number: node.number, estimate: node.estimate },
            false => self,
        }
    }
}
