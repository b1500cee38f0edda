//! `hypha bench` in small: every measurement is present, and the counts are right. Speed is not tested.

use serde_json::Value;

use crate::command::done;
use crate::scratch::Scratch;

/// Runs it, and returns its output; no files are left behind.
#[track_caller]
fn report(test: &str, arguments: &[&str]) -> Value {
    let scratch = Scratch::new(test);
    let dir = scratch.path("");
    let mut all = vec!["bench"];
    all.extend_from_slice(arguments);
    all.extend(["--json", "--dir", &dir]);
    let report: Value = serde_json::from_str(&done(&all)).unwrap();
    assert_eq!(report["bench"], arguments[0]);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "files are left in {dir}");
    report
}

#[track_caller]
fn figure(report: &Value, name: &str) -> f64 {
    let figures = report["figures"].as_array().unwrap();
    let figure = figures.iter().find(|figure| figure["name"] == name);
    let figure = figure.unwrap_or_else(|| panic!("no figure `{name}` in {report:#}"));
    figure["value"].as_f64().unwrap()
}

#[track_caller]
fn positive(report: &Value, names: &[&str]) {
    for name in names {
        assert!(figure(report, name) > 0.0, "{name}: {report:#}");
    }
}

#[test]
fn submits_are_measured_beside_a_bare_handler() {
    let arguments = ["submit", "--connections", "4", "--seconds", "0.3", "--rounds", "2"];
    let report = report("bench-submit", &arguments);
    positive(&report, &["durable submits", "bare POST handler", "submits / bare", "submit p50"]);
    positive(&report, &["acknowledged and stored"]);
}

#[test]
fn every_task_of_a_cycle_completes() {
    let arguments = ["cycle", "--tasks", "1050", "--batch", "100", "--rounds", "1"];
    let report = report("bench-cycle", &arguments);
    positive(&report, &["full cycle", "full cycle, fifo", "predictive / fifo"]);
    assert_eq!(figure(&report, "completed"), 2100.0);
    assert_eq!(figure(&report, "results compared with their inputs"), 6.0);
}

#[test]
fn one_task_alone_is_measured() {
    let report = report("bench-latency", &["latency", "--rounds", "20", "--workers", "1"]);
    positive(
        &report,
        &["submit to result, p50", "submit to result, p99", "bare POST handler, p50"],
    );
}

#[test]
fn the_openai_route_is_measured_beside_its_back_ends() {
    let arguments = ["openai", "--connections", "1,4", "--seconds", "0.2", "--rounds", "1"];
    let report = report("bench-openai", &arguments);
    for contestant in ["direct", "bare relay", "scheduler", "scheduler and worker"] {
        positive(&report, &[&format!("1 connection, {contestant}, p50")]);
        positive(&report, &[&format!("4 connections, {contestant}")]);
    }
    // It may be below zero where the machine is busy.
    figure(&report, "1 connection, scheduler adds to p50");
}

#[test]
fn a_queue_survives_a_kill() {
    let report = report("bench-queue", &["queue", "--tasks", "1000", "--batch", "50"]);
    positive(&report, &["memory of the scheduler", "last / first", "restart after kill -9"]);
    positive(&report, &["memory, idle", "memory, peak", "memory, after"]);
    assert_eq!(figure(&report, "queued"), 1000.0);
}

#[test]
fn invalid_sizes_are_refused() {
    let output = crate::command::hypha(&["bench", "submit", "--seconds", "0"]);
    assert_eq!(output.status.code(), Some(2));
    let output = crate::command::hypha(&["bench", "cycle", "--strategy", "best"]);
    assert_eq!(output.status.code(), Some(2));
}
