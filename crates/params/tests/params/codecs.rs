//! What codecs lose, what error feedback gives back, and what decoders refuse.

use hypha_params::{BLOCK, Codec, Encoder, Fragment, HEADER_BYTES, Layout, MemberId, ValueFault};
use proptest::prelude::*;

const MEMBER: MemberId = MemberId([7; 16]);

/// Encodes one fragment without feedback and decodes it again.
fn round_trip(codec: Codec, values: &[f32]) -> Vec<f32> {
    let layout = Layout::new(values.len() as u64, values.len() as u32).unwrap();
    let fragment = Encoder::new(layout, codec, MEMBER, false).encode(0, 1, 0, values).unwrap();
    let mut decoded = vec![9.0; values.len()];
    codec.decode(fragment.payload(), &mut decoded).unwrap();
    decoded
}

/// The largest error that a codec may make of a value, in a block with this peak.
fn error_bound(codec: Codec, value: f32, peak: f32) -> f32 {
    let rounding = 1.0 + 1e-5;
    match codec {
        Codec::Fp32 => 0.0,
        Codec::Fp16 => value.abs() / 2048.0 + 6e-8,
        Codec::Int8 => peak / 254.0 * rounding + f32::MIN_POSITIVE * 127.0,
        Codec::Int4 => peak / 14.0 * rounding + f32::MIN_POSITIVE * 7.0,
        Codec::Ternary => peak,
    }
}

fn check_errors(codec: Codec, values: &[f32]) {
    let decoded = round_trip(codec, values);
    for (block, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
        let peak = block.iter().fold(0.0, |peak: f32, value| peak.max(value.abs()));
        for (value, decoded) in block.iter().zip(decoded) {
            let error = (value - decoded).abs();
            assert!(error <= error_bound(codec, *value, peak), "{codec}: {value} → {decoded}");
            assert!(
                decoded.abs() <= peak * 1.0005 + 6e-8,
                "{codec}: {value} → {decoded}, above {peak}"
            );
            assert!(decoded.abs() <= 1.0, "{codec}: {value} → {decoded}");
        }
        let squares = |values: &mut dyn Iterator<Item = f32>| -> f64 {
            values.map(|value| f64::from(value).powi(2)).sum()
        };
        let lost = squares(&mut block.iter().zip(decoded).map(|(value, decoded)| value - decoded));
        assert!(lost <= squares(&mut block.iter().copied()) + 1e-12, "{codec} adds to the error");
    }
}

fn values(length: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        -1.0_f32..=1.0,
        -1e-4_f32..=1e-4,
        Just(0.0),
        Just(1.0),
        Just(-1.0),
        Just(1e-40),
        Just(f32::MIN_POSITIVE),
    ];
    proptest::collection::vec(value, length)
}

proptest! {
    #[test]
    fn errors_stay_within_the_bounds_of_the_codec(values in values(1..400)) {
        for codec in Codec::ALL {
            check_errors(codec, &values);
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..1200),
        count in 0_usize..400,
    ) {
        for codec in Codec::ALL {
            let mut decoded = vec![0.0; count];
            if codec.decode(&bytes, &mut decoded).is_ok() {
                prop_assert!(decoded.iter().all(|value| value.is_finite()));
            }
            // The same with a length that fits, so that the bits are looked at.
            let mut bytes = bytes.clone();
            bytes.resize(codec.encoded_bytes(count), 0x5a);
            if codec.decode(&bytes, &mut decoded).is_ok() {
                prop_assert!(decoded.iter().all(|value| value.is_finite()));
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_of_fragments_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        is_header_valid in any::<bool>(),
    ) {
        let layout = Layout::new(1000, 100).unwrap();
        let mut given = bytes;
        if is_header_valid {
            let fragment = Encoder::new(layout, Codec::Int8, MEMBER, false)
                .encode(0, 1, 0, &[0.5; 100]).unwrap();
            let head = given.len().min(HEADER_BYTES);
            given[..head].copy_from_slice(&fragment.header().to_bytes()[..head]);
        }
        if let Ok(fragment) = Fragment::from_bytes(&given, &layout) {
            prop_assert!(!fragment.is_intact());
        }
    }

    #[test]
    fn a_fragment_survives_the_wire(values in values(1..300), round: u64, weight: u32) {
        for codec in Codec::ALL {
            let layout = Layout::new(values.len() as u64, 1 << 20).unwrap();
            let mut encoder = Encoder::new(layout, codec, MEMBER, true);
            let fragment = encoder.encode(round, weight, 0, &values).unwrap();
            let mut bytes = Vec::new();
            fragment.write(&mut bytes).unwrap();
            prop_assert_eq!(bytes.len(), HEADER_BYTES + codec.encoded_bytes(values.len()));
            let read = Fragment::from_bytes(&bytes, &layout).unwrap();
            prop_assert!(read.is_intact());
            prop_assert_eq!(read, fragment);
        }
    }
}

#[test]
fn typical_errors_are_small() {
    let values: Vec<f32> = (0..4096).map(|n| (n as f32 * 0.37).sin() * 1e-3).collect();
    let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    for (codec, bound) in [
        (Codec::Fp32, 0.0),
        (Codec::Fp16, 1e-3),
        (Codec::Int8, 5e-3),
        (Codec::Int4, 0.1),
        (Codec::Ternary, 0.45),
    ] {
        let decoded = round_trip(codec, &values);
        let lost: Vec<f32> = values.iter().zip(&decoded).map(|(v, d)| v - d).collect();
        let relative = norm(&lost) / norm(&values);
        assert!(relative <= bound, "{codec}: {relative}");
    }
}

#[test]
fn error_feedback_makes_sums_converge() {
    const ROUNDS: u32 = 200;
    let delta: Vec<f32> = (0..1000).map(|n| (n as f32 * 0.71).cos() * 0.01).collect();
    let layout = Layout::new(1000, 400).unwrap();
    for codec in [Codec::Fp16, Codec::Int8, Codec::Int4, Codec::Ternary] {
        let sent = |has_feedback| {
            let mut encoder = Encoder::new(layout, codec, MEMBER, has_feedback);
            let mut sums = vec![0.0_f64; 1000];
            for round in 0..u64::from(ROUNDS) {
                for index in 0..layout.fragments() {
                    let range = layout.range(index).unwrap();
                    let fragment = encoder.encode(round, 1, index, &delta[range.clone()]).unwrap();
                    let mut decoded = vec![0.0; range.len()];
                    codec.decode(fragment.payload(), &mut decoded).unwrap();
                    for (sum, value) in sums[range].iter_mut().zip(&decoded) {
                        *sum += f64::from(*value);
                    }
                }
            }
            sums
        };
        // The mean of what was sent: its distance from the delta falls with the number of rounds.
        let worst = |sums: &[f64]| {
            sums.iter().zip(&delta).fold(0.0_f64, |worst, (sum, value)| {
                worst.max((sum / f64::from(ROUNDS) - f64::from(*value)).abs())
            })
        };
        let (with, without) = (worst(&sent(true)), worst(&sent(false)));
        assert!(with < 0.01 * 0.05, "{codec}: {with}");
        assert!(with < without / 10.0, "{codec}: {with} with feedback, {without} without");
    }
}

#[test]
fn decoders_refuse_with_a_reason() {
    let scaled = |codec: Codec, scale: f32, code: u8| {
        let mut payload = vec![code; codec.encoded_bytes(BLOCK)];
        payload[..4].copy_from_slice(&scale.to_le_bytes());
        payload
    };
    let second_block = [[0; 512].as_slice(), &f32::NAN.to_le_bytes(), &[0; 508]].concat();
    let scale = ValueFault::Scale { block: 0 };
    let not_finite = ValueFault::NotFinite { block: 0 };
    for (codec, payload, count, expected) in [
        (Codec::Fp32, second_block, 129, ValueFault::NotFinite { block: 1 }),
        (Codec::Fp32, scaled(Codec::Fp32, f32::INFINITY, 0), 1, not_finite),
        (Codec::Fp16, [0x00, 0x7c].repeat(BLOCK), 1, not_finite),
        (Codec::Fp16, [0xff, 0xff].repeat(BLOCK), 1, not_finite),
        (Codec::Int8, scaled(Codec::Int8, f32::NAN, 0), 5, scale),
        (Codec::Int8, scaled(Codec::Int8, -1.0, 0), 5, scale),
        (Codec::Int8, scaled(Codec::Int8, f32::MAX, 100), 5, not_finite),
        (Codec::Int4, scaled(Codec::Int4, f32::INFINITY, 0), 5, scale),
        (Codec::Int4, scaled(Codec::Int4, f32::MAX, 0x77), 5, not_finite),
        (Codec::Ternary, scaled(Codec::Ternary, f32::NEG_INFINITY, 0), 5, scale),
        (
            Codec::Ternary,
            scaled(Codec::Ternary, 1.0, 0b0111_0101),
            5,
            ValueFault::Code { block: 0 },
        ),
        (Codec::Int8, vec![0; 3], 5, ValueFault::Length { expected: 132, actual: 3 }),
    ] {
        let refused = codec.decode(&payload, &mut vec![0.0; count]).unwrap_err();
        assert_eq!(refused, expected, "{codec}");
    }
}

#[test]
fn an_encoder_refuses_what_a_server_would() {
    let layout = Layout::new(10, 5).unwrap();
    let mut encoder = Encoder::new(layout, Codec::Int8, MEMBER, true);
    for bad in [f32::NAN, f32::INFINITY, 1.000_001, -2.0] {
        assert!(encoder.encode(0, 1, 0, &[0.0, 0.0, bad, 0.0, 0.0]).is_err(), "{bad}");
    }
    assert!(encoder.encode(0, 1, 2, &[0.0; 5]).is_err());
    assert!(encoder.encode(0, 1, 1, &[0.0; 4]).is_err());
    assert_eq!(encoder.residual().unwrap(), [0.0; 10]);
}

#[test]
fn a_changed_bit_anywhere_in_a_fragment_is_noticed() {
    let layout = Layout::new(300, 100).unwrap();
    let mut encoder = Encoder::new(layout, Codec::Int4, MEMBER, false);
    let mut bytes = Vec::new();
    encoder.encode(5, 9, 1, &[0.25; 100]).unwrap().write(&mut bytes).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(fragment) = Fragment::from_bytes(&changed, &layout) {
            assert!(!fragment.is_intact(), "bit {bit}");
        }
    }
}

#[test]
fn the_carried_error_does_not_lift_a_delta_above_its_limit() {
    let layout = Layout::new(2, 2).unwrap();
    let mut encoder = Encoder::new(layout, Codec::Int4, MEMBER, true);
    encoder.encode(0, 1, 0, &[1.0, 0.92]).unwrap();
    assert!(encoder.residual().unwrap()[1] > 0.05);
    let fragment = encoder.encode(1, 1, 0, &[1.0, 1.0]).unwrap();
    let squares = hypha_params::check_fragment(Codec::Int4, fragment.payload(), 2).unwrap();
    assert!(squares > 1.99 && squares <= 2.0, "{squares}");
    // What was cut off is carried on.
    assert!(encoder.residual().unwrap()[1] > 0.05);
}
