//! Eviction, resuming, and damaged files.

use super::*;

fn slice(fill: u8, bytes: usize) -> (SliceEntry, Vec<u8>) {
    let content = vec![fill; bytes];
    let (blake3, _) = Digest::of_reader(content.as_slice()).unwrap();
    (SliceEntry { file: "any".into(), samples: 1, bytes: bytes as u64, blake3 }, content)
}

fn fetch(cache: &mut SliceCache, fill: u8, bytes: usize) -> Result<CachedSlice, CacheError> {
    let (slice, content) = slice(fill, bytes);
    let mut download = cache.download(&slice)?;
    let offset = usize::try_from(download.offset()).unwrap();
    download.append(&content[offset..])?;
    cache.finish(download)
}

fn holds(cache: &mut SliceCache, fill: u8, bytes: usize) -> bool {
    cache.get(&slice(fill, bytes).0).unwrap().is_some()
}

/// The state on the disk, not that in memory.
fn disk_bytes(directory: &Path) -> u64 {
    fs::read_dir(directory).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn least_recently_used_slice_is_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let mut cache = SliceCache::open(directory.path(), 30).unwrap();
    for fill in 1..=3 {
        fetch(&mut cache, fill, 10).unwrap();
    }
    assert!(holds(&mut cache, 1, 10));
    fetch(&mut cache, 4, 10).unwrap();
    assert_eq!([1, 2, 3, 4].map(|fill| holds(&mut cache, fill, 10)), [true, false, true, true]);
    assert_eq!((cache.bytes(), disk_bytes(directory.path())), (30, 30));
    fetch(&mut cache, 5, 25).unwrap();
    assert_eq!((cache.bytes(), disk_bytes(directory.path())), (25, 25));
    let error = fetch(&mut cache, 6, 31).unwrap_err();
    assert!(matches!(error, CacheError::TooLarge { bytes: 31, max_bytes: 30 }), "{error}");
    assert!(holds(&mut cache, 5, 25), "a refused slice evicts nothing");
}

#[test]
fn slice_in_use_is_not_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let mut cache = SliceCache::open(directory.path(), 25).unwrap();
    let first = fetch(&mut cache, 1, 10).unwrap();
    fetch(&mut cache, 2, 10).unwrap();
    fetch(&mut cache, 3, 10).unwrap();
    assert!(holds(&mut cache, 1, 10) && !holds(&mut cache, 2, 10));
    let error = fetch(&mut cache, 4, 20).unwrap_err();
    assert!(matches!(error, CacheError::Full { bytes: 20, in_use: 10, .. }), "{error}");
    assert!(matches!(fetch(&mut cache, 1, 10), Err(CacheError::Present)));
    assert!(first.path().exists());
    drop(first);
    fetch(&mut cache, 4, 20).unwrap();
}

#[test]
fn order_of_use_and_limit_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut cache = SliceCache::open(directory.path(), 30).unwrap();
    for fill in 1..=3 {
        let path = fetch(&mut cache, fill, 10).unwrap().path;
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(fill.into());
        File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    }
    assert!(holds(&mut cache, 1, 10));
    fs::write(directory.path().join("other"), b"not the cache's").unwrap();
    let mut cache = SliceCache::open(directory.path(), 20).unwrap();
    assert_eq!([1, 2, 3].map(|fill| holds(&mut cache, fill, 10)), [true, false, true]);
    assert!(directory.path().join("other").exists());
}

#[test]
fn broken_download_resumes_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (slice, content) = slice(7, 1000);
    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    let mut download = cache.download(&slice).unwrap();
    download.append(&content[..400]).unwrap();
    assert!(matches!(cache.download(&slice), Err(CacheError::InFlight)));
    let error = cache.finish(download).unwrap_err();
    assert!(matches!(error, CacheError::Incomplete { bytes: 400, expected: 1000 }), "{error}");
    assert!(cache.get(&slice).unwrap().is_none());

    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    let mut download = cache.download(&slice).unwrap();
    assert_eq!(download.offset(), 400);
    download.append(&content[400..]).unwrap();
    let cached = cache.finish(download).unwrap();
    assert_eq!(fs::read(cached.path()).unwrap(), content);
    assert_eq!(disk_bytes(directory.path()), 1000, "the part is gone");
}

#[test]
fn download_that_lacks_one_byte_can_be_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let (slice, content) = slice(7, 1000);
    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    let mut download = cache.download(&slice).unwrap();
    download.append(&content[..999]).unwrap();
    let error = cache.finish(download).unwrap_err();
    assert!(matches!(error, CacheError::Incomplete { bytes: 999, .. }), "{error}");
    assert_eq!(cache.download(&slice).unwrap().offset(), 999);
}

#[test]
fn failed_reader_keeps_what_came_before() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (slice, content) = slice(7, 1000);
    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    let mut download = cache.download(&slice).unwrap();
    download.append(content[..300].chain(Broken)).unwrap_err();
    drop(download);
    assert_eq!(cache.download(&slice).unwrap().offset(), 300);
}

#[test]
fn part_is_kept_when_there_is_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let (slice, content) = slice(7, 15);
    let mut cache = SliceCache::open(directory.path(), 20).unwrap();
    cache.download(&slice).unwrap().append(&content[..5]).unwrap();
    // The limit is smaller now, and another slice in use takes the rest of it.
    let mut cache = SliceCache::open(directory.path(), 16).unwrap();
    let other = fetch(&mut cache, 1, 10).unwrap();
    assert!(matches!(cache.download(&slice), Err(CacheError::Full { .. })));
    drop(other);
    assert_eq!(cache.download(&slice).unwrap().offset(), 5);
}

#[test]
fn wrong_bytes_are_removed_and_fetched_again() {
    let directory = tempfile::tempdir().unwrap();
    let (slice, content) = slice(7, 100);
    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    let mut download = cache.download(&slice).unwrap();
    download.append(&[8; 100][..]).unwrap();
    assert!(matches!(cache.finish(download), Err(CacheError::WrongBytes)));
    assert_eq!(disk_bytes(directory.path()), 0);

    let mut download = cache.download(&slice).unwrap();
    assert_eq!(download.offset(), 0);
    assert!(matches!(download.append(&[7; 101][..]), Err(CacheError::WrongBytes)));
    download.append(content.as_slice()).unwrap();
    cache.finish(download).unwrap();
}

#[test]
fn damaged_or_missing_file_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    let damage: [fn(&Path); 3] = [
        |path| fs::write(path, [9; 100]).unwrap(),
        |path| fs::write(path, [7; 99]).unwrap(),
        |path| fs::remove_file(path).unwrap(),
    ];
    fetch(&mut cache, 7, 100).unwrap();
    for damage in damage {
        let path = cache.get(&slice(7, 100).0).unwrap().unwrap().path;
        damage(&path);
        assert!(!holds(&mut cache, 7, 100));
        assert_eq!((cache.bytes(), disk_bytes(directory.path())), (0, 0));
        fetch(&mut cache, 7, 100).unwrap();
        assert!(holds(&mut cache, 7, 100));
    }
    // A part that is too long is not a part of this slice.
    let (slice, _) = slice(3, 10);
    fs::write(directory.path().join(format!("{}.part", slice.blake3)), [3; 11]).unwrap();
    assert_eq!(cache.download(&slice).unwrap().offset(), 0);
}

#[test]
fn slice_and_part_of_one_digest_are_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    let path = fetch(&mut cache, 7, 100).unwrap().path;
    fs::write(path.with_extension("part"), [7; 50]).unwrap();
    let mut cache = SliceCache::open(directory.path(), 1000).unwrap();
    assert!(holds(&mut cache, 7, 100));
    assert_eq!((cache.bytes(), disk_bytes(directory.path())), (100, 100));
}
