//! Divides a worker between the schedulers that claim a portion of it.
//!
//! First come the portions of fixed leases, then each claim gets its lease's minimum, then the demand of a queued task, in the order of turns, as far as that
//! goes; the rest is divided max-min fair, first between claims with queued tasks and then between all. GPUs stay whole
//! unless a requirement asks for a share, and stay with their holders where that is as fair.

use std::cmp::Reverse;
use std::sync::Arc;

use hypha_model::{Requirement, Worker};

use crate::portion::{DevicePart, Portion};

/// A scheduler's claim to a portion of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// What it holds now.
    pub holds: &'a Portion,
    /// Exactly this, if it is a fixed lease; the other amounts do not count then.
    pub fixed: Option<&'a Portion>,
    /// Requirements that a reservation could be accepted for instead of its minimum: it gets what any one of them needs,
    /// as far as there is room.
    pub instead: &'a [Arc<Requirement>],
    /// What its lease promises at least.
    pub minimum: Option<&'a Requirement>,
    /// No more than this; `None` is all of the worker.
    pub maximum: Option<&'a Requirement>,
    /// The requirement of a queued task.
    pub demand: Option<&'a Requirement>,
}

/// Divides all of `worker` between the claims, which are in the order of their turns. Returns the portions in the same
/// order. Of several GPUs that would do, a claim gets those that are idle: others would be free only when their runs
/// have ended.
pub fn divide(worker: &Worker, idle: &Portion, claims: &[Claim<'_>]) -> Vec<Portion> {
    let mut division = Division {
        worker,
        idle,
        claims,
        left: Portion::whole(worker),
        parts: vec![Portion::empty(worker); claims.len()],
    };
    let holds_minimum = |claim: &Claim<'_>| {
        claim.minimum.is_some_and(|minimum| claim.holds.refusal_for(worker, minimum).is_none())
    };
    let free = |claim: &Claim<'_>| claim.fixed.is_none();
    // What is held goes before what is only requested.
    division.fix_each(|claim| claim.fixed.filter(|fixed| claim.holds == *fixed));
    for made in [true, false] {
        let is_next = |claim: &Claim<'_>| free(claim) && holds_minimum(claim) == made;
        division.cover_each(|claim| claim.minimum.filter(|_| is_next(claim)));
    }
    division.fix_each(|claim| claim.fixed.filter(|fixed| claim.holds != *fixed));
    division.cover_alternatives();
    division.cover_each(|claim| claim.demand.filter(|_| free(claim)));
    division.cover_each(|claim| claim.maximum.filter(|_| free(claim)));
    division.share(|claim| free(claim) && claim.maximum.is_none() && claim.demand.is_some());
    division.share(|claim| free(claim) && claim.maximum.is_none());
    division.parts
}

/// The portion of what is `open` that covers `requirement`, on devices that are held already if possible. `None` if there
/// is none.
pub fn portion_for(
    worker: &Worker,
    open: &Portion,
    holds: &Portion,
    requirement: &Requirement,
) -> Option<Portion> {
    let (minimum, maximum) = (Some(requirement), Some(requirement));
    let claim = Claim { holds, fixed: None, instead: &[], minimum, maximum, demand: None };
    let mut division = Division {
        worker,
        idle: open,
        claims: &[claim],
        left: open.clone(),
        parts: vec![Portion::empty(worker)],
    };
    division.cover(0, requirement);
    division.parts.pop().filter(|portion| !portion.is_empty())
}

struct Division<'a> {
    worker: &'a Worker,
    /// What no run uses.
    idle: &'a Portion,
    claims: &'a [Claim<'a>],
    left: Portion,
    parts: Vec<Portion>,
}

impl<'a> Division<'a> {
    /// Gives claims exactly the portions of their fixed leases, where all of it is left.
    fn fix_each(&mut self, wanted: impl Fn(&Claim<'a>) -> Option<&'a Portion>) {
        for at in 0..self.claims.len() {
            if let Some(fixed) = wanted(&self.claims[at])
                && self.left.covers(fixed)
            {
                self.left = self.left.minus(fixed);
                self.parts[at] = fixed.clone();
            }
        }
    }

    fn cover_each(&mut self, wanted: impl Fn(&Claim<'a>) -> Option<&'a Requirement>) {
        for at in 0..self.claims.len() {
            if let Some(requirement) = wanted(&self.claims[at]) {
                self.cover(at, requirement);
            }
        }
    }

    /// Grows the portions of reservations to cover any one of several requirements.
    fn cover_alternatives(&mut self) {
        for at in 0..self.claims.len() {
            let claim = self.claims[at];
            if claim.fixed.is_none() {
                claim.instead.iter().for_each(|requirement| self.cover(at, requirement));
            }
        }
    }

    /// Grows the portion of a claim to cover `requirement`, or leaves it unchanged.
    fn cover(&mut self, at: usize, requirement: &Requirement) {
        let (part, holds) = (&self.parts[at], self.claims[at].holds);
        let open = part.plus(&self.left);
        if open.refusal_for(self.worker, requirement).is_some() {
            return;
        }
        let mut grown = part.clone();
        grown.cpu_milli = grown.cpu_milli.max(requirement.cpu_milli);
        grown.memory_bytes = grown.memory_bytes.max(requirement.memory_bytes);
        grown.storage_bytes = grown.storage_bytes.max(requirement.storage_bytes);
        let executors = requirement.executors_of(self.worker).filter(|at| open.slots[*at] > 0);
        if let Some(executor) =
            executors.min_by_key(|at| (part.slots[*at] == 0, holds.slots.get(*at) == Some(&0)))
        {
            grown.slots[executor] = grown.slots[executor].max(1);
        }
        let wanted = DevicePart {
            memory_bytes: requirement.gpu_memory_bytes,
            milli_gpu: requirement.milli_gpu,
        };
        let lacks = |part: DevicePart| {
            part.memory_bytes < wanted.memory_bytes || part.milli_gpu < wanted.milli_gpu
        };
        let may_use = |at: usize| requirement.gpu_ids.allow(at as u32) && !lacks(open.devices[at]);
        let mut devices: Vec<usize> = (0..open.devices.len()).filter(|at| may_use(*at)).collect();
        let of =
            |portion: &Portion, at: usize| portion.devices.get(at).copied().unwrap_or_default();
        devices.sort_by_key(|at| {
            (lacks(part.devices[*at]), lacks(of(holds, *at)), lacks(of(self.idle, *at)))
        });
        for at in devices.into_iter().take(requirement.min_gpus as usize) {
            let device = &mut grown.devices[at];
            device.memory_bytes = device.memory_bytes.max(wanted.memory_bytes);
            device.milli_gpu = device.milli_gpu.max(wanted.milli_gpu);
        }
        self.left = self.left.minus(&grown.minus(part));
        self.parts[at] = grown;
    }

    /// Divides the rest between some of the claims, max-min fair.
    fn share(&mut self, shares: impl Fn(&Claim<'a>) -> bool) {
        let group: Vec<usize> =
            (0..self.claims.len()).filter(|at| shares(&self.claims[*at])).collect();
        if group.is_empty() {
            return;
        }
        let slots = (0..self.left.slots.len()).map(Amount::Slots);
        for amount in [Amount::Cpu, Amount::Memory, Amount::Storage].into_iter().chain(slots) {
            self.fill(&group, amount);
        }
        for device in 0..self.left.devices.len() {
            self.assign_rest_of_device(&group, device);
        }
    }

    fn fill(&mut self, group: &[usize], amount: Amount) {
        let have: Vec<u64> = group.iter().map(|at| amount.of(&self.parts[*at])).collect();
        let holds: Vec<u64> = group.iter().map(|at| amount.of(self.claims[*at].holds)).collect();
        for (at, filled) in group.iter().zip(level(&have, &holds, amount.of(&self.left))) {
            amount.set(&mut self.parts[*at], filled);
        }
        amount.set(&mut self.left, 0);
    }

    /// Gives the rest of a GPU to the claim with the fewest GPUs; of several, to the one that holds it.
    fn assign_rest_of_device(&mut self, group: &[usize], device: usize) {
        let rest = std::mem::take(&mut self.left.devices[device]);
        if rest == DevicePart::default() {
            return;
        }
        let has = |part: &Portion, at: usize| {
            part.devices.get(at).is_some_and(|part| *part != DevicePart::default())
        };
        let count = |at: usize| {
            let part = &self.parts[at];
            (0..part.devices.len()).filter(|device| has(part, *device)).count()
        };
        let first =
            group.iter().min_by_key(|at| (count(**at), !has(self.claims[**at].holds, device)));
        if let Some(at) = first {
            let part = &mut self.parts[*at].devices[device];
            part.memory_bytes += rest.memory_bytes;
            part.milli_gpu += rest.milli_gpu;
        }
    }
}

/// An amount that can be divided arbitrarily.
#[derive(Clone, Copy, Debug)]
enum Amount {
    Cpu,
    Memory,
    Storage,
    /// Of an executor.
    Slots(usize),
}

impl Amount {
    fn of(self, portion: &Portion) -> u64 {
        match self {
            Amount::Cpu => portion.cpu_milli,
            Amount::Memory => portion.memory_bytes,
            Amount::Storage => portion.storage_bytes,
            Amount::Slots(at) => portion.slots.get(at).map_or(0, |slots| (*slots).into()),
        }
    }

    fn set(self, portion: &mut Portion, amount: u64) {
        match self {
            Amount::Cpu => portion.cpu_milli = amount,
            Amount::Memory => portion.memory_bytes = amount,
            Amount::Storage => portion.storage_bytes = amount,
            Amount::Slots(at) => portion.slots[at] = u32::try_from(amount).unwrap_or(u32::MAX),
        }
    }
}

/// Raises the lowest amounts of `have` to a common level until `left` is used up. The remainder goes to those that hold
/// most.
fn level(have: &[u64], holds: &[u64], left: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..have.len()).collect();
    order.sort_by_key(|at| (have[*at], Reverse(holds[*at])));
    let mut filled = have.to_vec();
    let mut sum = u128::from(left);
    for (lowest, at) in order.iter().enumerate() {
        let count = lowest as u128 + 1;
        sum += u128::from(have[*at]);
        let next = order.get(lowest + 1).map(|next| u128::from(have[*next]));
        if next.is_none_or(|next| next * count >= sum) {
            let (level, rest) = (sum / count, sum % count);
            for (nth, at) in order[..=lowest].iter().enumerate() {
                let amount = level + u128::from((nth as u128) < rest);
                filled[*at] = u64::try_from(amount).unwrap_or(u64::MAX);
            }
            break;
        }
    }
    filled
}

#[cfg(test)]
mod tests;
