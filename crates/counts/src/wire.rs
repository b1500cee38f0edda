//! One frame from a scheduler to a worker, written and read. Its bytes are those that the tests of `wire` pin: each
//! kind of message once.

use std::hint::black_box;

use anyhow::{Context, ensure};
use hypha_wire::{FrameReader, Orders, put_frame};

const ORDERS: &str = include_str!("../../wire/tests/golden/orders.usual_written.hex");

pub(crate) fn encode(rounds: u64) -> anyhow::Result<()> {
    let (orders, mut buffer) = (orders()?, Vec::new());
    for _ in 0..rounds {
        buffer.clear();
        put_frame(&mut buffer, black_box(&orders))?;
    }
    Ok(())
}

pub(crate) fn decode(rounds: u64) -> anyhow::Result<()> {
    let mut frame = Vec::new();
    put_frame(&mut frame, &orders()?)?;
    let mut reader = FrameReader::<Orders>::new();
    for _ in 0..rounds {
        ensure!(reader.push(black_box(&frame)) == frame.len(), "a frame was not consumed whole");
        black_box(reader.pop()?.context("a frame was not read")?);
    }
    Ok(())
}

fn orders() -> anyhow::Result<Orders> {
    let digits: Vec<u8> = ORDERS.bytes().filter(u8::is_ascii_hexdigit).collect();
    let bytes = digits.chunks(2).map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?));
    let bytes = bytes.collect::<anyhow::Result<Vec<u8>>>()?;
    Ok(hypha_wire::decode(&bytes)?)
}
