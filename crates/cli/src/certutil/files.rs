//! Writing files that belong together: all of them or none, whole, and keys for nobody else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hypha_pki::Zeroizing;

use crate::usage::Failure;

/// Files of one directory.
pub(super) struct FileSet {
    directory: PathBuf,
    files: Vec<Planned>,
}

struct Planned {
    path: PathBuf,
    text: Zeroizing<String>,
    secret: bool,
}

impl FileSet {
    pub(super) fn new(directory: &Path) -> FileSet {
        FileSet { directory: directory.to_owned(), files: Vec::new() }
    }

    /// What everyone may read.
    pub(super) fn add(&mut self, name: String, text: String) {
        let path = self.directory.join(name);
        self.files.push(Planned { path, text: Zeroizing::new(text), secret: false });
    }

    /// What only its owner may read.
    pub(super) fn add_secret(&mut self, name: String, text: Zeroizing<String>) {
        self.files.push(Planned { path: self.directory.join(name), text, secret: true });
    }

    /// Writes them, and says so, a line each. Without `force`, nothing is written if one of them
    /// exists.
    pub(super) fn write(self, force: bool) -> Result<String, Failure> {
        if !force {
            self.refuse_existing()?;
        }
        fs::create_dir_all(&self.directory)
            .map_err(|error| named(&self.directory, "cannot make the directory", &error))?;
        // Whatever can go wrong with the disk goes wrong here, before any name is taken.
        let staged: Vec<Staged> = self.files.iter().map(Staged::write).collect::<Result<_, _>>()?;
        let mut placed: Vec<&Path> = Vec::new();
        for file in &staged {
            if let Err(error) = file.place(force) {
                if !force {
                    placed.iter().for_each(|path| drop(fs::remove_file(path)));
                }
                return Err(named(file.path, "cannot write", &error));
            }
            placed.push(file.path);
        }
        sync_directory(&self.directory);
        Ok(placed.iter().map(|path| format!("wrote {}\n", path.display())).collect())
    }

    fn refuse_existing(&self) -> Result<(), Failure> {
        let exists = |file: &&Planned| fs::symlink_metadata(&file.path).is_ok();
        match self.files.iter().find(exists) {
            None => Ok(()),
            Some(file) => Err(Failure::usage(format!(
                "{} exists, nothing was written: use --force to replace it (a new key is a new identity, and what the old one signed no longer counts)",
                file.path.display()
            ))),
        }
    }
}

/// Puts `text` in the place of a file that everyone may read.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let text = Zeroizing::new(text.to_owned());
    let planned = Planned { path: path.to_owned(), text, secret: false };
    Staged::write(&planned)?.place(true).map_err(|error| named(path, "cannot write", &error))?;
    path.parent().into_iter().for_each(sync_directory);
    Ok(())
}

/// A file that is written, but not under its name yet.
struct Staged<'a> {
    path: &'a Path,
    temporary: PathBuf,
}

impl<'a> Staged<'a> {
    fn write(planned: &'a Planned) -> Result<Staged<'a>, Failure> {
        let path = planned.path.as_path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        // Left by one with the same process id that was killed.
        let _ = fs::remove_file(&temporary);
        let staged = Staged { path, temporary };
        staged.fill(planned).map_err(|error| named(path, "cannot write", &error))?;
        Ok(staged)
    }

    fn fill(&self, planned: &Planned) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // From the first moment: there is no time in which others could open a key.
            options.mode(if planned.secret { 0o600 } else { 0o644 });
        }
        let mut file = options.open(&self.temporary)?;
        file.write_all(planned.text.as_bytes())?;
        file.sync_all()
    }

    /// Gives the file its name. A link, unlike a rename, never takes the place of another file;
    /// where the file system has no links, the earlier look has to do.
    fn place(&self, force: bool) -> io::Result<()> {
        if force {
            return fs::rename(&self.temporary, self.path);
        }
        match fs::hard_link(&self.temporary, self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                match fs::symlink_metadata(self.path) {
                    Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                    Err(_) => fs::rename(&self.temporary, self.path),
                }
            }
            outcome => outcome,
        }
    }
}

impl Drop for Staged<'_> {
    /// After a rename there is nothing left to remove.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Without this a name can be lost with the power. Not every file system offers it.
fn sync_directory(directory: &Path) {
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
}

fn named(path: &Path, what: &str, error: &io::Error) -> Failure {
    Failure::work(format!("{what} {}: {error}", path.display()))
}
