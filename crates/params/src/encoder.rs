//! The sender's side: encodes values, and carries the error of a lossy codec into the next round.

use thiserror::Error;

use crate::accumulator::MAX_DELTA;
use crate::codec::Codec;
use crate::fragment::{Fragment, FragmentHeader, Kind, MemberId};
use crate::layout::Layout;

/// Encodes the deltas of one member.
///
/// With error feedback, what a lossy codec loses of a fragment is added to the same fragment of the next round, so that the
/// sums of what was sent and of what was meant stay close. This takes 4 bytes a parameter. Encode each fragment
/// once a round, and keep the bytes for another attempt to send them: encoding again would add the error again.
#[derive(Clone, Debug)]
pub struct Encoder {
    layout: Layout,
    codec: Codec,
    member: MemberId,
    residual: Option<Vec<f32>>,
}

/// Why values cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The layout has no such fragment.
    #[error("no fragment {fragment} of {count} values in this layout")]
    Shape {
        /// The index of the fragment.
        fragment: u32,
        /// The number of values given.
        count: usize,
    },
    /// A value is infinite, not a number, or beyond [`MAX_DELTA`].
    #[error(
        "value {index} of fragment {fragment} is not within ±{MAX_DELTA}: lower the inner learning rate"
    )]
    Value {
        /// The index of the fragment.
        fragment: u32,
        /// The index of the value in the fragment.
        index: usize,
    },
}

impl Encoder {
    /// An encoder, with error feedback if it is asked for and the codec loses anything.
    pub fn new(layout: Layout, codec: Codec, member: MemberId, has_feedback: bool) -> Encoder {
        let residual = (has_feedback && codec.is_lossy()).then(|| vec![0.0; layout.total()]);
        Encoder { layout, codec, member, residual }
    }

    /// Encodes the values of one fragment of a delta: the member's parameters minus those that the round began with.
    /// An error changes nothing.
    pub fn encode(
        &mut self,
        round: u64,
        weight: u32,
        fragment: u32,
        delta: &[f32],
    ) -> Result<Fragment, EncodeError> {
        let range = self.layout.range(fragment).filter(|range| range.len() == delta.len());
        let range = range.ok_or(EncodeError::Shape { fragment, count: delta.len() })?;
        let valid = -MAX_DELTA..=MAX_DELTA;
        if let Some(index) = delta.iter().position(|value| !valid.contains(value)) {
            return Err(EncodeError::Value { fragment, index });
        }
        let header = FragmentHeader {
            kind: Kind::Delta,
            round,
            member: self.member,
            fragment,
            codec: self.codec,
            // A range of the layout is at most MAX_FRAGMENT_VALUES long.
            count: range.len() as u32,
            weight,
            digest: [0; 32],
        };
        let mut payload = Vec::new();
        match &mut self.residual {
            None => self.codec.encode(delta, &mut payload),
            Some(residual) => {
                let residual = &mut residual[range];
                for (residual, value) in residual.iter_mut().zip(delta) {
                    *residual += value;
                }
                // The carried error must not lift a valid delta above the limit; what is cut off is carried on.
                let limited: Vec<f32> =
                    residual.iter().map(|value| value.clamp(-MAX_DELTA, MAX_DELTA)).collect();
                self.codec.encode(&limited, &mut payload);
                subtract_decoded(self.codec, &payload, residual);
            }
        }
        Ok(Fragment::seal(header, payload))
    }

    /// The error that is carried into the next round, if there is feedback.
    pub fn residual(&self) -> Option<&[f32]> {
        self.residual.as_deref()
    }
}

/// Leaves in `values` what decoding their payload does not give back.
pub(crate) fn subtract_decoded(codec: Codec, payload: &[u8], values: &mut [f32]) {
    let mut decoded = vec![0.0; values.len()];
    // The payload is our own, of finite values. If it could not be decoded, the zeros would carry everything on.
    if codec.decode(payload, &mut decoded).is_ok() {
        for (value, decoded) in values.iter_mut().zip(&decoded) {
            *value -= decoded;
        }
    }
}
