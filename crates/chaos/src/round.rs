//! One round: load, a death at a planted point, faults of nodes and of a back end, then the account.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;

use crate::back_end::BackEnd;
use crate::faults::{Faults, Injury};
use crate::ledger::{Ledger, Scope, Traces};
use crate::load::{Load, lock};
use crate::network::Network;
use crate::plan::{BackEndFault, BackEndStep, NodeFault, NodeStep, Plan};
use crate::totals::Totals;
use crate::verify::{Drained, Verifier};

/// How often the load is looked after during a pause.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long it may take until a disk without room is noticed: the log of the store is written over, and takes room only
/// when it grows.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct Run<'a> {
    pub(crate) seed: u64,
    pub(crate) directory: &'a Path,
    pub(crate) network: Network,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) faults: Arc<Mutex<Faults>>,
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
        let planted = self.faults(&plan, &load)?;
        load.finish()?;
        let mut ledger = lock(&self.ledger);
        let drained =
            self.verifier.account(&mut self.network, &mut ledger, &self.faults, (round, scope))?;
        drop(ledger);
        self.verifier.scrape(&mut self.totals.late);
        self.forget_logs()?;
        self.say(round, &plan, before, planted, &drained);
        Ok(())
    }

    /// All faults of the round. Returns the life of the scheduler that ended at the planted point.
    fn faults(&mut self, plan: &Plan, load: &Load) -> anyhow::Result<Option<u32>> {
        self.pause(plan.before, load)?;
        let planted = self.planted(plan, load)?;
        let BackEndStep { fault, index, .. } = plan.back_end;
        let back_end = self.network.back_ends(fault.protocol())[index].clone();
        let meanwhile = injure(back_end, &plan.back_end);
        for step in &plan.nodes {
            self.pause(step.before, load)?;
            self.verifier.scrape(&mut self.totals.late);
            self.nodes(step, load)?;
        }
        meanwhile.join().map_err(|_| anyhow!("the fault of a back end panicked"))??;
        self.totals.back_end(fault);
        self.pause(plan.after, load)?;
        Ok(planted)
    }

    fn planted(&mut self, plan: &Plan, load: &Load) -> anyhow::Result<Option<u32>> {
        let point = plan.point.to_string();
        let crash_at = format!("{point}:{}", plan.count);
        self.verifier.scrape(&mut self.totals.late);
        let network = &mut self.network;
        if plan.point.in_worker() {
            let worker = &mut network.workers[plan.planted];
            worker.stop()?;
            // It dies at some time from now on.
            lock(&self.faults).began(&worker.name, Injury::Died);
            worker.start(Some(&crash_at))?;
            worker.wait_for_crash(&point)?;
        } else {
            network.scheduler.stop()?;
            network.start_scheduler(Some(&crash_at))?;
            network.scheduler.wait_for_crash(&point)?;
        }
        self.totals.hit(plan.point);
        let life = self.network.scheduler.life();
        self.pause(plan.gap, load)?;
        if plan.point.in_worker() {
            self.start_worker(plan.planted)?;
            return Ok(None);
        }
        self.network.start_scheduler(None)?;
        Ok(Some(life))
    }

    /// One fault of nodes, from its beginning until all nodes run again.
    fn nodes(&mut self, step: &NodeStep, load: &Load) -> anyhow::Result<()> {
        match step.fault {
            NodeFault::SchedulerKilled => {
                self.network.scheduler.kill()?;
                self.pause(step.gap, load)?;
                self.network.start_scheduler(None)?;
            }
            NodeFault::SchedulerKilledTwice => {
                for life in [step.short_life, Duration::ZERO] {
                    self.network.scheduler.kill()?;
                    self.pause(step.gap, load)?;
                    self.network.start_scheduler(None)?;
                    self.pause(life, load)?;
                }
            }
            NodeFault::SchedulerStopped => {
                self.network.scheduler.stop()?;
                self.pause(step.gap, load)?;
                self.network.start_scheduler(None)?;
            }
            NodeFault::SchedulerFrozen => {
                self.network.scheduler.freeze()?;
                self.pause(step.stall, load)?;
                self.network.scheduler.thaw()?;
            }
            NodeFault::WorkersKilled => {
                self.kill_workers(step)?;
                self.pause(step.gap, load)?;
                step.workers.iter().try_for_each(|&worker| self.start_worker(worker))?;
            }
            NodeFault::BothKilled => {
                self.network.scheduler.kill()?;
                self.kill_workers(step)?;
                self.pause(step.gap, load)?;
                self.network.start_scheduler(None)?;
                step.workers.iter().try_for_each(|&worker| self.start_worker(worker))?;
            }
            NodeFault::WorkersStopped => {
                // Not a fault that an attempt may be blamed on: they give back what they have.
                let workers = &mut self.network.workers;
                step.workers.iter().try_for_each(|&worker| workers[worker].stop())?;
                self.pause(step.gap, load)?;
                step.workers.iter().try_for_each(|&worker| self.start_worker(worker))?;
            }
            NodeFault::WorkerFrozen => {
                for &worker in &step.workers {
                    let node = &mut self.network.workers[worker];
                    lock(&self.faults).began(&node.name, Injury::Froze);
                    node.freeze()?;
                }
                self.pause(step.stall, load)?;
                for &worker in &step.workers {
                    let node = &mut self.network.workers[worker];
                    node.thaw()?;
                    lock(&self.faults).ended(&node.name);
                }
            }
            NodeFault::DiskFull => self.fill_disk(step, load)?,
        }
        self.totals.nodes(step.fault);
        Ok(())
    }

    fn kill_workers(&mut self, step: &NodeStep) -> anyhow::Result<()> {
        for &worker in &step.workers {
            let node = &mut self.network.workers[worker];
            lock(&self.faults).began(&node.name, Injury::Died);
            node.kill()?;
        }
        Ok(())
    }

    fn start_worker(&mut self, worker: usize) -> anyhow::Result<()> {
        let node = &mut self.network.workers[worker];
        node.start(None)?;
        lock(&self.faults).ended(&node.name);
        Ok(())
    }

    /// The scheduler moves to a small disk, which is then full for a while.
    fn fill_disk(&mut self, step: &NodeStep, load: &Load) -> anyhow::Result<()> {
        let Some(way) = self.network.way else {
            // What else there is to do to it.
            self.network.scheduler.stop()?;
            return self.network.start_scheduler(None);
        };
        self.network.scheduler.stop()?;
        self.network.mount_disk(way)?;
        self.network.start_scheduler(None)?;
        self.pause(step.gap, load)?;
        let refused = lock(&self.ledger).refused;
        self.network.disk()?.fill()?;
        let until = Instant::now() + NOTICED_WITHIN;
        while lock(&self.ledger).refused == refused {
            if Instant::now() >= until {
                return Err(anyhow!(
                    "no submit was refused within {NOTICED_WITHIN:?} of a full disk"
                ));
            }
            self.pause(LOOK_EVERY, load)?;
        }
        self.pause(step.stall, load)?;
        if step.killed_while_full {
            self.network.scheduler.kill()?;
            self.network.disk()?.free()?;
            self.network.start_scheduler(None)?;
        } else {
            self.network.disk()?.free()?;
        }
        self.pause(step.before, load)?;
        self.network.scheduler.stop()?;
        self.network.unmount_disk()?;
        self.network.start_scheduler(None)
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
            if !current.iter().any(|log| log.file_name() == path.file_name()) {
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
        let [first, second] = plan.nodes.each_ref().map(|step| step.fault.name());
        println!(
            "round {round}: died at {}:{}{unanswered}; {first}, {second}, {}; {} tasks, {} of them run again, {} \
             failed; drained in {:.1} s, settled in {:.1} s; {} in all",
            plan.point,
            plan.count,
            plan.back_end.fault.name(),
            ledger.acknowledged() - before,
            drained.run_again,
            drained.failed,
            drained.time.as_secs_f64(),
            drained.settled.as_secs_f64(),
            ledger.acknowledged(),
        );
        self.totals.run_again += drained.run_again;
        self.totals.failed += drained.failed;
    }
}

/// Does to a back end what the plan says, while other things happen.
fn injure(back_end: BackEnd, step: &BackEndStep) -> JoinHandle<anyhow::Result<()>> {
    let &BackEndStep { fault, before, lasts, remembers, status, .. } = step;
    thread::spawn(move || {
        thread::sleep(before);
        match fault {
            BackEndFault::ServerKilled | BackEndFault::InstanceKilled => back_end.kill(),
            BackEndFault::ServerFrozen | BackEndFault::InstanceFrozen => back_end.freeze(),
            BackEndFault::ServerErring | BackEndFault::InstanceErring => back_end.err(status),
        }
        thread::sleep(lasts);
        match fault {
            BackEndFault::ServerKilled | BackEndFault::InstanceKilled => {
                back_end.restart(remembers)?;
            }
            _ => back_end.recover(),
        }
        Ok(())
    })
}
