//! The roles of a world: how each is made, and how its effects are handled.

use std::convert::Infallible;
use std::sync::Arc;

use hypha_engine::scheduler::Effect;
use hypha_engine::{
    Image, Notice, Record, Reply, Scheduler, SchedulerStep, WorkerEffect, WorkerImage,
    WorkerMachine, WorkerRecord, WorkerStep,
};
use hypha_market::{Signer, SimulatedNotary};
use hypha_model::Time;

use super::World;
use super::clients::Requester;
use super::host::{Host, Release, Role};
use super::market::Gossip;
use super::nodes::{self, Node, SchedulerSetup, WorkerSetup};
use crate::checkers::{Author, Violation};

impl Role for Scheduler {
    type Image = Image;
    type Setup = SchedulerSetup;
    type Requester = Requester;

    fn node(at: usize) -> Node {
        Node::Scheduler(at)
    }

    fn hosts(world: &mut World) -> &mut [Host<Scheduler>] {
        &mut world.schedulers
    }

    fn start(
        setup: &SchedulerSetup,
        image: Image,
        seed: u64,
        now: Time,
        step: &mut SchedulerStep,
    ) -> Scheduler {
        let mut scheduler =
            Scheduler::recover(setup.id, setup.settings.clone(), image, seed, now, step);
        scheduler.set_notary(Arc::new(SimulatedNotary(Signer::Scheduler(setup.id))));
        scheduler
    }

    fn handle(
        world: &mut World,
        at: usize,
        effect: Effect,
        release: Release,
    ) -> Result<(), Violation> {
        match effect {
            Effect::ToWorker { worker, message } => {
                if let Some(worker) = nodes::worker_index(worker) {
                    world.send_to_worker(at, worker, message);
                }
                Ok(())
            }
            Effect::Notice { task, notice: Notice::Ended { finished, .. } }
                if release == Release::AtOnce =>
            {
                world.checkers.interactive_ended(world.now, (at, task), &finished)
            }
            Effect::WorkerForgotten(worker) => {
                if let Some(worker) = nodes::worker_index(worker) {
                    world.http_worker_forgotten(at, worker);
                }
                Ok(())
            }
            Effect::Notice { .. }
            | Effect::ForwardOutput { .. }
            | Effect::WorkerLeased(_)
            | Effect::JobChanged(_) => Ok(()),
            Effect::GossipAdvert(advert) => {
                world.gossip(at, Gossip::Advert(advert));
                Ok(())
            }
            Effect::GossipAdvertClosed(advert) => {
                world.gossip(at, Gossip::Closed(advert));
                Ok(())
            }
        }
    }

    fn reply(
        world: &mut World,
        at: usize,
        to: Requester,
        reply: Reply,
        release: Release,
    ) -> Result<(), Violation> {
        if let (Requester::Job(index), Reply::JobSubmitted(Some(_))) = (to, &reply) {
            world.job_answered(index);
        }
        let (Requester::Client(index), Reply::Submitted(answers)) = (to, reply) else {
            return Ok(());
        };
        let now = world.now;
        answers.iter().try_for_each(|answer| match release {
            Release::Committed => world.checkers.answered(now, index, answer),
            Release::AtOnce => world.checkers.interactive_answered(now, (at, index), answer),
        })
    }

    fn persisted(world: &mut World, at: usize, records: &[Record]) -> Result<(), Violation> {
        let (now, host) = (world.now, &world.schedulers[at]);
        let author = Author { at, id: host.setup.id, local: host.clock.local(now) };
        records.iter().try_for_each(|record| world.checkers.persisted(now, author, record))?;
        world.market_persisted(at, records)
    }

    fn stepped(world: &mut World, at: usize) -> Result<(), Violation> {
        world.checkers.scheduler_stepped(world.now, &mut world.schedulers[at])?;
        world.check_scheduler_market(at)
    }

    fn process_changed(world: &mut World, at: usize, is_up: bool) {
        world.sync_http_workers(at, is_up);
    }

    fn machine_changed(world: &mut World, at: usize, is_running: bool) {
        world.checkers.machine_changed(world.now, Node::Scheduler(at), is_running);
    }
}

impl Role for WorkerMachine {
    type Image = WorkerImage;
    type Setup = WorkerSetup;
    type Requester = Infallible;

    fn node(at: usize) -> Node {
        Node::Worker(at)
    }

    fn hosts(world: &mut World) -> &mut [Host<WorkerMachine>] {
        &mut world.workers
    }

    fn start(
        setup: &WorkerSetup,
        image: WorkerImage,
        seed: u64,
        _: Time,
        step: &mut WorkerStep,
    ) -> WorkerMachine {
        let WorkerImage { epoch, left, receipts } = image;
        let notary = Arc::new(SimulatedNotary(Signer::Worker(setup.worker.id)));
        let mut machine = WorkerMachine::start(Arc::clone(&setup.worker), epoch, left, seed, step)
            .with_terms(setup.terms.clone())
            .with_owner(setup.owner)
            .with_receipts(notary, receipts.into_values().collect());
        machine.mutate(setup.mutant);
        machine
    }

    fn handle(
        world: &mut World,
        at: usize,
        effect: WorkerEffect,
        _: Release,
    ) -> Result<(), Violation> {
        match effect {
            WorkerEffect::Send(said) => {
                world.count_from_worker(at, &said.message)?;
                let known = world.schedulers.len();
                if let Some(scheduler) = nodes::scheduler_index(said.to).filter(|at| *at < known) {
                    world.send_to_scheduler(at, scheduler, said.message);
                }
            }
            WorkerEffect::Run(run) if world.is_http(at) => return world.http_run(at, run),
            WorkerEffect::Run(run) => world.execute(at, run),
        }
        Ok(())
    }

    fn reply(
        _: &mut World,
        _: usize,
        to: Infallible,
        _: Infallible,
        _: Release,
    ) -> Result<(), Violation> {
        match to {}
    }

    fn persisted(_: &mut World, _: usize, _: &[WorkerRecord]) -> Result<(), Violation> {
        Ok(())
    }

    fn stepped(world: &mut World, at: usize) -> Result<(), Violation> {
        world.checkers.worker_stepped(world.now, &world.workers[at])?;
        world.check_worker_market(at)
    }

    fn machine_changed(world: &mut World, at: usize, is_running: bool) {
        if world.is_http(at) {
            // It ends with its scheduler, and this excuses no failure.
            match is_running {
                true => world.http_worker_begins(at),
                false => world.http_worker_ends(at),
            }
        } else {
            world.checkers.machine_changed(world.now, Node::Worker(at), is_running);
        }
        match is_running {
            true => world.announce(at),
            false => {
                for index in world.executors[at].kill_all(world.now) {
                    world.checkers.starvation_run_ended(world.now, index, true);
                }
            }
        }
    }
}
