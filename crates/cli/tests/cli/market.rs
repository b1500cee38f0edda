//! The market as processes: a pool that pays for workers, and two schedulers that compete for twelve.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Cluster, api, builtin, call, get};
use crate::lab;
use crate::process::{Node, WAIT_TIMEOUT, wait_until};

/// The terms of a worker that is leased for a price only.
fn priced(floor: u32) -> String {
    format!("{}[offer]\nfloor = {floor}\n", builtin(1))
}

#[test]
fn a_pool_pays_for_the_workers_that_its_tasks_need() {
    let pool = "[scheduler.pool]\nbid = 1\nmax = 3\nidle_after = 1\n";
    let mut cluster = Cluster::start_with("pool", pool, &[]);
    let gateway = cluster.gateway_address();
    for (name, floor) in [("fair", 2), ("dear", 5)] {
        let member = cluster.lab.member("worker", name, &[&gateway], &priced(floor));
        let node = member.start();
        cluster.workers.push((member, node));
    }
    let known = |cluster: &Cluster| cluster.get("/api/v1/workers")["workers"].clone();
    wait_until("both are known", WAIT_TIMEOUT, || {
        (known(&cluster).as_array().unwrap().len() == 2).then_some(())
    });
    let size = |cluster: &Cluster| {
        let pools = cluster.get("/api/v1/pools");
        let all = &pools["pools"][0];
        (all["workers"].as_array().unwrap().len(), all["price_per_hour"].as_f64().unwrap())
    };
    assert_eq!(size(&cluster), (0, 0.0), "nothing is leased without tasks");

    let task = cluster.submit("sleep", &json!({"ms": 3_600_000}));
    cluster.wait_for(&task, "running");
    assert_eq!(size(&cluster), (1, 2.0), "the worker that asks for more than `max` is not leased");
    // The lease and the task survive a kill of the scheduler.
    cluster.restart_scheduler();
    let again = cluster.wait_for(&task, "running");
    assert_eq!(again["attempts"], 1, "{again}");
    cluster.hypha(&["cancel", &task]);
    wait_until("the idle worker is released", WAIT_TIMEOUT, || {
        (size(&cluster).0 == 0).then_some(())
    });
    wait_until("all of it is countersigned", WAIT_TIMEOUT, || {
        let ledger = cluster.get("/api/v1/market/ledger");
        let entry = &ledger["entries"][0];
        (entry["held_seconds"].as_f64()? > 0.0 && entry["unconfirmed_seconds"].as_f64()? == 0.0)
            .then_some(())
    });
}

/// A worker that takes one part of a job, which needs most of the machine.
fn trainer(floor: u32) -> String {
    format!(
        "[[executors]]\nclass = \"train\"\nname = \"trainer\"\nruntime = \"builtin\"\n\
         models = [\"count\"]\n[offer]\nfloor = {floor}\n"
    )
}

fn gang(workers: u32, input: &Value) -> Value {
    json!({
        "resources": {
            "num_workers": workers,
            "worker": [{"kind": "trainer"}],
            "worker_price": {"bid": 1.0, "max": 3.0},
        },
        "run": {"model": "count", "input": input},
        "lease_ttl": 10,
    })
}

/// One gateway, two schedulers, twelve workers. Two of the workers ask for too much.
#[test]
fn two_schedulers_compete_for_twelve_workers() {
    let keys: Vec<String> = (0..12).map(|n| trainer(if n < 2 { 4 } else { 2 })).collect();
    let mut cluster = Cluster::start_with("compete", "lease_ttl = 10\n", &[]);
    let gateway = cluster.gateway_address();
    let rival = "[scheduler]\ndiscovery_interval = 1\nlease_ttl = 10\n";
    let rival = cluster.lab.member("scheduler", "rival", &[&gateway], rival).start();
    for (n, keys) in keys.iter().enumerate() {
        let member = cluster.lab.member("worker", &format!("worker-{n}"), &[&gateway], keys);
        let node = member.start();
        cluster.workers.push((member, node));
    }
    for scheduler in [&cluster.scheduler.1, &rival] {
        wait_until("all workers are known", WAIT_TIMEOUT, || {
            let known = get(api(scheduler), "/api/v1/workers");
            (known["workers"].as_array().unwrap().len() == 12).then_some(())
        });
    }
    let submit = |scheduler: &Node, job: &Value| {
        let job = call(api(scheduler), "POST /api/v1/jobs", job);
        job["id"].as_str().unwrap().to_owned()
    };
    let job = |scheduler: &Node, id: &str| get(api(scheduler), &format!("/api/v1/jobs/{id}"));
    let when = |scheduler: &Node, id: &str, status: &str| {
        wait_until(status, WAIT_TIMEOUT, || {
            Some(job(scheduler, id)).filter(|job| job["status"] == status)
        })
    };

    // Each needs more than half of what is affordable: one waits, both complete.
    let short = json!({"to": 20, "every_ms": 100});
    let first = submit(&cluster.scheduler.1, &gang(6, &short));
    let second = submit(&rival, &gang(6, &short));
    when(&cluster.scheduler.1, &first, "completed");
    when(&rival, &second, "completed");

    // The workers of a scheduler that is killed are free after the TTL of its leases.
    let long = json!({"to": 3_600, "every_ms": 1_000});
    let lost = submit(&rival, &gang(6, &long));
    when(&rival, &lost, "running");
    lab::kill(rival);
    let next = submit(&cluster.scheduler.1, &gang(10, &short));
    let ended = when(&cluster.scheduler.1, &next, "completed");
    assert_eq!(ended["lost"], 0, "{ended}");

    // A worker that is killed is replaced.
    let third = submit(&cluster.scheduler.1, &gang(9, &json!({"to": 200, "every_ms": 100})));
    let running = when(&cluster.scheduler.1, &third, "running");
    for member in running["members"].as_array().unwrap() {
        assert_eq!(member["price"], json!(2.0), "neither below the floor nor above max: {running}");
    }
    let victim = cluster.index_of(&running["members"][0]["worker"]);
    let (_, node) = cluster.workers.remove(victim);
    lab::kill(node);
    let ended = when(&cluster.scheduler.1, &third, "completed");
    assert_eq!(ended["lost"], 1, "{ended}");

    // What the scheduler has countersigned is what its workers have.
    let ledger = wait_until("all of it is settled", WAIT_TIMEOUT, || {
        let ledger = cluster.get("/api/v1/market/ledger");
        let is_settled = |entry: &Value| entry["unconfirmed_seconds"] == json!(0.0);
        let entries = ledger["entries"].as_array()?.clone();
        // The killed worker never confirms its last seconds.
        (entries.iter().filter(|entry| !is_settled(entry)).count() <= 1).then_some(entries)
    });
    assert_eq!(ledger.len(), 10, "two were never leased: {ledger:?}");
    for (member, node) in &mut cluster.workers {
        node.signal(Signal::TERM);
        node.wait(WAIT_TIMEOUT);
        let _ = member;
    }
}
