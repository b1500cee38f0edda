//! A certificate is revoked at the gateway alone.

use serde_json::{Value, json};

use crate::cluster::{self, Cluster, builtin, worker_id};
use crate::command::hypha;
use crate::lab;
use crate::process::{WAIT_TIMEOUT, wait_until};

/// Neither a heartbeat nor a renewal shows that a worker is gone: it is cut off at once, not when it is next needed.
/// In the section of the scheduler.
const QUIET: &str = "lease_ttl = 3600\n[scheduler.fault_tolerance]\nhealth_check_interval = 600\n";

#[test]
fn a_worker_revoked_at_the_gateway_gets_no_tasks_from_any_scheduler() {
    let keys = builtin(1);
    let gateway = |lab: &lab::Lab| format!("crls_pem = \"{}\"", lab.revocations());
    let mut cluster = Cluster::start_around("revocation", gateway, QUIET, &[&keys, &keys]);
    let [bad, good] = [0, 1].map(|index: usize| worker_id(&cluster.workers[index].1));
    let status = |cluster: &Cluster, id: &str| {
        let known = cluster.get("/api/v1/workers");
        let known = known["workers"].as_array().unwrap().iter().find(|one| one["id"] == id);
        known.map_or(Value::Null, |one| one["status"].clone())
    };
    assert_eq!(status(&cluster, &bad), "available");

    cluster.lab.revoke("worker-0");
    let scheduler = &cluster.scheduler.1;
    let expelled = scheduler.wait_for_line("disconnected: ", WAIT_TIMEOUT);
    assert!(expelled.contains("revoked") && expelled.contains(&cluster.workers[0].0.peer));
    wait_until("unavailable", WAIT_TIMEOUT, || {
        let status = status(&cluster, &bad);
        matches!(status.as_str(), None | Some("unavailable")).then_some(())
    });
    for _ in 0..4 {
        let task =
            cluster.call("POST /api/v1/tasks?wait=50", &json!({"model": "echo", "input": 1}));
        assert_eq!(
            (&task["status"], &task["worker"]),
            (&json!("completed"), &json!(good)),
            "{task}"
        );
    }

    // A node that joins later gets the list, too.
    let gateway = cluster.gateway_address();
    let late = cluster.lab.member("scheduler", "late", &[&gateway], "").start();
    late.wait_for_line("got a newer revocation list from a gateway", WAIT_TIMEOUT);

    // And it outlives a restart, without the gateway.
    cluster.stop_gateway();
    cluster.restart_scheduler();
    cluster::api(&cluster.scheduler.1);
    let address = lab::address(&cluster.scheduler.1);
    let probe = hypha(&["worker", "probe", &address, "-c", &cluster.workers[0].0.config]);
    let complaint = String::from_utf8(probe.stderr).unwrap();
    assert!(complaint.contains("CertificateRevoked"), "{complaint}");
    let probe = hypha(&["worker", "probe", &address, "-c", &cluster.workers[1].0.config]);
    assert!(!String::from_utf8(probe.stderr).unwrap().contains("refused this node"));
}
