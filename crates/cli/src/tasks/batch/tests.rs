//! Batches: keys, torn files, changed lines.

use std::path::PathBuf;

use super::*;

struct Files {
    _directory: tempfile::TempDir,
    tasks: PathBuf,
    out: PathBuf,
}

impl Files {
    fn new(tasks: &str) -> Files {
        let directory = tempfile::tempdir().unwrap();
        let (file, out) = (directory.path().join("tasks"), directory.path().join("out"));
        std::fs::write(&file, tasks).unwrap();
        Files { _directory: directory, tasks: file, out }
    }

    fn lines(&self, run: &str) -> Vec<Line> {
        let mut source = Source::open(&self.tasks, run).unwrap();
        std::iter::from_fn(|| source.next().unwrap()).collect()
    }

    fn keys(&self, run: &str) -> Vec<String> {
        self.lines(run).into_iter().map(|line| line.key).collect()
    }

    fn check_lines(&self) -> Result<Tally, String> {
        let results = Results::open(&self.out).map_err(|failure| failure.to_string())?;
        check_lines(&self.tasks, "", &results).map_err(|failure| failure.to_string())
    }
}

const TASK: &str = r#"{"model": "echo", "input": 1}"#;

fn task(status: &str) -> TaskStatus {
    let id = "task-01890000-0000-7000-8000-000000000001";
    let error = if status == "failed" { "\"it broke\"" } else { "null" };
    let text = format!(
        "{{\"id\":\"{id}\",\"status\":\"{status}\",\"input\":\"x\",\"result\":[1.00,\n2],\"error\":{error}}}"
    );
    serde_json::from_str(&text).unwrap()
}

#[test]
fn key_depends_on_line_position_and_run() {
    let files = Files::new(&format!("{TASK}\n\n  {TASK}\r\n"));
    let keys = files.keys("");
    assert_eq!(files.lines("").iter().map(|line| line.number).collect::<Vec<_>>(), [1, 3]);
    assert_ne!(keys[0], keys[1], "equal lines are separate tasks");
    assert_ne!(files.keys("again"), keys, "another run is another task");
    // Lines that are added later do not change the keys of earlier ones.
    std::fs::write(&files.tasks, format!("{TASK}\n\n{TASK}\n{TASK}")).unwrap();
    assert_eq!(files.keys("")[..2], keys);
    std::fs::write(&files.tasks, format!("{}\n", TASK.replace('1', "2"))).unwrap();
    assert_ne!(files.keys("")[0], keys[0]);
    std::fs::write(&files.tasks, r#"{"model": "echo", "key": "mine"}"#).unwrap();
    assert_eq!(files.keys(""), ["mine"]);
}

#[test]
fn invalid_line_is_reported_before_anything_is_submitted() {
    for (tasks, says) in [
        (format!("{TASK}\n{{"), "tasks:2: is not JSON: EOF while parsing an object at column 1"),
        (format!("{TASK}\n{{}}"), "tasks:2: not a task: missing field `model`"),
        (format!("{TASK}\n{{\"model\": \"m\", \"requirement\": 1}}"), "unknown field"),
        ("{\"model\": \"m\", \"key\": \"k\"}\n".repeat(2), "tasks:2: has the key of an earlier"),
    ] {
        let files = Files::new(&tasks);
        let error = files.check_lines().unwrap_err();
        assert!(error.contains(says), "{error}");
        assert!(!files.out.exists(), "an empty file of results is left behind");
    }
}

#[test]
fn existing_empty_file_is_kept() {
    let files = Files::new(&format!("{TASK}\n"));
    std::fs::write(&files.out, "").unwrap();
    files.check_lines().unwrap();
    assert!(files.out.exists());
}

#[test]
fn lines_with_a_result_are_counted_and_not_run_again() {
    let files = Files::new(&format!("{TASK}\n{TASK}\n{TASK}\n"));
    let keys = files.keys("");
    let mut results = Results::open(&files.out).unwrap();
    results.add(3, &keys[2], task("completed")).unwrap();
    results.add(1, &keys[0], task("failed")).unwrap();
    let busy = files.check_lines().unwrap_err();
    assert!(busy.contains("another run writes"), "{busy}");
    results.finish().unwrap();

    let tally = files.check_lines().unwrap();
    let mut reasons = Reasons::default();
    reasons.add(Some("it broke"));
    let expected = Tally { tasks: 3, completed: 1, failed: 1, refused: 0, earlier: 2, reasons };
    assert_eq!(tally, expected);
    let text = std::fs::read_to_string(&files.out).unwrap();
    let row: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&row["line"], &row["result"]), (&json!(3), &json!([1.0, 2])));
    assert!(text.lines().next().unwrap().contains("\"result\":[1.00, 2]"), "{text}");
    assert!(row.get("input").is_none());
    assert_eq!(
        tally.to_string(),
        "2 of 3 tasks done, 1 completed, 1 failed (2 of them by an earlier run)"
    );
}

#[test]
fn torn_line_is_cut_off_and_run_again() {
    let files = Files::new(&format!("{TASK}\n{TASK}\n"));
    let keys = files.keys("");
    let mut results = Results::open(&files.out).unwrap();
    results.add(2, &keys[1], task("completed")).unwrap();
    results.finish().unwrap();
    let whole = std::fs::read_to_string(&files.out).unwrap();
    std::fs::write(&files.out, format!("{whole}{{\"attempts\":0,\"li")).unwrap();

    assert_eq!(files.check_lines().unwrap().earlier, 1);
    assert_eq!(std::fs::read_to_string(&files.out).unwrap(), whole);
    let mut results = Results::open(&files.out).unwrap();
    results.add(1, &keys[0], task("completed")).unwrap();
    results.finish().unwrap();
    assert_eq!(files.check_lines().unwrap().completed, 2);
}

#[test]
fn foreign_file_is_not_changed() {
    let files = Files::new(&format!("{TASK}\n"));
    for content in ["important\n", "important", "{\"a\": 1}\n"] {
        std::fs::write(&files.out, content).unwrap();
        let error = files.check_lines().unwrap_err();
        assert!(error.contains("out:1: is not a result of a batch"), "{error}");
        assert_eq!(std::fs::read_to_string(&files.out).unwrap(), content);
    }
}

#[test]
fn results_of_changed_lines_are_refused() {
    let files = Files::new(&format!("{TASK}\n"));
    let mut results = Results::open(&files.out).unwrap();
    results.add(1, "another", task("completed")).unwrap();
    results.finish().unwrap();
    let error = files.check_lines().unwrap_err();
    assert!(error.contains("tasks:1: has changed since its result was written"), "{error}");

    std::fs::remove_file(&files.out).unwrap();
    let mut results = Results::open(&files.out).unwrap();
    results.add(9, "another", task("completed")).unwrap();
    results.finish().unwrap();
    let error = files.check_lines().unwrap_err();
    assert!(error.contains("has results of lines that"), "{error}");
}
