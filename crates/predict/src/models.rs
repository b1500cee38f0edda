//! The metadata of tasks, model by model: numbers become columns, texts become categories.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypha_model::{Metadata, MetadataValue};
use serde::{Deserialize, Serialize};

use crate::bits;
use crate::change_detector::RANDOM_WALK_VARIANCE;
use crate::regression::D;

/// Numeric columns of one model: as many as fit beside the constant.
pub(crate) const MAX_COLUMNS: usize = D - 1;
/// Texts of one task that count. Requests carry one or two (precision, hardware).
pub(crate) const MAX_TEXTS: usize = 4;
/// Values of one text: more than this is not a category but an identifier, and teaches nothing.
const MAX_VALUES: usize = 32;
/// Sets of columns of one model that are learned separately.
const MAX_FEATURE_SETS: usize = 8;
/// The set of columns of tasks whose own set is one too many; their missing numbers count as zero.
const MIXED: u8 = 0x80;
/// A number is at most this many times the first one seen; beyond it is absurd.
const MAX_SCALED: f64 = 1e6;
/// One sigma of the effect of a category: a factor of 1.6.
const OFFSET_SPREAD: f64 = 0.5;

/// The features seen in one model's tasks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ModelFeatures {
    columns: Vec<Column>,
    texts: Vec<TextField>,
    offsets: Vec<Offset>,
    /// The sets of columns seen, each with its most observed regression.
    #[serde(rename = "shapes")]
    feature_sets: Vec<FeatureSet>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Column {
    name: Arc<str>,
    /// The first magnitude that was not zero; zero until then.
    #[serde(with = "bits")]
    scale: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct TextField {
    name: Arc<str>,
    /// Numbers of offsets, from 1.
    values: BTreeMap<Arc<str>, u8>,
}

/// What a category adds to the logarithm of the time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Offset {
    #[serde(with = "bits")]
    value: f64,
    #[serde(with = "bits")]
    variance: f64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct FeatureSet {
    columns: u8,
    best: Option<(u32, u32)>,
}

/// The numbers of a task in its model's columns, a constant first.
pub(crate) struct Features {
    pub(crate) numbers: [f64; D],
    /// Which columns the task has, as bits.
    pub(crate) present: u8,
    /// Which tasks are learned together: the same bits, or one set for all tasks beyond the limit.
    pub(crate) feature_set: u8,
    /// Numbers of offsets; zero: none.
    pub(crate) categories: [u8; MAX_TEXTS],
}

impl ModelFeatures {
    /// Ensures that these columns exist, as far as there is room.
    pub(crate) fn reserve(&mut self, names: &[Arc<str>]) {
        for name in names {
            self.column(name);
        }
    }

    /// Puts the metadata, and the client's own estimate as the number `estimated_time`, into columns.
    pub(crate) fn features(&mut self, metadata: &Metadata, estimated_s: Option<f64>) -> Features {
        let mut features =
            Features { numbers: [0.0; D], present: 0, feature_set: 0, categories: [0; MAX_TEXTS] };
        features.numbers[0] = 1.0;
        let mut texts = 0;
        for (name, value) in metadata.iter() {
            match value {
                MetadataValue::Number(number) => self.number(&mut features, name, *number),
                MetadataValue::Text(text) if texts < MAX_TEXTS => {
                    features.categories[texts] = self.category(name, text);
                    texts += usize::from(features.categories[texts] > 0);
                }
                MetadataValue::Text(_) => {}
            }
        }
        if let Some(seconds) = estimated_s {
            self.number(&mut features, "estimated_time", seconds);
        }
        features.feature_set = self.feature_set(features.present);
        features
    }

    fn number(&mut self, features: &mut Features, name: &str, number: f64) {
        let Some(at) = self.column(name) else { return };
        let column = &mut self.columns[at];
        // Deserialised metadata has not been through the check of `Metadata::new`.
        let number = if number.is_finite() { number } else { 0.0 };
        if column.scale == 0.0 {
            column.scale = number.abs();
        }
        features.present |= 1 << at;
        if number != 0.0 {
            features.numbers[at + 1] = (number / column.scale).clamp(-MAX_SCALED, MAX_SCALED);
        }
    }

    fn column(&mut self, name: &str) -> Option<usize> {
        let found = self.columns.iter().position(|column| *column.name == *name);
        if found.is_none() && self.columns.len() < MAX_COLUMNS {
            self.columns.push(Column { name: Arc::from(name), scale: 0.0 });
            return Some(self.columns.len() - 1);
        }
        found
    }

    fn category(&mut self, name: &str, value: &str) -> u8 {
        let at = match self.texts.iter().position(|text| *text.name == *name) {
            Some(at) => at,
            None if self.texts.len() < MAX_TEXTS => {
                self.texts.push(TextField { name: Arc::from(name), values: BTreeMap::new() });
                self.texts.len() - 1
            }
            None => return 0,
        };
        let values = &mut self.texts[at].values;
        if let Some(&category) = values.get(value) {
            return category;
        }
        if values.len() >= MAX_VALUES {
            return 0;
        }
        self.offsets.push(Offset::UNKNOWN);
        // At most MAX_TEXTS * MAX_VALUES = 128 of them.
        let category = self.offsets.len() as u8;
        values.insert(Arc::from(value), category);
        category
    }

    fn feature_set(&mut self, columns: u8) -> u8 {
        let known = |sets: &[FeatureSet], columns| sets.iter().any(|s| s.columns == columns);
        if known(&self.feature_sets, columns) {
            return columns;
        }
        let columns = if self.feature_sets.len() < MAX_FEATURE_SETS { columns } else { MIXED };
        if !known(&self.feature_sets, columns) {
            self.feature_sets.push(FeatureSet { columns, best: None });
        }
        columns
    }

    /// What the categories add to the logarithm, and its variance.
    pub(crate) fn offset(&self, categories: &[u8; MAX_TEXTS]) -> (f64, f64) {
        let known =
            categories.iter().filter_map(|at| self.offsets.get(usize::from(*at).checked_sub(1)?));
        known.fold((0.0, 0.0), |(value, variance), offset| {
            (value + offset.value, variance + offset.variance)
        })
    }

    /// Each category takes its share of a clipped `residual` of a prediction with this `variance`.
    pub(crate) fn learn(&mut self, categories: &[u8; MAX_TEXTS], residual: f64, variance: f64) {
        for at in categories {
            let Some(at) = usize::from(*at).checked_sub(1) else { continue };
            let Some(offset) = self.offsets.get_mut(at) else { continue };
            offset.value += offset.variance / variance * residual;
            let left = offset.variance - offset.variance * offset.variance / variance;
            offset.variance = (left + RANDOM_WALK_VARIANCE).min(OFFSET_SPREAD * OFFSET_SPREAD);
        }
    }

    /// Records that a regression of tasks with this feature set has this many observations.
    pub(crate) fn observed(&mut self, feature_set: u8, regression: u32, count: u32) {
        let Some(feature_set) = self.feature_sets.iter_mut().find(|s| s.columns == feature_set)
        else {
            return;
        };
        if feature_set.best.is_none_or(|(best, most)| best == regression || most < count) {
            feature_set.best = Some((regression, count));
        }
    }

    /// The most observed regression of tasks with this feature set, on any hardware.
    pub(crate) fn best_of_feature_set(&self, feature_set: u8) -> Option<u32> {
        self.feature_sets.iter().find(|s| s.columns == feature_set)?.best.map(|(at, _)| at)
    }

    /// The most observed regression of this model.
    pub(crate) fn best_of_any_feature_set(&self) -> Option<u32> {
        let best = self.feature_sets.iter().filter_map(|feature_set| feature_set.best);
        best.max_by_key(|(_, count)| *count).map(|(at, _)| at)
    }

    /// Completed tasks of which it is certain that there were as many.
    pub(crate) fn completed(&self) -> u32 {
        let counts = self.feature_sets.iter().filter_map(|set| set.best);
        counts.fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The number that a task has in the column of this name.
    pub(crate) fn raw(&self, name: &str, present: u8, numbers: &[f64; D]) -> Option<f64> {
        let at = self.columns.iter().position(|column| *column.name == *name)?;
        (present & (1 << at) != 0).then(|| numbers[at + 1] * self.columns[at].scale)
    }

    /// Replaces invalid values of a damaged snapshot.
    pub(crate) fn repair(&mut self) {
        self.columns.truncate(MAX_COLUMNS);
        self.texts.truncate(MAX_TEXTS);
        for column in &mut self.columns {
            if !(column.scale.is_finite() && column.scale >= 0.0) {
                column.scale = 0.0;
            }
        }
        for offset in &mut self.offsets {
            if !(offset.value.is_finite() && (0.0..=1.0).contains(&offset.variance)) {
                *offset = Offset::UNKNOWN;
            }
        }
    }
}

impl Offset {
    const UNKNOWN: Offset = Offset { value: 0.0, variance: OFFSET_SPREAD * OFFSET_SPREAD };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(entries: &[(&str, MetadataValue)]) -> Metadata {
        let entries = entries.iter().map(|(name, value)| (Arc::from(*name), value.clone()));
        Metadata::new(entries).unwrap()
    }

    #[test]
    fn columns_keep_their_order_and_their_first_scale() {
        let mut model = ModelFeatures::default();
        let first = model.features(&Metadata::of_numbers(&[("out", 50.0)]), None);
        let second = model.features(&Metadata::of_numbers(&[("in", -8.0), ("out", 100.0)]), None);
        assert_eq!((first.numbers[..3].to_vec(), first.present), (vec![1.0, 1.0, 0.0], 1));
        assert_eq!((second.numbers[..3].to_vec(), second.present), (vec![1.0, 2.0, -1.0], 3));
        assert_eq!(model.raw("in", second.present, &second.numbers), Some(-8.0));
        assert_eq!(model.raw("in", first.present, &first.numbers), None);
    }

    #[test]
    fn the_clients_own_estimate_is_a_number_like_any_other() {
        let mut model = ModelFeatures::default();
        let features = model.features(&Metadata::default(), Some(4.0));
        assert_eq!(model.raw("estimated_time", features.present, &features.numbers), Some(4.0));
    }

    #[test]
    fn absurd_numbers_are_bounded() {
        let mut model = ModelFeatures::default();
        model.features(&Metadata::of_numbers(&[("n", f64::MIN_POSITIVE)]), None);
        let features = model.features(&Metadata::of_numbers(&[("n", f64::MAX)]), None);
        assert_eq!(features.numbers[1], MAX_SCALED);
    }

    #[test]
    fn columns_texts_values_and_feature_sets_are_bounded() {
        let mut model = ModelFeatures::default();
        for i in 0..40 {
            let number = format!("number-{i}");
            let text = format!("text-{i}");
            let value = MetadataValue::Text(format!("value-{i}").into());
            let entries =
                [(&*number, MetadataValue::Number(1.0)), (&*text, value.clone()), ("same", value)];
            let features = model.features(&metadata(&entries), None);
            assert_eq!(features.categories[0] > 0, i < MAX_VALUES, "{i}");
        }
        let columns = (model.columns.len(), model.feature_sets.len(), model.texts.len());
        assert_eq!(columns, (MAX_COLUMNS, MAX_COLUMNS + 1, MAX_TEXTS));
        for i in 0..MAX_COLUMNS - 1 {
            let (one, other) = (format!("number-{i}"), format!("number-{}", i + 1));
            model.features(&Metadata::of_numbers(&[(&*one, 1.0), (&*other, 1.0)]), None);
        }
        assert_eq!(model.feature_sets.len(), MAX_FEATURE_SETS + 1);
        assert_eq!(model.feature_sets[MAX_FEATURE_SETS].columns, MIXED);
    }

    #[test]
    fn a_category_learns_its_offset() {
        let mut model = ModelFeatures::default();
        let query = |model: &mut ModelFeatures, value: &str| {
            model
                .features(&metadata(&[("precision", MetadataValue::Text(value.into()))]), None)
                .categories
        };
        let (slow, other) = (query(&mut model, "fp32"), query(&mut model, "fp16"));
        for _ in 0..20 {
            let (value, variance) = model.offset(&slow);
            model.learn(&slow, 0.7 - value, variance + 0.04);
        }
        assert!((model.offset(&slow).0 - 0.7).abs() < 0.05);
        assert!(model.offset(&slow).1 < 0.01);
        assert_eq!(model.offset(&other), (0.0, OFFSET_SPREAD * OFFSET_SPREAD));
    }
}
