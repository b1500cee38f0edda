//! Points at which a test lets this process die, to show that nothing is lost there. In a build without the
//! `crash-points` feature, which is every build but that of those tests, there are none.

/// Where something is done and not yet known elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashPoint {
    /// Tasks were accepted in memory, and are not on the disk.
    AcceptedBeforeCommit,
    /// Results were taken in memory, and are not on the disk.
    ResultBeforeCommit,
    /// Something is on the disk, and the answers and dispatches that wait for it were not sent.
    CommittedBeforeSend,
    /// Everything is on the disk, workers were told, clients were not.
    SentBeforeReply,
    /// A worker has a result, and has not sent it.
    RanBeforeReport,
}

/// Dies here if the test says so.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn crash_point(_: CrashPoint) {}

#[cfg(feature = "crash-points")]
pub(crate) use enabled::crash_point;

#[cfg(feature = "crash-points")]
mod enabled {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::CrashPoint;

    /// `HYPHA_CRASH_AT=NAME:COUNT`, the point and how many times it is passed before.
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
            // What was wrongly let out before gets away, and shows.
            std::thread::sleep(std::time::Duration::from_millis(100));
            std::process::abort();
        }
    }
}
