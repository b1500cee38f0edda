//! A running program that a test watches and controls, and that never outlives it.
//!
//! A node listens on port 0 and logs its address; the test waits for that line and reads it there.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::hosts::Host;

/// For events that are certain to happen: only a broken test waits this long.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// How often an exit is looked for: the standard library cannot wait for one with a deadline.
const EXIT_POLL: Duration = Duration::from_millis(10);

/// How long the output of an ended process is waited for: it is in a pipe, unless a child holds that open.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// A test reads some hundred lines; a program that prints more is in a loop.
const MAX_LINES: usize = 100_000;

/// How often a condition without a notification is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Waits until `look` returns something.
#[track_caller]
pub fn wait_until<T>(what: &str, timeout: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        match look() {
            Some(seen) => return seen,
            None if Instant::now() >= deadline => panic!("not {what} within {timeout:?}"),
            None => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// A child process, with what it prints. Killed when dropped.
pub struct Node {
    name: String,
    child: Child,
    output: Arc<Output>,
}

/// A position in a node's output: earlier lines do not count.
#[derive(Debug, Clone, Copy)]
pub struct Mark(usize);

impl Node {
    /// `hypha` with these arguments, on the plain machine.
    pub fn hypha(name: &str, arguments: &[&str]) -> Node {
        Node::start(name, Command::new(env!("CARGO_BIN_EXE_hypha")).args(arguments))
    }

    /// `hypha` with these arguments, on one host of a topology.
    pub fn hypha_on(host: &Host, name: &str, arguments: &[&str]) -> Node {
        Node::start(name, host.command(env!("CARGO_BIN_EXE_hypha")).args(arguments))
    }

    /// Any program; `name` stands in front of its output when a test fails.
    pub fn start(name: &str, command: &mut Command) -> Node {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let output = Arc::new(Output::default());
        // Counted before either starts, so that the first to end does not look like the last.
        output.lock().open_streams = 2;
        output.clone().follow(child.stdout.take().unwrap());
        output.clone().follow(child.stderr.take().unwrap());
        Node { name: name.to_owned(), child, output }
    }

    /// Waits for a line, past or to come, with `pattern` in it, and returns what its `{}` stands for: the
    /// text up to what follows the `{}` in the pattern, or to the next white space if nothing does. Without a
    /// `{}`: the whole line.
    ///
    /// Fails with the node's whole output if the time is over or the node has ended.
    #[track_caller]
    pub fn wait_for_line(&self, pattern: &str, timeout: Duration) -> String {
        self.wait_for_line_after(Mark(0), pattern, timeout)
    }

    /// The same among the lines since `mark`: for events that happen more than once.
    #[track_caller]
    pub fn wait_for_line_after(&self, mark: Mark, pattern: &str, timeout: Duration) -> String {
        let deadline = Instant::now() + timeout;
        let mut seen = mark.0;
        let mut lines = self.output.lock();
        let complaint = loop {
            if let Some(found) = lines.all[seen..].iter().find_map(|line| capture(pattern, line)) {
                return found;
            }
            seen = lines.all.len();
            let now = Instant::now();
            if lines.open_streams == 0 {
                break "it closed its output".to_owned();
            } else if now >= deadline {
                break format!("{timeout:?} are over");
            }
            lines = self.output.wait(lines, deadline - now);
        };
        drop(lines);
        panic!("no line with `{pattern}` from {}: {complaint}; {}", self.name, self.shown());
    }

    /// The current position in the output.
    pub fn mark(&self) -> Mark {
        Mark(self.output.lock().all.len())
    }

    /// The output so far, both streams in the order of arrival.
    pub fn output(&self) -> String {
        self.output.lock().all.join("\n")
    }

    /// Writes a line to its standard input.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap_or_else(|error| {
            panic!("{} does not listen: {error}; {}", self.name, self.shown());
        });
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits for the end.
    #[track_caller]
    pub fn terminate(&mut self, timeout: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(timeout)
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&mut self, signal: Signal) {
        // Once it was waited for, its id may belong to another process.
        if self.child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.child), signal).unwrap();
        }
    }

    /// Waits for the end.
    #[track_caller]
    pub fn wait(&mut self, timeout: Duration) -> ExitStatus {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.read_to_the_end();
                return status;
            }
            if Instant::now() >= deadline {
                panic!("{} still runs after {timeout:?}; {}", self.name, self.shown());
            }
            std::thread::sleep(EXIT_POLL);
        }
    }

    /// Waits until all output of an ended process is read; not for output of its children.
    fn read_to_the_end(&self) {
        let deadline = Instant::now() + LAST_WORDS;
        let mut lines = self.output.lock();
        while lines.open_streams > 0 {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return };
            lines = self.output.wait(lines, left);
        }
    }

    fn shown(&self) -> String {
        format!("its output:\n{}\n(end of the output of {})", self.output(), self.name)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The node that a test complains about is often not the faulty one.
        if std::thread::panicking() {
            eprintln!("{}: {}", self.name, self.shown());
        }
    }
}

/// What `pattern` captures in `line`; None if it does not occur.
fn capture(pattern: &str, line: &str) -> Option<String> {
    let Some((before, after)) = pattern.split_once("{}") else {
        return line.contains(pattern).then(|| line.to_owned());
    };
    let (_, rest) = line.split_once(before)?;
    let found =
        if after.is_empty() { rest.split_whitespace().next()? } else { rest.split_once(after)?.0 };
    Some(found.to_owned())
}

/// What a process has printed, and whether more can come.
#[derive(Default)]
struct Output {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    all: Vec<String>,
    open_streams: usize,
}

impl Output {
    /// Reads a stream to its end, in a thread of its own. Reads on past the bound, or the process
    /// would block on a full pipe.
    fn follow(self: Arc<Self>, stream: impl Read + Send + 'static) {
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                let mut lines = self.lock();
                if lines.all.len() < MAX_LINES {
                    lines.all.push(String::from_utf8_lossy(&line).into_owned());
                }
                self.changed.notify_all();
            }
            self.lock().open_streams -= 1;
            self.changed.notify_all();
        });
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'lines>(
        &self,
        lines: MutexGuard<'lines, Lines>,
        timeout: Duration,
    ) -> MutexGuard<'lines, Lines> {
        self.changed.wait_timeout(lines, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;

    use super::*;

    fn shell(script: &str) -> Node {
        Node::start("shell", Command::new("sh").args(["-c", script]))
    }

    fn complaint(action: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(action)).expect_err("should fail");
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn a_pattern_captures_what_its_braces_stand_for() {
        for (pattern, line, expected) in [
            ("address={}", "INFO up address=/ip4/1.2.3.4/tcp/5 role=x", Some("/ip4/1.2.3.4/tcp/5")),
            ("\"port\":\"{}\"", "{\"port\":\"80\",\"a\":1}", Some("80")),
            ("took {} ms", "took 1 s", None),
            ("up", "INFO up now", Some("INFO up now")),
            ("address={}", "address=", None),
            ("down", "INFO up", None),
        ] {
            assert_eq!(capture(pattern, line).as_deref(), expected, "{pattern} in {line}");
        }
    }

    #[test]
    fn the_real_binary_is_watched_to_its_end() {
        let mut node = Node::hypha("check", &["sim", "check", "--seeds", "3", "--tasks", "10"]);
        assert_eq!(node.wait_for_line("{} seeds of 10 tasks", WAIT_TIMEOUT), "3");
        assert!(node.wait(WAIT_TIMEOUT).success());
    }

    #[test]
    fn both_streams_are_seen_and_a_mark_hides_the_past() {
        let mut node = shell("echo first; echo second >&2; read go; echo second again");
        node.wait_for_line("first", WAIT_TIMEOUT);
        node.wait_for_line("second", WAIT_TIMEOUT);
        let mark = node.mark();
        node.say("go");
        assert_eq!(node.wait_for_line_after(mark, "second", WAIT_TIMEOUT), "second again");
        assert_eq!(node.output().lines().count(), 3, "{}", node.output());
    }

    #[test]
    fn a_wait_in_vain_shows_all_output() {
        let node = shell("echo the cause; read go");
        node.wait_for_line("the cause", WAIT_TIMEOUT);
        let text = complaint(|| {
            node.wait_for_line("never", Duration::from_millis(50));
        });
        assert!(text.contains("the cause") && text.contains("are over"), "{text}");

        let ended = shell("echo the cause");
        let text = complaint(|| {
            ended.wait_for_line("never", WAIT_TIMEOUT);
        });
        assert!(text.contains("the cause") && text.contains("closed its output"), "{text}");
    }

    #[test]
    fn terminate_asks_and_then_tells_how_it_ended() {
        let mut polite = shell("trap 'echo bye; exit 7' TERM; echo up; while read x; do :; done");
        polite.wait_for_line("up", WAIT_TIMEOUT);
        assert_eq!(polite.terminate(WAIT_TIMEOUT).code(), Some(7));
        polite.wait_for_line("bye", WAIT_TIMEOUT);

        let mut rude = shell("exec sleep 1000");
        assert_eq!(rude.terminate(WAIT_TIMEOUT).signal(), Some(15));

        let mut deaf = shell("trap '' TERM; echo up; while read x; do :; done");
        deaf.wait_for_line("up", WAIT_TIMEOUT);
        let text = complaint(|| {
            deaf.terminate(Duration::from_millis(50));
        });
        assert!(text.contains("still runs"), "{text}");
    }

    #[test]
    fn a_dropped_node_is_dead() {
        let node = shell("echo up; exec sleep 1000");
        node.wait_for_line("up", WAIT_TIMEOUT);
        let folder = format!("/proc/{}", node.id());
        assert!(Path::new(&folder).exists());
        drop(node);
        assert!(!Path::new(&folder).exists());
    }
}
