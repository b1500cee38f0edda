//! The file of a job: JSON as the API takes it, or TOML with the same tables, perhaps under `scheduler.job`.

use std::path::Path;

use hypha_client::Json;
use serde_json::{Map, Number, Value};
use toml::Table;

use super::text::clean;
use crate::usage::{Failure, read_text};

/// What `[scheduler.job]` has for training, besides its resources.
const TRAINING: [&str; 5] =
    ["model", "preprocessor", "dataset", "inner_optimizer", "outer_optimizer"];

/// The job in a file, as the API takes it.
pub(super) fn read(path: &Path) -> Result<Json, Failure> {
    let text = read_text(path)?;
    let is_json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let job = match is_json {
        true => text.parse::<Json>().map_err(|error| error.to_string()),
        false => parse_toml(&text).map(|job| Json::of(&job)),
    };
    job.map_err(|problem| Failure::usage(format!("{}: {}", path.display(), clean(&problem))))
}

fn parse_toml(text: &str) -> Result<Value, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line =
            before.map_or(String::new(), |text| format!("line {}: ", text.lines().count().max(1)));
        format!("{line}{}", error.message())
    })?;
    let table = without_prefix(table)?;
    if let Some(key) = TRAINING.iter().find(|key| table.contains_key(**key)) {
        return Err(format!(
            "`{key}` describes training, which this version does not run yet: give [run] with a model that a \
             worker serves, such as `count`, and leave `{key}` out"
        ));
    }
    let mut job = Map::new();
    for (key, value) in table {
        let value = to_json(&key, value)?;
        job.insert(key, value);
    }
    Ok(Value::Object(job))
}

/// The tables of a job, with those under `scheduler.job` moved to the top.
fn without_prefix(mut table: Table) -> Result<Table, String> {
    let Some(scheduler) = table.remove("scheduler") else { return Ok(table) };
    let toml::Value::Table(mut scheduler) = scheduler else {
        return Err("`scheduler` is not a table: write [scheduler.job.resources]".to_owned());
    };
    let job = scheduler.remove("job");
    if let Some(other) = scheduler.keys().next() {
        return Err(format!(
            "`scheduler.{other}` belongs into the configuration of the scheduler, not into a job"
        ));
    }
    let Some(toml::Value::Table(job)) = job else {
        return Err("[scheduler.job] is missing: write [scheduler.job.resources]".to_owned());
    };
    for (key, value) in job {
        if table.contains_key(&key) {
            return Err(format!("`{key}` and `scheduler.job.{key}` are the same: give one"));
        }
        table.insert(key, value);
    }
    Ok(table)
}

fn to_json(at: &str, value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::Number(number.into()),
        toml::Value::Float(number) => match Number::from_f64(number) {
            Some(number) => Value::Number(number),
            None => return Err(format!("{at}: `{number}` is not finite: give a number")),
        },
        toml::Value::Boolean(on) => Value::Bool(on),
        toml::Value::Datetime(time) => {
            return Err(format!("{at}: `{time}` is a time: write it in quotes"));
        }
        toml::Value::Array(items) => {
            let item = |(nth, item)| to_json(&format!("{at}[{nth}]"), item);
            Value::Array(items.into_iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        toml::Value::Table(table) => {
            let field = |(key, value)| {
                let value = to_json(&format!("{at}.{key}"), value)?;
                Ok((key, value))
            };
            Value::Object(table.into_iter().map(field).collect::<Result<_, String>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RESOURCES: &str = "\
        [PREFIXresources]\nnum_workers = 4\n\
        [[PREFIXresources.worker]]\ntype = \"GPU\"\nmin = 10.0\n\
        [[PREFIXresources.worker]]\nkind = \"diloco-transformer\"\n\
        [PREFIXresources.worker_price]\nbid = 110.0\nmax = 160.0\n\
        [run]\nmodel = \"count\"\ninput = { to = 10, every_ms = 100 }\n";

    #[test]
    fn tables_are_read_with_the_prefix_of_a_configuration_and_without() {
        let expected = json!({
            "resources": {
                "num_workers": 4,
                "worker": [{"type": "GPU", "min": 10.0}, {"kind": "diloco-transformer"}],
                "worker_price": {"bid": 110.0, "max": 160.0},
            },
            "run": {"model": "count", "input": {"to": 10, "every_ms": 100}},
        });
        for prefix in ["", "scheduler.job."] {
            assert_eq!(parse_toml(&RESOURCES.replace("PREFIX", prefix)), Ok(expected.clone()));
        }
    }

    #[test]
    fn what_cannot_be_a_job_is_refused() {
        let cases = [
            ("a = 1\nb = \n", "line 2: "),
            ("[resources.worker_price]\nbid = nan", "resources.worker_price.bid: `NaN` is not"),
            ("[[resources.worker]]\nmin = inf", "resources.worker[0].min: `inf` is not finite"),
            ("[run]\nmodel = 2026-01-01", "run.model: `2026-01-01` is a time"),
            ("[scheduler]\nmax_queue = 7", "`scheduler.max_queue` belongs into"),
            ("scheduler = 7", "`scheduler` is not a table"),
            ("[scheduler.job]\nrun = {}\n[run]", "`run` and `scheduler.job.run` are the same"),
            ("[scheduler.job.model]\nrepository = \"a\"", "`model` describes training"),
        ];
        for (text, expected) in cases {
            let said = parse_toml(text).expect_err(text);
            assert!(said.starts_with(expected), "{text}: {said}");
        }
    }
}
