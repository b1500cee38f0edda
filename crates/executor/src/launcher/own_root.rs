//! A root directory of its own, in which nothing exists but what was granted.
//!
//! The process enters namespaces of its own (user, mount, IPC, and network where that is off), builds a root
//! of an empty file system and bind mounts, and changes to it. What is not to be written is mounted read-only,
//! which also keeps modes, owners and dates as they are. No privileges are needed where the kernel lets users
//! create user namespaces.

mod loopback;
mod mounts;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::pivot_root;
use rustix::thread::UnshareFlags;
use thiserror::Error;

use super::grants::ResolvedGrants;
use mounts::MountPoint;

/// Where the machine's root is while the new one is built.
const OLD_ROOT: &str = "/.hypha-old-root";
/// The empty file system holds directories, links and mount points, and no data.
const ROOT_OPTIONS: &std::ffi::CStr = c"mode=755,size=64k";

#[derive(Debug, Error)]
pub(super) enum OwnRootError {
    #[error("cannot create namespaces: {0}")]
    Namespaces(io::Error),
    #[error("cannot write `{path}`: {error}")]
    Identity { path: &'static str, error: io::Error },
    #[error("cannot build the root directory ({what} `{path}`): {error}")]
    Build { what: &'static str, path: PathBuf, error: io::Error },
    #[error("cannot set up the loopback interface: {0}")]
    Loopback(io::Error),
}

/// Moves this process into a root with `grants` alone, which is built over the directory `at`. Without
/// `network` it has only a loopback interface of its own.
pub(super) fn enter(grants: &ResolvedGrants, at: &Path, network: bool) -> Result<(), OwnRootError> {
    unshare(network)?;
    let root = Path::new("/");
    // What is mounted or unmounted on the machine from here on has no effect here.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change(root, private).map_err(failed("separate", root))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", at, "tmpfs", flags, ROOT_OPTIONS).map_err(failed("mount", at))?;
    let old = at.join(OLD_ROOT.trim_start_matches('/'));
    fs::create_dir(&old).map_err(failed("create", &old))?;
    pivot_root(at, &old).map_err(failed("change to", at))?;
    rustix::process::chdir(root).map_err(failed("change to", root))?;
    for (path, _) in grants.needed() {
        bind(path)?;
    }
    for (link, target) in &grants.links {
        make_link(link, target)?;
    }
    let old = Path::new(OLD_ROOT);
    unmount(old, UnmountFlags::DETACH).map_err(failed("leave", old))?;
    fs::remove_dir(old).map_err(failed("remove", old))?;
    protect(grants)?;
    match network {
        true => Ok(()),
        false => loopback::bring_up().map_err(OwnRootError::Loopback),
    }
}

fn failed<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> OwnRootError {
    move |error| OwnRootError::Build { what, path: path.to_owned(), error: error.into() }
}

/// Enters new namespaces as the same user, who is the only one that exists there.
fn unshare(network: bool) -> Result<(), OwnRootError> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNS | UnshareFlags::NEWIPC;
    if !network {
        flags |= UnshareFlags::NEWNET;
    }
    #[expect(deprecated, reason = "unsafe only with `FILES`, which is not requested")]
    rustix::thread::unshare(flags).map_err(|error| OwnRootError::Namespaces(error.into()))?;
    let write = |path: &'static str, text: String| {
        fs::write(path, text).map_err(|error| OwnRootError::Identity { path, error })
    };
    // Required of users before they may map their group.
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{user} {user} 1", user = user.as_raw()))?;
    write("/proc/self/gid_map", format!("{group} {group} 1", group = group.as_raw()))
}

/// Makes `path` of the machine visible at the same place.
fn bind(path: &Path) -> Result<(), OwnRootError> {
    let source = in_old_root(path);
    let metadata = fs::symlink_metadata(&source).map_err(failed("look at", path))?;
    if fs::symlink_metadata(path).is_err() {
        let parent = path.parent().unwrap_or(path);
        let directory = if metadata.is_dir() { path } else { parent };
        fs::create_dir_all(directory).map_err(failed("create", directory))?;
        if !metadata.is_dir() {
            File::create_new(path).map_err(failed("create", path))?;
        }
    }
    // Mounts below belong to it: the kernel does not let a user take them away from a path.
    mount_bind_recursive(&source, path).map_err(failed("mount", path))
}

fn make_link(link: &Path, target: &Path) -> Result<(), OwnRootError> {
    // In a directory of the machine that was made visible it exists already.
    if fs::symlink_metadata(link).is_ok() {
        return Ok(());
    }
    let parent = link.parent().unwrap_or(link);
    fs::create_dir_all(parent).map_err(failed("create", parent))?;
    std::os::unix::fs::symlink(target, link).map_err(failed("link", link))
}

/// Makes everything read-only that is not granted for writing.
fn protect(grants: &ResolvedGrants) -> Result<(), OwnRootError> {
    let table = Path::new("/proc/self/mountinfo");
    let table = fs::read_to_string(table).map_err(failed("read", table))?;
    for MountPoint { path, flags } in mounts::parse(&table) {
        if grants.is_writable(&path) || flags.contains(MountFlags::RDONLY) {
            continue;
        }
        // Flags that the machine has set cannot be left out.
        let flags = MountFlags::BIND | MountFlags::RDONLY | flags;
        match mount_remount(&path, flags, c"") {
            // What this user cannot reach, no program of this user can.
            Ok(()) | Err(rustix::io::Errno::ACCESS | rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(failed("protect", &path)(error)),
        }
    }
    Ok(())
}

fn in_old_root(path: &Path) -> PathBuf {
    Path::new(OLD_ROOT).join(path.strip_prefix("/").unwrap_or(path))
}
