//! The models that are learned. Clients may name any model, so only those of completed tasks stay, and of these the
//! most used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hypha_model::Name;
use serde::{Deserialize, Serialize};

use crate::keys::ModelKey;
use crate::models::ModelFeatures;

/// Models that are learned separately; a swarm serves tens.
pub const MAX_MODELS: usize = 4_096;
/// Models without a completed task that are kept apart, so that the tasks that wait for a new one profit from its first
/// completion; beyond that the oldest is forgotten.
pub const MAX_NEW_MODELS: usize = 256;

/// A key is a slot, and above these bits the number of models that had the slot before: a key of an earlier one is
/// unknown.
const SLOT_BITS: u32 = 13;
const _: () = assert!(1 + MAX_MODELS + MAX_NEW_MODELS <= 1 << SLOT_BITS);

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct ModelTable {
    /// The first is for tasks without a model.
    slots: Vec<ModelSlot>,
    by_name: BTreeMap<Name, u32>,
    /// The slots of models without a completed task, by their age.
    new: BTreeSet<(u64, u32)>,
    /// Counts new models and completions.
    uses: u64,
}

#[derive(Clone, Debug)]
struct ModelSlot {
    /// None of the first.
    name: Option<Name>,
    usage: ModelUsage,
    features: ModelFeatures,
}

/// How much a model is used.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ModelUsage {
    key: ModelKey,
    /// Completed tasks.
    completed: u32,
    /// When it was last used, on the scale of [`ModelTable::uses`].
    used: u64,
}

impl ModelTable {
    /// A table from the parts of a snapshot, which may be damaged, or of a version that counted no uses.
    pub(crate) fn restore(
        names: Vec<Name>,
        mut features: Vec<ModelFeatures>,
        usages: &[ModelUsage],
    ) -> ModelTable {
        let count = 1 + names.len().min(MAX_MODELS + MAX_NEW_MODELS);
        features.resize_with(count, ModelFeatures::default);
        features.iter_mut().for_each(ModelFeatures::repair);
        let names = std::iter::once(None).chain(names.into_iter().map(Some));
        let mut table = ModelTable {
            slots: Vec::with_capacity(count),
            by_name: BTreeMap::new(),
            new: BTreeSet::new(),
            uses: 0,
        };
        for ((slot, name), features) in (0_u32..).zip(names).zip(features) {
            let before = || ModelUsage {
                key: ModelKey(slot),
                completed: features.completed(),
                used: slot.into(),
            };
            let given = usages.get(slot as usize).filter(|usage| slot_of(usage.key) == slot);
            let usage = given.copied().unwrap_or_else(before);
            if let Some(name) = &name {
                table.by_name.insert(name.clone(), slot);
                table.uses = table.uses.max(usage.used);
                if usage.completed == 0 {
                    table.new.insert((usage.used, slot));
                }
            }
            table.slots.push(ModelSlot { name, usage, features });
        }
        table
    }

    /// The parts for a snapshot.
    pub(crate) fn parts(&self) -> (Vec<Name>, Vec<ModelFeatures>, Vec<ModelUsage>) {
        (
            self.slots.iter().filter_map(|slot| slot.name.clone()).collect(),
            self.slots.iter().map(|slot| slot.features.clone()).collect(),
            self.slots.iter().map(|slot| slot.usage).collect(),
        )
    }

    /// The key and the features of a model, which are new if it is; a new one has these `columns`.
    pub(crate) fn intern(
        &mut self,
        name: Option<&Name>,
        columns: &[Arc<str>],
    ) -> (ModelKey, &mut ModelFeatures) {
        let known = name.map_or(Some(0), |name| self.by_name.get(name).copied());
        let slot = match (known, name) {
            (Some(slot), _) => slot,
            (None, None) => 0,
            (None, Some(name)) => self.add(name, columns),
        };
        let slot = &mut self.slots[slot as usize];
        (slot.usage.key, &mut slot.features)
    }

    fn add(&mut self, name: &Name, columns: &[Arc<str>]) -> u32 {
        self.uses += 1;
        let oldest = match self.new.len() < MAX_NEW_MODELS {
            true => None,
            false => self.new.pop_first(),
        };
        let slot = match oldest {
            None => self.slots.len() as u32,
            Some((_, slot)) => slot,
        };
        let mut features = ModelFeatures::default();
        features.reserve(columns);
        let mut usage = ModelUsage { key: ModelKey(slot), completed: 0, used: self.uses };
        let name = Some(name.clone());
        match self.slots.get_mut(slot as usize) {
            None => self.slots.push(ModelSlot { name: name.clone(), usage, features }),
            Some(old) => {
                usage.key = key_after(old.usage.key);
                let old = std::mem::replace(old, ModelSlot { name: name.clone(), usage, features });
                old.name.and_then(|old| self.by_name.remove(&old));
            }
        }
        self.new.insert((self.uses, slot));
        self.by_name.extend(name.map(|name| (name, slot)));
        slot
    }

    /// The features of a model; `None` if it was forgotten.
    pub(crate) fn get(&self, key: ModelKey) -> Option<&ModelFeatures> {
        let slot = self.slots.get(slot_of(key) as usize)?;
        (slot.usage.key == key).then_some(&slot.features)
    }

    pub(crate) fn get_mut(&mut self, key: ModelKey) -> Option<&mut ModelFeatures> {
        let slot = self.slots.get_mut(slot_of(key) as usize)?;
        (slot.usage.key == key).then_some(&mut slot.features)
    }

    /// The name of a model.
    pub(crate) fn name(&self, key: ModelKey) -> Option<&Name> {
        let slot = self.slots.get(slot_of(key) as usize)?;
        slot.name.as_ref().filter(|_| slot.usage.key == key)
    }

    /// Ensures that all models have these columns, as far as there is room.
    pub(crate) fn reserve(&mut self, columns: &[Arc<str>]) {
        self.slots.iter_mut().for_each(|slot| slot.features.reserve(columns));
    }

    /// A task of this model has completed. Returns whether there are more learned models now than may be: then
    /// [`ModelTable::forget_least_used`].
    pub(crate) fn completed(&mut self, key: ModelKey) -> bool {
        let at = slot_of(key);
        let Some(slot) = self.slots.get_mut(at as usize).filter(|slot| slot.usage.key == key)
        else {
            return false;
        };
        self.uses += 1;
        if slot.usage.completed == 0 {
            self.new.remove(&(slot.usage.used, at));
        }
        slot.usage.completed = slot.usage.completed.saturating_add(1);
        slot.usage.used = self.uses;
        self.slots.len() - 1 - self.new.len() > MAX_MODELS
    }

    /// Forgets what was learned of the least used model other than `spared`, and returns its key, which is unknown from
    /// now on.
    pub(crate) fn forget_least_used(
        &mut self,
        spared: ModelKey,
        columns: &[Arc<str>],
    ) -> Option<ModelKey> {
        let learned = self.slots.iter_mut().skip(1);
        let others = learned.filter(|slot| slot.usage.completed > 0 && slot.usage.key != spared);
        let slot = others.min_by_key(|slot| (slot.usage.completed, slot.usage.used))?;
        let forgotten = slot.usage.key;
        // The first to be replaced by a new one.
        slot.usage = ModelUsage { key: key_after(forgotten), completed: 0, used: 0 };
        slot.features = ModelFeatures::default();
        slot.features.reserve(columns);
        self.new.insert((0, slot_of(forgotten)));
        Some(forgotten)
    }
}

fn slot_of(key: ModelKey) -> u32 {
    key.0 & ((1 << SLOT_BITS) - 1)
}

/// The key of the next model in the slot of this one.
fn key_after(key: ModelKey) -> ModelKey {
    ModelKey(key.0.wrapping_add(1 << SLOT_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn table() -> ModelTable {
        ModelTable::restore(Vec::new(), Vec::new(), &[])
    }

    fn intern(table: &mut ModelTable, text: &str) -> ModelKey {
        table.intern(Some(&name(text)), &[]).0
    }

    #[test]
    fn names_without_a_completed_task_replace_each_other_only() {
        let mut table = table();
        let kept = intern(&mut table, "kept");
        assert!(!table.completed(kept));
        let first = intern(&mut table, "first");
        for at in 0..10 * MAX_MODELS {
            intern(&mut table, &format!("made-up-{at}"));
        }
        assert_eq!(table.slots.len(), 2 + MAX_NEW_MODELS);
        assert_eq!(intern(&mut table, "kept"), kept);
        assert!(table.get(kept).is_some() && table.get(first).is_none());
        let again = intern(&mut table, "first");
        assert!(again != first && table.name(again) == Some(&name("first")));
        assert_eq!(table.by_name.len(), table.slots.len() - 1);
    }

    #[test]
    fn least_used_model_is_forgotten_first() {
        let mut table = table();
        let mut evicted = Vec::new();
        let mut complete = |table: &mut ModelTable, text: &str| {
            let key = intern(table, text);
            if table.completed(key) {
                evicted.extend(table.forget_least_used(key, &[]));
            }
            key
        };
        let rare = complete(&mut table, "rare");
        let often: Vec<ModelKey> = (0..MAX_MODELS - 1)
            .map(|at| {
                complete(&mut table, &format!("often-{at}"));
                complete(&mut table, &format!("often-{at}"))
            })
            .collect();
        assert!(table.get(rare).is_some());
        let once = complete(&mut table, "once");
        complete(&mut table, "another");
        assert_eq!(evicted, [rare, once]);
        assert!(often.iter().all(|key| table.get(*key).is_some()));
        assert!(table.slots.len() <= 1 + MAX_MODELS + MAX_NEW_MODELS);
        assert_ne!(intern(&mut table, "rare"), rare, "it is new again");
    }

    #[test]
    fn a_restored_table_continues_in_the_same_way() {
        let mut table = table();
        for at in 0..2 * MAX_NEW_MODELS {
            let key = intern(&mut table, &format!("model-{at}"));
            if at % 3 == 0 {
                table.completed(key);
            }
        }
        let (names, features, usages) = table.parts();
        let mut restored = ModelTable::restore(names, features, &usages);
        for at in 0..2 * MAX_NEW_MODELS {
            let text = format!("model-{}", at * 2);
            assert_eq!(intern(&mut table, &text), intern(&mut restored, &text), "{text}");
        }
    }

    #[test]
    fn snapshots_without_usages_keep_their_keys() {
        let names: Vec<Name> = ["a", "b"].map(name).into();
        let mut table = ModelTable::restore(names, Vec::new(), &[]);
        assert_eq!((intern(&mut table, "a"), intern(&mut table, "b")), (ModelKey(1), ModelKey(2)));
        assert_eq!(table.intern(None, &[]).0, ModelKey(0));
    }
}
