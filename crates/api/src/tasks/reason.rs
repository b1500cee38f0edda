//! Why a task is on its worker, or why it waits, in words.

use hypha_engine::scheduler::TaskView;
use hypha_model::{Refusal, RefusalKind, Time};
use hypha_placement::Explanation;

use crate::timestamp::Timestamp;

/// Why a task waits.
pub(crate) fn queued_reason(view: &TaskView, delayed: Option<Time>, now: Time) -> String {
    if let Some(until) = delayed {
        let seconds = until.since(now).as_secs_f64();
        let error = view.last_error.as_deref().unwrap_or("no reason is known");
        let at = Timestamp(until);
        return format!(
            "the next attempt is in {seconds:.1} s (at {at}), the last failed: {error}"
        );
    }
    view.explanation
        .as_ref()
        .map_or_else(|| "not considered for placement yet".to_owned(), summarize_decision)
}

/// A decision in one sentence.
pub(crate) fn summarize_decision(explanation: &Explanation) -> String {
    if let Some(chosen) = &explanation.chosen {
        return format!("goes to worker {} by {}", chosen.worker, explanation.strategy);
    }
    match (explanation.refusals.total(), explanation.not_looked_at) {
        (0, 0) => "there is no worker".to_owned(),
        (0, 1) => "the only worker does not fit; the task's explanation says why".to_owned(),
        (0, others) => {
            format!("none of {others} workers fits; the task's explanation says why")
        }
        _ => {
            let told = |(kind, count): (RefusalKind, u32)| (kind, kind.to_string(), count);
            refused_by_all(explanation.refusals.iter().map(told).collect())
        }
    }
}

/// Why no worker can take a task: the refusals, the most frequent first.
pub(crate) fn refused_by_all(mut refusals: Vec<(RefusalKind, String, u32)>) -> String {
    refusals.sort_by_key(|(kind, _, count)| (std::cmp::Reverse(*count), *kind));
    let reasons: Vec<String> =
        refusals.iter().map(|(_, why, count)| format!("{count} × {why}")).collect();
    format!("no worker can take it: {}", reasons.join(", "))
}

/// Why a worker refuses a task.
pub(crate) fn describe_refusal(refusal: &Refusal) -> String {
    let Refusal { kind, needed, present } = *refusal;
    if needed == 0 {
        return kind.to_string();
    }
    match kind {
        RefusalKind::Cpu => {
            let cores = if needed == 1_000 { "core" } else { "cores" };
            format!("needs {} {cores}, has {}", from_milli(needed), from_milli(present))
        }
        RefusalKind::Memory => format!("needs {} of memory, has {}", bytes(needed), bytes(present)),
        RefusalKind::Storage => format!("needs {} of disk, has {}", bytes(needed), bytes(present)),
        RefusalKind::Gpus => format!("needs {}, has {present}", gpus(needed)),
        RefusalKind::GpuMemory => {
            format!("needs {} with that much memory, has {present}", gpus(needed))
        }
        RefusalKind::GpuShare => {
            format!("needs {} with that share free, has {present}", gpus(needed))
        }
        RefusalKind::TooFar => {
            format!("is {} ms away, allowed are {} ms", from_milli(present), from_milli(needed))
        }
        RefusalKind::TooSlow => format!(
            "would take {:.1} s, and {:.1} s are left",
            present as f64 / 1e6,
            needed as f64 / 1e6
        ),
        RefusalKind::Unavailable
        | RefusalKind::NotServed
        | RefusalKind::Price
        | RefusalKind::Executor
        | RefusalKind::Model
        | RefusalKind::Busy
        | RefusalKind::Reserved
        | RefusalKind::TriedBefore => refusal.to_string(),
    }
}

fn gpus(count: u64) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

fn from_milli(amount: u64) -> f64 {
    amount as f64 / 1_000.0
}

/// Bytes with a unit, to two decimals.
fn bytes(amount: u64) -> String {
    let units = [(1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let unit = units.into_iter().find(|(size, _)| amount as f64 >= *size);
    let (size, name) = unit.unwrap_or((1.0, "B"));
    let rounded = (amount as f64 / size * 100.0).round() / 100.0;
    format!("{rounded} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_words() {
        let say = |kind, needed, present| describe_refusal(&Refusal { kind, needed, present });
        assert_eq!(
            say(RefusalKind::Memory, 1_000_000_000_000_000_000, 16_000_000_000),
            "needs 1 EB of memory, has 16 GB"
        );
        assert_eq!(say(RefusalKind::Cpu, 4_000, 500), "needs 4 cores, has 0.5");
        assert_eq!(
            say(RefusalKind::Storage, 1_555_000_000, 999),
            "needs 1.56 GB of disk, has 999 B"
        );
        assert_eq!(say(RefusalKind::Gpus, 1, 0), "needs 1 GPU, has 0");
        assert_eq!(say(RefusalKind::Gpus, 2, 1), "needs 2 GPUs, has 1");
        assert_eq!(say(RefusalKind::Model, 0, 0), "model not served");
        assert_eq!(say(RefusalKind::Busy, 0, 0), "busy");
        assert!(!RefusalKind::ALL.map(|kind| say(kind, 1, 0)).contains(&String::new()));
    }
}
