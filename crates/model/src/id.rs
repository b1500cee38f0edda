//! Typed ids. Users see UUIDs of version 7, so that ids sort by the time of their creation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::{Builder, Uuid};

use crate::rng::Rng;
use crate::time::Time;

/// An id that could not be read.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("`{given}` is not {wanted}: expected {}", expected(prefix))]
pub struct ParseIdError {
    given: String,
    wanted: &'static str,
    prefix: &'static str,
}

fn expected(prefix: &str) -> String {
    match prefix {
        "" => "a UUID".to_owned(),
        prefix => format!("`{prefix}` followed by a UUID"),
    }
}

/// The bits of an id for the fraction of the millisecond (RFC 9562, 6.2, method 3). So ids sort by the microsecond,
/// and tables ordered by them grow at the end.
const SUB_MILLI_BITS: u32 = 12;
/// The bits before those: milliseconds.
const MILLIS_BITS: u32 = 48;

/// A time at the resolution of ids: in 4,096ths of a millisecond since 1970.
fn moment_of(time: Time) -> u64 {
    const MICROS: u64 = 1_000;
    let millis = time.as_millis().min((1 << MILLIS_BITS) - 1);
    let part = (time.as_micros() % MICROS) * (1 << SUB_MILLI_BITS) / MICROS;
    millis << SUB_MILLI_BITS | part
}

fn uuid_of(moment: u64, rng: &mut Rng) -> Uuid {
    let part = moment & ((1 << SUB_MILLI_BITS) - 1);
    let mut behind = [0; 10];
    behind[..2].copy_from_slice(&(part as u16).to_be_bytes());
    behind[2..].copy_from_slice(&rng.next_u64().to_be_bytes());
    Builder::from_unix_timestamp_millis(moment >> SUB_MILLI_BITS, &behind).into_uuid()
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $wanted:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id: a UUID of version 7 from the driver's time and the machine's own randomness.
            pub fn new(now: Time, rng: &mut Rng) -> Self {
                Self(uuid_of(moment_of(now), rng))
            }

            /// The id with this `uuid`.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// The bare UUID.
            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}", $prefix, self.0.as_hyphenated())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix($prefix)
                    .and_then(|uuid| Uuid::try_parse(uuid).ok())
                    .map(Self)
                    .ok_or_else(|| ParseIdError {
                        given: text.chars().take(MAX_SHOWN).collect(),
                        wanted: $wanted,
                        prefix: $prefix,
                    })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.collect_str(self),
                    false => self.0.serialize(serializer),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if !deserializer.is_human_readable() {
                    return Uuid::deserialize(deserializer).map(Self);
                }
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// How much of a wrong id is repeated in the error: enough to recognise it, too little to flood a log.
const MAX_SHOWN: usize = 64;

uuid_id!(
    /// A task, spelled `task-{uuid}`.
    TaskId, "a task id", "task-"
);
uuid_id!(
    /// A job, spelled `job-{uuid}`.
    JobId, "a job id", "job-"
);
uuid_id!(
    /// A lease, spelled `lease-{uuid}`.
    LeaseId, "a lease id", "lease-"
);
uuid_id!(
    /// An advert, spelled `advert-{uuid}`.
    AdvertId, "an advert id", "advert-"
);
uuid_id!(
    /// An offer, spelled `offer-{uuid}`.
    OfferId, "an offer id", "offer-"
);
uuid_id!(
    /// A worker, spelled as a bare UUID, as `ti_uuid` and `scheduled_ti` show it.
    WorkerId, "a worker id", ""
);

uuid_id!(
    /// A scheduler, spelled as a bare UUID.
    SchedulerId, "a scheduler id", ""
);

impl OfferId {
    /// No offer has a greater id.
    pub const MAX: OfferId = OfferId::from_uuid(Uuid::max());
}

impl TaskId {
    /// A new id after `last`: of the present moment, or of the next free one.
    pub fn after(last: Option<TaskId>, now: Time, rng: &mut Rng) -> TaskId {
        let free = last.map_or(0, |last| last.moment() + 1);
        TaskId(uuid_of(moment_of(now).max(free), rng))
    }

    /// When it was created, in 4,096ths of a millisecond since 1970. Ids sort by it; ids that are each made
    /// [after](TaskId::after) the last have distinct moments. It has 60 bits.
    pub const fn moment(self) -> u64 {
        let (first, _) = self.0.as_u64_pair();
        // The version is between the milliseconds and their fraction.
        let version_and_part = u64::BITS - MILLIS_BITS;
        first >> version_and_part << SUB_MILLI_BITS | first & ((1 << SUB_MILLI_BITS) - 1)
    }

    /// When it was created, to the millisecond.
    pub const fn created_at(self) -> Time {
        Time::from_micros((self.moment() >> SUB_MILLI_BITS) * 1_000)
    }

    /// The first moment of the millisecond of `time`.
    pub fn first_moment(time: Time) -> u64 {
        moment_of(time) >> SUB_MILLI_BITS << SUB_MILLI_BITS
    }
}

impl SchedulerId {
    /// The worker's own API: work from there needs no lease, but room like all other work.
    pub const LOCAL: SchedulerId = SchedulerId::from_uuid(Uuid::nil());
}

/// Counts the incarnations of a node: it grows by one with each start, and grants of an earlier incarnation are void.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The next incarnation.
    pub const fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// A fencing token: unique for each attempt of each incarnation of a scheduler, and growing.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Fence(pub u64);

/// One attempt of a task on one worker: the task and the number of the attempt, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// The number of the attempt, from 1.
    pub number: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.task, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_version_7_sort_by_time_and_round_trip() {
        let mut rng = Rng::new(1);
        let early = TaskId::new(Time::from_micros(1_700_000_000_000_000), &mut rng);
        let mut last = early;
        for micros in 1..=2_000 {
            let next = TaskId::new(Time::from_micros(1_700_000_000_000_000 + micros), &mut rng);
            assert!(last < next, "{micros}");
            last = next;
        }
        assert_eq!(early.uuid().get_version_num(), 7);
        assert!(early.to_string().starts_with("task-"));
        assert_eq!(early.to_string().parse(), Ok(early));
        let json = serde_json::to_string(&early).unwrap();
        assert_eq!(serde_json::from_str::<TaskId>(&json).unwrap(), early);
    }

    #[test]
    fn consecutive_ids_have_distinct_moments_also_when_the_clock_goes_back() {
        let mut rng = Rng::new(1);
        let now = Time::from_micros(1_700_000_000_000_999);
        let first = TaskId::after(None, now, &mut rng);
        let mut last = first;
        for step in 1..10_000_u64 {
            let now = if step < 5_000 { now } else { Time::from_micros(5) };
            let next = TaskId::after(Some(last), now, &mut rng);
            assert!(last < next && last.moment() < next.moment(), "{step}");
            assert_eq!(next.uuid().get_version_num(), 7);
            last = next;
        }
        assert_eq!(first.moment(), moment_of(now));
        assert_eq!(last.moment(), first.moment() + 9_999);
        assert_eq!(TaskId::first_moment(now), 1_700_000_000_000 << 12);
        assert!(TaskId::after(Some(first), Time::MAX, &mut rng) > first);
    }

    #[test]
    fn a_wrong_id_is_named() {
        let error = "job-1".parse::<TaskId>().unwrap_err().to_string();
        assert_eq!(error, "`job-1` is not a task id: expected `task-` followed by a UUID");
        let error = "x".parse::<WorkerId>().unwrap_err().to_string();
        assert!(error.ends_with(": expected a UUID"), "{error}");
        assert!("".parse::<WorkerId>().is_err());
        assert!("task-".parse::<TaskId>().is_err());
    }
}
