//! Measures how many tasks a second can be made durable, at what cost, and how long a restart takes.
//!
//! `cycle/N`: steps of a busy scheduler, each of which accepts and dispatches N tasks and ends the N of the step
//! before, in one commit; two commits are in flight at a time. `apart/N`: the same tasks with a commit, and a wait for
//! the disk, for each of the three. `submits`: 64 clients that each submit one task and wait. `million`: a store with a
//! million queued tasks: the time and memory to open it, and the cost of lists.
//!
//! Uses the disk of the temporary directory: a memory file system shows what the processor needs. Names after
//! `--` select benchmarks: `cycle`, `apart`, `submits`, `million`.

#![allow(clippy::unwrap_used)] // a failed benchmark may panic

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hypha_engine::Record;
use hypha_engine::record::{AcceptedTask, FinishedTask};
use hypha_machine::Journal;
use hypha_model::{
    AttemptId, Fence, Metadata, Payload, Requirement, Rng, Span, TaskId, TaskSpec, TaskState, Time,
    WorkerId,
};
use hypha_store::{Filter, Store, StoreError};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// How long each benchmark runs.
const LONG: Duration = Duration::from_secs(4);
const QUEUED: u64 = 1_000_000;
/// Set to the path of the store in the process whose memory is measured.
const RESTART: &str = "HYPHA_STORE_BENCH_RESTART";
const CLIENTS: usize = 64;

struct Maker {
    now: Time,
    rng: Rng,
    spec: Arc<TaskSpec>,
    worker: WorkerId,
    fence: u64,
    result: Payload,
}

impl Maker {
    fn new(seed: u64) -> Maker {
        let mut rng = Rng::new(seed);
        let now = Time::from_micros(1_700_000_000_000_000);
        let spec = TaskSpec {
            requirement: Requirement {
                model: "llama-2-7b".parse().ok(),
                cpu_milli: 500,
                ..Requirement::default()
            },
            input: Payload::from(vec![b'x'; 100]),
            metadata: Metadata::of_numbers(&[("input_tokens", 120.0), ("output_tokens", 40.0)]),
            ..TaskSpec::default()
        };
        Maker {
            now,
            worker: WorkerId::new(now, &mut rng),
            rng,
            spec: Arc::new(spec),
            fence: 0,
            result: Payload::from(vec![b'y'; 100]),
        }
    }

    fn accepted(&mut self) -> (TaskId, Record) {
        self.now = self.now + Span::from_micros(60);
        let id = TaskId::new(self.now, &mut self.rng);
        let accepted = AcceptedTask {
            id,
            spec: Arc::clone(&self.spec),
            submitted: self.now,
            deadline: None,
            idempotency_key: None,
            bind_at_once: false,
        };
        (id, Record::Accepted(Arc::new(accepted)))
    }

    fn attempted(&mut self, task: TaskId) -> Record {
        self.fence += 1;
        let attempt = AttemptId { task, number: 1 };
        Record::AttemptDispatched {
            attempt,
            fence: Fence(self.fence),
            worker: self.worker,
            at: self.now,
        }
    }

    fn finished(&self, task: TaskId) -> Record {
        Record::Finished(Arc::new(FinishedTask {
            task,
            state: TaskState::Completed,
            attempts: 1,
            worker: Some(self.worker),
            started: Some(self.now),
            finished: self.now,
            result: Some(self.result.clone().into()),
            error: None,
            failed: Default::default(),
        }))
    }
}

fn open(path: &Path) -> Store {
    Store::open(path).map(|(store, _)| store).unwrap_or_else(|error| panic!("{error}"))
}

type PendingCommit = oneshot::Receiver<Result<(), StoreError>>;

fn start_commit(store: &Store, records: Vec<Record>) -> PendingCommit {
    let (done, committed) = oneshot::channel();
    store.commit(records, Box::new(|result| drop(done.send(result))));
    committed
}

async fn durable(committing: PendingCommit) {
    let committed = committing.await.unwrap_or_else(|error| panic!("{error}"));
    committed.unwrap_or_else(|error| panic!("{error}"));
}

async fn cycles(store: &Store, maker: &mut Maker, batch: u64) -> u64 {
    let (mut before, mut in_flight) = (Vec::new(), None);
    let (begin, mut tasks) = (Instant::now(), 0);
    while begin.elapsed() < LONG {
        tasks += batch;
        let mut records = Vec::new();
        let mut accepted = Vec::new();
        for _ in 0..batch {
            let (id, record) = maker.accepted();
            records.push(record);
            records.push(maker.attempted(id));
            accepted.push(id);
        }
        let ended = std::mem::replace(&mut before, accepted);
        records.extend(ended.into_iter().map(|id| maker.finished(id)));
        let committing = start_commit(store, records);
        if let Some(earlier) = in_flight.replace(committing) {
            durable(earlier).await;
        }
    }
    if let Some(last) = in_flight {
        durable(last).await;
    }
    tasks
}

async fn apart(store: &Store, maker: &mut Maker, batch: u64) -> u64 {
    let (begin, mut tasks) = (Instant::now(), 0);
    while begin.elapsed() < LONG {
        tasks += batch;
        let (ids, records): (Vec<_>, Vec<_>) = (0..batch).map(|_| maker.accepted()).unzip();
        durable(start_commit(store, records)).await;
        let dispatched = ids.iter().map(|id| maker.attempted(*id)).collect();
        durable(start_commit(store, dispatched)).await;
        let ended = ids.iter().map(|id| maker.finished(*id)).collect();
        durable(start_commit(store, ended)).await;
    }
    tasks
}

async fn submits(store: Arc<Store>) -> u64 {
    let maker = Arc::new(Mutex::new(Maker::new(1)));
    let begin = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (store, maker) = (Arc::clone(&store), Arc::clone(&maker));
        clients.spawn(async move {
            let mut tasks = 0;
            while begin.elapsed() < LONG {
                let (_, record) = maker.lock().unwrap().accepted();
                durable(start_commit(&store, vec![record])).await;
                tasks += 1;
            }
            tasks
        });
    }
    clients.join_all().await.into_iter().sum()
}

/// Processor time of the threads with this name so far; zero where the system does not report it.
fn processor_time(name: &str) -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mine = threads.filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|found| found.trim() == name)
    });
    let nanos = mine.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// The resident memory of this process in megabytes, and its peak.
fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name| text.lines().find_map(|line| line.strip_prefix(name));
    let kib = |name| line(name)?.trim().trim_end_matches(" kB").parse::<u64>().ok();
    let megabytes = |name| kib(name).unwrap_or(0) * 1_024 / 1_000_000;
    (megabytes("VmRSS:"), megabytes("VmHWM:"))
}

fn measure(name: &str, run: impl FnOnce() -> u64) -> u64 {
    let (begin, before) = (Instant::now(), processor_time("store"));
    let tasks = run();
    let seconds = begin.elapsed().as_secs_f64();
    let processor = (processor_time("store") - before).as_secs_f64();
    println!(
        "{name:<12} {:>8.0} tasks/s {:>8.1} us of the writer's processor time a task, {:.2} s for 15,000",
        tasks as f64 / seconds,
        processor / tasks as f64 * 1e6,
        processor / tasks as f64 * 15_000.0,
    );
    tasks
}

fn million(runtime: &Runtime, dir: &Path) {
    let path = dir.join("million.db");
    let store = open(&path);
    let mut maker = Maker::new(1);
    measure("filling", || {
        runtime.block_on(async {
            for _ in 0..QUEUED / 10_000 {
                let records = (0..10_000).map(|_| maker.accepted().1).collect();
                durable(start_commit(&store, records)).await;
            }
        });
        QUEUED
    });
    drop(store);
    println!("the file has {} MB", std::fs::metadata(&path).unwrap().len() / 1_000_000);
    let status = Command::new(std::env::current_exe().unwrap()).env(RESTART, &path).status();
    assert!(status.unwrap().success());
    let store = open(&path);
    lists(runtime, &store, "queued");
    measure("ending", || {
        let mut maker = Maker::new(1);
        runtime.block_on(async {
            for _ in 0..QUEUED / 10_000 {
                let ids: Vec<_> = (0..10_000).map(|_| maker.accepted().0).collect();
                let records = ids.iter().map(|id| maker.finished(*id)).collect();
                durable(start_commit(&store, records)).await;
            }
        });
        QUEUED
    });
    lists(runtime, &store, "ended");
}

/// Reads lists page by page; all but the first filter match few tasks or none.
fn lists(runtime: &Runtime, store: &Store, what: &str) {
    let state = |state| Filter { state: Some(state), ..Filter::default() };
    let worker = WorkerId::new(Time::ZERO, &mut Rng::new(99));
    let every = Filter::default();
    for (name, filter) in [
        ("no filter", every.clone()),
        ("failed", state(TaskState::Failed)),
        ("scheduled", state(TaskState::Scheduled)),
        ("a rare model", Filter { model: "rare".parse().ok(), ..every.clone() }),
        ("a rare worker", Filter { worker: Some(worker), ..every }),
    ] {
        let (mut behind, mut pages, mut longest) = (None, 0, Duration::ZERO);
        let whole = Instant::now();
        loop {
            let begin = Instant::now();
            let page = runtime.block_on(store.list(filter.clone(), behind, 100)).unwrap();
            longest = longest.max(begin.elapsed());
            pages += 1;
            behind = page.next;
            if behind.is_none() || (!page.tasks.is_empty() && pages == 100) {
                break;
            }
        }
        let whole = whole.elapsed();
        println!(
            "list {name:<14} of 1,000,000 {what}: {pages} pages, {whole:.1?}, one {longest:.1?}"
        );
    }
}

/// Runs in a process of its own, where nothing else has used memory.
fn restart(path: &Path) {
    let begin = Instant::now();
    let (store, recovered) = Store::open(path).unwrap();
    let took = begin.elapsed();
    assert_eq!(recovered.image.tasks.len() as u64, QUEUED);
    let (held, most) = memory();
    println!("restart with 1,000,000 queued: {took:.2?}, {held} MB held, {most} MB at most");
    drop((store, recovered));
}

fn main() {
    if let Some(path) = std::env::var_os(RESTART) {
        return restart(Path::new(&path));
    }
    // Cargo adds an option.
    let chosen: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|it| it == name);
    let runtime = Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for batch in [64, 512, 4_096] {
        if wanted("cycle") {
            let store = open(&dir.path().join(format!("cycle-{batch}.db")));
            let mut maker = Maker::new(batch);
            let run = || runtime.block_on(cycles(&store, &mut maker, batch));
            measure(&format!("cycle/{batch}"), run);
        }
        if wanted("apart") {
            let store = open(&dir.path().join(format!("apart-{batch}.db")));
            let mut maker = Maker::new(batch);
            let run = || runtime.block_on(apart(&store, &mut maker, batch));
            measure(&format!("apart/{batch}"), run);
        }
    }
    if wanted("submits") {
        let store = Arc::new(open(&dir.path().join("submits.db")));
        measure("submits", || runtime.block_on(submits(store.clone())));
    }
    if wanted("million") {
        million(&runtime, dir.path());
    }
}
