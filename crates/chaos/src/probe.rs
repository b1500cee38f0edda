//! Shows after a round that no slot stayed occupied: every worker and every back end gets as many tasks as it runs at
//! once, none of which ends before all of them run.

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use crate::ledger::{Ledger, SubmittedTask};
use crate::network::{BUILTIN_SLOTS, Network, builtin_of};
use crate::verify::{DRAIN_TIMEOUT, Verifier};

/// Longer than any round: these tasks end when they are cancelled.
const FOREVER_MS: u64 = 24 * 3_600_000;

impl Verifier {
    /// Fails if a slot is not free.
    pub(crate) fn probe(
        &mut self,
        network: &mut Network,
        ledger: &mut Ledger,
        round: u32,
    ) -> anyhow::Result<()> {
        let names: Vec<String> = network.workers.iter().map(|node| node.name.clone()).collect();
        let mut sleeping = Vec::new();
        for name in &names {
            for number in 0..BUILTIN_SLOTS {
                let input = json!({ "ms": FOREVER_MS + number as u64 });
                let executor = builtin_of(name);
                sleeping.push(self.submit(ledger, "sleep", input, Some(&executor))?);
            }
        }
        let back_ends: Vec<(String, usize)> =
            network.back_ends.iter().map(|it| (it.model.clone(), it.slots)).collect();
        for (model, slots) in &back_ends {
            for number in 0..*slots {
                // Back ends answer these when all of them have arrived.
                let name = format!("probe-{round}-{model}-{number}");
                let with = format!("probe-{round}");
                self.submit(ledger, model, json!({ "name": name, "with": with }), None)?;
            }
        }
        self.retry_until(network, DRAIN_TIMEOUT, "a slot of a worker stays occupied", |this| {
            let workers = this.workers()?;
            let full = |name: &String| {
                let is_it = |worker: &&crate::verify::Worker| worker.name.as_ref() == Some(name);
                workers.iter().find(is_it).is_some_and(|worker| worker.running == BUILTIN_SLOTS)
            };
            match names.iter().all(full) {
                true => Ok(()),
                false => Err(anyhow!("not all run {BUILTIN_SLOTS} tasks: {workers:?}")),
            }
        })?;
        for id in &sleeping {
            self.call("DELETE", &format!("/api/v1/tasks/{id}"), "")?;
            ledger.cancel(id);
        }
        for name in &names {
            let input = json!({ "name": format!("probe-{round}-{name}") });
            self.submit(ledger, "echo", input, Some(&builtin_of(name)))?;
        }
        self.wait_until_drained(network).context("a slot of a back end stays occupied")
    }

    /// Submits a task, which is acknowledged like any other. Nothing is killed meanwhile, so it needs no retry.
    fn submit(
        &mut self,
        ledger: &mut Ledger,
        model: &str,
        input: Value,
        executor: Option<&str>,
    ) -> anyhow::Result<String> {
        let mut task = json!({ "model": model, "input": input });
        if let Some(executor) = executor {
            task["requirements"] = json!({ "executor": executor });
        }
        let body = self.call("POST", "/api/v1/tasks", &task.to_string())?;
        let answer: Value = serde_json::from_slice(&body)?;
        let Some(id) = answer["id"].as_str() else { bail!("a submit is answered by {answer}") };
        let submitted = SubmittedTask { model: model.to_owned(), input };
        ledger.acknowledge(&format!("probe {id}"), &submitted, id).map_err(|why| anyhow!(why))?;
        Ok(id.to_owned())
    }
}
