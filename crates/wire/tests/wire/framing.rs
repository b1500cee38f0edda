//! Frames: any portions give the same messages, and no length is trusted.

use hypha_wire::frame::LENGTH_BYTES;
use hypha_wire::*;

use crate::samples;

fn stream(count: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for id in 0..count {
        let request = Request { id, ..samples::request(RequestBody::Health) };
        put_frame(&mut bytes, &request).unwrap();
    }
    bytes
}

#[test]
fn portions_do_not_matter() {
    let bytes = stream(5);
    for portion in 1..=bytes.len() {
        let mut reader = FrameReader::<Request>::new();
        let mut ids = Vec::new();
        for mut part in bytes.chunks(portion) {
            while !part.is_empty() {
                part = &part[reader.push(part)..];
                ids.extend(reader.pop().unwrap().map(|request| request.id));
            }
        }
        assert_eq!(ids, [0, 1, 2, 3, 4], "in portions of {portion}");
        assert_eq!(reader.buffered_bytes(), 0);
    }
}

#[test]
fn missing_bytes_are_counted_exactly() {
    let bytes = stream(2);
    let mut reader = FrameReader::<Request>::new();
    let mut at = 0;
    for id in 0..2 {
        assert_eq!(reader.missing_bytes(), LENGTH_BYTES);
        at += reader.push(&bytes[at..at + LENGTH_BYTES]);
        assert_eq!(reader.pop(), Ok(None));
        at += reader.push(&bytes[at..at + reader.missing_bytes()]);
        assert_eq!(reader.missing_bytes(), 0);
        assert_eq!(reader.push(&bytes[at..]), 0, "the message waits to be popped");
        assert_eq!(reader.pop().unwrap().map(|request| request.id), Some(id));
    }
    assert_eq!(at, bytes.len());
}

#[test]
fn a_length_that_is_too_large_ends_the_stream() {
    let mut reader = FrameReader::<Verdict>::new();
    let length = Verdict::MAX_BYTES + 1;
    let bytes = [&(length as u32).to_be_bytes()[..], &[0; 100]].concat();
    assert_eq!(reader.push(&bytes), LENGTH_BYTES);
    for _ in 0..2 {
        let error = DecodeError::TooLarge { name: "verdict", bytes: length, max: 512 };
        assert_eq!(reader.pop(), Err(error));
        assert_eq!((reader.push(&bytes), reader.missing_bytes()), (0, 0));
    }
}

#[test]
fn the_largest_length_allocates_nothing() {
    let largest = (RecordSet::MAX_BYTES as u32).to_be_bytes();
    let info = allocation_counter::measure(|| {
        let mut reader = FrameReader::<RecordSet>::new();
        assert_eq!(reader.push(&largest), LENGTH_BYTES);
        assert_eq!(reader.missing_bytes(), RecordSet::MAX_BYTES);
    });
    assert!(info.bytes_max < 1_024, "{}", info.bytes_max);
}

#[test]
fn the_next_frame_is_read_after_an_invalid_one() {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    bytes.extend([2, 0, 0]);
    bytes.extend(0_u32.to_be_bytes());
    put_frame(&mut bytes, &Verdict::admitted()).unwrap();
    let mut reader = FrameReader::<Verdict>::new();
    let mut at = reader.push(&bytes);
    assert_eq!(reader.pop(), Err(DecodeError::Version { name: "verdict", got: 2 }));
    at += reader.push(&bytes[at..]);
    assert!(matches!(reader.pop(), Err(DecodeError::Malformed { .. })));
    at += reader.push(&bytes[at..]);
    assert_eq!(reader.pop(), Ok(Some(Verdict::admitted())));
    assert_eq!(at, bytes.len());
}

#[test]
fn a_message_that_cannot_be_sent_leaves_the_buffer_unchanged() {
    let mut buffer = vec![7];
    let unknown = samples::request(RequestBody::Unknown);
    assert!(put_frame(&mut buffer, &unknown).is_err());
    assert_eq!(buffer, [7]);
}
