//! A small disk in place of a directory, so that it can be full.
//!
//! It is in a mount namespace of its own, which a process of ours holds open; a process that uses the disk enters it.
//! The disk exists for as long as that process, so files are copied there and back.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

/// The free space at first: more than a round stores.
const ROOM_BYTES: u64 = 64 << 20;

/// How a disk can be mounted here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MountMethod {
    /// As root.
    Root,
    /// In a user namespace.
    UserNamespace,
}

pub(crate) struct Disk {
    namespace_holder: Child,
    mount_method: MountMethod,
    directory: PathBuf,
}

impl MountMethod {
    /// How a disk can be mounted here, if at all.
    pub(crate) fn find(directory: &Path) -> Option<MountMethod> {
        let works = |mount_method: &MountMethod| {
            let status =
                mount_method.command(directory, ROOM_BYTES, "true").stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        };
        [MountMethod::Root, MountMethod::UserNamespace].into_iter().find(works)
    }

    /// Runs a script that sees a disk of this size instead of the directory.
    fn command(self, directory: &Path, bytes: u64, script: &str) -> Command {
        let mut command = Command::new("unshare");
        if let MountMethod::UserNamespace = self {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!("mount -t tmpfs -o size={bytes} tmpfs \"$DISK\" && {script}");
        command.args(["--mount", "sh", "-c", &script]).env("DISK", directory);
        command
    }
}

impl Disk {
    /// A disk with the contents of the directory, and some room.
    pub(crate) fn mount(mount_method: MountMethod, directory: &Path) -> anyhow::Result<Disk> {
        let bytes = size_of(directory)? + ROOM_BYTES;
        // It ends when its input closes, which is when we end.
        let mut namespace_holder = mount_method
            .command(directory, bytes, "echo ready && exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start unshare")?;
        let said = namespace_holder.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let disk = Disk { namespace_holder, mount_method, directory: directory.to_owned() };
        if line.trim_end() != "ready" {
            bail!("no disk could be mounted");
        }
        copy(directory, &disk.inside())?;
        Ok(disk)
    }

    /// The command that runs another one inside the namespace.
    pub(crate) fn enter(&self) -> Vec<String> {
        let target = self.namespace_holder.id().to_string();
        let mut words = vec!["nsenter", "--target", &target];
        if let MountMethod::UserNamespace = self.mount_method {
            words.extend(["--user", "--preserve-credentials"]);
        }
        words.extend(["--mount", "--"]);
        words.into_iter().map(str::to_owned).collect()
    }

    /// Writes until the disk is full.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        let mut file = File::create(self.ballast()).context("cannot fill the disk")?;
        for block in [1 << 20, 4_096] {
            while file.write_all(&vec![1; block]).is_ok() {}
        }
        Ok(())
    }

    /// Frees the space again.
    pub(crate) fn free(&self) -> anyhow::Result<()> {
        fs::remove_file(self.ballast()).context("cannot free the disk")
    }

    /// Copies the contents of the disk back, when it is no longer in use.
    pub(crate) fn unmount(self) -> anyhow::Result<()> {
        // Not the directory itself: the disk is mounted on it.
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        copy(&self.inside(), &self.directory)
    }

    fn ballast(&self) -> PathBuf {
        self.inside().join("ballast")
    }

    /// The directory as seen inside the namespace.
    fn inside(&self) -> PathBuf {
        let mut path = PathBuf::from(format!("/proc/{}/root", self.namespace_holder.id()));
        path.extend(self.directory.components().skip(1));
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.namespace_holder.kill();
        let _ = self.namespace_holder.wait();
    }
}

fn size_of(directory: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size_of(&entry.path())?,
            // Whole pages are used, and the directory has its share.
            false => entry.metadata()?.len().next_multiple_of(4_096) + 4_096,
        };
    }
    Ok(bytes)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status()?;
    if !status.success() {
        bail!("cannot copy {from:?} to {to:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_filled_freed_and_copied_back() {
        let directory = std::env::temp_dir().join(format!("hypha-disk-{}", std::process::id()));
        fs::create_dir_all(directory.join("inner")).expect("a directory");
        fs::write(directory.join("inner/old"), "old").expect("written");
        let Some(mount_method) = MountMethod::find(&directory) else {
            let test = "disk::a_disk_is_filled_freed_and_copied_back";
            eprintln!("SKIPPED: {test}: no small disk can be mounted here [needs: netns]");
            return;
        };
        let disk = Disk::mount(mount_method, &directory).expect("mounted");
        let words = disk.enter();
        let write = |name: &str| {
            let script = format!("echo {name} > {}/inner/{name}", directory.display());
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).args(["sh", "-c", &script]).stderr(Stdio::null());
            command.status().expect("run").success()
        };
        assert!(write("before"));
        disk.fill().expect("filled");
        assert!(!write("full"));
        disk.free().expect("freed");
        assert!(write("after"));
        assert!(
            !directory.join("inner/before").exists(),
            "it is visible only inside the namespace"
        );
        disk.unmount().expect("copied");
        let read = |name: &str| fs::read_to_string(directory.join("inner").join(name));
        assert_eq!(read("old").expect("kept"), "old");
        assert_eq!(read("before").expect("kept"), "before\n");
        assert_eq!(read("after").expect("kept"), "after\n");
        fs::remove_dir_all(&directory).expect("removed");
    }
}
