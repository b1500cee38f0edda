//! Which samples of the data set are trained on by which assignment, exactly once per epoch.
//!
//! A sample is AVAILABLE, ASSIGNED to one assignment, or USED. It becomes USED only when a closed round contains the delta
//! that it went into; in every other case it is AVAILABLE again. An epoch has a shuffled order of the slices that depends on
//! the seed alone.

mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use hypha_model::Rng;
use serde::{Deserialize, Serialize};

use ranges::RangeSet;

/// A part of the data set, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SliceId(pub u32);

/// One assignment of samples to a member. A number is never given twice, so it fences off deltas of earlier assignments.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct AssignmentId(pub u64);

/// Samples of one slice, in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The epoch, from 0.
    pub epoch: u32,
    /// Where the slice is in the order of its epoch.
    pub position: u32,
    /// The slice.
    pub slice: SliceId,
    /// The first sample.
    pub start: u32,
    /// The sample after the last.
    pub end: u32,
}

impl Entry {
    /// How many samples it has.
    pub fn samples(&self) -> u64 {
        u64::from(self.end - self.start)
    }
}

/// How many samples `entries` have together.
pub fn count_samples(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::samples).sum()
}

/// How many epochs may be in progress at once. While the last samples of an epoch are ASSIGNED, the members continue with
/// the next one; a third epoch would only begin if a member held samples of the first for a whole epoch.
const MAX_OPEN_EPOCHS: usize = 2;

/// Which samples are preferred.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preference<'a> {
    /// Slices that the member has.
    pub cached: Option<&'a BTreeSet<SliceId>>,
    /// Slices that other members have, or were told to fetch.
    pub avoided: Option<&'a BTreeSet<SliceId>>,
    /// In fixed mode: the only lane that samples are taken from, in order.
    pub lane: Option<u32>,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceLedger {
    /// How many samples each slice has.
    sizes: Vec<u32>,
    seed: u64,
    /// In fixed mode, how many members the slices are divided among; otherwise 1.
    lanes: u32,
    /// How many epochs there are; `None`: as many as needed.
    max_epochs: Option<u32>,
    /// The epoch that is opened next.
    next_epoch: u32,
    epochs: BTreeMap<u32, Epoch>,
    assigned: BTreeMap<AssignmentId, Vec<Entry>>,
    used_samples: u64,
    completed_epochs: u32,
}

/// An epoch in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Epoch {
    /// By position.
    available: BTreeMap<u32, AvailableSlice>,
    available_samples: u64,
    used_samples: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AvailableSlice {
    slice: SliceId,
    ranges: RangeSet,
}

impl SliceLedger {
    /// A ledger of slices with these numbers of samples, all AVAILABLE. `lanes` is the number of members in fixed mode.
    pub fn new(sizes: Vec<u32>, seed: u64, lanes: Option<u32>, max_epochs: Option<u32>) -> Self {
        SliceLedger {
            sizes,
            seed,
            lanes: lanes.unwrap_or(1).max(1),
            max_epochs,
            next_epoch: 0,
            epochs: BTreeMap::new(),
            assigned: BTreeMap::new(),
            used_samples: 0,
            completed_epochs: 0,
        }
    }

    /// How many samples an epoch has.
    pub fn epoch_samples(&self) -> u64 {
        self.sizes.iter().map(|size| u64::from(*size)).sum()
    }

    /// How many samples were USED, over all epochs.
    pub fn used_samples(&self) -> u64 {
        self.used_samples
    }

    /// How many samples are ASSIGNED.
    pub fn assigned_samples(&self) -> u64 {
        self.assigned.values().map(|entries| count_samples(entries)).sum()
    }

    /// How many samples can be assigned now.
    pub fn available_samples(&self) -> u64 {
        let open: u64 = self.epochs.values().map(|epoch| epoch.available_samples).sum();
        open + self.openable_epochs().len() as u64 * self.epoch_samples()
    }

    /// How many epochs were USED as a whole.
    pub fn completed_epochs(&self) -> u32 {
        self.completed_epochs
    }

    /// What is assigned under `assignment`.
    pub fn assigned(&self, assignment: AssignmentId) -> &[Entry] {
        self.assigned.get(&assignment).map_or(&[], Vec::as_slice)
    }

    /// Chooses up to `samples` AVAILABLE samples: of the oldest epoch first, in it of slices that the member has cached, then
    /// of those that no other member has. Changes nothing.
    pub fn choose(&self, samples: u64, preference: &Preference<'_>) -> Vec<Entry> {
        let mut chosen = Vec::new();
        let mut left = samples;
        for (number, epoch) in &self.epochs {
            epoch.choose(*number, self.lanes, &mut left, preference, &mut chosen);
        }
        for number in self.openable_epochs() {
            if left == 0 {
                break;
            }
            let epoch = self.fresh_epoch(number);
            epoch.choose(number, self.lanes, &mut left, preference, &mut chosen);
        }
        chosen
    }

    /// Assigns `entries`, which [`SliceLedger::choose`] returned for this state, in addition to what `assignment` has.
    pub fn assign(&mut self, assignment: AssignmentId, entries: &[Entry]) {
        for entry in entries {
            while self.next_epoch <= entry.epoch {
                let epoch = self.fresh_epoch(self.next_epoch);
                self.epochs.insert(self.next_epoch, epoch);
                self.next_epoch += 1;
            }
            if let Some(epoch) = self.epochs.get_mut(&entry.epoch) {
                epoch.take(entry);
            }
        }
        self.assigned.entry(assignment).or_default().extend_from_slice(entries);
    }

    /// A closed round contains the delta of `assignment`, into which its first `samples` samples went. They are USED; the
    /// others are AVAILABLE again. Returns how many were USED.
    pub fn settle(&mut self, assignment: AssignmentId, samples: u64) -> u64 {
        let mut left = samples;
        for entry in self.assigned.remove(&assignment).unwrap_or_default() {
            let used = left.min(entry.samples()) as u32;
            left -= u64::from(used);
            let split = entry.start + used;
            if let Some(epoch) = self.epochs.get_mut(&entry.epoch) {
                epoch.used_samples += u64::from(used);
                if split < entry.end {
                    epoch.put_back(&Entry { start: split, ..entry });
                }
            }
        }
        let used = samples - left;
        self.used_samples += used;
        self.drop_completed();
        used
    }

    /// The delta of `assignment` is in no round: its samples are AVAILABLE again.
    pub fn release(&mut self, assignment: AssignmentId) {
        self.settle(assignment, 0);
    }

    /// Whether each open epoch adds up: every sample is AVAILABLE, ASSIGNED or USED.
    pub fn is_balanced(&self) -> bool {
        let mut assigned: BTreeMap<u32, u64> = BTreeMap::new();
        for entry in self.assigned.values().flatten() {
            *assigned.entry(entry.epoch).or_default() += entry.samples();
        }
        self.epochs.iter().all(|(number, epoch)| {
            let available: u64 = epoch.available.values().map(|it| it.ranges.len()).sum();
            let assigned = assigned.get(number).copied().unwrap_or(0);
            available == epoch.available_samples
                && available + assigned + epoch.used_samples == self.epoch_samples()
        })
    }

    /// The epochs that may be opened. Which samples a lane gets must not depend on whether another lane has opened one.
    fn openable_epochs(&self) -> Range<u32> {
        let room = MAX_OPEN_EPOCHS.saturating_sub(self.epochs.len()) as u32;
        let end = self.next_epoch.saturating_add(room).min(self.max_epochs.unwrap_or(u32::MAX));
        self.next_epoch..end.max(self.next_epoch)
    }

    /// The slices of an epoch in their shuffled order.
    fn fresh_epoch(&self, number: u32) -> Epoch {
        let mut order: Vec<u32> = (0..self.sizes.len() as u32).collect();
        let mut rng = Rng::new(self.seed ^ u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64 + 1) as usize);
        }
        let sized = order.iter().map(|slice| (*slice, self.sizes.get(*slice as usize)));
        let available = sized.zip(0_u32..).filter_map(|((slice, size), position)| {
            let ranges = RangeSet::new(0, *size.filter(|size| **size > 0)?);
            Some((position, AvailableSlice { slice: SliceId(slice), ranges }))
        });
        Epoch {
            available: available.collect(),
            available_samples: self.epoch_samples(),
            used_samples: 0,
        }
    }

    fn drop_completed(&mut self) {
        let total = self.epoch_samples();
        let open = self.epochs.len();
        self.epochs.retain(|_, epoch| epoch.used_samples < total);
        self.completed_epochs += (open - self.epochs.len()) as u32;
    }
}

impl Epoch {
    fn choose(
        &self,
        number: u32,
        lanes: u32,
        left: &mut u64,
        preference: &Preference<'_>,
        chosen: &mut Vec<Entry>,
    ) {
        let contains =
            |set: Option<&BTreeSet<SliceId>>, slice| set.is_some_and(|set| set.contains(&slice));
        // 0: the member has it; 1: nobody has it; 2: others have it. In fixed mode only the order counts.
        let class_of = |slice| match () {
            () if preference.lane.is_some() || contains(preference.cached, slice) => 0,
            () if contains(preference.avoided, slice) => 2,
            () => 1,
        };
        for class in 0..3 {
            for (position, it) in &self.available {
                if *left == 0 {
                    return;
                }
                let in_lane = preference.lane.is_none_or(|lane| position % lanes == lane);
                if !in_lane || class_of(it.slice) != class {
                    continue;
                }
                for (start, end) in it.ranges.iter() {
                    let end = start + (*left).min(u64::from(end - start)) as u32;
                    *left -= u64::from(end - start);
                    if start < end {
                        let (position, slice) = (*position, it.slice);
                        chosen.push(Entry { epoch: number, position, slice, start, end });
                    }
                }
            }
        }
    }

    fn take(&mut self, entry: &Entry) {
        if let Some(it) = self.available.get_mut(&entry.position) {
            self.available_samples -= it.ranges.remove(entry.start, entry.end);
            if it.ranges.len() == 0 {
                self.available.remove(&entry.position);
            }
        }
    }

    fn put_back(&mut self, entry: &Entry) {
        let empty = || AvailableSlice { slice: entry.slice, ranges: RangeSet::default() };
        let it = self.available.entry(entry.position).or_insert_with(empty);
        it.ranges.insert(entry.start, entry.end);
        self.available_samples += entry.samples();
    }
}

#[cfg(test)]
mod tests;
