//! `hypha drain` and `hypha readmit`, and what `hypha workers` shows between them.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, builtin, worker_id};
use crate::command::{failed, refused};
use crate::process::{WAIT_TIMEOUT, wait_until};

#[test]
fn a_worker_is_drained_removed_and_readmitted() {
    let mut cluster = Cluster::start("drain", &[&builtin(1)]);
    let id = worker_id(&cluster.workers[0].1);
    let short = format!("worker-0 ({})", &id[..8]);
    let again = "`hypha readmit worker-0` readmits it";
    let url = cluster.url();
    let runs = cluster.submit("sleep", &json!({"ms": 3_600_000}));
    cluster.wait_for(&runs, "running");

    let drained = cluster.hypha(&["drain", "worker-0"]);
    let expected = "gets no new tasks, and is removed when its tasks have ended; ";
    assert_eq!(drained, format!("{short} {expected}{again}\n"));
    let workers = cluster.hypha(&["workers"]);
    assert!(workers.ends_with(&format!("{short}: is being removed; {again}\n")), "{workers}");
    let twice = cluster.hypha(&["drain", &id[..8], "--json"]);
    let twice: Value = serde_json::from_str(&twice).unwrap();
    assert_eq!(twice, json!({"id": id, "status": "draining"}));

    cluster.hypha(&["cancel", &runs]);
    wait_for_removed(&cluster);
    let workers = cluster.hypha(&["workers"]);
    assert!(
        workers.contains(&format!("\nworker-0  {}  removed  echo, sleep ", &id[..8])),
        "{workers}"
    );
    assert!(workers.contains(&format!("\n{short}: removed ")), "{workers}");
    assert!(workers.ends_with(&format!(" ago; {again}\n")), "{workers}");
    let listed: Value = serde_json::from_str(&cluster.hypha(&["workers", "--json"])).unwrap();
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
    let waits = cluster.submit("echo", &json!("hi"));
    let explained = cluster.hypha(&["explain", &waits]);
    assert!(explained.ends_with(&format!("{short} was drained; {again}\n")), "{explained}");

    let readmitted = cluster.hypha(&["readmit", "worker-0"]);
    assert_eq!(
        readmitted,
        format!("{short} is readmitted; it is used as soon as it is available\n")
    );
    assert_eq!(cluster.ended(&waits)["result"], "hi");
    told(1, "readmit", "worker-0", &format!("{short} is not removed; "));

    // After a restart, the scheduler knows only the id of an unreachable worker, and that is enough.
    cluster.hypha(&["drain", "worker-0"]);
    wait_for_removed(&cluster);
    cluster.workers[0].1.signal(Signal::TERM);
    cluster.workers[0].1.wait(WAIT_TIMEOUT);
    cluster.restart_scheduler();
    let workers = cluster.hypha(&["workers"]);
    assert!(workers.contains(&id[..8]) && workers.contains("`hypha readmit "), "{workers}");
    cluster.hypha(&["readmit", &id[..8]]);
    cluster.workers[0].1 = cluster.workers[0].0.start();
    assert_eq!(cluster.ended(&cluster.submit("echo", &json!("again")))["result"], "again");
}

/// It has finished its tasks.
fn wait_for_removed(cluster: &Cluster) {
    wait_until("removed", WAIT_TIMEOUT, || {
        let known = cluster.get("/api/v1/workers");
        (known["workers"] == json!([]) && known["removed"][0]["status"] == "removed").then_some(())
    });
}
