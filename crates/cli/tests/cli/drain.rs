//! `hypha drain` and `hypha readmit`, and what `hypha workers` shows between them.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::command::{failed, refused};
use crate::crew::{Crew, builtin, worker_id};
use crate::process::{PATIENCE, wait_until};

#[test]
fn a_worker_is_drained_shown_as_removed_and_taken_again() {
    let mut crew = Crew::start("drain", &[&builtin(1)]);
    let id = worker_id(&crew.workers[0].1);
    let short = format!("worker-0 ({})", &id[..8]);
    let again = "`hypha readmit worker-0` takes it again";
    let url = crew.url();
    let runs = crew.submit("sleep", &json!({"ms": 3_600_000}));
    crew.wait_for(&runs, "running");

    let drained = crew.hypha(&["drain", "worker-0"]);
    let expected = "gets nothing more, and is removed when it has finished what it has; ";
    assert_eq!(drained, format!("{short} {expected}{again}\n"));
    let workers = crew.hypha(&["workers"]);
    assert!(workers.ends_with(&format!("{short}: is being removed; {again}\n")), "{workers}");
    let twice = crew.hypha(&["drain", &id[..8], "--json"]);
    let twice: Value = serde_json::from_str(&twice).unwrap();
    assert_eq!(twice, json!({"id": id, "status": "draining"}));

    crew.hypha(&["cancel", &runs]);
    wait_for_removed(&crew);
    let workers = crew.hypha(&["workers"]);
    assert!(
        workers.contains(&format!("\nworker-0  {}  removed  echo, sleep ", &id[..8])),
        "{workers}"
    );
    assert!(workers.contains(&format!("\n{short}: removed ")), "{workers}");
    assert!(workers.ends_with(&format!(" ago; {again}\n")), "{workers}");
    let listed: Value = serde_json::from_str(&crew.hypha(&["workers", "--json"])).unwrap();
    assert_eq!((&listed[0]["id"], &listed[0]["status"]), (&json!(id), &json!("removed")));
    let ask = |command, worker: &str| [command, worker, "--scheduler", &url].map(str::to_owned);
    let told = |code, command, worker: &str, expected: &str| {
        let arguments = ask(command, worker);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        match code {
            2 => refused(&arguments, expected),
            _ => failed(code, &arguments, expected),
        }
    };
    told(1, "drain", "worker-0", &format!("{short} is removed already; {again}"));
    told(2, "drain", "worker-7", "there is no worker `worker-7`; `hypha workers` lists them");
    let waits = crew.submit("echo", &json!("hi"));
    let explained = crew.hypha(&["explain", &waits]);
    assert!(explained.ends_with(&format!("{short} was drained; {again}\n")), "{explained}");

    let readmitted = crew.hypha(&["readmit", "worker-0"]);
    assert_eq!(readmitted, format!("{short} is used again as soon as it is there\n"));
    assert_eq!(crew.ended(&waits)["result"], "hi");
    told(1, "readmit", "worker-0", &format!("{short} is not removed; "));

    // Of one that is away the next life of the scheduler knows the id, and that is enough.
    crew.hypha(&["drain", "worker-0"]);
    wait_for_removed(&crew);
    crew.workers[0].1.signal(Signal::TERM);
    crew.workers[0].1.wait(PATIENCE);
    crew.restart_scheduler();
    let workers = crew.hypha(&["workers"]);
    assert!(workers.contains(&id[..8]) && workers.contains("`hypha readmit "), "{workers}");
    crew.hypha(&["readmit", &id[..8]]);
    crew.workers[0].1 = crew.workers[0].0.start();
    assert_eq!(crew.ended(&crew.submit("echo", &json!("again")))["result"], "again");
}

/// It has finished what it had.
fn wait_for_removed(crew: &Crew) {
    wait_until("removed", PATIENCE, || {
        let known = crew.get("/api/v1/workers");
        (known["workers"] == json!([]) && known["removed"][0]["status"] == "removed").then_some(())
    });
}
