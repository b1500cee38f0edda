//! Jobs and the market: submitted, listed, watched and cancelled, by those who may.

use hypha_api::{NewToken, Role, Settings, Tokens};
use hypha_model::{Money, Priority, Span};
use reqwest::Method;
use serde_json::{Value, json};

use crate::memory::{Memory, TEST_TIMEOUT};
use crate::server::Server;

/// A price that occurs nowhere else.
const MAX: f64 = 97.654321;

fn job(workers: u32) -> Value {
    json!({
        "name": "counting",
        "resources": {
            "num_workers": workers,
            "parameter_server": [{"type": "CPU", "min": 1}],
            "worker_price": {"bid": 2.5, "max": MAX},
            "parameter_server_price": {"bid": 1.5, "max": MAX},
        },
        "run": {"model": "count", "input": {"to": 3, "every_ms": 1}},
        "parameter_server_run": {"model": "count"},
    })
}

/// A scheduler with this many workers for jobs, which ask for 3.5 an hour.
async fn server(workers: u8) -> Server {
    let settings = hypha_engine::Settings {
        organisation: Some("lab".parse().unwrap()),
        ..hypha_engine::Settings::default()
    };
    let memory = Memory::with(settings);
    memory.with_state(|state| state.asked_price = Some(Money::from_micros(3_500_000)));
    (1..=workers).for_each(|n| memory.add_training_worker(n));
    Server::with(memory, Settings::default()).await
}

fn path_of(job: &Value) -> String {
    format!("/api/v1/jobs/{}", job["id"].as_str().unwrap())
}

async fn submit(server: &Server, job: &Value) -> Value {
    let (status, body) = server.post("/api/v1/jobs", job.to_string()).await;
    assert_eq!(status, 202, "{body}");
    body
}

#[tokio::test]
async fn a_job_runs_on_its_members_and_completes() {
    let server = server(3).await;
    let submitted = submit(&server, &job(2)).await;
    assert_eq!((&submitted["name"], &submitted["status"]), (&json!("counting"), &json!("waiting")));
    server.memory.advance(Span::from_secs(1));
    let (_, running) = server.get(&path_of(&submitted)).await;
    assert_eq!(running["status"], "running", "{running}");
    let members = running["members"].as_array().unwrap();
    assert_eq!(members.len(), 3);
    for member in members {
        assert_eq!((&member["status"], &member["price"]), (&json!("running"), &json!(3.5)));
        assert!(member["lease"].as_str().unwrap().starts_with("lease-"), "{member}");
        assert!(member["until"].as_str().unwrap().starts_with("2023-"), "{member}");
    }
    assert_eq!(
        running["roles"][0],
        json!({
            "name": "worker", "count": 2, "minimum": 2, "present": 2, "done": 0, "bid": 2.5,
        })
    );
    let (_, market) = server.get("/api/v1/market").await;
    assert_eq!(market["leases"].as_array().unwrap().len(), 3);
    let events: Vec<&str> = market["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["event"].as_str().unwrap())
        .collect();
    let count = |name: &str| events.iter().filter(|event| **event == name).count();
    assert_eq!((count("advertised"), count("offered"), count("leased")), (1, 3, 3), "{events:?}");

    let held = server.memory.held();
    server.memory.progress(&held[0], 250);
    let (_, running) = server.get(&path_of(&submitted)).await;
    let progress = |job: &Value| {
        job["members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["progress"].as_f64().unwrap())
            .sum::<f64>()
    };
    assert_eq!(progress(&running), 0.25);
    held.iter().for_each(|held| server.memory.complete(held, b"3"));
    let (_, ended) = server.get(&path_of(&submitted)).await;
    assert_eq!((&ended["status"], &ended["members"]), (&json!("completed"), &json!([])));
    assert_eq!((&ended["roles"][0]["done"], &ended["roles"][1]["done"]), (&json!(2), &json!(1)));

    let (_, ledger) = server.get("/api/v1/market/ledger").await;
    let entries = ledger["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 3, "{ledger}");
    assert_eq!((&entries[0]["organisation"], &entries[0]["leases"]), (&json!("lab"), &json!(1)));
    let (status, csv) = server.get("/api/v1/market/ledger?format=csv").await;
    let csv = csv.as_str().unwrap();
    assert_eq!((status, csv.lines().count()), (200, 4), "{csv}");
    let (status, _) = server.get("/api/v1/market/ledger?format=xml").await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn a_job_without_enough_workers_says_why_and_the_private_price_is_in_no_answer() {
    let server = server(2).await;
    let waits = submit(&server, &job(2)).await;
    server.memory.with_state(|state| state.asked_price = Some(Money::from_micros(98_000_000)));
    let dear = submit(&server, &job(1)).await;
    let mut seen = vec![waits.to_string(), dear.to_string()];
    for _ in 0..20 {
        server.memory.advance(Span::from_millis(500));
    }
    let (_, short) = server.get(&path_of(&waits)).await;
    assert_eq!((&short["status"], &short["members"]), (&json!("waiting"), &json!([])));
    let (_, expensive) = server.get(&path_of(&dear)).await;
    let reason = expensive["reason"].as_str().unwrap();
    assert!(reason.contains("offers cost more than the job pays"), "{reason}");
    assert_eq!(expensive["shortfall"][0]["role"], "worker", "{expensive}");
    assert!(expensive["shortfall"][0]["not_counted"]["too_expensive"].as_u64() > Some(0));
    let timed = |job: &Value| job["next_advert_at"].is_string() || job["advert"].is_string();
    assert!(timed(&short) && timed(&expensive), "{short}");
    let (_, wrong) = server.post("/api/v1/jobs", job(1).to_string().replace("2.5", "98.5")).await;
    let said = wrong["error"]["message"].as_str().unwrap();
    assert!(said.starts_with("resources.worker_price.bid: `98.5` is more than max"), "{said}");
    seen.extend([wrong.to_string(), short.to_string(), expensive.to_string()]);
    for path in [
        "/api/v1/jobs",
        "/api/v1/market",
        "/api/v1/market/ledger",
        "/api/v1/market/ledger?format=csv",
        "/api/v1/scheduler",
        "/api/v1/workers",
        "/metrics",
    ] {
        seen.push(server.get(path).await.1.to_string());
    }
    seen.push(server.delete(&path_of(&dear)).await.1.to_string());
    let events = server.request(Method::GET, &format!("{}/events", path_of(&dear)));
    seen.push(events.send().await.unwrap().text().await.unwrap());
    for text in seen {
        assert!(!text.contains("97.65") && !text.contains("97654321"), "{text}");
    }
}

#[tokio::test]
async fn a_cancelled_job_releases_its_members() {
    let server = server(3).await;
    let submitted = submit(&server, &job(2)).await;
    server.memory.advance(Span::from_secs(1));
    let (status, cancelled) = server.delete(&path_of(&submitted)).await;
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")));
    let (_, market) = server.get("/api/v1/market").await;
    assert_eq!(market["leases"], json!([]));
    let (status, again) = server.delete(&path_of(&submitted)).await;
    assert_eq!((status, &again["status"]), (200, &json!("cancelled")));
    let (status, body) = server.get("/api/v1/jobs/job-01890000-0000-7000-8000-000000000001").await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("not_found")));
    assert_eq!(server.get("/api/v1/jobs/7").await.0, 400);
}

#[tokio::test]
async fn jobs_are_listed_in_pages_the_latest_first() {
    let server = server(0).await;
    let mut ids = Vec::new();
    for _ in 0..21 {
        ids.push(submit(&server, &job(1)).await["id"].clone());
    }
    server.delete(&format!("/api/v1/jobs/{}", ids[20].as_str().unwrap())).await;
    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs?limit=5".to_owned();
    loop {
        let (status, page) = server.get(&path).await;
        assert_eq!(status, 200, "{page}");
        let jobs = page["jobs"].as_array().unwrap();
        assert!(jobs.len() <= 5 && jobs.iter().all(|job| job["members"].is_null()));
        seen.extend(jobs.iter().map(|job| job["id"].clone()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/jobs?limit=5&cursor={next}");
    }
    ids.reverse();
    assert_eq!(seen, ids);
    let (_, cancelled) = server.get("/api/v1/jobs?status=cancelled").await;
    assert_eq!(cancelled["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(cancelled["next"], Value::Null);
    for bad in ["limit=0", "limit=1001", "cursor=x", "status=odd", "foo=1"] {
        assert_eq!(server.get(&format!("/api/v1/jobs?{bad}")).await.0, 400, "{bad}");
    }
}

#[tokio::test]
async fn events_of_the_market_continue_where_a_client_left_off() {
    let server = server(1).await;
    submit(&server, &job(2)).await;
    let (_, market) = server.get("/api/v1/market").await;
    let last = market["sequence"].as_u64().unwrap();
    assert!(last > 0 && !market["events"].as_array().unwrap().is_empty(), "{market}");
    let (_, market) = server.get(&format!("/api/v1/market?after={last}")).await;
    assert_eq!(market["events"], json!([]));
    submit(&server, &job(3)).await;
    let (_, market) = server.get(&format!("/api/v1/market?after={last}")).await;
    assert_eq!(market["events"][0]["sequence"], last + 1, "{market}");
    // Of an earlier incarnation.
    let (_, market) = server.get("/api/v1/market?after=1000000").await;
    assert_eq!(market["events"][0]["sequence"], 1);
}

#[tokio::test]
async fn changes_of_a_job_are_streamed_to_its_end() {
    let server = server(3).await;
    let submitted = submit(&server, &job(2)).await;
    let path = format!("{}/events", path_of(&submitted));
    let response = server.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    server.memory.advance(Span::from_secs(1));
    let mut stream = Box::pin(response);
    let mut text = String::new();
    let mut until = async |name: &str| {
        let read = async {
            while !text.contains(name) {
                let chunk = stream.chunk().await.unwrap().unwrap();
                text.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        };
        // Of all of it: comments keep coming.
        tokio::time::timeout(TEST_TIMEOUT, read).await.expect(name);
    };
    until("event: running\n").await;
    let held = server.memory.held();
    server.memory.progress(&held[0], 500);
    until("event: changed\n").await;
    held.iter().for_each(|held| server.memory.complete(held, b"3"));
    until("event: completed\n").await;
    assert!(text.starts_with("event: waiting\ndata: {\"id\":\"job-"), "{text}");
}

#[tokio::test]
async fn a_tenant_sees_its_own_jobs_and_keeps_to_its_ceiling() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let user = |tenant: &str| NewToken {
        tenant: Some(tenant.parse().unwrap()),
        max_priority: Some(Priority::from_milli(500)),
        ..NewToken::default()
    };
    let (admin, first) = Tokens::issue(&NewToken { role: Role::Admin, ..NewToken::default() });
    let (acme, second) = Tokens::issue(&user("acme"));
    let (umbrella, third) = Tokens::issue(&user("umbrella"));
    std::fs::write(&path, first + &second + &third).unwrap();
    let settings = Settings { tokens: Some(Tokens::load(&path).unwrap()), ..Settings::default() };
    let memory = Memory::with(hypha_engine::Settings::default());
    memory.with_state(|state| state.asked_price = Some(Money::ZERO));
    (1..=3).for_each(|n| memory.add_training_worker(n));
    let mut server = Server::with(memory, settings).await;

    server.token = Some(acme.clone());
    let mut important = job(2);
    important["priority"] = json!(0.6);
    let (status, refused) = server.post("/api/v1/jobs", important.to_string()).await;
    assert_eq!(status, 422, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().starts_with("priority 0.6 is above"));
    let submitted = submit(&server, &job(2)).await;
    assert_eq!(submitted["tenant"], "acme");
    server.memory.advance(Span::from_secs(1));

    let shown = |server: &Server| {
        let paths =
            ["/api/v1/jobs", "/api/v1/market"].map(|path| server.request(Method::GET, path));
        async move {
            let mut sizes = Vec::new();
            for (request, keys) in paths.into_iter().zip([vec!["jobs"], vec!["leases", "events"]]) {
                let (_, body) = crate::server::answer(request).await;
                sizes.extend(keys.iter().map(|key| !body[*key].as_array().unwrap().is_empty()));
            }
            sizes
        }
    };
    assert_eq!(shown(&server).await, [true, true, true]);
    assert_eq!(server.get("/api/v1/market/ledger").await.0, 403);
    server.token = Some(umbrella);
    assert_eq!(shown(&server).await, [false, false, false]);
    for (method, path) in [(Method::GET, ""), (Method::DELETE, ""), (Method::GET, "/events")] {
        let path = format!("{}{path}", path_of(&submitted));
        let status = server.request(method, &path).send().await.unwrap().status();
        assert_eq!(status, 404, "{path}");
    }
    server.token = Some(admin);
    assert_eq!(shown(&server).await, [true, true, true]);
    assert_eq!(server.get("/api/v1/market/ledger").await.0, 200);
    assert_eq!(server.get(&path_of(&submitted)).await.1["status"], "running");
    server.token = None;
    for path in ["/api/v1/jobs", "/api/v1/market", "/api/v1/market/ledger"] {
        assert_eq!(server.get(path).await.0, 401, "{path}");
    }
}
