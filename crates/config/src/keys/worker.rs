//! A worker's keys.

use hypha_market::Pricing;
use hypha_model::ExecutorClass;
use hypha_model::amount::MAX_BYTES;

use super::{MAX_INLINE, MIN_SIZE, RECORD_TTL, seconds};
use crate::backend::BackendFormat;
use crate::key::{Key, Kind, Preset};
use crate::parse::{UrlUse, names};
use crate::worker::{Confinement, RuntimeName};

/// More than any machine has room for: catches a number with two zeros too many.
const MAX_CONCURRENCY: u32 = 4_096;
/// The kernel's own bound on processes, and more files than any program has open.
const MAX_HANDLES: u32 = 4_194_304;
/// The end of a program's output goes into the task's error, where more than this is not read.
const MAX_OUTPUT: u64 = 1 << 20;
/// A result is in the worker's memory until it has been sent.
const MAX_RESULT: u64 = 4 << 30;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "region",
        kind: Kind::Label,
        preset: Preset::Absent("\"eu-west\""),
        doc: "The region of this worker. A task may require a region by this name.",
    },
    Key {
        name: "hardware",
        kind: Kind::Label,
        preset: Preset::Absent("\"a100\""),
        doc: "The kind of machine. Run times are learned per hardware name: give equal machines equal names.",
    },
    RECORD_TTL,
    Key {
        name: "data_dir",
        kind: Kind::Directory,
        preset: Preset::Is("\"worker-data\""),
        doc: "The directory for what the worker keeps: work directories of running tasks, large results in \
              transit. It is created if it does not exist.",
    },
    Key {
        name: "max_result_size",
        kind: Kind::Size { min: MIN_SIZE, max: MAX_INLINE },
        preset: Preset::Is("\"1MiB\""),
        doc: "Results up to this size are sent in the message that completes a task, larger ones as a stream.",
    },
    Key {
        name: "resources",
        kind: Kind::Section(RESOURCES),
        preset: Preset::Absent(""),
        doc: "What the worker offers. Amounts that are not given are detected.",
    },
    Key {
        name: "executors",
        kind: Kind::Entries(EXECUTORS),
        preset: Preset::Absent(""),
        doc: "What the worker can run, one entry for each.",
    },
    Key {
        name: "offer",
        kind: Kind::Section(OFFER),
        preset: Preset::Absent(""),
        doc: "The terms on which the worker is offered: its price, and which organisations it serves, with what \
              and when. Without them it serves every organisation at any time, for nothing.",
    },
    Key {
        name: "task_instance",
        kind: Kind::Section(TASK_INSTANCE),
        preset: Preset::Absent(""),
        doc: "The task instance protocol, for schedulers that reach this worker over HTTP. Off unless `bind` \
              is given.",
    },
];

const RESOURCES: &[Key] = &[
    Key { name: "cpu", kind: Kind::Cores, preset: Preset::Absent("3.5"), doc: "Cores." },
    Key {
        name: "memory",
        kind: Kind::Bytes,
        preset: Preset::Absent("\"16GiB\""),
        doc: "Main memory: bytes, or a string with a unit.",
    },
    Key {
        name: "storage",
        kind: Kind::Bytes,
        preset: Preset::Absent("\"100GB\""),
        doc: "Disk space: bytes, or a string with a unit.",
    },
    Key {
        name: "gpu",
        kind: Kind::Entries(GPUS),
        preset: Preset::Absent(""),
        doc: "The GPUs, one entry for each; `gpu = []` under [resources] offers none, even if the \
              machine has some.",
    },
];

const GPUS: &[Key] = &[
    Key {
        name: "model",
        kind: Kind::Label,
        preset: Preset::Required("\"NVIDIA A100\""),
        doc: "The model of the GPU.",
    },
    Key {
        name: "memory",
        kind: Kind::Bytes,
        preset: Preset::Required("\"80GiB\""),
        doc: "Its memory: bytes, or a string with a unit.",
    },
];

const EXECUTORS: &[Key] = &[
    Key {
        name: "name",
        kind: Kind::Label,
        preset: Preset::Required("\"chat\""),
        doc: "The name by which a task may request it.",
    },
    Key {
        name: "class",
        kind: Kind::Choice(names::<ExecutorClass>),
        preset: Preset::Is("\"inference\""),
        doc: "The kind of work: \"inference\", \"train\" or \"aggregate\".",
    },
    Key {
        name: "runtime",
        kind: Kind::Choice(names::<RuntimeName>),
        preset: Preset::Required("\"process\""),
        doc: "How it runs: \"process\" starts a program, \"http\" calls a server, \"builtin\" is part of the \
              worker.",
    },
    Key {
        name: "models",
        kind: Kind::Labels,
        preset: Preset::Is("[]"),
        doc: "The models it serves; none means any.",
    },
    Key {
        name: "concurrency",
        kind: Kind::Count { min: 1, max: MAX_CONCURRENCY },
        preset: Preset::Is("1"),
        doc: "How many tasks it runs at once.",
    },
    Key {
        name: "cmd",
        kind: Kind::Program,
        preset: Preset::Absent("\"python3\""),
        doc: "process: the program, by its path, or by a name that is searched for in the system's \
              directories. Required there.",
    },
    Key {
        name: "args",
        kind: Kind::Texts,
        preset: Preset::Is("[]"),
        doc: "process: its arguments.",
    },
    Key {
        name: "environment",
        kind: Kind::Environment,
        preset: Preset::Absent("{ HF_HUB_OFFLINE = \"1\" }"),
        doc: "process: its environment, besides what every task gets; the worker's own is not passed \
              on.",
    },
    Key {
        name: "warm",
        kind: Kind::Switch,
        preset: Preset::Is("false"),
        doc: "process: whether it is kept running and given one task after the other, rather than started for \
              each.",
    },
    Key {
        name: "read",
        kind: Kind::Paths,
        preset: Preset::Is("[]"),
        doc: "process: files and directories that it may read, besides the system's programs and libraries.",
    },
    Key {
        name: "write",
        kind: Kind::Paths,
        preset: Preset::Is("[]"),
        doc: "process: files and directories that it may write, besides its own work directory.",
    },
    Key {
        name: "network",
        kind: Kind::Switch,
        preset: Preset::Is("true"),
        doc: "process: whether it may use the machine's network; otherwise it has only a loopback interface of \
              its own.",
    },
    Key {
        name: "confinement",
        kind: Kind::Choice(names::<Confinement>),
        preset: Preset::Is("\"required\""),
        doc: "process: the sandbox without which the worker does not start. \"required\": user and mount \
              namespaces, or Landlock 3 (Linux 6.2). \"namespaces\": user and mount namespaces. \
              \"best-effort\": none; programs run in whatever sandbox there is.",
    },
    Key {
        name: "url",
        kind: Kind::Url(UrlUse::Server),
        preset: Preset::Absent("\"http://127.0.0.1:8000\""),
        doc: "http: the server's base address. Required there.",
    },
    Key {
        name: "format",
        kind: Kind::Choice(names::<BackendFormat>),
        preset: Preset::Is("\"openai\""),
        doc: "http: its protocol: \"openai\", the routes under /v1, or \"json\", a task's input, unchanged.",
    },
    Key {
        name: "health_path",
        kind: Kind::UrlPath,
        preset: Preset::Absent("\"/health\""),
        doc: "http: the path of its health check.",
    },
    Key {
        name: "api_key_file",
        kind: Kind::File,
        preset: Preset::Absent("\"backend.key\""),
        doc: "http: a file that holds the key to send it as a bearer token, and nothing else.",
    },
    Key {
        name: "limits",
        kind: Kind::Section(LIMITS),
        preset: Preset::Absent(""),
        doc: "process: what one task's program may use.",
    },
];

const LIMITS: &[Key] = &[
    Key {
        name: "memory",
        kind: Kind::Bytes,
        preset: Preset::Absent("\"16GiB\""),
        doc: "Main memory of all its processes together, unless the task sets its own limit.",
    },
    Key {
        name: "processes",
        kind: Kind::Count { min: 1, max: MAX_HANDLES },
        preset: Preset::Absent("1024"),
        doc: "Processes that may exist at once.",
    },
    Key {
        name: "open_files",
        kind: Kind::Count { min: 16, max: MAX_HANDLES },
        preset: Preset::Absent("65536"),
        doc: "Files that each of its processes may have open.",
    },
    Key {
        name: "file_size",
        kind: Kind::Size { min: MIN_SIZE, max: MAX_BYTES },
        preset: Preset::Absent("\"10GiB\""),
        doc: "The largest file that it may write.",
    },
    Key {
        name: "result",
        kind: Kind::Size { min: MIN_SIZE, max: MAX_RESULT },
        preset: Preset::Absent("\"64MiB\""),
        doc: "The largest result that is accepted. It is in the worker's memory until it has been sent.",
    },
    Key {
        name: "output",
        kind: Kind::Size { min: MIN_SIZE, max: MAX_OUTPUT },
        preset: Preset::Absent("\"16KiB\""),
        doc: "How much of the end of its output is reported when it fails.",
    },
    Key {
        name: "grace",
        kind: Kind::Seconds { min: seconds(0), max: seconds(3_600) },
        preset: Preset::Absent("10"),
        doc: "Seconds between the request to stop and the kill.",
    },
];

const OFFER: &[Key] = &[
    Key {
        name: "price",
        kind: Kind::Price,
        preset: Preset::Absent("110.0"),
        doc: "The published price of an hour of a device (a GPU, or the worker where no GPU is used), in the unit \
              that the members of the network have agreed on. The default is `floor`.",
    },
    Key {
        name: "floor",
        kind: Kind::Price,
        preset: Preset::Is("0"),
        doc: "The least price of an hour of a device. It is not published, but a lower bid is answered with it. Above zero, the worker is leased \
              for a price only, and takes no tasks of schedulers that bid nothing.",
    },
    Key {
        name: "strategy",
        kind: Kind::Choice(names::<Pricing>),
        preset: Preset::Is("\"flexible\""),
        doc: "\"flexible\" offers parts of the worker, at the bid but not below `floor`; \"whole\" offers all of it \
              or nothing, at the bid but not below `price`.",
    },
    Key {
        name: "organisations",
        kind: Kind::Labels,
        preset: Preset::Absent("[\"lab\"]"),
        doc: "The organisations that are served, as their certificates name them. The default is all of them.",
    },
    Key {
        name: "priority_ceiling",
        kind: Kind::Priorities,
        preset: Preset::Absent("{ lab = 50 }"),
        doc: "The highest priority that an organisation may use here, for some of `organisations`.",
    },
    Key {
        name: "classes",
        kind: Kind::Choices(names::<ExecutorClass>),
        preset: Preset::Absent("[\"inference\", \"train\"]"),
        doc: "The kinds of work that may run. Executors of other kinds are not offered. The default is all.",
    },
    Key {
        name: "executors",
        kind: Kind::Labels,
        preset: Preset::Absent("[\"chat\"]"),
        doc: "The executors that may run, by name. Others are not offered. The default is all.",
    },
    Key {
        name: "hours",
        kind: Kind::Hours,
        preset: Preset::Absent("[\"Mon-Fri 18:00-08:00\", \"Sat-Sun\"]"),
        doc: "The hours of the week in which the worker takes tasks. A range belongs to the day on which it begins. \
              The default is all.",
    },
    Key {
        name: "time_zone",
        kind: Kind::TimeZone,
        preset: Preset::Absent("\"Europe/Berlin\""),
        doc: "The time zone of `hours`: a name, or an offset such as \"+02:00\". The default is the system's.",
    },
    Key {
        name: "yield",
        kind: Kind::Section(YIELD),
        preset: Preset::Absent(""),
        doc: "When the machine counts as used by its owner: the worker takes nothing new then, and what runs goes \
              on. Never, unless `load` or `gpu` is given.",
    },
];

const YIELD: &[Key] = &[
    Key {
        name: "load",
        kind: Kind::Share,
        preset: Preset::Absent("0.25"),
        doc: "The share of the machine's cores that processes other than the worker's must use.",
    },
    Key {
        name: "gpu",
        kind: Kind::Share,
        preset: Preset::Absent("0.25"),
        doc: "The share of an NVIDIA GPU that processes other than the worker's must use.",
    },
    Key {
        name: "for",
        kind: Kind::Seconds { min: seconds(1), max: seconds(3_600) },
        preset: Preset::Is("30"),
        doc: "Seconds for which they must use more; the worker takes tasks again when they have used less than half \
              of it for as long.",
    },
    Key {
        name: "except",
        kind: Kind::Labels,
        preset: Preset::Is("[]"),
        doc: "Programs, by the name of their file, whose use is not the owner's: name the servers on this machine \
              that `http` executors call.",
    },
];

const TASK_INSTANCE: &[Key] = &[
    Key {
        name: "bind",
        kind: Kind::Socket,
        preset: Preset::Absent("\"127.0.0.1:8100\""),
        doc: "The address that it is served at. Any address but loopback needs `tokens_file`.",
    },
    Key {
        name: "tokens_file",
        kind: Kind::File,
        preset: Preset::Absent("\"tokens.toml\""),
        doc: "The accepted bearer tokens, as hashes.",
    },
    Key {
        name: "model",
        kind: Kind::Label,
        preset: Preset::Absent("\"llama-2-7b\""),
        doc: "The model that it reports to serve. The default is the first that an executor names.",
    },
];
