//! One round: load, a crash at a planted point, faults of nodes and of a back end, then the verification.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;

use crate::back_end::BackEnd;
use crate::faults::{FaultKind, FaultLog};
use crate::ledger::{Ledger, Scope, UnansweredSubmits};
use crate::load::{Load, lock};
use crate::network::Network;
use crate::plan::{BackEndFault, BackEndStep, NodeFault, NodeStep, Plan};
use crate::totals::Totals;
use crate::verify::{RoundResult, Verifier};

/// How often the clients are checked during a pause.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long it may take until a full disk is noticed: the log of the store is overwritten in place, and takes room only
/// when it grows.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct ChaosRun<'a> {
    pub(crate) seed: u64,
    pub(crate) directory: &'a Path,
    pub(crate) network: Network,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) faults: Arc<Mutex<FaultLog>>,
    pub(crate) verifier: Verifier,
    pub(crate) totals: Totals,
}

impl ChaosRun<'_> {
    /// Runs the round, or returns what was lost or went wrong otherwise.
    pub(crate) fn round(&mut self, round: u32, scope: Scope) -> anyhow::Result<()> {
        let plan = Plan::draw(self.seed, round, self.network.workers.len());
        let before = lock(&self.ledger).acknowledged();
        let load = Load::start(self.seed, round, &self.network.address, &self.ledger);
        // If this fails, the clients are not joined: they would wait for a scheduler that does not restart.
        let planted = self.inject_faults(&plan, &load)?;
        load.finish()?;
        let mut ledger = lock(&self.ledger);
        let drained = self.verifier.verify_round(
            &mut self.network,
            &mut ledger,
            &self.faults,
            (round, scope),
        )?;
        drop(ledger);
        self.verifier.scrape(&mut self.totals.late);
        self.remove_old_logs()?;
        self.print_summary(round, &plan, before, planted, &drained);
        Ok(())
    }

    /// All faults of the round. Returns the incarnation of the scheduler that ended at the planted point.
    fn inject_faults(&mut self, plan: &Plan, load: &Load) -> anyhow::Result<Option<u32>> {
        self.pause(plan.before, load)?;
        let planted = self.crash_at_planted_point(plan, load)?;
        let BackEndStep { fault, index, .. } = plan.back_end;
        let back_end = self.network.back_ends(fault.protocol())[index].clone();
        let meanwhile = inject_back_end_fault(back_end, &plan.back_end);
        for step in &plan.nodes {
            self.pause(step.before, load)?;
            self.verifier.scrape(&mut self.totals.late);
            self.inject_node_fault(step, load)?;
        }
        meanwhile.join().map_err(|_| anyhow!("the fault of a back end panicked"))??;
        self.totals.count_back_end_fault(fault);
        self.pause(plan.after, load)?;
        Ok(planted)
    }

    fn crash_at_planted_point(&mut self, plan: &Plan, load: &Load) -> anyhow::Result<Option<u32>> {
        let point = plan.point.to_string();
        let crash_at = format!("{point}:{}", plan.count);
        self.verifier.scrape(&mut self.totals.late);
        let network = &mut self.network;
        if plan.point.is_in_worker() {
            let worker = &mut network.workers[plan.planted];
            worker.stop()?;
            // It crashes at some time from now on.
            lock(&self.faults).record_begin(&worker.name, FaultKind::Died);
            worker.start(Some(&crash_at))?;
            worker.wait_for_crash(&point)?;
        } else {
            network.scheduler.stop()?;
            network.start_scheduler(Some(&crash_at))?;
            network.scheduler.wait_for_crash(&point)?;
        }
        self.totals.hit(plan.point);
        let incarnation = self.network.scheduler.incarnation();
        self.pause(plan.downtime, load)?;
        if plan.point.is_in_worker() {
            self.start_worker(plan.planted)?;
            return Ok(None);
        }
        self.network.start_scheduler(None)?;
        Ok(Some(incarnation))
    }

    /// One fault of nodes, from its beginning until all nodes run again.
    fn inject_node_fault(&mut self, step: &NodeStep, load: &Load) -> anyhow::Result<()> {
        match step.fault {
            NodeFault::SchedulerKilled => {
                self.network.scheduler.kill()?;
                self.pause(step.downtime, load)?;
                self.network.start_scheduler(None)?;
            }
            NodeFault::SchedulerKilledTwice => {
                for uptime in [step.until_second_kill, Duration::ZERO] {
                    self.network.scheduler.kill()?;
                    self.pause(step.downtime, load)?;
                    self.network.start_scheduler(None)?;
                    self.pause(uptime, load)?;
                }
            }
            NodeFault::SchedulerStopped => {
                self.network.scheduler.stop()?;
                self.pause(step.downtime, load)?;
                self.network.start_scheduler(None)?;
            }
            NodeFault::SchedulerFrozen => {
                self.network.scheduler.freeze()?;
                self.pause(step.stall, load)?;
                self.network.scheduler.thaw()?;
            }
            NodeFault::WorkersKilled => {
                self.kill_workers(step)?;
                self.pause(step.downtime, load)?;
                step.workers.iter().try_for_each(|&worker| self.start_worker(worker))?;
            }
            NodeFault::BothKilled => {
                self.network.scheduler.kill()?;
                self.kill_workers(step)?;
                self.pause(step.downtime, load)?;
                self.network.start_scheduler(None)?;
                step.workers.iter().try_for_each(|&worker| self.start_worker(worker))?;
            }
            NodeFault::WorkersStopped => {
                // No fault that an attempt may be blamed on: they return their attempts.
                let workers = &mut self.network.workers;
                step.workers.iter().try_for_each(|&worker| workers[worker].stop())?;
                self.pause(step.downtime, load)?;
                step.workers.iter().try_for_each(|&worker| self.start_worker(worker))?;
            }
            NodeFault::WorkerFrozen => {
                for &worker in &step.workers {
                    let node = &mut self.network.workers[worker];
                    lock(&self.faults).record_begin(&node.name, FaultKind::Froze);
                    node.freeze()?;
                }
                self.pause(step.stall, load)?;
                for &worker in &step.workers {
                    let node = &mut self.network.workers[worker];
                    node.thaw()?;
                    lock(&self.faults).record_end(&node.name);
                }
            }
            NodeFault::DiskFull => self.fill_disk(step, load)?,
        }
        self.totals.count_node_fault(step.fault);
        Ok(())
    }

    fn kill_workers(&mut self, step: &NodeStep) -> anyhow::Result<()> {
        for &worker in &step.workers {
            let node = &mut self.network.workers[worker];
            lock(&self.faults).record_begin(&node.name, FaultKind::Died);
            node.kill()?;
        }
        Ok(())
    }

    fn start_worker(&mut self, worker: usize) -> anyhow::Result<()> {
        let node = &mut self.network.workers[worker];
        node.start(None)?;
        lock(&self.faults).record_end(&node.name);
        Ok(())
    }

    /// The scheduler moves to a small disk, which is then full for a while.
    fn fill_disk(&mut self, step: &NodeStep, load: &Load) -> anyhow::Result<()> {
        let Some(mount_method) = self.network.mount_method else {
            // The alternative fault.
            self.network.scheduler.stop()?;
            return self.network.start_scheduler(None);
        };
        self.network.scheduler.stop()?;
        self.network.mount_disk(mount_method)?;
        self.network.start_scheduler(None)?;
        self.pause(step.downtime, load)?;
        let refused = lock(&self.ledger).refused;
        self.network.disk()?.fill()?;
        let until = Instant::now() + NOTICED_WITHIN;
        while lock(&self.ledger).refused == refused {
            if Instant::now() >= until {
                return Err(anyhow!(
                    "no submit was refused within {NOTICED_WITHIN:?} of a full disk"
                ));
            }
            self.pause(POLL_INTERVAL, load)?;
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
            thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Removes the logs of incarnations that ended in a successful round.
    fn remove_old_logs(&self) -> anyhow::Result<()> {
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

    fn print_summary(
        &mut self,
        round: u32,
        plan: &Plan,
        before: usize,
        planted: Option<u32>,
        drained: &RoundResult,
    ) {
        let ledger = lock(&self.ledger);
        let unanswered_submits =
            |incarnation| ledger.unanswered_submits.get(&incarnation).copied().unwrap_or_default();
        let mut unanswered = String::new();
        if let Some(unanswered_submits) = planted.map(unanswered_submits) {
            let UnansweredSubmits { found, anew } = unanswered_submits;
            self.totals.add_unanswered(plan.point, unanswered_submits);
            unanswered = format!(" (unanswered submits: {found} stored, {anew} not)");
        }
        let [first, second] = plan.nodes.each_ref().map(|step| step.fault.name());
        println!(
            "round {round}: crashed at {}:{}{unanswered}; {first}, {second}, {}; {} tasks, {} of them retried, {} \
             failed; drained in {:.1} s, settled in {:.1} s; {} in all",
            plan.point,
            plan.count,
            plan.back_end.fault.name(),
            ledger.acknowledged() - before,
            drained.retried,
            drained.failed,
            drained.time.as_secs_f64(),
            drained.idle_after.as_secs_f64(),
            ledger.acknowledged(),
        );
        self.totals.retried += drained.retried;
        self.totals.failed += drained.failed;
    }
}

/// Injects the planned fault into a back end, concurrently with the other faults.
fn inject_back_end_fault(back_end: BackEnd, step: &BackEndStep) -> JoinHandle<anyhow::Result<()>> {
    let &BackEndStep { fault, before, lasts, remembers, status, .. } = step;
    thread::spawn(move || {
        thread::sleep(before);
        match fault {
            BackEndFault::ServerKilled | BackEndFault::InstanceKilled => back_end.kill(),
            BackEndFault::ServerFrozen | BackEndFault::InstanceFrozen => back_end.freeze(),
            BackEndFault::ServerFailing | BackEndFault::InstanceFailing => {
                back_end.fail_with(status)
            }
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
