//! Which life of the worker this is, on the disk: what an earlier life granted is void.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use hypha_model::Epoch;

const FILE: &str = "epoch";

/// The last life; that before the first if there is no file.
pub(super) fn read(directory: &Path) -> io::Result<Epoch> {
    match fs::read_to_string(directory.join(FILE)) {
        Ok(text) => text.trim().parse().map(Epoch).map_err(|_| {
            let path = directory.join(FILE);
            io::Error::other(format!("{} holds no number; remove it", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Epoch(0)),
        Err(error) => Err(error),
    }
}

/// Writes it so that it is there, whole, also after a power cut.
pub(super) fn write(directory: &Path, epoch: Epoch) -> io::Result<()> {
    let (path, new) = (directory.join(FILE), directory.join("epoch.new"));
    let mut file = File::create(&new)?;
    writeln!(file, "{}", epoch.0)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_found_again_and_nonsense_is_named() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), Epoch(0));
        write(directory.path(), Epoch(41)).unwrap();
        write(directory.path(), Epoch(42)).unwrap();
        assert_eq!(read(directory.path()).unwrap(), Epoch(42));
        fs::write(directory.path().join(FILE), "x").unwrap();
        assert!(read(directory.path()).unwrap_err().to_string().contains("holds no number"));
    }
}
