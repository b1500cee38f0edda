//! What a program may use of the file system.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::LaunchSpec;

/// Paths that programs of any kind need to read. Of `/etc` only files without secrets: a node's keys may be
/// there.
const SYSTEM_READ: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/sys",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
/// Devices without state that one attempt could leave to another.
const PLAIN_DEVICES: &[&str] =
    &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Links to what a process has open, which shells and scripts use.
const DESCRIPTOR_LINKS: &[&str] = &["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"];
/// The prefix of the GPU driver's devices.
const GPU_DEVICE_PREFIX: &str = "nvidia";
/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// What may be done with a path and everything below it. Each right includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    Read,
    /// The device may be read and written; its file may not be changed.
    Device,
    Write,
}

/// The paths that a program may use, as they were named.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<(PathBuf, Access)>);

/// The same without symbolic links, and the links that lead there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ResolvedGrants {
    pub(super) paths: BTreeMap<PathBuf, Access>,
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
}

impl Grants {
    pub(super) fn of(launch: &LaunchSpec) -> Grants {
        let program = named_file(&launch.command).map(Path::to_owned);
        let read = SYSTEM_READ.iter().map(PathBuf::from).chain(launch.read.iter().cloned());
        let plain = PLAIN_DEVICES.iter().map(PathBuf::from);
        let devices = plain.chain(gpu_devices(launch.gpu));
        let own = std::iter::once(&launch.directory).chain(&launch.write).cloned();
        let as_access = |access| move |path| (path, access);
        let paths = read.chain(program).map(as_access(Access::Read));
        let paths = paths.chain(devices.map(as_access(Access::Device)));
        Grants(paths.chain(own.map(as_access(Access::Write))).collect())
    }

    pub(super) fn with(&self, access: Access) -> impl Iterator<Item = &Path> {
        self.0.iter().filter(move |(_, one)| *one == access).map(|(path, _)| path.as_path())
    }

    /// Resolves all paths. One that does not exist, or cannot be reached, is left out.
    pub(super) fn resolved(&self) -> ResolvedGrants {
        let mut resolved = ResolvedGrants::default();
        for (path, access) in &self.0 {
            resolved.add(path, *access);
        }
        for link in DESCRIPTOR_LINKS.iter().map(PathBuf::from) {
            if let Ok(target) = fs::read_link(&link) {
                resolved.links.insert(link, target);
            }
        }
        resolved
    }
}

impl ResolvedGrants {
    /// Paths to make visible, parents first: those that another path does not already provide.
    pub(super) fn needed(&self) -> impl Iterator<Item = (&Path, Access)> {
        let provided = |path: &Path, access| {
            let above = path.ancestors().skip(1).find_map(|parent| self.paths.get(parent));
            above.is_some_and(|above| *above >= access)
        };
        let all = self.paths.iter().map(|(path, access)| (path.as_path(), *access));
        all.filter(move |(path, access)| !provided(path, *access))
    }

    /// Whether a file system that is mounted at `path` may be written.
    pub(super) fn is_writable(&self, path: &Path) -> bool {
        let nearest = path.ancestors().find_map(|parent| self.paths.get(parent));
        nearest == Some(&Access::Write)
    }

    fn add(&mut self, path: &Path, access: Access) {
        let Some(path) = self.resolve(path) else { return };
        if path.parent().is_none() {
            // The root itself cannot be made visible below another root, what is in it can.
            let entries = fs::read_dir(&path).into_iter().flatten().filter_map(Result::ok);
            let names: BTreeSet<PathBuf> = entries.map(|entry| entry.path()).collect();
            names.iter().for_each(|entry| self.add(entry, access));
            return;
        }
        let granted = self.paths.entry(path).or_insert(access);
        *granted = access.max(*granted);
    }

    /// Follows the links in `path` one by one and records them.
    fn resolve(&mut self, path: &Path) -> Option<PathBuf> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match first_link(&path).ok()? {
                None => return Some(without_dots(&path)),
                Some((link, rest)) => {
                    let target = fs::read_link(&link).ok()?;
                    path = link.parent()?.join(&target).join(rest);
                    self.links.insert(link, target);
                }
            }
        }
        None
    }
}

/// The first symbolic link on the way along `path`, and what follows it.
fn first_link(path: &Path) -> io::Result<Option<(PathBuf, PathBuf)>> {
    let mut before = PathBuf::new();
    let mut parts = path.components();
    while let Some(part) = parts.next() {
        before = without_dots(&before.join(part));
        if fs::symlink_metadata(&before)?.is_symlink() {
            return Ok(Some((before, parts.as_path().to_owned())));
        }
    }
    Ok(None)
}

/// Only for a path whose parts before each `..` are no links.
fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

/// The program's own file, which may be outside the system's directories.
fn named_file(command: &Path) -> Option<&Path> {
    (command.components().count() > 1 && command.is_file()).then_some(command)
}

/// All devices of the driver: which GPUs a program uses is chosen by `CUDA_VISIBLE_DEVICES`.
fn gpu_devices(wanted: bool) -> Vec<PathBuf> {
    let entries = wanted.then(|| fs::read_dir("/dev").ok()).flatten();
    let names = entries.into_iter().flatten().filter_map(Result::ok);
    let of_driver = names.filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(GPU_DEVICE_PREFIX))
    });
    of_driver.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_one_by_one_and_kept() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("data/models/deep")).unwrap();
        fs::create_dir(root.join("srv")).unwrap();
        symlink("../data", root.join("srv/link")).unwrap();
        symlink(root.join("srv/link/models"), root.join("models")).unwrap();
        symlink("circle", root.join("circle")).unwrap();
        let mut resolved = ResolvedGrants::default();
        resolved.add(&root.join("models/deep/../deep"), Access::Read);
        resolved.add(&root.join("circle"), Access::Read);
        resolved.add(&root.join("missing"), Access::Read);
        let deep = root.join("data/models/deep");
        assert_eq!(resolved.paths, BTreeMap::from([(deep, Access::Read)]));
        let links: Vec<_> = resolved.links.keys().collect();
        assert_eq!(links, [&root.join("circle"), &root.join("models"), &root.join("srv/link")]);
    }

    #[test]
    fn a_path_below_another_is_needed_only_for_more_rights() {
        let grants = |all: &[(&str, Access)]| ResolvedGrants {
            paths: all.iter().map(|(path, access)| (PathBuf::from(path), *access)).collect(),
            links: BTreeMap::new(),
        };
        let check = |all: &[(&str, Access)], expected: &[&str]| {
            let grants = grants(all);
            let needed: Vec<&Path> = grants.needed().map(|(path, _)| path).collect();
            assert_eq!(needed, expected.iter().map(Path::new).collect::<Vec<_>>(), "{all:?}");
        };
        check(&[("/srv", Access::Read), ("/srv/cache", Access::Write)], &["/srv", "/srv/cache"]);
        check(&[("/srv", Access::Write), ("/srv/models", Access::Read)], &["/srv"]);
        check(&[("/srv", Access::Read), ("/srv2", Access::Read)], &["/srv", "/srv2"]);
        let grants = grants(&[("/srv", Access::Read), ("/srv/cache", Access::Write)]);
        assert!(grants.is_writable(Path::new("/srv/cache/disk")));
        assert!(!grants.is_writable(Path::new("/srv/models")));
        assert!(!grants.is_writable(Path::new("/")));
    }
}
