//! `hypha submit`: one task from the command line, or many from a file.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use hypha_client::{Json, Scheduler, Task, TaskInput, TaskState, TaskStatus};
use serde_json::{Map, Value, json};

use super::batch;
use super::connection::{ConnectionArguments, block_on, failure};
use super::follow::{JsonViewer, TerminalViewer, submit_and_follow, wait_for_end};
use super::roster::Roster;
use super::{result, show};
use crate::usage::{Failure, print, read_text};

/// More than any scheduler accepts in one request.
const MAX_INPUT_BYTES: u64 = 1 << 30;

#[derive(Args)]
pub(crate) struct Submit {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    batch: Batch,
    /// Print JSON: the task, or the outcome of a batch
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Args)]
struct One {
    /// The model to run
    #[arg(long, value_name = "MODEL", required_unless_present = "batch")]
    model: Option<String>,
    /// Its input: a string, @FILE for a file, or - for standard input
    #[arg(
        long,
        value_name = "TEXT|@FILE|-",
        required_unless_present = "batch",
        allow_hyphen_values = true
    )]
    input: Option<String>,
    /// The input is JSON, not a plain string
    #[arg(long)]
    json_input: bool,
    #[command(flatten)]
    needs: Needs,
    /// How long one attempt may take, in seconds or with a unit
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// Features for predicting the run time, as a JSON object of numbers and strings
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// An idempotency key: submitting again under the same key returns the first task
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Wait for the end and print the result; exits 1 if the task does not complete
    #[arg(long)]
    wait: bool,
    /// Wait for the end, and show events and pieces of the result as they arrive
    #[arg(long)]
    stream: bool,
}

/// What the worker must have.
#[derive(Args)]
struct Needs {
    /// All requirements as one JSON object, in the form of the API
    #[arg(long, value_name = "JSON")]
    requirements: Option<String>,
    /// Memory that the worker must have, such as 16GB
    #[arg(long, value_name = "BYTES")]
    min_memory: Option<String>,
    /// The worker must have a GPU
    #[arg(long)]
    gpu: bool,
    /// Cores that the worker must have
    #[arg(long, value_name = "CORES")]
    cpu_cores: Option<String>,
    /// Tasks with a higher priority go first
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    priority: Option<String>,
    /// How long after submission the result is still useful, in seconds or with a unit
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// Whether a task whose deadline no worker can meet is accepted or refused
    #[arg(long, value_name = "POLICY", value_parser = ["accept", "refuse"])]
    deadline_policy: Option<String>,
    /// What counts when a worker is chosen; by default, what the scheduler is configured for
    #[arg(long, value_name = "WHAT", value_parser = ["speed", "cost", "balance"])]
    maximise: Option<String>,
}

#[derive(Args)]
pub(super) struct Batch {
    /// A file with one task per line, as JSON. Run again, it continues where it stopped
    #[arg(
        long,
        value_name = "FILE",
        requires = "out",
        conflicts_with_all = [
            "model", "input", "json_input", "requirements", "min_memory", "gpu", "cpu_cores",
            "priority", "deadline", "deadline_policy", "maximise", "timeout", "metadata", "key", "wait", "stream",
        ]
    )]
    pub(super) batch: Option<PathBuf>,
    /// The file to which the results of a batch are appended as they arrive
    #[arg(long, value_name = "FILE", requires = "batch", conflicts_with = "model")]
    pub(super) out: Option<PathBuf>,
    /// How many tasks of a batch are in flight at any time
    #[arg(
        long,
        value_name = "TASKS",
        requires = "batch",
        conflicts_with = "model",
        default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=4_096)
    )]
    pub(super) in_flight: u16,
    /// A name for this run of a batch: under another name the same lines are new tasks
    #[arg(
        long,
        value_name = "NAME",
        requires = "batch",
        conflicts_with = "model",
        default_value = ""
    )]
    pub(super) run: String,
}

pub(super) fn run(submit: &Submit) -> Result<(), Failure> {
    if let (Some(file), Some(out)) = (&submit.batch.batch, &submit.batch.out) {
        return batch::run(&submit.batch, file, out, &submit.connection.connect()?, submit.json);
    }
    let (one, json) = (&submit.one, submit.json);
    let task = one.task()?;
    let scheduler = submit.connection.connect()?;
    block_on(async {
        let ended = match (one.stream, one.wait) {
            (true, _) => streamed(&scheduler, task, json).await,
            (false, true) => waited_for(&scheduler, task, json).await,
            (false, false) => {
                let task = scheduler.submit_task(task).await.map_err(failure)?;
                return match json {
                    true => print(&format!("{:#}\n", Json::of(&task))),
                    false => print(&format!("{}\n", task.id)),
                };
            }
        };
        ended.map_err(|failed| match one.is_json_as_text() {
            true => Failure::work(format!("{failed}; {SENT_AS_TEXT}")),
            false => failed,
        })
    })
}

/// The likely cause when a model refuses such an input.
const SENT_AS_TEXT: &str = "the input was sent as a string, --json-input sends it as JSON";

/// Submits a task, waits for its end and prints its result.
async fn waited_for(scheduler: &Scheduler, task: Task, json: bool) -> Result<(), Failure> {
    let id = scheduler.submit_task(task).await.map_err(failure)?.id;
    if !json {
        eprintln!("{id} submitted");
    }
    let task = wait_for_end(scheduler, id).await?;
    if json {
        print(&format!("{:#}\n", Json::of(&task)))?;
    }
    finish(scheduler, &task, json).await
}

/// The same, and shows events meanwhile.
async fn streamed(scheduler: &Scheduler, task: Task, json: bool) -> Result<(), Failure> {
    if json {
        let task = submit_and_follow(scheduler, task, &mut JsonViewer).await?;
        // The last event was the task itself.
        return finish(scheduler, &task, true).await;
    }
    // Before the task is submitted: a later request would delay the first events.
    let mut people = TerminalViewer::new(Roster::fetch(scheduler).await);
    let task = submit_and_follow(scheduler, task, &mut people).await?;
    let printed = people.finish()?;
    finish(scheduler, &task, printed).await
}

/// Prints the result, unless it was already printed, or reports why there is none.
async fn finish(scheduler: &Scheduler, task: &TaskStatus, printed: bool) -> Result<(), Failure> {
    match task.status == TaskState::Completed {
        true if printed => Ok(()),
        true => result::print_readable(scheduler, task).await,
        false => Err(Failure::work(show::ending(task))),
    }
}

impl One {
    /// The task, validated as far as possible without a scheduler.
    fn task(&self) -> Result<Task, Failure> {
        let mut json = Map::new();
        let mut put = |key: &str, value: Value| json.insert(key.to_owned(), value);
        put("model", json!(self.model.as_deref().unwrap_or_default()));
        put("requirements", Value::Object(self.needs.requirements()?));
        if let Some(timeout) = &self.timeout {
            put("timeout", json!(timeout));
        }
        if let Some(metadata) = &self.metadata {
            put("metadata", Value::Object(object("--metadata", metadata)?));
        }
        if let Some(key) = &self.key {
            put("key", json!(key));
        }
        let task = Task::from_json(&Value::Object(json).to_string()).map_err(Failure::usage)?;
        Ok(Task { input: self.input()?, stream: self.stream, ..task })
    }

    fn input(&self) -> Result<TaskInput, Failure> {
        let given = self.input.as_deref().unwrap_or_default();
        let text = match given.strip_prefix('@') {
            Some(file) => read_text(Path::new(file))?,
            None if given == "-" => standard_input()?,
            None => given.to_owned(),
        };
        match self.json_input {
            // As written: a model may distinguish 1 from 1.0.
            true => match text.trim().parse::<Json>() {
                Ok(json) => Ok(TaskInput::Json(json)),
                Err(error) => Err(Failure::usage(format!("--json-input: not JSON: {error}"))),
            },
            false => Ok(TaskInput::Text(text)),
        }
    }
}

impl One {
    /// Whether the input looks like JSON but is sent as a string.
    fn is_json_as_text(&self) -> bool {
        let text = self.input.as_deref().unwrap_or_default();
        !self.json_input
            && text.starts_with(['{', '['])
            && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
    }
}

impl Needs {
    fn requirements(&self) -> Result<Map<String, Value>, Failure> {
        let mut all = match &self.requirements {
            Some(text) => object("--requirements", text)?,
            None => Map::new(),
        };
        let flags = [
            ("--min-memory", "min_memory", self.min_memory.as_ref().map(|text| json!(text))),
            ("--gpu", "gpu_required", self.gpu.then_some(Value::Bool(true))),
            ("--cpu-cores", "cpu_cores", self.cpu_cores.as_ref().map(|text| json!(text))),
            ("--priority", "priority", self.priority.as_ref().map(|text| json!(text))),
            ("--deadline", "deadline", self.deadline.as_ref().map(|text| json!(text))),
            (
                "--deadline-policy",
                "deadline_policy",
                self.deadline_policy.as_ref().map(|it| json!(it)),
            ),
            ("--maximise", "maximise", self.maximise.as_ref().map(|text| json!(text))),
        ];
        for (flag, key, value) in flags {
            let Some(value) = value else { continue };
            if all.insert(key.to_owned(), value).is_some() {
                let problem = format!("{flag}: {key} is in --requirements too; give it once");
                return Err(Failure::usage(problem));
            }
        }
        Ok(all)
    }
}

fn object(flag: &str, text: &str) -> Result<Map<String, Value>, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Failure::usage(format!("{flag}: expected a JSON object: {error}")))
}

fn standard_input() -> Result<String, Failure> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(MAX_INPUT_BYTES + 1);
    match input.read_to_string(&mut text) {
        Ok(_) if text.len() as u64 > MAX_INPUT_BYTES => {
            Err(Failure::usage(format!("--input -: more than {MAX_INPUT_BYTES} bytes")))
        }
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::usage(format!("--input -: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        submit: Submit,
    }

    fn parse(line: &[&str]) -> Result<Submit, String> {
        let line = Line::try_parse_from([&["submit"], line].concat());
        line.map(|line| line.submit).map_err(|error| error.to_string())
    }

    fn task(line: &[&str]) -> Result<Task, String> {
        parse(line)?.one.task().map_err(|failure| failure.to_string())
    }

    #[test]
    fn flags_become_requirements() {
        let task = self::task(&[
            "--model=m",
            "--input=hi",
            "--min-memory=16GB",
            "--gpu",
            "--priority",
            "-5",
            "--deadline=2m",
            "--deadline-policy=refuse",
            "--maximise=cost",
            "--requirements",
            r#"{"cpu_cores": 2}"#,
            "--timeout=30s",
            "--metadata",
            r#"{"input_tokens": 7}"#,
            "--key=k",
        ])
        .unwrap();
        assert_eq!(task.input, TaskInput::Text("hi".to_owned()));
        assert_eq!(
            Value::Object(task.requirements.to_json()),
            json!({"min_memory": "16GB", "gpu_required": true, "priority": "-5",
                   "deadline": "2m", "deadline_policy": "refuse", "maximise": "cost", "cpu_cores": 2})
        );
        assert_eq!(task.timeout, Some(std::time::Duration::from_secs(30)));
        assert_eq!((task.key.as_str(), task.stream), (Some("k"), false));
        assert!(self::task(&["--model=m", "--input=x", "--stream"]).unwrap().stream);
    }

    #[test]
    fn an_input_is_a_text_a_file_or_json() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("input");
        std::fs::write(&file, "{\"ms\": 5.00}\n").unwrap();
        let at = format!("@{}", file.display());
        let input = |line: &[&str]| task(line).map(|task| task.input);
        let text = TaskInput::Text("{\"ms\": 5.00}\n".to_owned());
        assert_eq!(input(&["--model=m", "--input", &at]), Ok(text));
        let json = TaskInput::Json("{\"ms\": 5.00}".parse().unwrap());
        assert_eq!(input(&["--model=m", "--input", &at, "--json-input"]), Ok(json));
        assert!(input(&["--model=m", "--input=@/nowhere/at/all"]).is_err());
    }

    #[test]
    fn json_that_is_sent_as_a_text_is_noticed() {
        let noticed = |line: &[&str]| parse(line).unwrap().one.is_json_as_text();
        assert!(noticed(&["--model=m", "--input={\"ms\": 5}"]));
        assert!(!noticed(&["--model=m", "--input={\"ms\": 5}", "--json-input"]));
        assert!(!noticed(&["--model=m", "--input={hello}"]));
        assert!(!noticed(&["--model=m", "--input=5"]));
    }

    #[test]
    fn invalid_arguments_are_refused_before_anything_is_sent() {
        for (line, says) in [
            (&["--model=m"][..], "--input"),
            (&["--batch=f"], "--out"),
            (&["--batch=f", "--out=o", "--wait"], "cannot be used with"),
            (&["--out=o", "--model=m", "--input=x"], "cannot be used with"),
            (&["--run=r", "--model=m", "--input=x"], "cannot be used with"),
            (&["--in-flight=2", "--model=m", "--input=x"], "cannot be used with"),
            (&["--out=o"], "--batch"),
            (&["--model=m", "--input=x", "--min-memory=16"], "write \"16GB\" for gigabytes"),
            (&["--model=m", "--input={", "--json-input"], "--json-input: not JSON"),
            (&["--model=m", "--input=x", "--requirements=[]"], "expected a JSON object"),
            (&["--model=", "--input=x"], "a name must not be empty"),
            (
                &["--model=m", "--input=x", "--gpu", "--requirements={\"gpu_required\":true}"],
                "give it once",
            ),
        ] {
            let error = task(line).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
