//! The mounts of this process, as `/proc/self/mountinfo` shows them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::mount::MountFlags;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct MountPoint {
    pub(super) path: PathBuf,
    pub(super) flags: MountFlags,
}

/// The mounts that can be seen: of several at one place the last.
pub(super) fn parse(table: &str) -> Vec<MountPoint> {
    let lines = table.lines().filter_map(parse_line);
    let visible: BTreeMap<PathBuf, MountFlags> = lines.collect();
    visible.into_iter().map(|(path, flags)| MountPoint { path, flags }).collect()
}

fn parse_line(line: &str) -> Option<(PathBuf, MountFlags)> {
    let mut fields = line.split(' ').skip(4);
    let (path, options) = (fields.next()?, fields.next()?);
    let flags = options.split(',').map(flag).fold(MountFlags::empty(), |all, one| all | one);
    Some((unescape(path), flags))
}

fn flag(option: &str) -> MountFlags {
    match option {
        "ro" => MountFlags::RDONLY,
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        "nosymfollow" => MountFlags::NOSYMFOLLOW,
        _ => MountFlags::empty(),
    }
}

/// Space, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code =
            code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_odd_names_are_read_and_the_last_mount_at_a_place_counts() {
        let table = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
                     23 22 0:5 / /a\\040b\\134 ro,nosuid,nodev,noexec - tmpfs tmpfs rw\n\
                     24 22 0:6 / /twice rw,nosuid - tmpfs tmpfs rw\n\
                     25 22 0:7 / /twice rw,noatime - tmpfs tmpfs rw\n\
                     short line\n";
        let point = |path: &str, flags| MountPoint { path: path.into(), flags };
        let read_only =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let expected = [
            point("/", MountFlags::RELATIME),
            point("/a b\\", read_only),
            point("/twice", MountFlags::NOATIME),
        ];
        assert_eq!(parse(table), expected);
    }
}
