//! The format is that of safetensors; ranges and damaged headers.

use std::fs;

use super::*;

fn spec(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: shape.into() }
}

fn written() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("slice");
    let (tokens, labels) = (spec(TOKENS, Dtype::U8, &[3]), spec("labels", Dtype::I64, &[]));
    let label_bytes: Vec<u8> = [5i64, -6].iter().flat_map(|label| label.to_le_bytes()).collect();
    let columns: [(&TensorSpec, &[u8]); 2] = [(&tokens, b"abcdef"), (&labels, &label_bytes)];
    let (bytes, digest) = write(&path, &columns, 2).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!((digest, bytes), Digest::of_reader(content.as_slice()).unwrap());
    (directory, path)
}

#[test]
fn slice_is_a_safetensors_file() {
    let (_directory, path) = written();
    let content = fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&content).unwrap();
    let tokens = tensors.tensor(TOKENS).unwrap();
    assert_eq!(
        (tokens.dtype(), tokens.shape(), tokens.data()),
        (Dtype::U8, &[2, 3][..], &b"abcdef"[..])
    );
    let labels = tensors.tensor("labels").unwrap();
    assert_eq!((labels.dtype(), labels.shape()), (Dtype::I64, &[2][..]));
}

#[test]
fn samples_are_read_by_range() {
    let (_directory, path) = written();
    let mut slice = SliceFile::open(path).unwrap();
    assert_eq!(slice.samples(), 2);
    assert_eq!(slice.read(TOKENS, 1..2).unwrap(), b"def");
    assert_eq!(slice.read("labels", 0..1).unwrap(), 5i64.to_le_bytes());
    assert_eq!(slice.read(TOKENS, 1..1).unwrap(), b"");
    let tokens = slice.read_tokens(0..2).unwrap();
    assert_eq!(tokens.sequences().collect::<Vec<_>>(), [[97, 98, 99], [100, 101, 102]]);
    #[expect(clippy::reversed_empty_ranges)]
    for range in [0..3, 2..1, 3..3] {
        let error = slice.read(TOKENS, range).unwrap_err();
        assert!(matches!(error, SampleError::OutOfRange { samples: 2, .. }), "{error}");
    }
    assert!(matches!(slice.read("no", 0..1), Err(SampleError::UnknownTensor { .. })));
}

#[test]
fn malformed_files_are_refused() {
    let (_directory, path) = written();
    let valid = fs::read(&path).unwrap();
    let with = |from: &str, to: &str| {
        let at = valid.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        [&valid[..at], to.as_bytes(), &valid[at + from.len()..]].concat()
    };
    for (content, expected) in [
        (Vec::new(), "it has 0 bytes"),
        (valid[..valid.len() - 1].to_vec(), "bytes instead of"),
        ([valid.as_slice(), b"x"].concat(), "bytes instead of"),
        (valid[..20].to_vec(), "a header of"),
        ([&u64::MAX.to_le_bytes(), &valid[8..]].concat(), "a header of 18446744073709551615"),
        (with("\"U8\"", "\"X8\""), "invalid header"),
        (with("[2,3]", "[3,2]"), "differ in their number of samples"),
        (with("[2,3]", "[2,4]"), "invalid header"),
        (with("[2,3]", "[ 6]"), "invalid header"),
    ] {
        fs::write(&path, content).unwrap();
        let error = SliceFile::open(&path).unwrap_err().to_string();
        assert!(
            error.contains(expected) || expected == "invalid header" && error.contains("a header"),
            "{expected}: {error}"
        );
    }
}

#[test]
fn headers_with_huge_or_strange_claims_are_refused() {
    // Seven tensors of 2^61 bytes less one, and one that ends at the largest offset.
    let step = (1u64 << 61) - 1;
    let mut ends: Vec<u64> = (0..=8).map(|at| at * step).collect();
    ends.push(u64::MAX);
    let claims: Vec<String> = ends
        .windows(2)
        .enumerate()
        .map(|(at, ends)| {
            let size = ends[1] - ends[0];
            format!(r#""t{at}":{{"dtype":"U8","shape":[{size}],"data_offsets":{ends:?}}}"#)
        })
        .collect();
    let empty = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let many: Vec<String> = (0..=MAX_TENSORS).map(|at| format!("\"t{at}\":{empty}")).collect();
    let one = |dtype: &str, shape: &str| {
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,0]}}}}"#)
    };
    for (header, expected) in [
        (format!("{{{}}}", claims.join(",")), "bytes instead of 18446744073709551615"),
        (format!("{{{}}}", many.join(",")), "a slice has 1 to 64 tensors, not 65"),
        ("{}".into(), "a slice has 1 to 64 tensors, not 0"),
        ("[".repeat(50_000), "invalid header"),
        (" ".repeat(MAX_HEADER_BYTES as usize + 1), "a header of"),
        (one("U8", "[]"), "invalid header"),
        (one("U8", "[4294967296, 0]"), "has 4294967296 rows"),
        (one("U8", "[0, 4294967296, 4294967296]"), "empty or not of whole bytes"),
        (one("F4", "[0]"), "empty or not of whole bytes"),
        (one("U8", "[0, 1073741825]"), "is too large"),
        (one("U8", "[1, 0]"), "empty or not of whole bytes"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slice");
        let length = (header.len() as u64).to_le_bytes();
        fs::write(&path, [&length, header.as_bytes()].concat()).unwrap();
        let error = SliceFile::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn truncation_while_open_is_noticed() {
    let (_directory, path) = written();
    let mut slice = SliceFile::open(&path).unwrap();
    let length = fs::metadata(&path).unwrap().len();
    File::options().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let error = slice.read(TOKENS, 0..2).unwrap_err();
    assert!(error.to_string().contains("truncated"), "{error}");
}
