//! The processes below this one, as `/proc` shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal, wait,
};

/// One process. Its start time distinguishes it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    pid: i32,
    parent: i32,
    started: u64,
    zombie: bool,
    /// Whether its first thread has ended, which then shows no memory.
    leader_exited: bool,
    resident_pages: u64,
}

/// All living descendants of this process. Orphans count: they were adopted.
pub(super) fn descendants() -> Vec<ProcessInfo> {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<ProcessInfo> = numbers.filter_map(read).collect();
    descendants_of(me, &all)
}

/// Their memory together. A page that two of them share counts twice: an upper bound, not an exact figure.
pub(super) fn resident_bytes(descendants: &[ProcessInfo]) -> u64 {
    let pages: u64 = descendants.iter().map(|member| member.resident_pages).sum();
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// Sends `signal` to each of `descendants` that is still the same process.
pub(super) fn signal(descendants: &[ProcessInfo], signal: Signal) {
    for member in descendants {
        let Some(pid) = Pid::from_raw(member.pid) else { continue };
        // First get a handle to the process, then check that it is still the one that was meant.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if read(member.pid).is_some_and(|now| now.started == member.started) {
            // A process that has just ended needs no signal.
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

/// Reaps ended processes; returns the status of `main` if it was among them.
pub(super) fn reap(main: Pid) -> Option<WaitStatus> {
    let mut of_main = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == main {
            of_main = Some(status);
        }
    }
    of_main
}

fn descendants_of(root: i32, all: &[ProcessInfo]) -> Vec<ProcessInfo> {
    let mut children: BTreeMap<i32, Vec<ProcessInfo>> = BTreeMap::new();
    for member in all {
        children.entry(member.parent).or_default().push(*member);
    }
    let mut found = Vec::new();
    let mut seen = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for member in children.get(&parent).into_iter().flatten() {
            // Ids are read one after another: a reused one could close a cycle.
            if seen.insert(member.pid) {
                open.push(member.pid);
                found.push(*member);
            }
        }
    }
    // A zombie is reaped by its parent, or by us once that is gone.
    found.retain(|member| !member.zombie);
    found
}

fn read(pid: i32) -> Option<ProcessInfo> {
    let mut member = parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    if member.leader_exited {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        let stats =
            threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        let pages = stats.filter_map(|stat| Some(parse(&stat)?.resident_pages));
        member.resident_pages = pages.max().unwrap_or(0);
    }
    Some(member)
}

/// The fields after the name, which is in parentheses and may itself contain any of them.
fn parse(stat: &str) -> Option<ProcessInfo> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
    let ended = matches!(*fields.first()?, "Z" | "X");
    let threads: i64 = fields.get(17)?.parse().ok()?;
    Some(ProcessInfo {
        pid,
        // The first thread may end before the others: it looks like a zombie, and the process lives.
        zombie: ended && threads <= 1,
        leader_exited: ended && threads > 1,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        resident_pages: fields.get(21)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_cannot_forge_fields() {
        let stat = "7 (a) R 1 (b)) S 3 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 999 4096 12 18446";
        let member = parse(stat).unwrap();
        assert_eq!((member.pid, member.parent, member.zombie), (7, 3, false));
        assert_eq!((member.started, member.resident_pages), (999, 12));
        assert_eq!(parse("7 (cut"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_process_lives_while_one_of_its_threads_does() {
        let check = |state, threads, zombie, leader_exited| {
            let stat =
                format!("7 (a) {state} 3 7 7 0 -1 0 1 2 3 4 5 6 7 8 20 0 {threads} 0 999 0 0 0");
            let member = parse(&stat).unwrap();
            assert_eq!((member.zombie, member.leader_exited), (zombie, leader_exited), "{stat}");
        };
        check("S", 2, false, false);
        check("Z", 1, true, false);
        check("Z", 0, true, false);
        check("Z", 2, false, true);
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_other_processes_are_not() {
        let member = |pid, parent, zombie| ProcessInfo {
            pid,
            parent,
            zombie,
            leader_exited: false,
            started: 0,
            resident_pages: u64::from(pid.unsigned_abs()),
        };
        let all = [
            member(1, 0, false),
            member(12, 11, false),
            member(11, 10, true),
            member(10, 1, false),
            member(20, 1, false),
        ];
        let found = descendants_of(10, &all);
        assert_eq!(found, [member(12, 11, false)]);
    }

    #[test]
    fn this_process_can_be_read() {
        let me = read(rustix::process::getpid().as_raw_nonzero().get()).unwrap();
        assert!(me.resident_pages > 0 && !me.zombie);
    }
}
