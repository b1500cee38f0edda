//! Ranges that are served, and requests and directories that are refused.

use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::prepare::{Encoding, Input, Options, prepare};
use crate::{Library, SliceCache};

const SLICE: &str = "slice-0000.safetensors";

/// A data set of two slices in `set`, beside `secret`, a file of the same size as the first slice.
fn prepared() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, b"abcdefghijklmno\n").unwrap();
    let context = NonZeroU32::new(3).unwrap();
    let input = Input::Text { files: vec![text], encoding: Encoding::Bytes, context };
    let options = Options {
        name: Name::literal("corpus"),
        samples_per_slice: NonZeroU32::new(3).unwrap(),
        holdout_every: None,
    };
    let set = directory.path().join("set");
    prepare(&input, &options, &set, &mut |_| {}).unwrap();
    let bytes = fs::metadata(set.join(SLICE)).unwrap().len();
    fs::write(directory.path().join("secret"), vec![b's'; bytes as usize]).unwrap();
    (directory, set)
}

fn read(dataset: &Dataset, range: Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    dataset.read(SliceIndex(0), range).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn any_range_of_a_slice_is_served_exactly() {
    let (_directory, set) = prepared();
    let dataset = Dataset::open(&set).unwrap();
    let content = fs::read(set.join(SLICE)).unwrap();
    let length = content.len() as u64;
    for (start, end) in
        [(0, length), (0, 1), (length - 1, length), (5, 9), (7, 7), (length, length)]
    {
        let expected = &content[start as usize..end as usize];
        assert_eq!(dataset.read(SliceIndex(0), start..end).unwrap().remaining(), end - start);
        assert_eq!(read(&dataset, start..end), expected, "{start}..{end}");
    }
}

#[test]
fn invalid_requests_are_refused() {
    let (_directory, set) = prepared();
    let library = Library::open([(Name::literal("served"), set.as_path())]).unwrap();
    let bytes = library.get("served").unwrap().manifest().slices[0].bytes;
    #[expect(clippy::reversed_empty_ranges)]
    for range in [0..bytes + 1, 2..1, bytes + 1..bytes + 1, 0..u64::MAX, u64::MAX..0] {
        let error = library.read("served", SliceIndex(0), range).unwrap_err();
        assert!(matches!(error, DatasetError::OutOfRange { .. }), "{error}");
    }
    for index in [2, u32::MAX] {
        let error = library.read("served", SliceIndex(index), 0..1).unwrap_err();
        assert!(matches!(error, DatasetError::UnknownSlice { slices: 2, .. }), "{error}");
    }
    for name in ["corpus", "../set", "", "served/", "SERVED"] {
        let error = library.read(name, SliceIndex(0), 0..1).unwrap_err();
        assert!(matches!(error, DatasetError::UnknownDataset(_)), "{error}");
    }
    let twice = [(Name::literal("a"), set.as_path()), (Name::literal("a"), set.as_path())];
    assert!(matches!(Library::open(twice), Err(DatasetError::DuplicateDataset(_))));
}

#[test]
fn links_out_of_the_directory_are_not_followed() {
    let (directory, set) = prepared();
    let open = Dataset::open(&set).unwrap();
    fs::remove_file(set.join(SLICE)).unwrap();
    symlink("../secret", set.join(SLICE)).unwrap();
    let refused = [Dataset::open(&set).map(|_| ()), open.read(SliceIndex(0), 0..1).map(|_| ())];
    for result in refused {
        assert!(matches!(result, Err(DatasetError::Outside(_))), "{result:?}");
    }
    // A directory whose name begins like that of the data set is another one.
    fs::remove_file(set.join(SLICE)).unwrap();
    fs::create_dir(directory.path().join("set-2")).unwrap();
    fs::rename(directory.path().join("secret"), directory.path().join("set-2/secret")).unwrap();
    symlink("../set-2/secret", set.join(SLICE)).unwrap();
    assert!(matches!(Dataset::open(&set), Err(DatasetError::Outside(_))));
    // Nor is a directory a slice, or a link a held-out data set.
    fs::remove_file(set.join(SLICE)).unwrap();
    fs::create_dir(set.join(SLICE)).unwrap();
    assert!(matches!(Dataset::open(&set), Err(DatasetError::Outside(_))));
    symlink("../set-2", set.join(HOLDOUT_DIRECTORY)).unwrap();
    assert!(matches!(open.open_holdout(), Err(DatasetError::Outside(_))));
}

#[test]
fn link_to_the_directory_itself_works() {
    let (directory, set) = prepared();
    let link = directory.path().join("link");
    symlink(&set, &link).unwrap();
    assert_eq!(read(&Dataset::open(&link).unwrap(), 8..9), b"{");
}

#[test]
fn damaged_slices_are_noticed() {
    let (_directory, set) = prepared();
    let path = set.join(SLICE);
    let valid = fs::read(&path).unwrap();
    let dataset = Dataset::open(&set).unwrap();
    dataset.verify(SliceIndex(0)).unwrap();

    let mut flipped = valid.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&path, &flipped).unwrap();
    let error = Dataset::open(&set).unwrap().verify(SliceIndex(0)).unwrap_err();
    assert!(error.to_string().contains("its digest differs"), "{error}");

    fs::write(&path, &valid[1..]).unwrap();
    let error = Dataset::open(&set).unwrap_err();
    assert!(error.to_string().contains("bytes instead of"), "{error}");
    fs::remove_file(&path).unwrap();
    assert!(matches!(Dataset::open(&set), Err(DatasetError::Io { .. })));
}

#[test]
fn slice_that_is_not_as_the_manifest_says_is_noticed() {
    let (_directory, set) = prepared();
    let path = set.join(MANIFEST_FILE);
    let valid = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        (": 3,", ": 4,"),
        ("\"U8\"", "\"I8\""),
        ("\"tokens\",\n      \"dtype", "\"other\",\n      \"dtype"),
    ] {
        assert!(valid.contains(from), "{valid}");
        fs::write(&path, valid.replace(from, to)).unwrap();
        let error = Dataset::open(&set).unwrap().verify(SliceIndex(0)).unwrap_err();
        assert!(error.to_string().contains("other samples or tensors"), "{error}");
    }
}

#[test]
fn oversized_manifest_is_not_read() {
    let (_directory, set) = prepared();
    let file = File::options().write(true).open(set.join(MANIFEST_FILE)).unwrap();
    // Sparse: it takes no room.
    file.set_len(MAX_MANIFEST_BYTES + 1).unwrap();
    let error = Dataset::open(&set).unwrap_err();
    assert!(error.to_string().contains("a manifest has at most"), "{error}");
}

#[test]
fn truncation_while_a_range_is_sent_is_an_error() {
    let (_directory, set) = prepared();
    let dataset = Dataset::open(&set).unwrap();
    let bytes = dataset.manifest().slices[0].bytes;
    let mut reader = dataset.read(SliceIndex(0), 0..bytes).unwrap();
    File::options().write(true).open(set.join(SLICE)).unwrap().set_len(bytes - 1).unwrap();
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn broken_transfer_into_a_cache_resumes_at_its_offset() {
    let (directory, set) = prepared();
    let dataset = Dataset::open(&set).unwrap();
    let slice = &dataset.manifest().slices[0];
    let mut cache = SliceCache::open(directory.path().join("cache"), slice.bytes).unwrap();
    for end in [10, 11, slice.bytes] {
        let mut download = cache.download(slice).unwrap();
        download.append(dataset.read(SliceIndex(0), download.offset()..end).unwrap()).unwrap();
        assert_eq!(download.offset(), end);
        if end == slice.bytes {
            let cached = cache.finish(download).unwrap();
            let mut samples = SliceFile::open(cached.path()).unwrap();
            assert_eq!(samples.read("tokens", 1..2).unwrap(), b"defg");
        }
    }
}
