//! Where encoded fragments wait until their delta is complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::fragment::MemberId;

/// A place for the encoded fragments of incomplete deltas of one round. It need not survive a restart: members push
/// again what was not counted.
pub trait Staging: Send + Sync {
    /// Stores a payload, in place of an earlier one of the same member and fragment.
    fn put(&mut self, member: MemberId, fragment: u32, payload: &[u8]) -> io::Result<()>;

    /// Reads a payload into `payload`, in place of its content. May run on several threads at once.
    fn get(&self, member: MemberId, fragment: u32, payload: &mut Vec<u8>) -> io::Result<()>;

    /// Removes a payload, if it is there.
    fn remove(&mut self, member: MemberId, fragment: u32) -> io::Result<()>;

    /// Removes all payloads.
    fn clear(&mut self) -> io::Result<()>;
}

/// Staging in memory, for small models and tests.
#[derive(Debug, Default)]
pub struct MemoryStaging(BTreeMap<(MemberId, u32), Vec<u8>>);

impl Staging for MemoryStaging {
    fn put(&mut self, member: MemberId, fragment: u32, payload: &[u8]) -> io::Result<()> {
        self.0.insert((member, fragment), payload.to_vec());
        Ok(())
    }

    fn get(&self, member: MemberId, fragment: u32, payload: &mut Vec<u8>) -> io::Result<()> {
        let staged = self.0.get(&(member, fragment)).ok_or(io::ErrorKind::NotFound)?;
        payload.clear();
        payload.extend_from_slice(staged);
        Ok(())
    }

    fn remove(&mut self, member: MemberId, fragment: u32) -> io::Result<()> {
        self.0.remove(&(member, fragment));
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.0.clear();
        Ok(())
    }
}

/// Staging in files of a directory that nothing else uses: the memory of a server does not grow with its workers.
#[derive(Debug)]
pub struct DirectoryStaging {
    directory: PathBuf,
}

/// The end of the name of a staged file; others in the directory are not touched.
const SUFFIX: &str = ".staged";

impl DirectoryStaging {
    /// Creates the directory, or removes the staged files of an earlier process from it.
    pub fn open(directory: &Path) -> io::Result<DirectoryStaging> {
        fs::create_dir_all(directory)?;
        let mut staging = DirectoryStaging { directory: directory.to_owned() };
        staging.clear()?;
        Ok(staging)
    }

    fn path(&self, member: MemberId, fragment: u32) -> PathBuf {
        self.directory.join(format!("{member}-{fragment}{SUFFIX}"))
    }
}

impl Staging for DirectoryStaging {
    fn put(&mut self, member: MemberId, fragment: u32, payload: &[u8]) -> io::Result<()> {
        fs::write(self.path(member, fragment), payload)
    }

    fn get(&self, member: MemberId, fragment: u32, payload: &mut Vec<u8>) -> io::Result<()> {
        payload.clear();
        File::open(self.path(member, fragment))?.read_to_end(payload)?;
        Ok(())
    }

    fn remove(&mut self, member: MemberId, fragment: u32) -> io::Result<()> {
        match fs::remove_file(self.path(member, fragment)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn clear(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}
