//! What the owner of this machine wants at present: a file in `data_dir` says whether the worker is paused, the terms in
//! which hours it may be used, and the load of other processes whether the owner uses the machine.

mod other_use;
mod process_tree;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hypha_config::OfferConfig;
use hypha_engine::OwnerState;
use hypha_market::{Hours, LocalTime, OwnerUse, Weekday, YieldTerms};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::epoch::write_atomically;
use super::host::WorkerInput;
use crate::NodeError;
use crate::clock::Clock;
use other_use::OtherUseMeter;

/// While it exists, the worker is paused.
const PAUSED_FILE: &str = "paused";

/// How often the owner's wishes are looked at: an owner who pauses the worker waits for it to take effect.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often the load of other processes is measured: it takes some milliseconds where there are thousands of them.
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);

/// Pauses or resumes the worker with this `data_dir`, whether it runs or not. Returns whether that is a change.
pub fn set_paused(data_dir: &Path, is_paused: bool) -> io::Result<bool> {
    let was_paused = fs::exists(data_dir.join(PAUSED_FILE))?;
    match (was_paused, is_paused) {
        (false, true) => {
            fs::create_dir_all(data_dir)?;
            write_atomically(data_dir, PAUSED_FILE, "`hypha worker resume` removes this file")?;
        }
        (true, false) => {
            fs::remove_file(data_dir.join(PAUSED_FILE))?;
            File::open(data_dir)?.sync_all()?;
        }
        _ => {}
    }
    Ok(was_paused != is_paused)
}

/// See the module documentation.
pub(super) struct OwnerWatch {
    data_dir: PathBuf,
    hours: Hours,
    time_zone: TimeZone,
    yields: Option<YieldWatch>,
    state: OwnerState,
}

/// Watches the load of other processes.
struct YieldWatch {
    terms: YieldTerms,
    clock: Clock,
    meter: OtherUseMeter,
    owner: OwnerUse,
    next: Instant,
}

impl OwnerWatch {
    pub(super) fn new(
        data_dir: &Path,
        offer: &OfferConfig,
        clock: Clock,
    ) -> Result<OwnerWatch, NodeError> {
        let hours = offer.terms.hours.clone();
        let yields = offer.terms.yields.map(|terms| YieldWatch::new(terms, offer, clock));
        let mut watch = OwnerWatch {
            data_dir: data_dir.to_owned(),
            time_zone: time_zone(offer)?,
            hours,
            yields: yields.transpose()?,
            state: OwnerState::default(),
        };
        watch.state = watch.look().map_err(|error| {
            NodeError::failed(format!("cannot use data_dir {}: {error}", data_dir.display()))
        })?;
        if let Some(reason) = watch.state.refusal() {
            tracing::warn!("takes no new tasks: {}", reason.describe());
        }
        Ok(watch)
    }

    /// The state when it was last looked at.
    pub(super) fn state(&self) -> OwnerState {
        self.state
    }

    /// Reports changes until `stop`.
    pub(super) async fn run(mut self, events: mpsc::Sender<WorkerInput>, stop: CancellationToken) {
        let watch = async {
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                // What cannot be read now stays as it was.
                let Ok(state) = self.look() else { continue };
                if state != self.state {
                    self.changed(state, &events).await;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = watch => {}
        }
    }

    async fn changed(&mut self, state: OwnerState, events: &mpsc::Sender<WorkerInput>) {
        let before = std::mem::replace(&mut self.state, state).refusal();
        match state.refusal() {
            same if same == before => {}
            Some(reason) => tracing::info!("takes no new tasks: {}", reason.describe()),
            None => tracing::info!("takes tasks again"),
        }
        let _ = events.send(WorkerInput::OwnerChanged(state)).await;
    }

    fn look(&mut self) -> io::Result<OwnerState> {
        Ok(OwnerState {
            is_paused: fs::exists(self.data_dir.join(PAUSED_FILE))?,
            is_off_hours: !self.is_within_hours(Timestamp::now()),
            is_used_by_owner: match &mut self.yields {
                Some(watch) => watch.look(self.state.is_used_by_owner)?,
                None => false,
            },
        })
    }

    fn is_within_hours(&self, now: Timestamp) -> bool {
        // A time that cannot be told is not held against the schedulers.
        self.hours.is_always()
            || local_time(&self.time_zone, now).is_none_or(|now| self.hours.contains(now))
    }
}

impl YieldWatch {
    fn new(terms: YieldTerms, offer: &OfferConfig, clock: Clock) -> Result<YieldWatch, NodeError> {
        let with_gpus = terms.gpu_above_permille.is_some();
        let meter = OtherUseMeter::new(offer.except.clone(), with_gpus).map_err(|error| {
            let problem = format!("cannot measure what other processes use: {error}");
            NodeError::failed(format!("{problem}; remove [offer.yield] to start without it"))
        })?;
        let next = Instant::now() + MEASURE_INTERVAL;
        Ok(YieldWatch { terms, clock, meter, owner: OwnerUse::default(), next })
    }

    /// Whether the machine is used by its owner: as `before`, until it is time to measure again.
    fn look(&mut self, before: bool) -> io::Result<bool> {
        if Instant::now() < self.next {
            return Ok(before);
        }
        self.next = Instant::now() + MEASURE_INTERVAL;
        let other = tokio::task::block_in_place(|| self.meter.measure())?;
        Ok(self.owner.measured(self.clock.now(), other, &self.terms))
    }
}

/// The time zone of the hours. It does not matter if all hours are allowed.
fn time_zone(offer: &OfferConfig) -> Result<TimeZone, NodeError> {
    match &offer.time_zone {
        Some(zone) => Ok(zone.clone()),
        None if offer.terms.hours.is_always() => Ok(TimeZone::UTC),
        None => TimeZone::try_system().map_err(|error| {
            let problem = format!("cannot tell this system's time zone: {error}");
            NodeError::configuration(format!("{problem}; set time_zone in [offer]"))
        }),
    }
}

/// What the clock and the calendar show there.
fn local_time(zone: &TimeZone, at: Timestamp) -> Option<LocalTime> {
    let local = zone.to_datetime(at);
    let day = u8::try_from(local.weekday().to_monday_zero_offset()).ok()?;
    let minute = u16::try_from(local.hour()).ok()? * 60 + u16::try_from(local.minute()).ok()?;
    LocalTime::new(Weekday::from_monday(day)?, minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(data_dir: &Path, offer: &OfferConfig) -> OwnerWatch {
        OwnerWatch::new(data_dir, offer, Clock::new()).unwrap()
    }

    #[test]
    fn pause_is_seen_by_a_worker_that_starts_later() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().join("new");
        let is_paused = || watch(&data_dir, &OfferConfig::default()).state().is_paused;
        assert!(!is_paused());
        for (wanted, is_change) in [(true, true), (true, false), (false, true), (false, false)] {
            assert_eq!(set_paused(&data_dir, wanted).unwrap(), is_change, "{wanted}");
            assert_eq!(is_paused(), wanted);
        }
    }

    #[test]
    fn hours_follow_the_clock_of_the_place() {
        let directory = tempfile::tempdir().unwrap();
        let mut offer = OfferConfig::default();
        offer.terms.hours = Hours::parse(["Mon-Fri 18:00-08:00"]).unwrap();
        // Monday: in Berlin, the clock is two hours ahead of UTC in July and one in January.
        let cases = [
            ("UTC", "2026-07-06T17:59:00Z", false),
            ("UTC", "2026-07-06T18:00:00Z", true),
            ("Europe/Berlin", "2026-07-06T15:59:00Z", false),
            ("Europe/Berlin", "2026-07-06T16:00:00Z", true),
            ("Europe/Berlin", "2026-01-05T16:00:00Z", false),
            ("Europe/Berlin", "2026-01-05T17:00:00Z", true),
            // Friday night ends on Saturday morning there, while it is Saturday 15:00 in Auckland.
            ("Europe/Berlin", "2026-07-11T03:00:00Z", true),
            ("Pacific/Auckland", "2026-07-11T03:00:00Z", false),
        ];
        for (zone, at, expected) in cases {
            offer.time_zone = Some(TimeZone::get(zone).unwrap());
            let watch = watch(directory.path(), &offer);
            let at: Timestamp = at.parse().unwrap();
            assert_eq!(watch.is_within_hours(at), expected, "{zone} {at}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn changes_are_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let (events, mut inputs) = mpsc::channel(8);
        let stop = CancellationToken::new();
        let watch = watch(directory.path(), &OfferConfig::default());
        let running = tokio::spawn(watch.run(events, stop.clone()));
        for is_paused in [true, false] {
            set_paused(directory.path(), is_paused).unwrap();
            let changed = tokio::time::timeout(Duration::from_secs(60), inputs.recv()).await;
            let Some(WorkerInput::OwnerChanged(state)) = changed.unwrap() else { panic!() };
            assert_eq!(state, OwnerState { is_paused, ..OwnerState::default() });
        }
        stop.cancel();
        running.await.unwrap();
        assert!(inputs.recv().await.is_none(), "nothing else has changed");
    }
}
