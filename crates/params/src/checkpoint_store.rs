//! Where checkpoints are: a directory, or another store that writes objects whole.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A store of checkpoints by round.
pub trait CheckpointStore {
    /// The rounds that there are checkpoints of, in any order.
    fn rounds(&self) -> io::Result<Vec<u64>>;

    /// Stores what `content` writes, in place of an earlier checkpoint of the round: whole and durable, or not at all.
    fn write(
        &mut self,
        round: u64,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()>;

    /// The content of a checkpoint and its length.
    fn open(&self, round: u64) -> io::Result<(Box<dyn Read>, u64)>;

    /// Removes a checkpoint.
    fn remove(&mut self, round: u64) -> io::Result<()>;
}

/// Checkpoints as files of a directory that one process uses.
#[derive(Debug)]
pub struct CheckpointDirectory {
    directory: PathBuf,
}

const SUFFIX: &str = ".checkpoint";
/// The file that is being written. Its name is no checkpoint's, so what a crash leaves is never loaded.
const UNFINISHED: &str = "unfinished.temporary";

impl CheckpointDirectory {
    /// Uses the directory, or creates it.
    pub fn open(directory: &Path) -> io::Result<CheckpointDirectory> {
        fs::create_dir_all(directory)?;
        Ok(CheckpointDirectory { directory: directory.to_owned() })
    }

    fn path(&self, round: u64) -> PathBuf {
        self.directory.join(format!("{round:020}{SUFFIX}"))
    }
}

impl CheckpointStore for CheckpointDirectory {
    fn rounds(&self) -> io::Result<Vec<u64>> {
        let mut rounds = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let round = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let round = round.and_then(|round| round.parse::<u64>().ok());
            // Names that we would write otherwise are not ours.
            rounds.extend(round.filter(|round| self.path(*round) == entry.path()));
        }
        Ok(rounds)
    }

    fn write(
        &mut self,
        round: u64,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let unfinished = self.directory.join(UNFINISHED);
        let mut file = File::create(&unfinished)?;
        // The content before the name, and the name before we report success: a crash between two of these steps leaves
        // the checkpoints as they were.
        if let Err(error) = content(&mut file).and_then(|()| file.sync_all()) {
            // On a full disk, half a checkpoint would keep others from being written. The first error is the one to report.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        fs::rename(&unfinished, self.path(round))?;
        File::open(&self.directory)?.sync_all()
    }

    fn open(&self, round: u64) -> io::Result<(Box<dyn Read>, u64)> {
        let file = File::open(self.path(round))?;
        let length = file.metadata()?.len();
        Ok((Box::new(file), length))
    }

    fn remove(&mut self, round: u64) -> io::Result<()> {
        fs::remove_file(self.path(round))
    }
}
