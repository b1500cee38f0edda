//! Restarts from checkpoints, whole and damaged.

use std::fs;
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use hypha_params::{
    CheckpointDirectory, CheckpointStore, Checkpoints, Codec, Damage, Encoder, Layout, LoadError,
    Loaded, OuterSettings, OuterState,
};

use crate::world::{SETTINGS, bits, fragments, member, reducer, step, values};

const TOTAL: usize = 1_000;

fn open(folder: &Path) -> Checkpoints<CheckpointDirectory> {
    let store = CheckpointDirectory::open(folder).unwrap();
    Checkpoints::new(store, NonZeroUsize::new(3).unwrap())
}

fn load(folder: &Path) -> Loaded {
    open(folder).load().unwrap().unwrap()
}

fn file(folder: &Path, round: u64) -> PathBuf {
    folder.join(format!("{round:020}.checkpoint"))
}

fn start() -> OuterState {
    let layout = Layout::new(TOTAL as u64, 300).unwrap();
    OuterState::new(layout, values(7, TOTAL, 1.0), true).unwrap()
}

/// One round with two members, whose deltas depend on the round and the parameters.
fn advance(state: &mut OuterState) {
    let settings = OuterSettings { codec: Codec::Int4, ..SETTINGS };
    let (layout, round) = (state.layout(), state.round());
    let mut reducer = reducer(layout, round, 2);
    for index in 1..=2 {
        let noise = values(round * 10 + u64::from(index), TOTAL, 0.05);
        let parameters = state.parameters().iter();
        let delta: Vec<f32> = noise.iter().zip(parameters).map(|(n, p)| n - p * 0.01).collect();
        let mut encoder = Encoder::new(layout, Codec::Fp16, member(index), false);
        for fragment in fragments(&mut encoder, &layout, round, 5, &delta) {
            reducer.push(member(index), fragment.check()).unwrap();
        }
    }
    step(state, &reducer, &settings);
}

/// A folder with checkpoints of rounds 1 to 3, with the round as attachment.
fn three_rounds() -> (tempfile::TempDir, OuterState) {
    let folder = tempfile::tempdir().unwrap();
    let mut state = start();
    for round in 1..=3_u8 {
        advance(&mut state);
        open(folder.path()).save(&state, &[round]).unwrap();
    }
    (folder, state)
}

#[test]
fn a_restart_continues_with_the_same_bits() {
    let mut unbroken = start();
    let folder = tempfile::tempdir().unwrap();
    open(folder.path()).save(&unbroken, b"").unwrap();
    for round in 1..=6_u8 {
        advance(&mut unbroken);
        let mut restarted = load(folder.path()).state;
        advance(&mut restarted);
        open(folder.path()).save(&restarted, &[round]).unwrap();
        assert_eq!(bits(restarted.parameters()), bits(unbroken.parameters()), "round {round}");
    }
    let loaded = load(folder.path());
    assert_eq!(loaded.state, unbroken);
    assert_eq!(loaded.attachment, [6]);
    assert!(loaded.skipped.is_empty());
}

#[test]
fn the_last_ones_are_kept() {
    let (folder, mut state) = three_rounds();
    advance(&mut state);
    open(folder.path()).save(&state, b"").unwrap();
    let kept = [1, 2, 3, 4].map(|round| file(folder.path(), round).exists());
    assert_eq!(kept, [false, true, true, true]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_its_reason() {
    let (folder, _) = three_rounds();
    let whole = fs::read(file(folder.path(), 3)).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    type IsExpected = fn(&Damage) -> bool;
    let cases: [(Vec<u8>, IsExpected); 9] = [
        (whole[..whole.len() / 2].to_vec(), |why| matches!(why, Damage::Length { .. })),
        (whole[..10].to_vec(), |why| matches!(why, Damage::Length { .. })),
        (vec![], |why| matches!(why, Damage::Length { actual: 0, .. })),
        (flipped(0), |why| matches!(why, Damage::Magic)),
        (flipped(5), |why| matches!(why, Damage::Version(_))),
        (flipped(23), |why| matches!(why, Damage::Layout(_))),
        (flipped(39), |why| matches!(why, Damage::Length { .. })),
        (flipped(2_000), |why| matches!(why, Damage::Digest)),
        (fs::read(file(folder.path(), 1)).unwrap(), |why| matches!(why, Damage::Round(1))),
    ];
    for (bytes, is_expected) in cases {
        fs::write(file(folder.path(), 3), bytes).unwrap();
        let loaded = load(folder.path());
        assert_eq!((loaded.state.round(), loaded.attachment.as_slice()), (2, [2].as_slice()));
        assert_eq!(loaded.skipped.len(), 1);
        assert_eq!(loaded.skipped[0].round, 3);
        assert!(is_expected(&loaded.skipped[0].reason), "{}", loaded.skipped[0]);
    }
}

#[test]
fn a_file_torn_at_any_byte_is_skipped() {
    let (folder, _) = three_rounds();
    let whole = fs::read(file(folder.path(), 3)).unwrap();
    for length in (0..whole.len()).step_by(97) {
        // As after a crash: the end is missing, or is zeros.
        let mut zeros = whole[..length].to_vec();
        zeros.resize(whole.len(), 0);
        for bytes in [&whole[..length], &zeros] {
            fs::write(file(folder.path(), 3), bytes).unwrap();
            assert_eq!(load(folder.path()).state.round(), 2, "torn at {length}");
        }
    }
}

#[test]
fn damage_to_all_is_an_error_and_an_empty_directory_none() {
    let (folder, _) = three_rounds();
    for round in 1..=3 {
        fs::write(file(folder.path(), round), "torn").unwrap();
    }
    match open(folder.path()).load() {
        Err(LoadError::AllDamaged(skipped)) => assert_eq!(skipped.len(), 3),
        other => panic!("{other:?}"),
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(open(empty.path()).load().unwrap().is_none());
    fs::write(empty.path().join("unfinished.temporary"), "half").unwrap();
    assert!(open(empty.path()).load().unwrap().is_none());
}

/// A directory on a disk that is full after some bytes.
struct FullDisk {
    directory: CheckpointDirectory,
    free_bytes: usize,
}

impl CheckpointStore for FullDisk {
    fn rounds(&self) -> io::Result<Vec<u64>> {
        self.directory.rounds()
    }

    fn write(
        &mut self,
        round: u64,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let free_bytes = self.free_bytes;
        self.directory.write(round, &mut |writer| content(&mut FullWriter { writer, free_bytes }))
    }

    fn open(&self, round: u64) -> io::Result<(Box<dyn Read>, u64)> {
        self.directory.open(round)
    }

    fn remove(&mut self, round: u64) -> io::Result<()> {
        self.directory.remove(round)
    }
}

struct FullWriter<'a> {
    writer: &'a mut dyn Write,
    free_bytes: usize,
}

impl Write for FullWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.free_bytes == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.writer.write(&bytes[..bytes.len().min(self.free_bytes)])?;
        self.free_bytes -= written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[test]
fn a_full_disk_leaves_the_earlier_checkpoints() {
    let (folder, mut state) = three_rounds();
    let length = fs::read(file(folder.path(), 3)).unwrap().len();
    let before = state.clone();
    advance(&mut state);
    for free_bytes in [0, 1, 39, 8_000, length / 2, length - 33, length - 1] {
        let directory = CheckpointDirectory::open(folder.path()).unwrap();
        let store = FullDisk { directory, free_bytes };
        let refused =
            Checkpoints::new(store, NonZeroUsize::MIN).save(&state, &[4]).unwrap_err().kind();
        assert_eq!(refused, io::ErrorKind::StorageFull, "after {free_bytes} bytes");
        assert_eq!(load(folder.path()).state, before);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "after {free_bytes} bytes");
    }
    let directory = CheckpointDirectory::open(folder.path()).unwrap();
    let store = FullDisk { directory, free_bytes: length };
    Checkpoints::new(store, NonZeroUsize::MIN).save(&state, &[4]).unwrap();
    assert_eq!(load(folder.path()).state, state);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_crash_between_any_two_steps_of_a_save_loses_nothing() {
    let (folder, before) = three_rounds();
    let mut state = before.clone();
    advance(&mut state);
    let elsewhere = tempfile::tempdir().unwrap();
    open(elsewhere.path()).save(&state, &[4]).unwrap();
    let whole = fs::read(file(elsewhere.path(), 4)).unwrap();
    // While the content is written, and before it has its name.
    for length in [0, 10, whole.len() / 2, whole.len()] {
        fs::write(folder.path().join("unfinished.temporary"), &whole[..length]).unwrap();
        let loaded = load(folder.path());
        assert_eq!(loaded.state, before);
        assert!(loaded.skipped.is_empty());
    }
    // After it has its name, before older ones are removed.
    fs::write(file(folder.path(), 4), &whole).unwrap();
    assert_eq!(load(folder.path()).state, state);
    advance(&mut state);
    open(folder.path()).save(&state, &[5]).unwrap();
    let kept = [1, 2, 3, 4, 5].map(|round| file(folder.path(), round).exists());
    assert_eq!(kept, [false, false, true, true, true]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn foreign_files_are_neither_loaded_nor_removed() {
    let (folder, mut state) = three_rounds();
    let foreign = ["7.checkpoint", "+0000000000000000009.checkpoint", "notes.txt", "x.checkpoint"];
    for name in foreign {
        fs::write(folder.path().join(name), "not ours").unwrap();
    }
    assert_eq!(load(folder.path()).state, state);
    advance(&mut state);
    open(folder.path()).save(&state, b"").unwrap();
    assert!(foreign.iter().all(|name| folder.path().join(name).exists()));
    assert!(load(folder.path()).skipped.is_empty());
}

#[test]
fn a_torn_state_is_not_saved() {
    let (folder, before) = three_rounds();
    let mut state = before.clone();
    let mut reducer = reducer(state.layout(), state.round(), 1);
    let mut encoder = Encoder::new(state.layout(), Codec::Fp32, member(1), false);
    for fragment in fragments(&mut encoder, &state.layout(), 3, 1, &[0.5; TOTAL]) {
        reducer.push(member(1), fragment.check()).unwrap();
    }
    state.step(&reducer, &SETTINGS, |_| Err(io::ErrorKind::BrokenPipe.into())).unwrap_err();
    open(folder.path()).save(&state, b"").unwrap_err();
    assert_eq!(load(folder.path()).state, before);
}
