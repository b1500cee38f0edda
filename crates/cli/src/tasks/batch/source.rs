//! The tasks of a batch: a file with one per line.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use hypha_client::{Json, Task, TaskKey};
use hypha_model::Payload;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::usage::Failure;

/// More than any scheduler accepts; a file without line breaks is not read into memory.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// A file of tasks, read line by line.
pub(super) struct Source {
    path: PathBuf,
    run: String,
    reader: BufReader<File>,
    number: u64,
}

/// A line with its task.
pub(super) struct Line {
    /// Its number, from 1.
    pub(super) number: u64,
    pub(super) task: Task,
    /// The key of the task.
    pub(super) key: String,
    /// Whether the line states the key itself.
    pub(super) own_key: bool,
}

impl Source {
    pub(super) fn open(path: &Path, run: &str) -> Result<Source, Failure> {
        let file = File::open(path)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        let reader = BufReader::new(file);
        Ok(Source { path: path.to_owned(), run: run.to_owned(), reader, number: 0 })
    }

    /// The next line that is not empty.
    pub(super) fn next(&mut self) -> Result<Option<Line>, Failure> {
        loop {
            let mut bytes = Vec::new();
            let read = (&mut self.reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes);
            self.number += 1;
            let number = self.number;
            match read {
                Ok(0) => return Ok(None),
                Ok(_) if bytes.len() as u64 >= MAX_LINE_BYTES => {
                    return Err(self.wrong(number, &"is too long for a task"));
                }
                Ok(_) => {}
                Err(error) => return Err(self.wrong(number, &error)),
            }
            let bytes = bytes.trim_ascii();
            if !bytes.is_empty() {
                return self.read(number, bytes).map(Some);
            }
        }
    }

    fn read(&self, number: u64, bytes: &[u8]) -> Result<Line, Failure> {
        #[derive(Deserialize)]
        struct Named {
            #[serde(default)]
            key: Option<IgnoredAny>,
        }
        // The parser counts lines within its input, which is one line.
        let here = |problem: String| problem.replace(" at line 1 column ", " at column ");
        let json: Json = serde_json::from_slice(bytes).map_err(|error| {
            self.wrong(number, &format!("is not JSON: {}", here(error.to_string())))
        })?;
        let mut task = Task::from_json(json.as_str())
            .map_err(|error| self.wrong(number, &here(error.to_string())))?;
        let own_key = json.read::<Named>().is_some_and(|named| named.key.is_some());
        if !own_key {
            task.key = TaskKey::from_text(self.key(number, bytes))
                .map_err(|error| self.wrong(number, &error))?;
        }
        let key = task.key.as_str().unwrap_or_default().to_owned();
        Ok(Line { number, task, key, own_key })
    }

    /// Depends on the line, its number and the run: lines that are added to the file later do not change the
    /// keys of earlier ones, and equal lines are separate tasks.
    fn key(&self, number: u64, bytes: &[u8]) -> String {
        let place = format!("hypha batch\n{}\n{number}\n", self.run.escape_default());
        let named = [place.as_bytes(), bytes].concat();
        format!("batch-{}", Payload::from(named).digest())
    }

    /// An invalid line.
    pub(super) fn wrong(&self, number: u64, problem: &dyn fmt::Display) -> Failure {
        Failure::usage(format!("{}:{number}: {problem}", self.path.display()))
    }
}
