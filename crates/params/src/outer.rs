//! The outer step: from the sum of deltas to the next parameters, on the server and on members.

use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::accumulator::mean;
use crate::codec::{Codec, ValueFault};
use crate::encoder::subtract_decoded;
use crate::fragment::{Fragment, FragmentHeader, Kind, MemberId};
use crate::layout::Layout;
use crate::reducer::Reducer;

/// The outer optimiser, stochastic gradient descent with Nesterov momentum, and the codec of the way back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterSettings {
    /// The factor of the update.
    pub learning_rate: f64,
    /// The part of the momentum that is left after a round, from 0 to below 1.
    pub momentum: f64,
    /// How updates are encoded.
    pub codec: Codec,
}

/// The state of the parameter server between rounds: 8 bytes a parameter, 12 with a residual.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterState {
    pub(crate) layout: Layout,
    pub(crate) round: u64,
    pub(crate) parameters: Vec<f32>,
    pub(crate) momentum: Vec<f32>,
    pub(crate) residual: Option<Vec<f32>>,
    /// A step has failed half-way: only the last checkpoint is whole.
    pub(crate) is_torn: bool,
}

/// Why the parameters cannot be those of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// There are more or fewer than the layout says.
    #[error("{given} values, but the layout has {expected}")]
    Count {
        /// As given.
        given: usize,
        /// As the layout says.
        expected: usize,
    },
    /// A value is infinite or not a number.
    #[error("value {0} is infinite or not a number")]
    NotFinite(usize),
}

/// Why a step was not made.
#[derive(Debug, Error)]
pub enum StepError {
    /// The learning rate or the momentum is out of range.
    #[error("the learning rate must be finite and not negative, the momentum from 0 to below 1")]
    Settings,
    /// The reducer has another layout or round than the state.
    #[error("the reducer is of round {reducer} or another layout, the state of round {state}")]
    Round {
        /// Of the reducer.
        reducer: u64,
        /// Of the state.
        state: u64,
    },
    /// No delta counts.
    #[error("no delta counts in this round: extend it")]
    Empty,
    /// The sum is damaged.
    #[error("the sum of this round is damaged: begin the round again")]
    Damaged,
    /// The update could not be written. The state is torn.
    #[error("cannot write the update: {0}; load the last checkpoint")]
    Write(#[from] io::Error),
    /// An update beyond what floats can hold. The state is torn.
    #[error("the update is not finite: {0}; load the last checkpoint and lower the learning rate")]
    NotFinite(ValueFault),
    /// An earlier step has failed half-way.
    #[error("an earlier step failed half-way: load the last checkpoint")]
    Torn,
}

/// Why an update was not applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ApplyError {
    /// It is not an update of this layout and round, or its digest is wrong.
    #[error("not an intact update of round {0} for this layout")]
    Mismatch(u64),
    /// Its values are invalid.
    #[error(transparent)]
    Value(#[from] ValueFault),
}

impl OuterState {
    /// The state before round 0. With `has_residual`, what the codec loses of an update is added to the next one.
    pub fn new(
        layout: Layout,
        parameters: Vec<f32>,
        has_residual: bool,
    ) -> Result<OuterState, StateError> {
        let momentum = vec![0.0; layout.total()];
        let residual = has_residual.then(|| vec![0.0; layout.total()]);
        OuterState::restore(layout, 0, parameters, momentum, residual)
    }

    /// The state that was stored.
    pub(crate) fn restore(
        layout: Layout,
        round: u64,
        parameters: Vec<f32>,
        momentum: Vec<f32>,
        residual: Option<Vec<f32>>,
    ) -> Result<OuterState, StateError> {
        for values in [Some(&parameters), Some(&momentum), residual.as_ref()].into_iter().flatten()
        {
            if values.len() != layout.total() {
                return Err(StateError::Count { given: values.len(), expected: layout.total() });
            }
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                return Err(StateError::NotFinite(index));
            }
        }
        Ok(OuterState { layout, round, parameters, momentum, residual, is_torn: false })
    }

    /// The cut of the parameters.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The round that comes next.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The parameters that the next round begins with: what a member that joins starts from.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Makes the step of the reducer's round. `write` gets the fragments of the update in order; the server applies each
    /// as members decode it.
    ///
    /// If it fails after the first fragment, the state is torn and refuses further steps.
    pub fn step<S: crate::Staging>(
        &mut self,
        reducer: &Reducer<S>,
        settings: &OuterSettings,
        mut write: impl FnMut(Fragment) -> io::Result<()>,
    ) -> Result<(), StepError> {
        let sums = self.ready(reducer, settings)?;
        self.is_torn = true;
        for fragment in 0..self.layout.fragments() {
            let Some(range) = self.layout.range(fragment) else { break };
            let mut update = Vec::with_capacity(range.len());
            let momentum = &mut self.momentum[range.clone()];
            for (sum, momentum) in sums[range.clone()].iter().zip(momentum) {
                let mean = mean(*sum, reducer.total_weight());
                *momentum = (settings.momentum * f64::from(*momentum) + mean) as f32;
                let ahead = mean + settings.momentum * f64::from(*momentum);
                update.push((settings.learning_rate * ahead) as f32);
            }
            let payload = self.encode(settings.codec, range.clone(), &mut update);
            // The decoded values replace the exact ones: the server must not know more than members.
            settings.codec.decode(&payload, &mut update).map_err(StepError::NotFinite)?;
            add(&mut self.parameters[range], &update);
            let header = FragmentHeader {
                kind: Kind::Update,
                round: self.round,
                member: MemberId::NONE,
                fragment,
                codec: settings.codec,
                // A range of the layout is at most MAX_FRAGMENT_VALUES long.
                count: update.len() as u32,
                weight: reducer.total_weight(),
                digest: [0; 32],
            };
            write(Fragment::seal(header, payload))?;
        }
        self.round += 1;
        self.is_torn = false;
        Ok(())
    }

    fn ready<'a, S: crate::Staging>(
        &self,
        reducer: &'a Reducer<S>,
        settings: &OuterSettings,
    ) -> Result<&'a [i64], StepError> {
        if self.is_torn {
            return Err(StepError::Torn);
        }
        let is_rate = settings.learning_rate.is_finite() && settings.learning_rate >= 0.0;
        if !is_rate || !(0.0..1.0).contains(&settings.momentum) {
            return Err(StepError::Settings);
        }
        if reducer.round() != self.round || reducer.layout() != self.layout {
            return Err(StepError::Round { reducer: reducer.round(), state: self.round });
        }
        let sums = reducer.sums().ok_or(StepError::Damaged)?;
        if reducer.total_weight() == 0 { Err(StepError::Empty) } else { Ok(sums) }
    }

    /// Encodes an update, with the error of the one before if there is a residual.
    fn encode(
        &mut self,
        codec: Codec,
        range: std::ops::Range<usize>,
        update: &mut [f32],
    ) -> Vec<u8> {
        let mut payload = Vec::new();
        match &mut self.residual {
            None => codec.encode(update, &mut payload),
            Some(residual) => {
                let residual = &mut residual[range];
                add(residual, update);
                codec.encode(residual, &mut payload);
                subtract_decoded(codec, &payload, residual);
            }
        }
        payload
    }
}

/// Adds a fragment of the update of `round` to a member's parameters. An error changes nothing. Apply each fragment
/// once.
pub fn apply_update(
    layout: &Layout,
    round: u64,
    parameters: &mut [f32],
    fragment: &Fragment,
) -> Result<(), ApplyError> {
    let header = fragment.header();
    let range = layout.range(header.fragment).filter(|_| header.fits(layout));
    let target = range.and_then(|range| parameters.get_mut(range));
    let is_expected = header.kind == Kind::Update && header.round == round;
    match target {
        Some(target) if is_expected && fragment.is_intact() => {
            let mut update = vec![0.0; target.len()];
            header.codec.decode(fragment.payload(), &mut update)?;
            add(target, &update);
            Ok(())
        }
        Some(_) | None => Err(ApplyError::Mismatch(round)),
    }
}

fn add(targets: &mut [f32], values: &[f32]) {
    for (target, value) in targets.iter_mut().zip(values) {
        *target += value;
    }
}
