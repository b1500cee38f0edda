//! Every decoder, for the fuzz targets and the tests that repeat their corpora.
//!
//! Each accepts any bytes and panics only if a promise is broken: a decoded message is valid, and encodes to bytes that
//! decode to the same message.

use std::fmt::Debug;

use hypha_model::{Rng, Time, WorkerId};

use crate::admission::Verdict;
use crate::bulk;
use crate::codec::{EncodeError, Message, decode, encode};
use crate::dispatch::{Orders, Reports};
use crate::frame::{FrameReader, LENGTH_BYTES};
use crate::record::{
    AdvertClosedRecord, AdvertRecord, DatasetRecord, Farewell, SignedRecord, WorkerRecord,
};
use crate::record_set::RecordSet;
use crate::request::{Request, Response};

/// The name of the fuzz target and its corpus, and its function.
pub type Decoder = (&'static str, fn(&[u8]));

/// All decoders of this crate. A new message is added here, and the tests require the rest.
pub const DECODERS: &[Decoder] = &[
    ("advert", |bytes| drop(read::<AdvertRecord>(bytes))),
    ("advert_closed", |bytes| drop(read::<AdvertClosedRecord>(bytes))),
    ("bulk_open_response", |bytes| drop(read::<bulk::OpenResponse>(bytes))),
    ("bulk_control", |bytes| drop(read::<bulk::ControlMessage>(bytes))),
    ("bulk_open", |bytes| drop(read::<bulk::Open>(bytes))),
    ("bulk_receipt", |bytes| drop(read::<bulk::Receipt>(bytes))),
    ("dataset_record", |bytes| drop(read::<DatasetRecord>(bytes))),
    ("farewell", |bytes| drop(read::<Farewell>(bytes))),
    ("frame", frame),
    ("orders", |bytes| {
        drop(decode(bytes).map(|orders| check(Orders { skipped: 0, ..orders })));
    }),
    ("reports", |bytes| {
        drop(decode(bytes).map(|reports| check(Reports { skipped: 0, ..reports })));
    }),
    ("request", |bytes| drop(read::<Request>(bytes))),
    ("response", |bytes| drop(read::<Response>(bytes))),
    ("record_set", |bytes| drop(read::<RecordSet>(bytes))),
    ("signed", |bytes| drop(read::<SignedRecord>(bytes))),
    ("verdict", |bytes| drop(read::<Verdict>(bytes))),
    ("worker_record", worker_record),
];

/// Runs the decoder called `name`.
///
/// # Panics
/// If there is none of that name, or if the decoder breaks a promise.
pub fn run(name: &str, bytes: &[u8]) {
    let found = DECODERS.iter().find(|(known, _)| *known == name);
    assert!(found.is_some(), "no decoder is called {name}");
    found.into_iter().for_each(|(_, decoder)| decoder(bytes));
}

fn read<M: Message + PartialEq + Debug>(bytes: &[u8]) -> Option<M> {
    decode::<M>(bytes).ok().map(check)
}

/// A decoded message is encoded, and decodes to the same. Skipped parts cannot be encoded.
fn check<M: Message + PartialEq + Debug>(message: M) -> M {
    match encode(&message) {
        Ok(written) => assert_eq!(decode::<M>(&written).as_ref(), Ok(&message)),
        // An unknown variant is never sent; and a peer may encode shorter than we do.
        Err(EncodeError::Unwritable { .. } | EncodeError::TooLarge { .. }) => {}
        Err(error @ EncodeError::Invalid { .. }) => panic!("read but not written: {error}"),
    }
    message
}

fn worker_record(bytes: &[u8]) {
    if let Some(record) = read::<WorkerRecord>(bytes) {
        let worker = record.worker(WorkerId::new(Time::ZERO, &mut Rng::new(0)));
        assert!(worker.is_ok(), "a valid record holds no worker: {worker:?}");
    }
}

/// The first byte decides the sizes of the portions in which the rest arrives; they must not matter.
fn frame(bytes: &[u8]) {
    let Some((portion, stream)) = bytes.split_first() else { return };
    let whole = frames(stream, stream.len().max(1));
    assert_eq!(frames(stream, usize::from(*portion).max(1)), whole);
}

/// The messages in `stream`, read in portions, as text, and the number of bytes left over.
fn frames(stream: &[u8], portion: usize) -> (Vec<String>, usize) {
    let mut reader = FrameReader::<Verdict>::new();
    let mut seen = Vec::new();
    for mut part in stream.chunks(portion) {
        while !part.is_empty() {
            let taken = reader.push(part);
            part = &part[taken..];
            assert!(reader.buffered_bytes() <= LENGTH_BYTES + Verdict::MAX_BYTES, "holds too much");
            match reader.pop() {
                Ok(Some(message)) => seen.push(format!("{message:?}")),
                Ok(None) => {}
                Err(error) => seen.push(error.to_string()),
            }
            if taken == 0 {
                return (seen, 0);
            }
        }
    }
    (seen, reader.buffered_bytes())
}
