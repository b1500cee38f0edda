//! Lists of tasks: what the pages contain, and that no task is left out or repeated.

use hypha_api::{NewToken, Settings, Tokens};
use hypha_engine::scheduler::TASKS_PER_PART;
use serde_json::Value;

use crate::memory::{Memory, worker_id};
use crate::server::Server;

const TASKS: &str = "/api/v1/tasks";

/// The ids on all pages. Every page but the last is full.
async fn all(server: &Server, query: &str, limit: usize) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = server.get(&format!("{TASKS}?limit={limit}&{query}{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        let tasks = page["tasks"].as_array().unwrap();
        found.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { return found };
        assert_eq!(tasks.len(), limit, "a page in the middle is full: {query}");
        cursor = format!("&cursor={next}");
    }
}

async fn submit(server: &Server, model: &str, count: usize) -> Vec<String> {
    let task = format!("{{\"model\":\"{model}\"}}");
    let (_, batch) = server.post(TASKS, format!("[{}]", vec![task; count].join(","))).await;
    let id = |task: &Value| task["id"].as_str().unwrap().to_owned();
    batch["tasks"].as_array().unwrap().iter().map(id).collect()
}

/// The order of a list: ids start with their time, and within a millisecond they are in any order.
fn latest_first(mut ids: Vec<String>) -> Vec<String> {
    ids.sort_by(|a, b| b.cmp(a));
    ids
}

/// A scheduler that binds early, with two workers: it knows of more scheduled tasks than its disk.
async fn binding_early() -> Server {
    let strategy = hypha_placement::Strategy::RoundRobin;
    let memory = Memory::with(hypha_engine::Settings { strategy, ..Default::default() });
    memory.add_worker(1, &["sleep", "echo", "m"]);
    memory.add_worker(2, &["sleep", "echo"]);
    Server::with(memory, Settings::default()).await
}

#[tokio::test]
async fn a_long_page_is_read_in_parts() {
    let tasks = 2 * TASKS_PER_PART + 1;
    let server = Server::with(Memory::with(Default::default()), Settings::default()).await;
    let ids = submit(&server, "m", tasks).await;
    let reads = || server.memory.with_state(|state| state.reads);
    let before = reads();
    assert_eq!(all(&server, "", tasks).await, latest_first(ids));
    assert!(reads() - before >= 3, "the machine was locked {} times", reads() - before);
}

#[tokio::test]
async fn a_large_batch_is_accepted_in_parts() {
    let server = Server::with(Memory::with(Default::default()), Settings::default()).await;
    let ids = submit(&server, "m", 2_500).await;
    assert!(ids.is_sorted() && ids.len() == 2_500, "in the order of the batch");
    let parts = server.memory.with_state(|state| std::mem::take(&mut state.submissions));
    assert_eq!(parts, [1_024, 1_024, 452]);
}

#[tokio::test]
async fn tasks_in_a_workers_queue_are_listed() {
    let server = binding_early().await;
    let ended = submit(&server, "echo", 6).await;
    let all_ids = latest_first([ended, submit(&server, "sleep", 40).await].concat());
    let state_and_worker = server.memory.with_state(|state| {
        let now = state.now();
        let of = |id: &String| {
            let task = id.parse().unwrap();
            let open = state.scheduler.task_view(task, now).map(|view| (view.state, view.worker));
            let ended = |end: &hypha_engine::record::FinishedTask| (end.state, end.worker);
            open.or_else(|| state.disk.image.tasks[&task].finished.as_deref().map(ended)).unwrap()
        };
        all_ids.iter().map(|id| (id.clone(), of(id))).collect::<Vec<_>>()
    });
    let given = |id: &String| {
        let task = id.parse().unwrap();
        server.memory.with_state(|state| state.disk.image.tasks[&task].current.is_some())
    };
    assert!(state_and_worker.iter().filter(|(id, _)| !given(id)).count() > 20, "most are bound");
    for limit in [3, 7, 100] {
        for worker in [None, Some(worker_id(1)), Some(worker_id(2)), Some(worker_id(3))] {
            for status in
                [None, Some("queued"), Some("scheduled"), Some("running"), Some("completed")]
            {
                let fits = |(_, (state, with)): &&(String, (hypha_model::TaskState, _))| {
                    status.is_none_or(|status| state.to_string() == status)
                        && worker.is_none_or(|worker| *with == Some(worker))
                };
                let expected: Vec<String> =
                    state_and_worker.iter().filter(fits).map(|(id, _)| id.clone()).collect();
                let mut query = String::new();
                query.extend(status.map(|status| format!("status={status}&")));
                query.extend(worker.map(|worker| format!("worker={worker}")));
                assert_eq!(all(&server, &query, limit).await, expected, "{query}");
            }
        }
    }
}

/// Other filters apply to tasks that only the machine knows, too.
#[tokio::test]
async fn bound_tasks_are_filtered_like_others() {
    let server = binding_early().await;
    let worker = worker_id(1);
    let first = submit(&server, "sleep", 20).await;
    let m = submit(&server, "m", 8).await;
    assert_eq!(all(&server, &format!("worker={worker}&model=m"), 3).await, latest_first(m.clone()));
    let (_, task) = server.get(&format!("{TASKS}/{}", m[4])).await;
    let since = task["submitted_at"].as_str().unwrap();
    let (_, before) = server.get(&format!("{TASKS}/{}", first[19])).await;
    assert!(before["submitted_at"].as_str().unwrap() < since);
    let since = since.replace('+', "%2B");
    let query = format!("worker={worker}&since={since}");
    assert_eq!(all(&server, &query, 5).await, latest_first(m), "all of one moment");
}

/// Interactive requests are not stored and not listed, whatever their state.
#[tokio::test]
async fn interactive_requests_are_not_listed() {
    let server = binding_early().await;
    let body = r#"{"model":"m"}"#;
    let requests: Vec<_> = (0..8)
        .map(|_| tokio::spawn(server.json(reqwest::Method::POST, "/v1/completions", body).send()))
        .collect();
    server.memory.until(|state| (state.scheduler.open_tasks() == 8).then_some(())).await;
    let stored = submit(&server, "m", 1).await;
    assert_eq!(all(&server, &format!("worker={}", worker_id(1)), 10).await, stored);
    requests.into_iter().for_each(|request| request.abort());
}

#[tokio::test]
async fn pages_of_a_tenant_are_full_whatever_others_submit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let user = |tenant: Option<&str>| {
        let tenant = tenant.map(|tenant| tenant.parse().unwrap());
        Tokens::issue(&NewToken { tenant, ..NewToken::default() })
    };
    let [(acme, first), (umbrella, second), (nobody, third)] =
        [user(Some("acme")), user(Some("umbrella")), user(None)];
    std::fs::write(&path, first + &second + &third).unwrap();
    let tokens = Some(Tokens::load(&path).unwrap());
    let mut server = Server::with(Memory::new(), Settings { tokens, ..Settings::default() }).await;
    let mut own = Vec::new();
    for _ in 0..5 {
        for (token, count) in [(&acme, 1), (&umbrella, 100), (&nobody, 1)] {
            server.token = Some(token.clone());
            let ids = submit(&server, "sleep", count).await;
            own.push((token, ids));
        }
    }
    for token in [&acme, &umbrella, &nobody] {
        server.token = Some(token.clone());
        let own = own.iter().filter(|(of, _)| *of == token).flat_map(|(_, ids)| ids.clone());
        let expected = latest_first(own.collect());
        for query in ["", "model=sleep"] {
            assert_eq!(all(&server, query, 2).await, expected, "{query}");
        }
        let queued = all(&server, "status=queued", 2).await;
        let running = all(&server, "status=running", 2).await;
        let scheduled = all(&server, "status=scheduled", 2).await;
        assert_eq!(queued.len() + running.len() + scheduled.len(), expected.len());
    }
}
