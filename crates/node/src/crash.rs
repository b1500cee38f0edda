//! Points at which a test aborts this process, to show that nothing is lost there. They exist only with the
//! `crash-points` feature, which is on in the build of those tests and in no other.

/// A point after an action of which other parties do not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashPoint {
    /// Tasks are accepted in memory, and not on the disk.
    AcceptedBeforeCommit,
    /// Results are recorded in memory, and not on the disk.
    ResultBeforeCommit,
    /// Records are on the disk; the replies and dispatches that wait for them are not sent.
    CommittedBeforeSend,
    /// Records are on the disk and messages to workers are sent; replies to clients are not.
    SentBeforeReply,
    /// A worker has a result, and has not reported it.
    RanBeforeReport,
}

/// Aborts the process if a test has chosen this point.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn crash_point(_: CrashPoint) {}

#[cfg(feature = "crash-points")]
pub(crate) use enabled::crash_point;

#[cfg(feature = "crash-points")]
mod enabled {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::CrashPoint;

    /// `HYPHA_CRASH_AT=NAME:COUNT`: the point, and how many times it is passed before the process aborts.
    struct CrashPlan {
        point: String,
        left: AtomicU64,
    }

    pub(crate) fn crash_point(point: CrashPoint) {
        static PLAN: OnceLock<Option<CrashPlan>> = OnceLock::new();
        let plan = PLAN.get_or_init(|| {
            let given = std::env::var("HYPHA_CRASH_AT").ok()?;
            let (point, count) = given.split_once(':')?;
            Some(CrashPlan { point: point.to_owned(), left: AtomicU64::new(count.parse().ok()?) })
        });
        let Some(plan) = plan else { return };
        if plan.point == format!("{point:?}") && plan.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            eprintln!("crash point {point:?}");
            // Messages that were wrongly released before have time to leave, so that the test notices them.
            std::thread::sleep(std::time::Duration::from_millis(100));
            std::process::abort();
        }
    }
}
