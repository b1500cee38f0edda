//! Where the labels of dots go: the nearest free position around each.

use crate::svg::{Anchor, text_width};

/// A part of the drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

/// The position of a label.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    /// The area it covers, approximately.
    pub(crate) area: Area,
    /// The side that is nearest to its dot stays there, however wide the reader's font is.
    pub(crate) anchor: Anchor,
    /// So far from its dot that a line should join them.
    pub(crate) is_detached: bool,
}

const FONT: f64 = 12.0;
/// From a dot to its label, right and down, the best first.
const DIRECTIONS: [(f64, f64); 8] = [
    (1.0, 0.0),
    (-1.0, 0.0),
    (0.0, -1.0),
    (0.0, 1.0),
    (1.0, -1.0),
    (1.0, 1.0),
    (-1.0, -1.0),
    (-1.0, 1.0),
];
/// Steps of five pixels; a label further off than this no longer belongs to its dot.
const MAX_STEPS: u8 = 24;
const DETACHED_DISTANCE: f64 = 12.0;

/// A position for each label, within `room`, clear of all dots (of `radius`) and of the labels before it. With no
/// such position, beside its dot: an overlap is easier to read than a label that is far off.
pub(crate) fn place_labels(dots: &[(String, (f64, f64))], radius: f64, room: Area) -> Vec<Label> {
    let dot_area = |(_, dot): &(String, (f64, f64))| Area::around(*dot, 2.0 * radius, 2.0 * radius);
    let mut taken: Vec<Area> = dots.iter().map(dot_area).collect();
    let mut labels = Vec::with_capacity(dots.len());
    for (name, dot) in dots {
        let width = text_width(name, FONT);
        let steps = (1..=MAX_STEPS).map(|steps| 5.0 * f64::from(steps));
        let mut candidates = steps
            .flat_map(|reach| DIRECTIONS.map(|direction| candidate(*dot, width, reach, direction)));
        let is_free = |label: &Label| {
            label.area.is_within(&room) && !taken.iter().any(|other| label.area.overlaps(other))
        };
        let label = candidates.find(is_free);
        let label = label.unwrap_or_else(|| candidate(*dot, width, 5.0, DIRECTIONS[0]));
        taken.push(label.area);
        labels.push(label);
    }
    labels
}

fn candidate((x, y): (f64, f64), width: f64, reach: f64, (right, down): (f64, f64)) -> Label {
    let middle = x + right * (4.0 + reach + width / 2.0);
    let area = Area::around((middle, y + down * (3.0 + 1.5 * reach)), width, FONT);
    let (nearest_x, nearest_y) = area.nearest((x, y));
    let anchor = match right {
        right if right > 0.0 => Anchor::Start,
        right if right < 0.0 => Anchor::End,
        _ => Anchor::Middle,
    };
    Label { area, anchor, is_detached: (nearest_x - x).hypot(nearest_y - y) > DETACHED_DISTANCE }
}

impl Label {
    /// The point that the text is anchored at.
    pub(crate) fn base(&self) -> (f64, f64) {
        let x = match self.anchor {
            Anchor::Start => self.area.left,
            Anchor::Middle => (self.area.left + self.area.right) / 2.0,
            Anchor::End => self.area.right,
        };
        (x, self.area.top + FONT * 0.85)
    }
}

impl Area {
    fn around((x, y): (f64, f64), width: f64, height: f64) -> Area {
        let (left, top) = (x - width / 2.0, y - height / 2.0);
        Area { left, top, right: left + width, bottom: top + height }
    }

    /// The point of this area that is nearest to the given one.
    pub(crate) fn nearest(&self, (x, y): (f64, f64)) -> (f64, f64) {
        (x.clamp(self.left, self.right), y.clamp(self.top, self.bottom))
    }

    fn is_within(&self, room: &Area) -> bool {
        self.left > room.left
            && self.right < room.right
            && self.top > room.top
            && self.bottom < room.bottom
    }

    fn overlaps(&self, other: &Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Area = Area { left: 0.0, top: 0.0, right: 400.0, bottom: 300.0 };

    #[track_caller]
    fn check(dots: &[(f64, f64)]) -> Vec<Label> {
        let named = |(index, dot): (usize, &(f64, f64))| (format!("strategy-{index}"), *dot);
        let named: Vec<(String, (f64, f64))> = dots.iter().enumerate().map(named).collect();
        let labels = place_labels(&named, 4.0, ROOM);
        assert_eq!(labels.len(), dots.len());
        for (index, label) in labels.iter().enumerate() {
            assert!(label.area.is_within(&ROOM), "{label:?}");
            assert!(
                labels[..index].iter().all(|other| !label.area.overlaps(&other.area)),
                "{label:?}"
            );
            let on_dot = dots.iter().any(|dot| label.area.overlaps(&Area::around(*dot, 8.0, 8.0)));
            assert!(!on_dot, "{label:?}");
        }
        labels
    }

    #[test]
    fn labels_do_not_overlap_and_stay_inside() {
        let crowd: Vec<(f64, f64)> = (0..10).map(|i| (200.0 + f64::from(i), 150.0)).collect();
        let labels = check(&crowd);
        assert!(!labels[0].is_detached);
        assert!(labels.iter().any(|label| label.is_detached), "the later ones had to move");
        check(&[(0.0, 0.0), (400.0, 300.0), (400.0, 0.0), (0.0, 300.0), (399.0, 150.0)]);
    }

    #[test]
    fn the_side_at_the_dot_is_anchored() {
        let labels = check(&[(10.0, 100.0), (390.0, 100.0)]);
        assert_eq!(labels[0].base().0, 19.0);
        assert_eq!(labels[1].base().0, 381.0);
    }

    #[test]
    fn labels_without_room_do_not_panic() {
        let dots = [("long".repeat(200), (50.0, 50.0)), ("b".into(), (50.0, 50.0))];
        let labels = place_labels(&dots, 4.0, ROOM);
        assert_eq!(labels[0].base().0, 59.0);
        assert_eq!(labels.len(), 2);
    }
}
