//! Writes files that belong together: all of them or none, each complete, and keys readable by their owner
//! only.

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

    /// A file that every user may read.
    pub(super) fn add(&mut self, name: String, text: String) {
        let path = self.directory.join(name);
        self.files.push(Planned { path, text: Zeroizing::new(text), secret: false });
    }

    /// A file that only its owner may read.
    pub(super) fn add_secret(&mut self, name: String, text: Zeroizing<String>) {
        self.files.push(Planned { path: self.directory.join(name), text, secret: true });
    }

    /// Writes them, and reports each in a line. Without `force`, nothing is written if one of them exists.
    pub(super) fn write(self, force: bool) -> Result<String, Failure> {
        if !force {
            self.refuse_existing()?;
        }
        fs::create_dir_all(&self.directory)
            .map_err(|error| named(&self.directory, "cannot create the directory", &error))?;
        // Any disk error shows here, before a name is taken.
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
                "{} exists, nothing was written: use --force to replace it (a new key is a new identity, and signatures of the old one no longer count)",
                file.path.display()
            ))),
        }
    }
}

/// Replaces a file that every user may read with `text`.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let text = Zeroizing::new(text.to_owned());
    let planned = Planned { path: path.to_owned(), text, secret: false };
    Staged::write(&planned)?.place(true).map_err(|error| named(path, "cannot write", &error))?;
    path.parent().into_iter().for_each(sync_directory);
    Ok(())
}

/// A file that is written, but does not have its final name yet.
struct Staged<'a> {
    path: &'a Path,
    temporary: PathBuf,
}

impl<'a> Staged<'a> {
    fn write(planned: &'a Planned) -> Result<Staged<'a>, Failure> {
        let path = planned.path.as_path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        // Left behind by a killed process with the same id.
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
            // Restricted from its creation on: others can never open a key.
            options.mode(if planned.secret { 0o600 } else { 0o644 });
        }
        let mut file = options.open(&self.temporary)?;
        file.write_all(planned.text.as_bytes())?;
        file.sync_all()
    }

    /// Gives the file its name. A link, unlike a rename, never replaces another file; where the file system
    /// has no links, the earlier check must do.
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

/// Without this, a power failure can lose the name. Not every file system supports it.
fn sync_directory(directory: &Path) {
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
}

fn named(path: &Path, what: &str, error: &io::Error) -> Failure {
    Failure::work(format!("{what} {}: {error}", path.display()))
}
