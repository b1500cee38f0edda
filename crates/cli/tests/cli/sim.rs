//! `hypha sim …` as users and programs see it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command::{hypha, refused, stdout};
use crate::scratch::Scratch;

#[test]
fn bad_input_gets_one_line_and_exit_code_2() {
    let scratch = Scratch::new("bad-input");
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    let good = scratch.file("good.csv", &format!("{header}2023-11-16 18:17:03.9,10,10\n"));
    let bad = scratch.file("bad.csv", &format!("{header}2023-11-16 18:17:03.9,10,-1\n"));
    let no_header = scratch.file("no-header.csv", "1,2,3\n");
    let empty = scratch.file("empty.csv", "");
    let table = scratch.file("table.csv", "model,mean_ms,error_ms\nmodel,-1,0\n");
    let json = scratch.file("table.json", "[{\"model\": \"m\"}]");
    let picture = scratch.path("out.svg");
    let (good, bad) = (format!("trace:{good}"), format!("trace:{bad}"));

    let compare = ["sim", "compare", "--plot", &picture];
    let with = |rest: &[&'static str]| [&compare[..], rest].concat();
    refused(&with(&["--strategies", "best"]), "unknown strategy `best`: use one of fifo,");
    refused(&with(&["--strategies", ""]), "unknown strategy");
    refused(
        &with(&["--workload", "weird"]),
        "use one of poisson, bimodal, pareto, burst, trace:FILE",
    );
    refused(&with(&["--workload", "trace:no-such-file.csv"]), "no-such-file.csv: No such file");
    refused(&with(&["--pool", "1x4.0,6y1.0"]), "part 2");
    refused(&with(&["--pool", "0x1.0"]), "pool");
    refused(&with(&["--load", "0"]), "--load: 0 is not from");
    refused(&with(&["--load", "nan"]), "--load: NaN is not from");
    refused(&with(&["--seeds", "0"]), "--seeds");
    refused(&with(&["--noise=-1"]), "--noise");
    refused(&with(&["--tasks", "18446744073709551615"]), "--tasks: use a number from 0 to");
    refused(&with(&["--metadata", "output"]), "input,output | input | none");
    refused(&with(&["--ageing=-1"]), "ageing is -1");
    refused(&with(&["--priorities", "0.1"]), "--priorities: part 1 `0.1`: expected SHARE:PRIORITY");
    refused(
        &with(&["--priorities", "0.9:1,0.2:2"]),
        "--priorities: part 2 `0.2:2`: the shares are",
    );
    refused(&with(&["--needs", "0.1:lots"]), "--needs: part 1 `0.1:lots`: expected SHARE:MEMORY");
    refused(&with(&["--needs", "0.1:8GB"]), "--needs: part 1 `0.1:8GB`: no worker of the pool has");
    refused(
        &with(&["--pool", "1x1.0:8"]),
        "pool: part 1 `1x1.0:8`: after the speed, expected what",
    );
    refused(&with(&["--at-once", "0"]), "--at-once: use a number from 1 to 1024");
    refused(&with(&["--at-once", "1025"]), "--at-once: use a number from 1 to 1024");
    refused(&with(&["--slowdown=-0.1"]), "--slowdown: -0.1 is not from 0 to 10");
    refused(&with(&["--errors", "1.1"]), "--errors: 1.1 is not from 0 to 1");
    refused(&with(&["--deaths", "nan"]), "--deaths: NaN is not from 0 to 60");
    refused(&[&compare[..], &["--workload", &bad]].concat(), "bad.csv: trace: line 2");
    refused(&[&compare[..], &["--workload", &format!("trace:{no_header}")]].concat(), "line 1");
    refused(&[&compare[..], &["--workload", &format!("trace:{empty}")]].concat(), "empty.csv");
    refused(&[&compare[..], &["--table", &table]].concat(), "line 2");
    refused(&[&compare[..], &["--table", &json]].concat(), "table.json");
    refused(&["sim", "compare", "--plot", "no/such/directory/out.svg"], "no/such/directory");
    refused(&["sim", "predict", "--trace", "no-such-file.csv"], "no-such-file.csv");
    refused(&["sim", "predict", "--trace", &good[6..], "--pool", "x"], "pool");
    refused(&["sim", "check", "--without", "rain"], "not a fault kind: use one of loss,");
    refused(&["sim", "check", "--tasks", "0"], "--tasks");
    refused(&["sim", "check", "--seeds", "0"], "--seeds");
    refused(&["sim", "check", "--strategy", "best"], "unknown strategy");
    assert!(!Path::new(&picture).exists(), "nothing is written");
}

#[test]
fn compare_prints_a_table_json_and_a_picture() {
    let scratch = Scratch::new("compare");
    let picture = scratch.path("out.svg");
    let small = ["sim", "compare", "--tasks", "300", "--seeds", "2", "--load", "0.5,0.8"];
    let strategies = ["--strategies", "round-robin,predictive"];
    let table = hypha(&[&small[..], &strategies, &["--plot", &picture]].concat());
    assert!(table.status.success());
    assert!(stdout(&table).contains("round_robin") && stdout(&table).contains("mean/oracle"));
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));

    let json = hypha(&[&small[..], &strategies, &["--json"]].concat());
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for key in [
            "mean_ms",
            "p50_ms",
            "p95_ms",
            "p99_ms",
            "p999_ms",
            "max_ms",
            "utilisation",
            "fairness",
            "failed",
            "oracle_ratio",
            "bound_ratio",
            "load",
            "seeds",
        ] {
            assert!(row[key].is_number(), "{key} in {row}");
        }
        assert_eq!(row["workload"], "poisson");
        assert!(["round_robin", "predictive"].contains(&row["strategy"].as_str().unwrap()));
    }
}

#[test]
fn priorities_requirements_batches_and_failures_are_compared() {
    let small = ["sim", "compare", "--tasks", "400", "--seeds", "1", "--strategies", "priority"];
    let json = |flags: &[&str]| -> Value {
        let output = hypha(&[&small[..], &["--json", "--load", "0.9"], flags].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["rows"][0].clone()
    };
    let mean_ms = |flags: &[&str]| json(flags)["mean_ms"].as_f64().unwrap();
    let row = json(&["--priorities", "0.1:10"]);
    let level = |at: usize| row["levels"][at]["mean_ms"].as_f64().unwrap();
    assert_eq!(
        (&row["levels"][0]["priority"], row["levels"].as_array().unwrap().len()),
        (&10.0.into(), 2)
    );
    assert!(level(0) < level(1), "{row}");
    let pool = ["--pool", "1x1.0:8GB,3x1.0"];
    let anywhere = mean_ms(&pool);
    assert!(mean_ms(&[&pool[..], &["--needs", "0.5:8GB"]].concat()) > 1.5 * anywhere);
    let (one, many) = (mean_ms(&[]), mean_ms(&["--at-once", "8", "--slowdown", "0"]));
    assert_ne!(one, many);
    assert!(mean_ms(&["--at-once", "8", "--slowdown", "0.5"]) > many);
    let errors = json(&["--errors", "0.5"]);
    assert!(errors["failed"].as_f64().unwrap() > 0.05 && errors["bound_ratio"].is_null());
    assert!(mean_ms(&["--deaths", "60"]) > one);
    let table = hypha(&[&small[..], &["--priorities", "0.1:10", "--errors", "0.5"]].concat());
    assert!(stdout(&table).contains("failed") && stdout(&table).contains("load 0.80, priority 10"));
}

#[test]
fn every_strategy_is_compared_by_default() {
    let output = hypha(&["sim", "compare", "--tasks", "50", "--seeds", "1", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 17);
}

#[test]
fn the_frontier_over_ageing_is_compared_and_drawn() {
    let scratch = Scratch::new("frontier");
    let picture = scratch.path("frontier.svg");
    let flags = ["--ageing", "0,2,100", "--tasks", "300", "--seeds", "1", "--plot", &picture];
    let output = hypha(&[&["sim", "compare"][..], &flags].concat());
    assert!(output.status.success());
    assert!(stdout(&output).contains("ageing 100"));
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
}

#[test]
fn predict_reports_error_and_coverage() {
    let scratch = Scratch::new("predict");
    let rows: String = (0..500)
        .map(|i| {
            format!("2023-11-16 18:{:02}:{:02}.5,{},{}\n", i / 60, i % 60, 100 + i, 1 + i % 90)
        })
        .collect();
    let trace =
        scratch.file("trace.csv", &format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"));
    let output = hypha(&["sim", "predict", "--trace", &trace, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["requests"], 500);
    assert!(report["mape_percent"].as_f64().unwrap() < 40.0, "{report}");
    let ninety = report["coverage_percent"]["90"].as_f64().unwrap();
    assert!((80.0..98.0).contains(&ninety), "{report}");
    assert!(stdout(&hypha(&["sim", "predict", "--trace", &trace])).contains("90 % interval"));
}

/// `hypha … | head -1` ends quietly.
#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hypha"))
        .args(["sim", "check", "--replay", "1"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn check_holds_and_replays() {
    let output = hypha(&["sim", "check", "--seeds", "20", "--from", "5"]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("20 seeds of 200 tasks"), "{}", stdout(&output));
    let replay = ["sim", "check", "--replay", "7", "--tasks", "5", "--without", "loss,rival"];
    let (first, second) = (hypha(&replay), hypha(&replay));
    assert!(first.status.success());
    assert!(stdout(&first).contains("client submits task 4"));
    assert_eq!(first.stdout, second.stdout);
}
