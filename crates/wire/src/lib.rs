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
pub mod record;
pub mod request;
pub mod shelf;
mod tagged;
pub mod worker;

pub use admission::Verdict;
pub use channel::{Frame, Protocol};
pub use codec::{DecodeError, EncodeError, Invalid, Message, decode, encode};
pub use dispatch::{Order, Orders, Report, Reports};
pub use frame::{FrameReader, put_frame};
pub use record::{DatasetRecord, Farewell, Signed, SignedKind, WorkerRecord};
pub use request::{Health, Refusal, RefusalKind, Request, RequestBody, Response, ResponseBody};
pub use shelf::{Shelf, ShelfEntry};
pub use worker::Worker;
