//! One network namespace, which is removed with its guard, and the cleanup of stale ones.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

/// `hypha-<process>-<count>`: the name shows which process made it.
const PREFIX: &str = "hypha";

/// A named network namespace. Dropping it removes it, with its links and whatever runs in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub fn new() -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: Once = Once::new();
        // A namespace with our own id belongs to an earlier process too, since we have made none yet.
        SWEPT.call_once(|| sweep(|pid| pid == std::process::id() || is_gone(pid)));
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace { name: format!("{PREFIX}-{}-{count}", std::process::id()) };
        run(Command::new("ip").args(["netns", "add", &namespace.name]), "");
        // The addresses of a host shall be those that the test gave it, and no others.
        namespace.set("net/ipv6/conf/all/disable_ipv6", "1");
        namespace.set("net/ipv6/conf/default/disable_ipv6", "1");
        namespace.ip("link set lo up");
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// A program inside. `ip` becomes the program, so signals reach it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Lines of `ip`, each without the word `ip` itself.
    #[track_caller]
    pub fn ip(&self, lines: &str) {
        run(Command::new("ip").args(["-netns", &self.name, "-batch", "-"]), lines);
    }

    /// Rules in the language of nft.
    #[track_caller]
    pub fn nft(&self, rules: &str) {
        run(self.command("nft").args(["-f", "-"]), rules);
    }

    /// A kernel setting, where the kernel has it.
    pub fn set(&self, setting: &str, value: &str) {
        let script = format!("test ! -e /proc/sys/{setting} || echo {value} > /proc/sys/{setting}");
        run(self.command("sh").args(["-c", &script]), "");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Removes namespaces of killed test processes.
fn sweep(is_stale: impl Fn(u32) -> bool) {
    for name in list() {
        if owner(&name).is_some_and(&is_stale) {
            remove(&name);
        }
    }
}

/// The process that made a namespace; None if it is not one of ours.
fn owner(name: &str) -> Option<u32> {
    let (pid, count) = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?;
    count.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// The names of all namespaces of the machine.
pub fn list() -> Vec<String> {
    let names = output(Command::new("ip").args(["netns", "list"]), "");
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    names.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
}

/// Never fails: it runs while a test panics, and another process may sweep the same name.
fn remove(name: &str) {
    // A process would keep its namespace and links alive without a name.
    let inside = Command::new("ip").args(["netns", "pids", name]).stderr(Stdio::null()).output();
    let inside = inside.map(|output| output.stdout).unwrap_or_default();
    for pid in String::from_utf8_lossy(&inside).split_whitespace() {
        if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let _ = Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).status();
}

/// Runs a command that must succeed.
#[track_caller]
fn run(command: &mut Command, input: &str) {
    let output = output(command, input);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}\ninput:\n{input}");
}

#[track_caller]
fn output(command: &mut Command, input: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; install iproute2 and nftables, `cargo xtask test` does")
    });
    // One that ended early says why on its standard error, which is of more use.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::super::can_make_namespaces;
    use super::*;
    use crate::process::{Node, WAIT_TIMEOUT};

    #[test]
    fn owners_are_read_from_names() {
        for (name, expected) in [
            ("hypha-12-0", Some(12)),
            ("hypha-12", None),
            ("hypha-12-x", None),
            ("hypha-x-1", None),
            ("hypha", None),
            ("other-12-0", None),
        ] {
            assert_eq!(owner(name), expected, "{name}");
        }
    }

    #[test]
    fn a_namespace_is_gone_after_drop_and_after_a_panic() {
        if !can_make_namespaces(
            "hosts::namespace::tests::a_namespace_is_gone_after_drop_and_after_a_panic",
        ) {
            return;
        }
        let namespace = Namespace::new();
        let name = namespace.name().to_owned();
        assert!(list().contains(&name));
        let script = ["-c", "echo inside; exec sleep 1000"];
        let mut inside = Node::start("sleep", namespace.command("sh").args(script));
        inside.wait_for_line("inside", WAIT_TIMEOUT);
        drop(namespace);
        assert!(!list().contains(&name));
        assert!(!inside.wait(WAIT_TIMEOUT).success(), "what ran inside was killed");

        let panic = catch_unwind(|| {
            let namespace = Namespace::new();
            std::panic::panic_any(namespace.name().to_owned());
        });
        let name = panic.unwrap_err().downcast::<String>().unwrap();
        assert!(!list().contains(&name));
    }

    #[test]
    fn only_the_namespaces_of_dead_processes_are_swept() {
        if !can_make_namespaces(
            "hosts::namespace::tests::only_the_namespaces_of_dead_processes_are_swept",
        ) {
            return;
        }
        let mut dead = Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let mut alive = Command::new("sleep").arg("1000").spawn().unwrap();
        let named = |pid: u32| Namespace { name: format!("{PREFIX}-{pid}-0") };
        let (stale, other) = (named(dead.id()), named(alive.id()));
        for namespace in [&stale, &other] {
            run(Command::new("ip").args(["netns", "add", namespace.name()]), "");
        }
        sweep(is_gone);
        let left = list();
        alive.kill().unwrap();
        alive.wait().unwrap();
        assert!(!left.contains(&stale.name) && left.contains(&other.name), "{left:?}");
    }
}
