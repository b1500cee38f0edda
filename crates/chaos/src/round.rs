//! One round: load, a death at a planted point, deaths by SIGKILL, then the account.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::ledger::{Ledger, Scope, Traces};
use crate::load::{Load, lock};
use crate::network::Network;
use crate::plan::{Plan, Victims};
use crate::totals::Totals;
use crate::verify::{Drained, Verifier};

/// How often the load is looked after during a pause.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) struct Run<'a> {
    pub(crate) seed: u64,
    pub(crate) directory: &'a Path,
    pub(crate) network: Network,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) verifier: Verifier,
    pub(crate) totals: Totals,
}

impl Run<'_> {
    /// Runs the round, or says what was lost, or what else was wrong.
    pub(crate) fn round(&mut self, round: u32, scope: Scope) -> anyhow::Result<()> {
        let plan = Plan::draw(self.seed, round, self.network.workers.len());
        let before = lock(&self.ledger).acknowledged();
        let load = Load::start(self.seed, round, &self.network.address, &self.ledger);
        // If this fails, the clients are not waited for: they would only wait for what does not come back.
        let planted = self.deaths(&plan, &load)?;
        load.finish()?;
        let drained = self.verifier.account(&mut self.network, &mut lock(&self.ledger), scope)?;
        self.verifier.scrape(&mut self.totals.late);
        self.forget_logs()?;
        self.say(round, &plan, before, planted, &drained);
        Ok(())
    }

    /// All deaths of the round. Returns the life of the scheduler that ended at the planted point.
    fn deaths(&mut self, plan: &Plan, load: &Load) -> anyhow::Result<Option<u32>> {
        self.pause(plan.before, load)?;
        let planted = self.planted(plan, load)?;
        self.pause(plan.alive, load)?;
        self.killed(plan, load)?;
        self.pause(plan.after, load)?;
        Ok(planted)
    }

    fn planted(&mut self, plan: &Plan, load: &Load) -> anyhow::Result<Option<u32>> {
        let network = &mut self.network;
        let point = plan.point.to_string();
        let crash_at = format!("{point}:{}", plan.count);
        if plan.point.in_worker() {
            let worker = &mut network.workers[plan.planted];
            worker.stop()?;
            worker.start(Some(&crash_at))?;
            worker.wait_for_crash(&point)?;
        } else {
            self.verifier.scrape(&mut self.totals.late);
            network.scheduler.stop()?;
            network.start_scheduler(Some(&crash_at))?;
            network.scheduler.wait_for_crash(&point)?;
        }
        self.totals.hit(plan.point);
        let life = self.network.scheduler.life();
        self.pause(plan.first_gap, load)?;
        if plan.point.in_worker() {
            self.network.workers[plan.planted].start(None)?;
            return Ok(None);
        }
        self.network.start_scheduler(None)?;
        Ok(Some(life))
    }

    fn killed(&mut self, plan: &Plan, load: &Load) -> anyhow::Result<()> {
        let scheduler = plan.victims != Victims::Worker;
        let workers = matches!(plan.victims, Victims::Worker | Victims::Both);
        self.verifier.scrape(&mut self.totals.late);
        if scheduler {
            self.network.scheduler.kill()?;
            self.totals.scheduler_kills += 1;
        }
        for &worker in plan.killed.iter().filter(|_| workers) {
            self.network.workers[worker].kill()?;
            self.totals.worker_kills += 1;
        }
        self.totals.killed(plan.victims);
        self.pause(plan.second_gap, load)?;
        if scheduler {
            self.network.start_scheduler(None)?;
        }
        for &worker in plan.killed.iter().filter(|_| workers) {
            self.network.workers[worker].start(None)?;
        }
        if plan.victims == Victims::SchedulerTwice {
            self.pause(plan.short_life, load)?;
            self.network.scheduler.kill()?;
            self.totals.scheduler_kills += 1;
            self.pause(plan.second_gap, load)?;
            self.network.start_scheduler(None)?;
        }
        Ok(())
    }

    /// Lets time pass, unless a client has given up.
    fn pause(&mut self, time: Duration, load: &Load) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        loop {
            load.check()?;
            self.network.check_alive()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    /// The logs of lives that ended in a round that went well are of no use any more.
    fn forget_logs(&self) -> anyhow::Result<()> {
        let nodes = [&self.network.gateway, &self.network.scheduler].into_iter();
        let current: Vec<_> = nodes.chain(&self.network.workers).map(|node| node.log()).collect();
        for entry in std::fs::read_dir(self.directory.join("logs"))? {
            let path = entry?.path();
            if !current.contains(&path) {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn say(
        &mut self,
        round: u32,
        plan: &Plan,
        before: usize,
        planted: Option<u32>,
        drained: &Drained,
    ) {
        let ledger = lock(&self.ledger);
        let traces = |life| ledger.traces.get(&life).copied().unwrap_or_default();
        let mut unanswered = String::new();
        if let Some(traces) = planted.map(traces) {
            let Traces { found, anew } = traces;
            self.totals.traced(plan.point, traces);
            unanswered = format!(" (unanswered submits: {found} stored, {anew} not)");
        }
        println!(
            "round {round}: died at {}:{}{unanswered}, killed {}; {} tasks, {} of them run again; \
             drained in {:.1} s; {} in all",
            plan.point,
            plan.count,
            plan.victims.name(),
            ledger.acknowledged() - before,
            drained.run_again,
            drained.time.as_secs_f64(),
            ledger.acknowledged(),
        );
        self.totals.run_again += drained.run_again;
    }
}
