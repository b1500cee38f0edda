//! A scheduler's keys.

use std::time::Duration;

use hypha_model::Maximise;

use super::{DAY, MAX_INLINE, MIN_SIZE, seconds};
use crate::backend::BackendFormat;
use crate::key::{Key, Kind, Preset};
use crate::parse::{UrlUse, names};
use crate::scheduler::{Backoff, LoadBy, PickBy};

/// A month: work that takes longer is a training job, not a task.
const MAX_TASK_TIMEOUT: Duration = seconds(30 * 86_400);
/// A year: results that are needed for longer belong into files of the client's own.
const MAX_RESULT_TTL: Duration = seconds(365 * 86_400);
/// A million waiting tasks take up to a gigabyte of memory; ten million fit into a large machine.
const MAX_QUEUE: u32 = 10_000_000;
/// More than any pool runs at once: catches a number with some zeros too many.
const MAX_CONCURRENT_TASKS: u32 = 10_000_000;
/// A request is held in memory while it is read.
const MAX_REQUEST: u64 = 1 << 30;
/// More than any scheduler has memory for.
const MAX_BUFFERED: u64 = 1 << 40;
/// Each attempt is kept with its task, and no task succeeds on its hundredth attempt.
const MAX_ATTEMPTS: u32 = 100;
/// Shorter timeouts than this would mostly measure the network.
const MIN_DURATION: Duration = Duration::from_millis(10);
/// No two places on Earth are farther apart than this.
const MAX_LATENCY: Duration = seconds(60);
/// More than any back end accepts at once.
const MAX_CONCURRENCY: u32 = 65_536;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "data_dir",
        kind: Kind::Directory,
        preset: Preset::Is("\"scheduler-data\""),
        doc: "The directory for what must survive a restart: tasks, results, learned run times. It is created if \
              it does not exist.",
    },
    Key {
        name: "region",
        kind: Kind::Label,
        preset: Preset::Absent("\"eu-west\""),
        doc: "The region of this scheduler. With `prefer_local_workers`, workers of the same region go first.",
    },
    Key {
        name: "status_bridge",
        kind: Kind::HostPort,
        preset: Preset::Absent("\"aim-bridge.internal:61000\""),
        doc: "The host and port that metrics of training jobs are sent to. For training, which is to come: checked, \
              and not used yet.",
    },
    Key {
        name: "scheduler",
        kind: Kind::Section(SCHEDULER),
        preset: Preset::Absent(""),
        doc: "How work is placed.",
    },
];

const POOL: &[Key] = &[
    Key {
        name: "bid",
        kind: Kind::Price,
        preset: Preset::Absent("110.0"),
        doc: "The price that is offered for an hour of a worker. All workers see it. There is no pool without it.",
    },
    Key {
        name: "max",
        kind: Kind::Price,
        preset: Preset::Absent("160.0"),
        doc: "The highest price that is paid for an hour of a worker; offers above it are not considered. It never \
              leaves the scheduler. The default is `bid`.",
    },
    Key {
        name: "budget_per_hour",
        kind: Kind::Price,
        preset: Preset::Absent("1000.0"),
        doc: "The most that an hour of all workers of the pool may cost.",
    },
    Key {
        name: "min_workers",
        kind: Kind::Count { min: 0, max: MAX_POOL_WORKERS },
        preset: Preset::Is("0"),
        doc: "How many workers are kept leased, also without tasks.",
    },
    Key {
        name: "max_workers",
        kind: Kind::Count { min: 1, max: MAX_POOL_WORKERS },
        preset: Preset::Is("1000"),
        doc: "How many workers are leased at most.",
    },
    Key {
        name: "target_wait",
        kind: Kind::Seconds { min: MIN_DURATION, max: DAY },
        preset: Preset::Is("5"),
        doc: "The pool grows if tasks are predicted to wait for more than these seconds.",
    },
    Key {
        name: "idle_after",
        kind: Kind::Seconds { min: seconds(1), max: DAY },
        preset: Preset::Is("300"),
        doc: "A worker that has had no task for these seconds is released.",
    },
];

/// More workers than one scheduler uses.
const MAX_POOL_WORKERS: u32 = 100_000;

const SCHEDULER: &[Key] = &[
    Key {
        name: "max_concurrent_tasks",
        kind: Kind::Count { min: 1, max: MAX_CONCURRENT_TASKS },
        preset: Preset::Absent("100"),
        doc: "How many tasks are in flight at a time; the others wait. By default, as many as \
              the workers take.",
    },
    Key {
        name: "selection_algorithm",
        kind: Kind::Strategy,
        preset: Preset::Is("\"predictive\""),
        doc: "How a worker is chosen for a task: fifo, priority, round_robin, capability_based, \
              performance_aware, load_balancing, work_stealing, adaptive, shortest_queue, weighted, \
              probabilistic, first_fit, best_fit, worst_fit, random, power_of_two or predictive; with \
              hyphens or underscores.",
    },
    Key {
        name: "maximise",
        kind: Kind::Choice(names::<Maximise>),
        preset: Preset::Is("\"speed\""),
        doc: "What counts when `predictive` chooses a worker for a task that does not state it: \"speed\", \"cost\", \
              the lowest price of the run, or \"balance\", both.",
    },
    Key {
        name: "task_timeout",
        kind: Kind::Seconds { min: MIN_DURATION, max: MAX_TASK_TIMEOUT },
        preset: Preset::Is("300"),
        doc: "Seconds that one attempt of a task may take, unless the task sets its own timeout.",
    },
    Key {
        name: "discovery_interval",
        kind: Kind::Seconds { min: seconds(1), max: DAY },
        preset: Preset::Is("60"),
        doc: "Seconds between searches for workers.",
    },
    Key {
        name: "max_queue",
        kind: Kind::Count { min: 1, max: MAX_QUEUE },
        preset: Preset::Is("1000000"),
        doc: "How many tasks may be queued or in flight; more are refused.",
    },
    Key {
        name: "lease_ttl",
        kind: Kind::Seconds { min: seconds(1), max: DAY },
        preset: Preset::Is("120"),
        doc: "Seconds for which a worker is leased. The lease is renewed well before; a scheduler that \
              vanished keeps its workers from others for at most this long.",
    },
    Key {
        name: "result_ttl",
        kind: Kind::Seconds { min: seconds(1), max: MAX_RESULT_TTL },
        preset: Preset::Is("86400"),
        doc: "Seconds for which an ended task, its result and its idempotency key are kept.",
    },
    Key {
        name: "max_result_size",
        kind: Kind::Size { min: MIN_SIZE, max: MAX_INLINE },
        preset: Preset::Is("\"1MiB\""),
        doc: "Results up to this size are kept with the task, larger ones in the object store.",
    },
    Key {
        name: "object_store",
        kind: Kind::Directory,
        preset: Preset::Is("\"scheduler-data/objects\""),
        doc: "The directory for large results. The default is `objects` in `data_dir`. It is created if it \
              does not exist.",
    },
    Key {
        name: "lookup_table",
        kind: Kind::File,
        preset: Preset::Absent("\"run-times.csv\""),
        doc: "A CSV file of run times, for the predictor's mode lookup_table.",
    },
    Key {
        name: "api",
        kind: Kind::Section(API),
        preset: Preset::Absent(""),
        doc: "The HTTP interface.",
    },
    Key {
        name: "pool",
        kind: Kind::Section(POOL),
        preset: Preset::Absent(""),
        doc: "Workers that are leased for tasks at a price, as many as are needed. Without it, every worker that is \
              found is used, and those that ask for a price are not.",
    },
    Key {
        name: "load_balancing",
        kind: Kind::Section(LOAD_BALANCING),
        preset: Preset::Absent(""),
        doc: "Which workers are preferred.",
    },
    Key {
        name: "fault_tolerance",
        kind: Kind::Section(FAULT_TOLERANCE),
        preset: Preset::Absent(""),
        doc: "How failing workers are detected, and what happens to their tasks.",
    },
    Key {
        name: "retry",
        kind: Kind::Section(RETRY),
        preset: Preset::Absent(""),
        doc: "How failed attempts are retried. A key here wins over the corresponding keys in \
              [scheduler.fault_tolerance].",
    },
    Key {
        name: "parameters",
        kind: Kind::Section(PARAMETERS),
        preset: Preset::Absent(""),
        doc: "The numbers of the strategy that `selection_algorithm` names; those of others have no effect.",
    },
    Key {
        name: "backends",
        kind: Kind::Entries(BACKENDS),
        preset: Preset::Absent(""),
        doc: "HTTP servers that the scheduler calls directly, without a worker node, one entry for each.",
    },
];

const API: &[Key] = &[
    Key {
        name: "bind_address",
        kind: Kind::Socket,
        preset: Preset::Is("\"127.0.0.1:8080\""),
        doc: "Where requests are served. Any address but loopback needs `tokens_file`, or \
              `allow_unauthenticated`.",
    },
    Key {
        name: "max_request_size",
        kind: Kind::Size { min: MIN_SIZE, max: MAX_REQUEST },
        preset: Preset::Is("\"10MB\""),
        doc: "The largest body of a request.",
    },
    Key {
        name: "max_buffered_size",
        kind: Kind::Size { min: MIN_SIZE, max: MAX_BUFFERED },
        preset: Preset::Is("\"256MiB\""),
        doc: "The size of all bodies together that are arriving; more are refused. Bodies of up to 32 KiB are not \
              counted, and one of `max_request_size` is always accepted.",
    },
    Key {
        name: "tokens_file",
        kind: Kind::File,
        preset: Preset::Absent("\"tokens.toml\""),
        doc: "The accepted bearer tokens, as hashes, each with a tenant, a role, a priority ceiling and \
              a quota.",
    },
    Key {
        name: "allow_unauthenticated",
        kind: Kind::Switch,
        preset: Preset::Is("false"),
        doc: "Whether any client that can reach an address other than loopback may use the scheduler without a \
              token.",
    },
    Key {
        name: "allowed_hosts",
        kind: Kind::Hosts,
        preset: Preset::Is("[]"),
        doc: "Without `tokens_file`: the host names under which clients reach this interface, besides loopback names, \
              the host of `public_url`, and any IP address if `bind_address` is not a loopback one. Requests under \
              other names are refused, because a web page may have sent them. \"*\" permits any.",
    },
    Key {
        name: "allowed_origins",
        kind: Kind::Origins,
        preset: Preset::Is("[]"),
        doc: "The origins of web pages that may use this interface, such as \"https://app.example.org\". \"*\" permits \
              any, and needs `tokens_file`.",
    },
    Key {
        name: "tls_cert_pem",
        kind: Kind::File,
        preset: Preset::Absent("\"api-cert.pem\""),
        doc: "The certificate to serve HTTPS with, followed by its chain, PEM. Needs `tls_key_pem`.",
    },
    Key {
        name: "tls_key_pem",
        kind: Kind::File,
        preset: Preset::Absent("\"api-key.pem\""),
        doc: "Its private key, PEM.",
    },
    Key {
        name: "public_url",
        kind: Kind::Url(UrlUse::Public),
        preset: Preset::Absent("\"https://scheduler.example.org\""),
        doc: "The address at which others reach this interface. Task instances report to it. The default is \
              `bind_address`, if others can connect to that address.",
    },
    Key {
        name: "allowed_networks",
        kind: Kind::Networks,
        preset: Preset::Is(
            "[\"127.0.0.0/8\", \"10.0.0.0/8\", \"172.16.0.0/12\", \"192.168.0.0/16\", \"::1/128\", \
             \"fc00::/7\"]",
        ),
        doc: "The address ranges that task instances may be registered in; the scheduler calls no address \
              outside them at a client's request. The default is loopback and the private ranges.",
    },
];

const LOAD_BALANCING: &[Key] = &[
    Key {
        name: "strategy",
        kind: Kind::Choice(names::<PickBy>),
        preset: Preset::Is("\"least-loaded\""),
        doc: "How `capability-based` picks among the workers that fit: \"least-loaded\", \"random\" or \
              \"performance\", the best record. Other algorithms ignore it.",
    },
    Key {
        name: "load_metric",
        kind: Kind::Choice(names::<LoadBy>),
        preset: Preset::Is("\"task-count\""),
        doc: "What \"least-loaded\" counts: \"task-count\", or \"cpu-usage\" or \"memory-usage\", the share of \
              cores or memory in use: as measured on the worker's machine, or as its tasks require if that is more.",
    },
    Key {
        name: "prefer_local_workers",
        kind: Kind::Switch,
        preset: Preset::Is("true"),
        doc: "Whether workers of the scheduler's own `region` are preferred. Without a `region` it has no effect.",
    },
    Key {
        name: "max_local_wait",
        kind: Kind::Seconds { min: Duration::ZERO, max: DAY },
        preset: Preset::Is("1"),
        doc: "Seconds that this preference is worth: how much longer a task may wait for a local worker than for \
              another. Strategies that predict run times compare the expected ends.",
    },
    Key {
        name: "max_network_latency",
        kind: Kind::Millis { min: Duration::from_micros(1), max: MAX_LATENCY },
        preset: Preset::Absent("100"),
        doc: "Milliseconds: workers whose round trip takes longer are not used.",
    },
];

const FAULT_TOLERANCE: &[Key] = &[
    Key {
        name: "health_check_interval",
        kind: Kind::Seconds { min: MIN_DURATION, max: DAY },
        preset: Preset::Is("30"),
        doc: "Seconds between two heartbeats to a worker.",
    },
    Key {
        name: "health_check_timeout",
        kind: Kind::Seconds { min: MIN_DURATION, max: DAY },
        preset: Preset::Is("5"),
        doc: "Seconds to wait for the worker's answer.",
    },
    Key {
        name: "max_consecutive_failures",
        kind: Kind::Count { min: 1, max: 1_000 },
        preset: Preset::Is("3"),
        doc: "After how many failures in a row an executor is quarantined, or after how many \
              losses a worker is.",
    },
    Key {
        name: "quarantine",
        kind: Kind::Seconds { min: MIN_DURATION, max: DAY },
        preset: Preset::Is("30"),
        doc: "Seconds for which it is first quarantined; doubled each further time, up to 16 times this.",
    },
    Key {
        name: "enable_retries",
        kind: Kind::Switch,
        preset: Preset::Is("true"),
        doc: "Whether failed attempts are retried at all.",
    },
    Key {
        name: "max_retries",
        kind: Kind::Count { min: 0, max: MAX_ATTEMPTS - 1 },
        preset: Preset::Is("2"),
        doc: "How many retries after the first attempt.",
    },
    Key {
        name: "retry_backoff",
        kind: Kind::Choice(names::<Backoff>),
        preset: Preset::Is("\"exponential\""),
        doc: "The delay before each retry: \"exponential\" doubles from `backoff_base` to `backoff_max`, \
              \"constant\" stays at `backoff_base`, \"none\" does not wait.",
    },
];

const RETRY: &[Key] = &[
    Key {
        name: "max_attempts",
        kind: Kind::Count { min: 1, max: MAX_ATTEMPTS },
        preset: Preset::Is("3"),
        doc: "Attempts in total, including the first. Wins over `max_retries` and `enable_retries`.",
    },
    Key {
        name: "backoff_base",
        kind: Kind::Seconds { min: Duration::ZERO, max: DAY },
        preset: Preset::Is("2"),
        doc: "Seconds to wait before the second attempt; doubled before each further one. Wins over `retry_backoff`.",
    },
    Key {
        name: "backoff_max",
        kind: Kind::Seconds { min: Duration::ZERO, max: DAY },
        preset: Preset::Is("60"),
        doc: "The longest delay between attempts, in seconds. Wins over `retry_backoff`.",
    },
    Key {
        name: "retry_on_timeout",
        kind: Kind::Switch,
        preset: Preset::Is("true"),
        doc: "Whether an attempt that exceeds its timeout is retried.",
    },
    Key {
        name: "retry_on_worker_failure",
        kind: Kind::Switch,
        preset: Preset::Is("true"),
        doc: "Whether an attempt whose worker failed or vanished is retried.",
    },
];

/// Each strategy checks the ranges of its own parameters.
const PARAMETERS: &[Key] = &[
    Key {
        name: "ageing",
        kind: Kind::Number,
        preset: Preset::Is("2.0"),
        doc: "predictive: how far a long task is put back behind shorter ones while there is a backlog. 0 is \
              first come, first served.",
    },
    Key {
        name: "wait_surcharge",
        kind: Kind::Number,
        preset: Preset::Is("3.0"),
        doc: "predictive: how much more a second of waiting for a busy worker costs than a second of running.",
    },
    Key {
        name: "lookahead",
        kind: Kind::Count { min: 0, max: u32::MAX },
        preset: Preset::Is("16"),
        doc: "predictive: how many waiting tasks are examined before a free worker stays idle, 8 to 1024.",
    },
    Key {
        name: "exploration",
        kind: Kind::Number,
        preset: Preset::Is("0.01"),
        doc: "predictive: how often a worker that has not been used for long gets a task although another looks \
              better, 0 to 1.",
    },
    Key {
        name: "weight",
        kind: Kind::Number,
        preset: Preset::Is("1.0"),
        doc: "weighted: how much an uncertain estimate counts against a worker.",
    },
    Key {
        name: "learning_rate",
        kind: Kind::Number,
        preset: Preset::Is("0.1"),
        doc: "adaptive: the weight of the newest completion in the moving averages, above 0 to 1.",
    },
    Key {
        name: "steal_threshold",
        kind: Kind::Count { min: 0, max: u32::MAX },
        preset: Preset::Is("2"),
        doc: "work_stealing: tasks are stolen from a worker's queue when it is longer than this.",
    },
    Key {
        name: "penalty_half_life_s",
        kind: Kind::Number,
        preset: Preset::Is("300.0"),
        doc: "load_balancing: after how many seconds half of a failure's penalty is forgotten.",
    },
];

const BACKENDS: &[Key] = &[
    Key {
        name: "url",
        kind: Kind::Url(UrlUse::Server),
        preset: Preset::Required("\"http://127.0.0.1:8000\""),
        doc: "The server's base address.",
    },
    Key {
        name: "models",
        kind: Kind::Labels,
        preset: Preset::Is("[]"),
        doc: "The models it serves. By default, the back end is queried for them.",
    },
    Key {
        name: "format",
        kind: Kind::Choice(names::<BackendFormat>),
        preset: Preset::Is("\"openai\""),
        doc: "Its protocol: \"openai\", the routes under /v1, or \"json\", a task's input, unchanged.",
    },
    Key {
        name: "concurrency",
        kind: Kind::Count { min: 1, max: MAX_CONCURRENCY },
        preset: Preset::Is("8"),
        doc: "How many requests are sent to it at once.",
    },
    Key {
        name: "api_key_file",
        kind: Kind::File,
        preset: Preset::Absent("\"backend.key\""),
        doc: "A file that holds the key to send it as a bearer token, and nothing else.",
    },
    Key {
        name: "health_path",
        kind: Kind::UrlPath,
        preset: Preset::Absent("\"/health\""),
        doc: "The path of its health check.",
    },
];
