//! Two schedulers and one worker as processes: each uses its part of the worker, and no more.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, api, builtin, call, get};
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// The portions of schedulers that vanish are soon free.
const SHORT_LEASES: &str = "lease_ttl = 10\n";

const FOR_HOURS: u64 = 3_600_000;

#[test]
fn two_schedulers_share_a_worker() {
    let mut cluster = Cluster::start_with("sharing", SHORT_LEASES, &[&builtin(2)]);
    let worker = |scheduler: &Node| get(api(scheduler), "/api/v1/workers")["workers"][0].clone();
    assert_eq!(worker(&cluster.scheduler.1)["lease"]["portion"], Value::Null, "alone, it has all");

    let keys = format!("[scheduler]\ndiscovery_interval = 1\n{SHORT_LEASES}");
    let rival = cluster.lab.member("scheduler", "rival", &[&cluster.gateway_address()], &keys);
    let rival = rival.start();
    let slots = |scheduler: &Node| worker(scheduler)["lease"]["portion"]["slots"].clone();
    wait_until("each has a slot", WAIT_TIMEOUT, || {
        (slots(&cluster.scheduler.1) == json!([1]) && slots(&rival) == json!([1])).then_some(())
    });

    let sleep = json!({"model": "sleep", "input": {"ms": FOR_HOURS}});
    let submit = |scheduler: &Node| {
        let task = call(api(scheduler), "POST /api/v1/tasks", &sleep);
        task["id"].as_str().unwrap().to_owned()
    };
    let first: Vec<String> = (0..3).map(|_| submit(&cluster.scheduler.1)).collect();
    let others: Vec<String> = (0..2).map(|_| submit(&rival)).collect();
    let running = |scheduler: &Node, tasks: &[String]| {
        let status =
            |id: &String| get(api(scheduler), &format!("/api/v1/tasks/{id}"))["status"].clone();
        tasks.iter().filter(|id| status(id) == "running").count()
    };
    wait_until("each runs one", WAIT_TIMEOUT, || {
        let counts = (running(&cluster.scheduler.1, &first), running(&rival, &others));
        assert!(counts.0 <= 1 && counts.1 <= 1, "more than its part: {counts:?}");
        (counts == (1, 1)).then_some(())
    });
    let explained = cluster.hypha(&["workers"]);
    assert!(explained.contains("busy"), "{explained}");

    // The portion of a scheduler that vanishes is free after its lease.
    cluster.scheduler.1.signal(Signal::KILL);
    cluster.scheduler.1.wait(WAIT_TIMEOUT);
    wait_until("the other has all of it", WAIT_TIMEOUT, || {
        (running(&rival, &others) == 2).then_some(())
    });
    assert_eq!(worker(&rival)["lease"]["portion"], Value::Null);

    // It gets its portion again when it is back and there is room.
    let cancel = format!("DELETE /api/v1/tasks/{}", others[0]);
    cluster.scheduler.1 = cluster.scheduler.0.start();
    call(api(&rival), &cancel, &json!({}));
    wait_until("it runs one again", WAIT_TIMEOUT, || {
        (running(&cluster.scheduler.1, &first) == 1).then_some(())
    });
    assert_eq!(running(&rival, &others), 1);
}
