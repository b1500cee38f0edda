//! Versioned messages between peers, and their bytes.

pub mod admission;
pub mod bulk;
pub mod channel;
pub mod check;
pub mod codec;
#[doc(hidden)]
pub mod decoders;
pub mod dispatch;
mod field;
pub mod frame;
pub mod market;
pub mod record;
pub mod record_set;
pub mod request;
pub mod revocation;
mod tagged;
pub mod worker;

pub use admission::Verdict;
pub use channel::{ChannelProtocol, Frame};
pub use codec::{DecodeError, EncodeError, InvalidField, Message, decode, encode};
pub use dispatch::{Order, Orders, Report, Reports};
pub use frame::{FrameReader, put_frame};
pub use market::{Advert, Offer, SignedReceipt};
pub use record::{
    AdvertClosedRecord, AdvertRecord, DatasetRecord, Farewell, SignedKind, SignedRecord,
    WorkerRecord,
};
pub use record_set::{RecordSet, RecordSetEntry};
pub use request::{
    Health, OfferRequest, Refusal, RefusalKind, Request, RequestBody, Response, ResponseBody,
};
pub use worker::Worker;
