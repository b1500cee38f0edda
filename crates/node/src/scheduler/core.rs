//! The scheduler's machine, and whoever waits for it.
//!
//! Everyone steps the machine under one lock, for microseconds. What a step wants to be durable is collected,
//! committed (`pump.rs`), and then what was to be sent leaves. Only what has nothing durable at stake leaves at
//! once. Submissions that are to be durable do not even wait for the lock: the next commit takes them in.

use std::collections::HashMap;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::FutureExt;
use hypha_api::{Accepted, Answer, Unavailable, Watch, Watched, watch};
use hypha_engine::{
    Command, Effect, FromWorker, NewTask, Notice, Reject, Reply, Scheduler, SchedulerEvent,
    SchedulerStep, Submitted, ToWorker,
};
use hypha_model::{TaskId, Time, Worker, WorkerId};
use hypha_store::Store;
use tokio::sync::{Notify, oneshot};

use super::figures::Figures;
use crate::clock::Clock;

pub(crate) struct Core {
    machine: Mutex<Machine>,
    /// Submissions that the machine has not seen: they wait for the disk anyway, so whoever commits next takes them
    /// all, and nobody waits for the machine's lock. As many as there are requests under way.
    inbox: Mutex<Vec<Submission>>,
    /// Whether what was collected is being committed or let out. Only changed under the machine's lock.
    committing: AtomicBool,
    watchers: Mutex<Watchers>,
    pub(super) store: Arc<Store>,
    /// The machine wants to be woken earlier than it wanted before.
    pub(super) earlier: Notify,
    /// The store has failed.
    pub(super) broken: Notify,
    /// Nothing is left to be committed.
    pub(super) settled: Notify,
    pub(super) clock: Clock,
    pub(super) figures: Figures,
    ways: Box<dyn Ways>,
}

/// Who watches what.
#[derive(Default)]
struct Watchers {
    by_task: HashMap<TaskId, Vec<Watched>>,
    /// With this many, those whom nobody listens to any more are looked for: a task that has ended never speaks.
    sweep_at: usize,
}

/// Watches that are kept without looking whether somebody listens.
const FEW_WATCHES: usize = 1_024;

/// How messages get to workers.
pub(crate) trait Ways: Send + Sync {
    /// Sends, or drops: the machine expects that messages are lost. Never waits.
    fn send(&self, worker: WorkerId, message: ToWorker);

    /// The machine has forgotten this worker.
    fn forget(&self, worker: WorkerId);

    /// The same, but it was removed by somebody who may want it again.
    fn retire(&self, worker: WorkerId);

    /// Workers that are known here, so that nobody finds them.
    fn known(&self) -> Vec<Arc<Worker>>;
}

pub(super) struct Machine {
    pub(super) scheduler: Scheduler,
    pub(super) step: SchedulerStep,
    /// The space of the last step.
    pub(super) spare: SchedulerStep,
    /// Until when the alarm sleeps.
    pub(super) asleep_until: Option<Time>,
    /// Why nothing is acknowledged at present.
    pub(super) stopped: Option<String>,
    waiting: HashMap<u64, Waiting>,
    requests: u64,
}

/// Tasks to be accepted.
struct Submission {
    tasks: Vec<NewTask>,
    /// Whether they are watched.
    wanted: bool,
    answer: oneshot::Sender<Result<Vec<Accepted>, Unavailable>>,
}

/// Who waits for an answer.
enum Waiting {
    Reply(oneshot::Sender<Result<Reply, Unavailable>>),
    Submit(oneshot::Sender<Result<Vec<Accepted>, Unavailable>>, Vec<Option<Watch>>),
}

impl Core {
    pub(super) fn new(
        scheduler: Scheduler,
        step: SchedulerStep,
        store: Arc<Store>,
        clock: Clock,
        figures: Figures,
        ways: Box<dyn Ways>,
    ) -> Core {
        let machine = Machine {
            scheduler,
            step,
            spare: SchedulerStep::default(),
            asleep_until: None,
            stopped: None,
            waiting: HashMap::new(),
            requests: 0,
        };
        Core {
            machine: Mutex::new(machine),
            inbox: Mutex::default(),
            committing: AtomicBool::new(false),
            watchers: Mutex::default(),
            store,
            earlier: Notify::new(),
            broken: Notify::new(),
            settled: Notify::new(),
            clock,
            figures,
            ways,
        }
    }

    /// Something happened.
    pub(crate) fn tell(self: &Arc<Core>, event: SchedulerEvent) {
        self.tell_all(std::iter::once(event));
    }

    /// A worker said some things.
    pub(crate) fn worker_said(
        self: &Arc<Core>,
        worker: WorkerId,
        said: impl Iterator<Item = FromWorker>,
    ) {
        self.tell_all(said.map(|message| SchedulerEvent::WorkerSaid { worker, message }));
    }

    fn tell_all(self: &Arc<Core>, events: impl Iterator<Item = SchedulerEvent>) {
        let mut machine = self.lock();
        if machine.stopped.is_some() {
            // Workers repeat what was not recorded.
            return;
        }
        for event in events {
            machine.step(self, event);
        }
        self.leave(machine);
    }

    /// Asks the machine; the answer comes when it is durable.
    pub(super) fn ask(
        self: &Arc<Core>,
        command: Command,
    ) -> oneshot::Receiver<Result<Reply, Unavailable>> {
        let (answer, answered) = oneshot::channel();
        let mut machine = self.lock();
        if let Some(why) = &machine.stopped {
            let _ = answer.send(Err(Unavailable(why.clone())));
            return answered;
        }
        let request = machine.next_request();
        machine.waiting.insert(request, Waiting::Reply(answer));
        machine.step(self, SchedulerEvent::Asked { request, command });
        self.leave(machine);
        answered
    }

    /// Submits, and watches without missing anything.
    pub(super) fn submit(
        self: &Arc<Core>,
        tasks: Vec<NewTask>,
        wanted: bool,
    ) -> Answer<Vec<Accepted>> {
        if !tasks.iter().any(|task| task.stored) {
            return ready(self.submit_at_once(tasks, wanted)).boxed();
        }
        let (answer, answered) = oneshot::channel();
        lock(&self.inbox).push(Submission { tasks, wanted, answer });
        // If a commit is under way, whoever ends it looks into the inbox afterwards.
        if !self.committing.load(Ordering::SeqCst) {
            let mut machine = self.lock();
            self.take_in(&mut machine);
            self.leave(machine);
        }
        answered.map(|answer| answer.unwrap_or_else(|_| Err(super::backend::stopping()))).boxed()
    }

    /// Submits what nothing durable hangs on: it is answered here and now.
    fn submit_at_once(
        self: &Arc<Core>,
        tasks: Vec<NewTask>,
        wanted: bool,
    ) -> Result<Vec<Accepted>, Unavailable> {
        let mut machine = self.lock();
        if let Some(why) = &machine.stopped {
            return Err(Unavailable(why.clone()));
        }
        let (request, at_once) = (machine.next_request(), machine.step.at_once.len());
        let command = Command::SubmitTasks(tasks);
        machine.step(self, SchedulerEvent::Asked { request, command });
        let new = &mut machine.step.at_once;
        let reply = new[at_once..].iter().position(|effect| effect.answers(request));
        let accepted = match reply.map(|at| new.remove(at_once + at)) {
            Some(Effect::Reply { reply: Reply::Submitted(answers), .. }) => {
                let watches = self.watch_accepted(&answers, wanted);
                Ok(accepted(answers, watches))
            }
            _ => Err(Unavailable("the scheduler did not answer".to_owned())),
        };
        self.leave(machine);
        accepted
    }

    /// Steps the machine with all submissions that wait.
    fn take_in(&self, machine: &mut Machine) {
        for Submission { tasks, wanted, answer } in std::mem::take(&mut *lock(&self.inbox)) {
            if let Some(why) = &machine.stopped {
                let _ = answer.send(Err(Unavailable(why.clone())));
                continue;
            }
            let (request, sent) = (machine.next_request(), machine.step.send.len());
            let command = Command::SubmitTasks(tasks);
            machine.step(self, SchedulerEvent::Asked { request, command });
            let reply = machine.step.send[sent..].iter().find(|effect| effect.answers(request));
            let watches = match reply {
                Some(Effect::Reply { reply: Reply::Submitted(answers), .. }) => {
                    self.watch_accepted(answers, wanted)
                }
                _ => Vec::new(),
            };
            machine.waiting.insert(request, Waiting::Submit(answer, watches));
        }
    }

    /// Watches a task from now on.
    pub(super) fn watch(&self, task: TaskId) -> Watch {
        let (watched, watch) = watch();
        let mut watchers = lock(&self.watchers);
        watchers.sweep();
        watchers.by_task.entry(task).or_default().push(watched);
        watch
    }

    /// Looks at the machine.
    pub(super) fn read<T>(&self, look: impl FnOnce(&mut Scheduler, Time) -> T) -> T {
        let mut machine = self.lock();
        look(&mut machine.scheduler, self.clock.now())
    }

    /// Why nothing is acknowledged at present.
    pub(super) fn stopped(&self) -> Option<String> {
        self.lock().stopped.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Machine> {
        lock(&self.machine)
    }

    /// Gives the lock back, begins to commit what is to be durable, and lets out what may leave at once.
    pub(super) fn leave(self: &Arc<Core>, mut machine: MutexGuard<'_, Machine>) {
        let step = self.begin_commit(&mut machine);
        let at_once = self.unlock(machine);
        if let Some(step) = step {
            self.pump(step);
        }
        self.carry_out(at_once.into_iter());
    }

    /// Gives the lock back. Returns what may leave at once.
    fn unlock(&self, mut machine: MutexGuard<'_, Machine>) -> Vec<Effect> {
        let at_once = std::mem::take(&mut machine.step.at_once);
        let earlier = match (machine.step.wake_at, machine.asleep_until) {
            (Some(wake), Some(asleep)) => wake < asleep,
            (Some(_), None) => true,
            (None, _) => false,
        };
        drop(machine);
        if earlier {
            self.earlier.notify_one();
        }
        at_once
    }

    /// What is to be committed now, if there is something and nothing else is being committed.
    fn begin_commit(&self, machine: &mut Machine) -> Option<SchedulerStep> {
        if !machine.has_work() || self.committing.swap(true, Ordering::SeqCst) {
            return None;
        }
        Some(machine.take_step())
    }

    /// What is to be committed after `done`, which has been let out.
    pub(super) fn next_commit(&self, mut done: SchedulerStep) -> Option<SchedulerStep> {
        let mut machine = self.lock();
        done.clear();
        machine.spare = done;
        self.take_in(&mut machine);
        let mut next = None;
        if machine.has_work() {
            next = Some(machine.take_step());
        } else {
            self.committing.store(false, Ordering::SeqCst);
            // Whoever came before that counts on us.
            if !lock(&self.inbox).is_empty() {
                self.take_in(&mut machine);
                next = self.begin_commit(&mut machine);
            }
        }
        let at_once = self.unlock(machine);
        self.carry_out(at_once.into_iter());
        next
    }

    /// Steps the machine no more, if everything that was wanted is durable and has left, or never will. The end of
    /// this process must not look to the machine as if all its workers were lost.
    pub(super) fn close(&self) -> bool {
        let mut machine = self.lock();
        let nothing_left = !machine.has_work() && lock(&self.inbox).is_empty();
        let settled = !self.committing.load(Ordering::SeqCst);
        if settled && (nothing_left || machine.stopped.is_some()) {
            machine.stopped = Some("the scheduler is stopping".to_owned());
            return true;
        }
        false
    }

    /// Does what a step wants done, when its time has come.
    pub(super) fn carry_out(&self, effects: impl Iterator<Item = Effect>) {
        let mut replies = Vec::new();
        let mut notices = Vec::new();
        for effect in effects {
            match effect {
                Effect::ToWorker { worker, message } => self.ways.send(worker, message),
                Effect::Reply { request, reply } => replies.push((request, reply)),
                Effect::Notice { task, notice } => notices.push((task, notice)),
            }
        }
        if !replies.is_empty() {
            crate::crash::crash_point(crate::crash::CrashPoint::SentBeforeReply);
            let mut machine = self.lock();
            let waiting: Vec<_> = replies
                .into_iter()
                .filter_map(|(request, reply)| Some((machine.waiting.remove(&request)?, reply)))
                .collect();
            drop(machine);
            waiting.into_iter().for_each(|(waiting, reply)| waiting.answer(reply));
        }
        self.notify(notices);
    }

    /// Workers that are forgotten for good by what was committed need no way any more.
    pub(super) fn forget_workers(&self, forgotten: Vec<WorkerId>) {
        for worker in forgotten {
            let (known, removed) = self.read(|scheduler, _| {
                (scheduler.knows_worker(worker), scheduler.is_removed(worker))
            });
            match (known, removed) {
                (true, _) => {}
                (false, true) => self.ways.retire(worker),
                (false, false) => self.ways.forget(worker),
            }
        }
    }

    /// Workers that nobody finds.
    pub(super) fn known_workers(&self) -> Vec<Arc<Worker>> {
        self.ways.known()
    }

    /// Gives up on everything under way: the machine begins anew.
    pub(super) fn abandon(&self, why: &str) {
        let mut machine = self.lock();
        machine.stopped = Some(why.to_owned());
        self.committing.store(false, Ordering::SeqCst);
        self.take_in(&mut machine);
        machine.step.clear();
        for (_, waiting) in machine.waiting.drain() {
            waiting.refuse(why);
        }
        lock(&self.watchers).by_task.clear();
    }

    /// A repeated task may have ended long ago; its watch is simply never told anything.
    fn watch_accepted(
        &self,
        answers: &[Result<Submitted, Reject>],
        wanted: bool,
    ) -> Vec<Option<Watch>> {
        let of = |answer: &Result<Submitted, Reject>| {
            answer.as_ref().ok().map(|submitted| self.watch(submitted.task))
        };
        if wanted { answers.iter().map(of).collect() } else { Vec::new() }
    }

    fn notify(&self, notices: Vec<(TaskId, Notice)>) {
        if notices.is_empty() {
            return;
        }
        let mut watchers = lock(&self.watchers);
        for (task, notice) in notices {
            if let Notice::Ended { accepted, finished } = &notice {
                self.figures.ended(accepted, finished);
            }
            let Some(watched) = watchers.by_task.get_mut(&task) else { continue };
            let last = matches!(notice, Notice::Ended { .. });
            watched.retain(|one| one.tell(notice.clone()));
            if last || watched.is_empty() {
                watchers.by_task.remove(&task);
            }
        }
    }
}

impl Watchers {
    fn sweep(&mut self) {
        if self.by_task.len() < self.sweep_at.max(FEW_WATCHES) {
            return;
        }
        self.by_task.retain(|_, watched| {
            watched.retain(Watched::is_watched);
            !watched.is_empty()
        });
        // Twice what is left, so that a sweep costs little for each watch.
        self.sweep_at = 2 * self.by_task.len();
    }
}

impl Machine {
    /// What was collected.
    fn take_step(&mut self) -> SchedulerStep {
        let mut step = std::mem::replace(&mut self.step, std::mem::take(&mut self.spare));
        self.step.wake_at = step.wake_at;
        // What leaves at once is not for those who commit.
        self.step.at_once.append(&mut step.at_once);
        step
    }

    pub(super) fn has_work(&self) -> bool {
        !self.step.persist.is_empty() || !self.step.send.is_empty()
    }

    pub(super) fn step(&mut self, core: &Core, event: SchedulerEvent) {
        let assigned = self.scheduler.strategy().1.assigned;
        let began = Instant::now();
        self.scheduler.step(core.clock.at(began), event, &mut self.step);
        // A new strategy counts anew.
        let decided = self.scheduler.strategy().1.assigned.saturating_sub(assigned);
        core.figures.selected(decided, began);
    }

    fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }
}

impl Waiting {
    fn answer(self, reply: Reply) {
        // Whoever has gone does not want to know.
        match (self, reply) {
            (Waiting::Reply(answer), reply) => drop(answer.send(Ok(reply))),
            (Waiting::Submit(answer, watches), Reply::Submitted(answers)) => {
                drop(answer.send(Ok(accepted(answers, watches))));
            }
            (Waiting::Submit(answer, _), _) => {
                drop(answer.send(Err(Unavailable("the scheduler answered something else".into()))));
            }
        }
    }

    fn refuse(self, why: &str) {
        let why = Unavailable(why.to_owned());
        match self {
            Waiting::Reply(answer) => drop(answer.send(Err(why))),
            Waiting::Submit(answer, _) => drop(answer.send(Err(why))),
        }
    }
}

/// Each answer with its watch, as far as there are watches.
fn accepted(answers: Vec<Result<Submitted, Reject>>, watches: Vec<Option<Watch>>) -> Vec<Accepted> {
    let watches = watches.into_iter().chain(std::iter::repeat_with(|| None));
    let with_watch = |(answer, watch): (Result<Submitted, Reject>, _)| {
        answer.map(|submitted| (submitted, watch))
    };
    answers.into_iter().zip(watches).map(with_watch).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use hypha_engine::{Image, Settings};
    use hypha_model::{SchedulerId, Span, TaskSpec};

    use super::*;

    struct Nowhere;

    impl Ways for Nowhere {
        fn send(&self, _: WorkerId, _: ToWorker) {}
        fn forget(&self, _: WorkerId) {}
        fn retire(&self, _: WorkerId) {}
        fn known(&self) -> Vec<Arc<Worker>> {
            Vec::new()
        }
    }

    fn core(directory: &std::path::Path) -> Arc<Core> {
        let (store, _) = Store::open(&directory.join("tasks.sqlite")).unwrap();
        let (mut step, clock) = (SchedulerStep::default(), Clock::new());
        let (id, settings) = (SchedulerId::LOCAL, Settings::default());
        let machine = Scheduler::recover(id, settings, Image::default(), 1, clock.now(), &mut step);
        let figures = Figures::new(&mut prometheus_client::registry::Registry::default());
        Arc::new(Core::new(machine, step, Arc::new(store), clock, figures, Box::new(Nowhere)))
    }

    /// A task that is stored and wanted for ten seconds.
    fn task() -> NewTask {
        let mut spec = TaskSpec::default();
        spec.requirement.deadline = Some(Span::from_secs(10));
        let spec = Arc::new(spec);
        NewTask { spec, idempotency_key: None, bind_at_once: false, stored: true, quota: None }
    }

    #[tokio::test]
    async fn what_comes_during_a_commit_is_taken_in_after_it_and_sets_the_alarm() {
        let directory = tempfile::tempdir().unwrap();
        let core = core(directory.path());
        // The alarm sleeps until the machine's first own business, minutes away.
        let wake_at = core.lock().step.wake_at;
        core.lock().asleep_until = wake_at;
        core.committing.store(true, Ordering::SeqCst);
        let accepted = core.submit(vec![task()], true);
        assert!(core.earlier.notified().now_or_never().is_none());
        let next = core.next_commit(SchedulerStep::default()).unwrap();
        assert!(core.earlier.notified().now_or_never().is_some(), "it is to be woken earlier");
        core.pump(next);
        assert!(accepted.await.unwrap()[0].as_ref().is_ok_and(|(_, watch)| watch.is_some()));
    }
}
