//! A worker's executors and its task instance.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hypha_config::{
    BackendFormat, Confinement, Flags, LimitsConfig, ProgramConfig, Runtime, ServerConfig,
    TaskInstanceConfig, WorkerConfig,
};

use crate::{CERTIFICATES, Home};

fn home() -> Home {
    let home = Home::new();
    for file in ["tokens", "serve.py", "secret"] {
        std::fs::write(home.path(file), "").unwrap();
    }
    for directory in ["models", "scratch"] {
        std::fs::create_dir(home.path(directory)).unwrap();
    }
    home
}

#[track_caller]
fn fault(text: &str, expected: &str) {
    let text = format!("{CERTIFICATES}{text}");
    let faults = home().load::<WorkerConfig>(&text, &[], &Flags::default());
    assert_eq!(faults.unwrap_err(), expected, "{text}");
}

/// The runtime of the one executor that `text` is the body of, after its name.
fn runtime(home: &Home, text: &str) -> Runtime {
    let config: WorkerConfig = home.good(&format!("[[executors]]\nname = 'x'\n{text}"));
    config.executors.into_iter().next().unwrap().runtime
}

#[test]
fn process_executor_settings_are_read() {
    let home = home();
    let full = runtime(
        &home,
        "runtime = 'process'\ncmd = './serve.py'\nargs = ['-u', '', 'a b']\nwarm = true\n\
         read = ['models', '/usr']\nwrite = ['scratch']\nconfinement = 'best-effort'\n\
         network = false\n\
         environment = { A = 'hunter2', B = '' }\n\
         [executors.limits]\nmemory = '2GiB'\nprocesses = 3\nopen_files = 40\nfile_size = '5MiB'\n\
         result = '3MiB'\noutput = 6000\ngrace = 7\n",
    );
    let Runtime::Process(program) = &full else { panic!("{full:?}") };
    let variables = [("A", "hunter2"), ("B", "")];
    assert_eq!(program.cmd, home.path("./serve.py"));
    assert_eq!(program.args, ["-u", "", "a b"]);
    assert_eq!(program.environment.0, variables.map(|(k, v)| (k.into(), v.into())).into());
    assert_eq!(program.read, [home.path("models"), PathBuf::from("/usr")]);
    assert_eq!(program.write, [home.path("scratch")]);
    assert_eq!((program.warm, program.network), (true, false));
    assert_eq!(program.confinement, Confinement::BestEffort);
    assert_eq!(
        program.limits,
        LimitsConfig {
            memory_bytes: Some(2 << 30),
            processes: Some(3),
            open_files: Some(40),
            file_bytes: Some(5 << 20),
            result_bytes: Some(3 << 20),
            output_bytes: Some(6_000),
            grace: Some(Duration::from_secs(7)),
        }
    );
    let shown = format!("{full:?}");
    assert!(shown.contains("\"A\"") && !shown.contains("hunter2"), "{shown}");

    let bare = runtime(&home, "runtime = 'process'\ncmd = 'python3'\n");
    assert_eq!(
        bare,
        Runtime::Process(ProgramConfig {
            cmd: PathBuf::from("python3"),
            args: Vec::new(),
            environment: hypha_config::Environment::default(),
            warm: false,
            read: Vec::new(),
            write: Vec::new(),
            network: true,
            confinement: Confinement::Required,
            limits: LimitsConfig::default(),
        })
    );
}

#[test]
fn http_executor_settings_are_read() {
    let home = home();
    let full = runtime(
        &home,
        "runtime = 'http'\nurl = 'http://127.0.0.1:8000/'\nformat = 'json'\nhealth_path = '/health'\n\
         api_key_file = 'secret'\n",
    );
    let expected = ServerConfig {
        url: "http://127.0.0.1:8000".to_owned(),
        format: BackendFormat::Json,
        health_path: Some("/health".to_owned()),
        api_key_file: Some(home.path("secret")),
    };
    assert_eq!(full, Runtime::Http(expected));
    let Runtime::Http(bare) = runtime(&home, "runtime = 'http'\nurl = 'http://h'\n") else {
        panic!();
    };
    assert_eq!((bare.format, bare.health_path), (BackendFormat::Openai, None));
    assert_eq!(runtime(&home, "runtime = 'builtin'\n"), Runtime::Builtin);
}

#[test]
fn each_runtime_has_its_own_keys() {
    let process = [
        "cmd = 'x'",
        "args = []",
        "environment = {}",
        "warm = false",
        "read = []",
        "write = []",
        "network = true",
        "confinement = 'required'",
        "limits = {}",
    ];
    let http =
        ["url = 'http://h'", "format = 'json'", "health_path = '/'", "api_key_file = 'secret'"];
    let strays = process.map(|line| (line, "process", ["http", "builtin"]));
    let strays = strays.into_iter().chain(http.map(|line| (line, "http", ["process", "builtin"])));
    for (line, owner, others) in strays {
        for other in others {
            let (key, value) = line.split_once(" = ").unwrap();
            let text = format!("[[executors]]\nname = 'x'\nruntime = '{other}'\n{key} = {value}\n");
            let column = key.len() + 4;
            let place = format!("node.toml:7:{column}: `{key}`");
            let only = format!("only an executor with runtime = \"{owner}\" has this key");
            fault(&text, &format!("{place}: {only}"));
        }
    }
    fault(
        "[[executors]]\nname = 'x'\nruntime = 'process'\n",
        "node.toml:6:11: `runtime`: this runtime starts a program: give `cmd` too",
    );
    fault(
        "[[executors]]\nname = 'x'\nruntime = 'http'\n",
        "node.toml:6:11: `runtime`: this runtime calls a server: give `url` too",
    );
}

#[test]
fn invalid_executors_are_reported_with_their_line() {
    for (line, problem) in [
        (
            "cmd = 'bin/none'",
            "7: `executors.cmd`: there is no file bin/none: put it there or change the path",
        ),
        ("cmd = './models'", "7: `executors.cmd`: expected a file, found the directory ./models"),
        (
            "args = '-u'",
            "8: `executors.args`: expected a list of strings such as [\"-u\", \"serve.py\"], found a string",
        ),
        ("args = ['a', 5]", "14: `executors.args`: expected a string in quotes, found a number"),
        (
            "environment = 'A=1'",
            "15: `executors.environment`: expected a table of strings such as { HF_HUB_OFFLINE = \"1\" }, found a string",
        ),
        (
            "environment = { A = 1 }",
            "21: `executors.environment`: expected a string in quotes, found a number",
        ),
        (
            "environment = { 'A=B' = 'hunter2' }",
            "25: `executors.environment`: a variable's name must not be empty or contain an equals sign",
        ),
        (
            "read = ['models', 'none']",
            "19: `executors.read`: there is no file none: put it there or change the path",
        ),
        (
            "write = 'scratch'",
            "9: `executors.write`: expected a list of paths such as [\"/srv/models\"], found a string",
        ),
        (
            "confinement = 'off'",
            "15: `executors.confinement`: expected one of \"required\", \"namespaces\", \"best-effort\"",
        ),
        (
            "limits.memory = 16",
            "17: `executors.limits.memory`: 16 bytes are too few; write a unit, such as \"16GiB\"",
        ),
        (
            "limits.processes = 0",
            "20: `executors.limits.processes`: the value is too small: the least is 1",
        ),
        (
            "limits.open_files = 3",
            "21: `executors.limits.open_files`: the value is too small: the least is 16",
        ),
        (
            "limits.result = '5GiB'",
            "17: `executors.limits.result`: the value is too large: the most is 4GiB",
        ),
        (
            "limits.output = '2MiB'",
            "17: `executors.limits.output`: the value is too large: the most is 1MiB",
        ),
        (
            "limits.grace = '2h'",
            "16: `executors.limits.grace`: the value is too large: the most is 3600 seconds",
        ),
    ] {
        let text = format!("[[executors]]\nname = 'x'\n{line}\nruntime = 'process'\n");
        fault(&text, &format!("node.toml:6:{problem}"));
    }
}

#[test]
fn data_dir_and_result_size_are_checked() {
    let home = home();
    let config: WorkerConfig = home.good("");
    assert_eq!(config.data_dir, home.path("worker-data"));
    assert_eq!(config.max_result_bytes, 1 << 20);
    let config: WorkerConfig = home.good("data_dir = '/var/lib/x'\nmax_result_size = '2MiB'\n");
    assert_eq!(config.data_dir, Path::new("/var/lib/x"));
    assert_eq!(config.max_result_bytes, 2 << 20);
    fault(
        "max_result_size = '9MiB'\n",
        "node.toml:4:19: `max_result_size`: the value is too large: the most is 8MiB",
    );
    fault(
        "data_dir = 'tokens'\n",
        "node.toml:4:12: `data_dir`: expected a directory, found the file tokens",
    );
}

const TWO_MODELS: &str = "[[executors]]\nname = 'x'\nruntime = 'builtin'\nmodels = ['m', 'n']\n";

#[test]
fn a_task_instance_is_off_unless_bound() {
    let home = home();
    let instance = |text: &str| {
        let config: WorkerConfig = home.good(&format!("{TWO_MODELS}{text}"));
        config.task_instance
    };
    assert_eq!(instance(""), None);
    assert_eq!(instance("[task_instance]\n"), None);
    let on = "[task_instance]\nbind = '127.0.0.1:8100'\n";
    let expected = TaskInstanceConfig {
        bind: "127.0.0.1:8100".parse().unwrap(),
        tokens_file: None,
        model: Some("m".parse().unwrap()),
    };
    assert_eq!(instance(on), Some(expected.clone()));
    let other = TaskInstanceConfig {
        bind: "[::]:1".parse().unwrap(),
        tokens_file: Some(home.path("tokens")),
        model: Some("n".parse().unwrap()),
    };
    let text = "[task_instance]\nbind = '[::]:1'\ntokens_file = 'tokens'\nmodel = 'n'\n";
    assert_eq!(instance(text), Some(other));
    let any: WorkerConfig = home.good(on);
    assert_eq!(any.task_instance, Some(TaskInstanceConfig { model: None, ..expected }));
}

#[test]
fn invalid_task_instances_are_refused() {
    for (text, expected) in [
        (
            "bind = '0.0.0.0:8100'\n",
            "node.toml:9:8: `bind`: anyone who can reach this address could use the worker: give \
             `tokens_file`",
        ),
        (
            "bind = '127.0.0.1:8100'\nmodel = 'o'\n",
            "node.toml:10:9: `model`: no executor serves this model",
        ),
        ("model = 'm'\n", "node.toml:9:9: `model`: nothing is served without `bind`: give it too"),
        (
            "tokens_file = 'tokens'\n",
            "node.toml:9:15: `tokens_file`: nothing is served without `bind`: give it too",
        ),
    ] {
        fault(&format!("{TWO_MODELS}[task_instance]\n{text}"), expected);
    }
}
