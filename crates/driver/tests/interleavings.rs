//! Explores the orders in which threads take the driver's locks: its own source, with shuttle's locks in place of the
//! standard library's.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "not all of the driver is used here")]
#[path = "../src/effect_handler.rs"]
mod effect_handler;
#[allow(dead_code, unreachable_pub, reason = "not all of the driver is used here")]
#[path = "../src/shared.rs"]
mod shared;

mod sync {
    pub(crate) use shuttle::sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    };

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

use std::collections::BTreeSet;
use std::sync::Arc;

use effect_handler::EffectHandler;
use hypha_machine::{CommitCallback, Journal, Machine, Released, Step};
use hypha_model::{Span, Time};
use shared::{SharedMachine, Stopped};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{Condvar, Mutex, mpsc};
use shuttle::thread;

/// Schedules that each test explores at random, and as many with few context switches: the latter find faults that need
/// one thread to be delayed for long.
const SCHEDULES: usize = 1_000;
/// Context switches in the latter.
const CHANGES: usize = 3;

/// A machine that remembers numbers.
#[derive(Default)]
struct Memo {
    numbers: Vec<u64>,
    wake_at: Option<Time>,
}

enum Event {
    /// Remember this; the reply is how many are remembered.
    Note(u64),
    /// Reply how many are remembered, without a commit.
    Count,
    /// Wake at this time.
    WakeAt(Time),
    Woke,
}

impl Machine for Memo {
    type Event = Event;
    type Record = u64;
    type Effect = u64;
    type Reply = u64;

    fn step(&mut self, _: Time, event: Event, step: &mut Step<Memo>) {
        match event {
            Event::Note(number) => {
                self.numbers.push(number);
                step.persist(number);
                step.send(number);
                step.reply(number);
            }
            Event::Count => step.reply_at_once(self.numbers.len() as u64),
            Event::WakeAt(at) => self.wake_at = Some(at),
            Event::Woke => self.wake_at = None,
        }
    }

    fn wake_at(&self, _: Time) -> Option<Time> {
        self.wake_at
    }

    fn woke() -> Event {
        Event::Woke
    }
}

/// A journal that writes on a thread of its own, and fails after `works_for` commits.
struct Writer {
    commits: Mutex<Option<mpsc::Sender<Commit>>>,
    durable: Arc<Mutex<Vec<u64>>>,
}

type Commit = (Vec<u64>, CommitCallback<String>);

impl Writer {
    fn start(works_for: usize) -> (Writer, thread::JoinHandle<()>) {
        let (commits, received) = mpsc::channel::<Commit>();
        let durable = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&durable);
        let writer = thread::spawn(move || {
            for (at, (records, done)) in received.into_iter().enumerate() {
                if at < works_for {
                    written.lock().unwrap().extend(records);
                    done(Ok(()));
                } else {
                    done(Err("the disk is full".to_owned()));
                }
            }
        });
        (Writer { commits: Mutex::new(Some(commits)), durable }, writer)
    }
}

impl Journal<u64> for Writer {
    type Error = String;

    fn commit(&self, records: Vec<u64>, done: CommitCallback<String>) {
        self.commits.lock().unwrap().as_ref().unwrap().send((records, done)).unwrap();
    }
}

/// Records the effects and replies, and checks that they were durable.
struct Notes {
    durable: Arc<Mutex<Vec<u64>>>,
    carried_out: Mutex<Vec<u64>>,
    answered: Mutex<BTreeSet<u64>>,
    refused: Mutex<BTreeSet<u64>>,
    failures: AtomicUsize,
    alarms: AtomicUsize,
    settled: Mutex<usize>,
    news: Condvar,
}

impl EffectHandler<Memo> for Notes {
    /// The number to remember.
    type Requester = u64;

    fn now(&self) -> Time {
        Time::from_micros(1)
    }

    fn handle_released(&self, released: &mut Released<Memo, u64>) {
        let durable = self.durable.lock().unwrap().clone();
        for effect in released.effects.drain(..) {
            assert!(durable.contains(&effect), "{effect} was carried out and is not durable");
            self.carried_out.lock().unwrap().push(effect);
        }
        for (requester, reply) in released.replies.drain(..) {
            assert_eq!(requester, reply);
            assert!(durable.contains(&reply), "{reply} was acknowledged and is not durable");
            assert!(self.answered.lock().unwrap().insert(requester), "{requester} answered twice");
        }
    }

    fn handle_at_once(&self, _: Vec<u64>) {}

    fn refuse(&self, requester: u64, _: &Stopped) {
        assert!(self.refused.lock().unwrap().insert(requester), "{requester} refused twice");
    }

    fn wake_earlier(&self) {
        self.alarms.fetch_add(1, Ordering::SeqCst);
    }

    fn settled(&self) {
        *self.settled.lock().unwrap() += 1;
        self.news.notify_all();
    }

    fn journal_failed(&self, _: &Stopped) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }
}

type Driven = Arc<SharedMachine<Memo, Writer, Notes>>;

fn driven(works_for: usize) -> (Driven, thread::JoinHandle<()>) {
    let (journal, writer) = Writer::start(works_for);
    let notes = Notes {
        durable: Arc::clone(&journal.durable),
        carried_out: Mutex::default(),
        answered: Mutex::default(),
        refused: Mutex::default(),
        failures: AtomicUsize::new(0),
        alarms: AtomicUsize::new(0),
        settled: Mutex::default(),
        news: Condvar::new(),
    };
    (Arc::new(SharedMachine::new(Memo::default(), Step::default(), journal, notes)), writer)
}

/// Waits until all commits are done, and stops the writer.
fn close(shared: &Driven, writer: thread::JoinHandle<()>) {
    let notes = shared.handler();
    loop {
        let seen = *notes.settled.lock().unwrap();
        if shared.close("the test is over") {
            break;
        }
        let mut settled = notes.settled.lock().unwrap();
        while *settled == seen {
            settled = notes.news.wait(settled).unwrap();
        }
    }
    *shared.journal().commits.lock().unwrap() = None;
    writer.join().unwrap();
}

fn explore(test: fn()) {
    shuttle::check_random(test, SCHEDULES);
    shuttle::check_pct(test, SCHEDULES, CHANGES);
}

fn in_threads(shared: &Driven, work: [fn(&Driven); 3]) {
    let threads = work.map(|work| {
        let shared = Arc::clone(shared);
        thread::spawn(move || work(&shared))
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

const CALLERS: [fn(&Driven); 3] = [
    |shared| {
        shared.step_events([Event::Note(1), Event::Note(2)]);
        shared.request_with_next_commit(Event::Note(3), 3);
    },
    |shared| {
        shared.request_with_next_commit(Event::Note(4), 4);
        shared.request_with_next_commit(Event::Note(5), 5);
    },
    |shared| {
        shared.request(Event::Note(6), 6, |_, _| panic!("the reply did not wait for its commit"));
        shared.request(Event::Count, 0, |_, count| assert!(count <= 6));
    },
];

#[test]
fn every_request_is_answered_once_and_after_its_commit() {
    explore(|| {
        let (shared, writer) = driven(usize::MAX);
        in_threads(&shared, CALLERS);
        close(&shared, writer);
        let notes = shared.handler();
        assert_eq!(*notes.answered.lock().unwrap(), BTreeSet::from([3, 4, 5, 6]));
        assert_eq!(*notes.refused.lock().unwrap(), BTreeSet::new());
        let durable = notes.durable.lock().unwrap().clone();
        assert_eq!(durable.len(), 6);
        assert_eq!(*notes.carried_out.lock().unwrap(), durable, "in the order of the records");
        shared.read(|memo, _| assert_eq!(memo.numbers, durable));
    });
}

/// To make an event may take long: a large result is hashed for it.
#[test]
fn machine_is_not_locked_while_an_event_is_made() {
    explore(|| {
        let (shared, writer) = driven(usize::MAX);
        let count = || shared.read(|memo, _| memo.numbers.len());
        // Would wait for itself if the machine were locked.
        shared.step_events((1..=100).map(|number| {
            assert!(count() < number);
            Event::Note(number as u64)
        }));
        assert_eq!(count(), 100);
        close(&shared, writer);
    });
}

#[test]
fn a_failed_journal_refuses_all_later_requests() {
    explore(|| {
        let (shared, writer) = driven(1);
        in_threads(&shared, CALLERS);
        // Every request has been committed, or is refused now.
        shared.step_events([Event::Note(7)]);
        close(&shared, writer);
        let notes = shared.handler();
        let (answered, refused) =
            (notes.answered.lock().unwrap().clone(), notes.refused.lock().unwrap().clone());
        assert!(answered.is_disjoint(&refused));
        let ended: BTreeSet<u64> =
            answered.union(&refused).copied().filter(|one| *one > 0).collect();
        assert_eq!(ended, BTreeSet::from([3, 4, 5, 6]), "a request got no reply and no refusal");
        let durable = notes.durable.lock().unwrap().clone();
        assert_eq!(*notes.carried_out.lock().unwrap(), durable);
        let lost = durable.len() < 7;
        assert_eq!(notes.failures.load(Ordering::SeqCst), usize::from(lost), "{durable:?}");
    });
}

#[test]
fn a_restarted_machine_accepts_requests() {
    explore(|| {
        let (shared, writer) = driven(0);
        in_threads(
            &shared,
            [
                |shared| shared.request_with_next_commit(Event::Note(1), 1),
                |shared| shared.step_events([Event::Note(2)]),
                |shared| {
                    if shared.stopped().is_some() {
                        shared.restart(|_| (Memo::default(), Step::default()));
                    }
                },
            ],
        );
        let again = Arc::clone(&shared);
        let restarted = thread::spawn(move || {
            if again.stopped().is_some() {
                again.restart(|_| (Memo::default(), Step::default()));
            }
            again.request(Event::Count, 9, |_, _| ());
        });
        restarted.join().unwrap();
        close(&shared, writer);
        let notes = shared.handler();
        assert!(notes.answered.lock().unwrap().is_empty());
        assert!(notes.refused.lock().unwrap().contains(&1));
        assert!(notes.carried_out.lock().unwrap().is_empty());
    });
}

#[test]
fn an_alarm_that_is_set_too_late_is_reported() {
    explore(|| {
        let (shared, writer) = driven(usize::MAX);
        let early = Time::from_micros(1) + Span::from_secs(1);
        shared.step_events([Event::WakeAt(early + Span::from_secs(9))]);
        let set = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.set_alarm())
        };
        let alarms = shared.handler().alarms.load(Ordering::SeqCst);
        shared.step_events([Event::WakeAt(early)]);
        let set = set.join().unwrap();
        let reported = shared.handler().alarms.load(Ordering::SeqCst) > alarms;
        assert!(
            set == Some(early) || reported,
            "the alarm at {set:?} is too late and was not reported"
        );
        close(&shared, writer);
    });
}
