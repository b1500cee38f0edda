//! Which processes are the worker's: its own, those that it has started, and all that these have started.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hypha_model::Name;

/// The kernel cuts the names of processes off after this many bytes.
const MAX_COMM_BYTES: usize = 15;

/// The worker's processes at one time.
pub(super) struct ProcessTree {
    members: HashSet<u32>,
    /// The time of the processor that they have used, in ticks of the kernel.
    pub(super) ticks: u64,
}

struct Process {
    id: u32,
    parent: u32,
    name: String,
    /// Its own time and that of its children that have ended.
    ticks: u64,
}

impl ProcessTree {
    /// The process `root` and those with a name in `except`, with all below them, as `proc` (`/proc`) shows them.
    pub(super) fn read(proc: &Path, root: u32, except: &[Name]) -> io::Result<ProcessTree> {
        let processes = processes(proc)?;
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for process in &processes {
            children.entry(process.parent).or_default().push(process.id);
        }
        let is_root = |process: &&Process| process.id == root || process.is_one_of(except, proc);
        let mut pending: Vec<u32> = processes.iter().filter(is_root).map(|one| one.id).collect();
        let mut members = HashSet::new();
        while let Some(id) = pending.pop() {
            if members.insert(id) {
                pending.extend(children.get(&id).into_iter().flatten());
            }
        }
        let ours = processes.iter().filter(|process| members.contains(&process.id));
        let ticks = ours.map(|process| process.ticks).fold(0, u64::saturating_add);
        Ok(ProcessTree { members, ticks })
    }

    pub(super) fn contains(&self, process: u32) -> bool {
        self.members.contains(&process)
    }
}

impl Process {
    /// Whether it, or the file of its program, has one of these names.
    fn is_one_of(&self, names: &[Name], proc: &Path) -> bool {
        if names.is_empty() {
            return false;
        }
        let program: Option<PathBuf> =
            fs::read_link(proc.join(self.id.to_string()).join("exe")).ok();
        let file = program.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
        names.iter().map(Name::as_str).any(|name| {
            let cut = name.as_bytes().get(..MAX_COMM_BYTES).unwrap_or(name.as_bytes());
            file == Some(name) || self.name.as_bytes() == cut
        })
    }
}

fn processes(proc: &Path) -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(proc)? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that has ended meanwhile is none.
        let Ok(stat) = fs::read(proc.join(name).join("stat")) else { continue };
        all.extend(parse(id, &String::from_utf8_lossy(&stat)));
    }
    Ok(all)
}

/// A line of `/proc/PID/stat`: the name is in parentheses and may contain any, the numbers follow.
fn parse(id: u32, stat: &str) -> Option<Process> {
    let (start, numbers) = stat.rsplit_once(')')?;
    let (_, name) = start.split_once('(')?;
    let fields: Vec<&str> = numbers.split_whitespace().collect();
    // The first of these is field 3 of proc(5): field 4 is the parent, 14 to 17 are the times.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = (14..=17).map(number).sum::<Option<u64>>()?;
    let parent = u32::try_from(number(4)?).ok()?;
    Some(Process { id, parent, name: name.to_owned(), ticks })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A process in a fake `/proc`.
    pub(in super::super) fn process(
        proc: &Path,
        id: u32,
        parent: u32,
        name: &str,
        ticks: [u64; 4],
    ) {
        let [user, system, of_children, in_children] = ticks;
        let directory = proc.join(id.to_string());
        fs::create_dir_all(&directory).unwrap();
        let line = format!(
            "{id} ({name}) S {parent} 1 1 0 -1 4194560 9 9 9 9 {user} {system} {of_children} {in_children} 20 0 1 0 7"
        );
        fs::write(directory.join("stat"), line).unwrap();
    }

    #[test]
    fn tree_is_what_the_worker_has_started_and_the_exceptions() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        process(proc, 1, 0, "init", [100, 0, 0, 0]);
        process(proc, 10, 1, "hypha-worker", [1, 2, 3, 4]);
        process(proc, 11, 10, "a (b) c", [20, 0, 0, 0]);
        process(proc, 12, 11, "python3", [0, 300, 0, 0]);
        process(proc, 20, 1, "browser", [4_000, 0, 0, 0]);
        process(proc, 30, 1, "ollama", [5_000, 0, 0, 0]);
        process(proc, 31, 30, "runner", [0, 0, 60_000, 0]);
        process(proc, 40, 1, "a-very-long-nam", [700_000, 0, 0, 0]);
        fs::create_dir(proc.join("99")).unwrap();
        fs::write(proc.join("version"), "").unwrap();
        let check = |except: &[&str], members: &[u32], ticks: u64| {
            let except: Vec<Name> = except.iter().map(|name| name.parse().unwrap()).collect();
            let tree = ProcessTree::read(proc, 10, &except).unwrap();
            let all = [1, 10, 11, 12, 20, 30, 31, 40, 99];
            let found: Vec<u32> = all.into_iter().filter(|id| tree.contains(*id)).collect();
            assert_eq!((&found[..], tree.ticks), (members, ticks), "{except:?}");
        };
        check(&[], &[10, 11, 12], 330);
        check(&["ollama"], &[10, 11, 12, 30, 31], 65_330);
        check(&["a-very-long-name"], &[10, 11, 12, 40], 700_330);
        check(&["oll", "browse"], &[10, 11, 12], 330);
    }

    #[test]
    fn program_is_known_by_its_file_too() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 10, 1, "worker", [1, 0, 0, 0]);
        process(proc.path(), 20, 1, "MainThread", [2, 0, 0, 0]);
        std::os::unix::fs::symlink("/opt/bin/serve", proc.path().join("20/exe")).unwrap();
        let tree = ProcessTree::read(proc.path(), 10, &["serve".parse().unwrap()]).unwrap();
        assert!(tree.contains(20));
    }

    #[test]
    fn this_process_and_its_child_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let tree = ProcessTree::read(Path::new("/proc"), std::process::id(), &[]).unwrap();
        assert!(tree.contains(std::process::id()) && tree.contains(child.id()));
        assert!(!tree.contains(1));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
