//! `hypha` commands that end by themselves.

use std::process::{Command, Output, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::WAIT_TIMEOUT;

/// Runs it to its end; a command that does not end fails the test.
#[track_caller]
pub fn hypha(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypha"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = Pid::from_child(&child);
    let (send, ended) = mpsc::sync_channel(1);
    std::thread::spawn(move || send.send(child.wait_with_output().unwrap()));
    ended.recv_timeout(WAIT_TIMEOUT).unwrap_or_else(|_| {
        kill_process(pid, Signal::KILL).unwrap();
        let error = String::from_utf8(ended.recv().unwrap().stderr).unwrap();
        panic!("{arguments:?} still runs after {WAIT_TIMEOUT:?}: {error}");
    })
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Exit code 0; returns what it printed.
#[track_caller]
pub fn done(arguments: &[&str]) -> String {
    let output = hypha(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    stdout(&output)
}

/// Exit code 2, nothing on stdout, and one line on stderr that contains `expected`.
#[track_caller]
pub fn refused(arguments: &[&str], expected: &str) {
    failed(2, arguments, expected);
}

/// This exit code, nothing on stdout, and one line on stderr that contains `expected`.
#[track_caller]
pub fn failed(code: i32, arguments: &[&str], expected: &str) {
    let output = hypha(arguments);
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert_eq!(stdout(&output), "", "{arguments:?}");
    assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    assert!(error.contains(expected), "{arguments:?}: {error}");
}
