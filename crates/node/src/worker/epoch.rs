//! Stores the epoch of the worker, and whether it stopped gracefully: leases of an earlier epoch are void.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use hypha_engine::Leaving;
use hypha_model::{Epoch, SchedulerId};

const FILE: &str = "epoch";

/// The epoch of the last graceful stop, and the schedulers that held its leases.
const LEFT_FILE: &str = "left";

/// The epoch of the last incarnation; the one before the first if there is no file.
pub(super) fn read(directory: &Path) -> io::Result<Epoch> {
    match fs::read_to_string(directory.join(FILE)) {
        Ok(text) => text.trim().parse().map(Epoch).map_err(|_| {
            let path = directory.join(FILE);
            io::Error::other(format!("{} does not hold a number; remove it", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Epoch(0)),
        Err(error) => Err(error),
    }
}

/// Writes the epoch atomically, and durably against a power failure.
pub(super) fn write(directory: &Path, epoch: Epoch) -> io::Result<()> {
    write_atomically(directory, FILE, &epoch.0.to_string())
}

/// The last graceful stop. An unreadable file uses up attempts, and does not prevent the worker's start.
pub(super) fn read_left(directory: &Path) -> Option<Leaving> {
    let text = fs::read_to_string(directory.join(LEFT_FILE)).ok()?;
    let mut words = text.split_whitespace();
    let epoch = Epoch(words.next()?.parse().ok()?);
    let holders: Option<Vec<SchedulerId>> = words.map(|holder| holder.parse().ok()).collect();
    Some(Leaving { epoch, holders: holders.filter(|holders| !holders.is_empty())? })
}

/// Records that this incarnation stops gracefully.
pub(super) fn write_left(directory: &Path, left: &Leaving) -> io::Result<()> {
    let holders: Vec<String> = left.holders.iter().map(ToString::to_string).collect();
    write_atomically(directory, LEFT_FILE, &format!("{} {}", left.epoch.0, holders.join(" ")))
}

/// Writes a file atomically, and durably against a power failure.
pub(super) fn write_atomically(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let mut file = File::create(&new)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_is_read_back_and_an_invalid_file_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), Epoch(0));
        write(directory.path(), Epoch(41)).unwrap();
        write(directory.path(), Epoch(42)).unwrap();
        assert_eq!(read(directory.path()).unwrap(), Epoch(42));
        fs::write(directory.path().join(FILE), "x").unwrap();
        assert!(read(directory.path()).unwrap_err().to_string().contains("does not hold a number"));
    }

    #[test]
    fn graceful_leave_is_read_back_and_an_invalid_file_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read_left(directory.path()), None);
        let holder = |last: char| format!("00000000-0000-7000-8000-0000000000a{last}").parse();
        for holders in [vec!['a'], vec!['a', 'b']] {
            let holders = holders.into_iter().map(|last| holder(last).unwrap()).collect();
            let left = Leaving { epoch: Epoch(7), holders };
            write_left(directory.path(), &left).unwrap();
            assert_eq!(read_left(directory.path()), Some(left));
        }
        for invalid in ["", "7", "7 x", "x 00000000-0000-7000-8000-0000000000aa"] {
            fs::write(directory.path().join(LEFT_FILE), invalid).unwrap();
            assert_eq!(read_left(directory.path()), None, "{invalid}");
        }
    }
}
