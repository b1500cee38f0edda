//! Tensors on the wire: codecs, streaming reduce, checkpoints.
//!
//! The parameters of a model are one flat vector, cut into fragments by a [`Layout`]. A worker encodes its delta of a
//! round fragment by fragment with an [`Encoder`]; the parameter server stages the fragments and adds a delta to its
//! [`Reducer`] once all of them are verified. [`OuterState::step`] turns the sum into an update, encoded for the way
//! back, and [`Checkpoints`] stores the state between rounds.
//!
//! **The order in which deltas arrive changes no bit of the result**: sums are exact, in fixed point. **Server, members
//! and joiners hold the same bits**: all apply the decoded update.
//!
//! This crate takes and gives bytes, readers and writers. It does not know the network.

mod accumulator;
mod checkpoint;
mod checkpoint_store;
mod codec;
mod encoder;
mod fragment;
mod layout;
mod outer;
mod reducer;
mod staging;

pub use accumulator::{
    Accumulator, FRACTION_BITS, MAX_DELTA, MAX_TOTAL_WEIGHT, add_fragment, check_fragment,
};
pub use checkpoint::{Checkpoints, Damage, LoadError, Loaded, MAX_ATTACHMENT_BYTES, Skipped};
pub use checkpoint_store::{CheckpointDirectory, CheckpointStore};
pub use codec::{BLOCK, Codec, UnknownCodec, ValueFault};
pub use encoder::{EncodeError, Encoder};
pub use fragment::{
    CheckedFragment, Fragment, FragmentHeader, HEADER_BYTES, HeaderError, Kind, MemberId, ReadError,
};
pub use layout::{Layout, LayoutError, MAX_FRAGMENT_VALUES, MAX_FRAGMENTS};
pub use outer::{ApplyError, OuterSettings, OuterState, StateError, StepError, apply_update};
pub use reducer::{DeltaRejection, Limits, PushError, Pushed, Reducer, Rejection};
pub use staging::{DirectoryStaging, MemoryStaging, Staging};
