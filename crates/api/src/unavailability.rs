//! Why a worker gets no tasks at present, in words.

use hypha_engine::scheduler::{Quarantine, Unavailability};
use hypha_model::RefusalKind;

use crate::caller::{Caller, Role};
use crate::timestamp::Timestamp;

/// The full description, for the view of one worker. Only administrators see the last failure: it may repeat the
/// standard error of another tenant's task.
pub(crate) fn describe(unavailability: &Unavailability, caller: &Caller) -> String {
    match unavailability {
        Unavailability::Draining => "is being removed".to_owned(),
        Unavailability::NotLeased { refused: None } => "no lease yet".to_owned(),
        Unavailability::NotLeased { refused: Some(why) } => match why {
            RefusalKind::Busy => "no lease: it serves another scheduler".to_owned(),
            RefusalKind::Unavailable => "no lease: it is unhealthy, or is stopping".to_owned(),
            RefusalKind::TooSlow => "no lease: the leases that it grants are too short".to_owned(),
            RefusalKind::NotServed => {
                "no lease: its owner serves other organisations only".to_owned()
            }
            RefusalKind::Price => {
                "no lease: its owner asks for a price, and tasks bid none".to_owned()
            }
            why => format!("no lease: {why}"),
        },
        Unavailability::Lost { since, reason } => {
            format!("lost at {}: {reason}", Timestamp(*since))
        }
        Unavailability::Unreachable { since } => {
            format!("unreachable since {}", Timestamp(*since))
        }
        Unavailability::Owner { since, reason } => {
            format!("{} since {}", reason.describe(), Timestamp(*since))
        }
        Unavailability::Unresponsive { since } => {
            format!("unresponsive since {}", Timestamp(*since))
        }
        Unavailability::LeasedToOthers => {
            "other schedulers hold too much of it; more is leased as soon as they hold less"
                .to_owned()
        }
        Unavailability::Quarantined(quarantine) => describe_quarantine(quarantine, caller),
    }
}

/// Why it is quarantined.
fn describe_quarantine(quarantine: &Quarantine, caller: &Caller) -> String {
    let failures = match quarantine.failures {
        1 => "a failure".to_owned(),
        failures => format!("{failures} failures in a row"),
    };
    let until = Timestamp(quarantine.until);
    match caller.role {
        Role::Admin => format!(
            "quarantined until {until} after {failures}, the last: {}",
            quarantine.last_failure
        ),
        Role::User => format!("quarantined until {until} after {failures}"),
    }
}

/// The kind of unavailability, to be counted.
pub(crate) fn kind_label(unavailability: &Unavailability) -> &'static str {
    match unavailability {
        Unavailability::Draining => "being removed",
        Unavailability::NotLeased { refused: Some(RefusalKind::NotServed) } => {
            "serves other organisations only"
        }
        Unavailability::NotLeased { refused: Some(RefusalKind::Price) } => "asks for a price",
        Unavailability::NotLeased { .. } => "no lease",
        Unavailability::Lost { .. } => "lost",
        Unavailability::Unreachable { .. } => "unreachable",
        Unavailability::Owner { reason, .. } => reason.describe(),
        Unavailability::Unresponsive { .. } => "unresponsive",
        Unavailability::LeasedToOthers => "held by other schedulers",
        Unavailability::Quarantined(_) => "quarantined after failures",
    }
}

#[cfg(test)]
mod tests {
    use hypha_engine::OwnerReason;
    use hypha_model::Time;

    use super::*;

    #[test]
    fn each_reason_has_its_own_text() {
        let since = Time::from_micros(1_700_000_000_000_000);
        let quarantine =
            |failures| Quarantine { until: since, failures, last_failure: "exit status 1".into() };
        let check = |unavailability: &Unavailability, expected: &str| {
            assert_eq!(describe(unavailability, &Caller::ANONYMOUS_ADMIN), expected)
        };
        check(&Unavailability::Draining, "is being removed");
        check(&Unavailability::NotLeased { refused: None }, "no lease yet");
        let busy = Unavailability::NotLeased { refused: Some(RefusalKind::Busy) };
        check(&busy, "no lease: it serves another scheduler");
        let lost = Unavailability::Lost { since, reason: "it was stopped" };
        check(&lost, "lost at 2023-11-14T22:13:20.000Z: it was stopped");
        check(&Unavailability::Unreachable { since }, "unreachable since 2023-11-14T22:13:20.000Z");
        check(
            &Unavailability::Owner { since, reason: OwnerReason::Paused },
            "paused by its owner since 2023-11-14T22:13:20.000Z",
        );
        check(
            &Unavailability::Unresponsive { since },
            "unresponsive since 2023-11-14T22:13:20.000Z",
        );
        check(
            &Unavailability::LeasedToOthers,
            "other schedulers hold too much of it; more is leased as soon as they hold less",
        );
        check(
            &Unavailability::Quarantined(quarantine(3)),
            "quarantined until 2023-11-14T22:13:20.000Z after 3 failures in a row, \
             the last: exit status 1",
        );
        let user = Caller { role: Role::User, ..Caller::ANONYMOUS_ADMIN };
        assert_eq!(
            describe(&Unavailability::Quarantined(quarantine(1)), &user),
            "quarantined until 2023-11-14T22:13:20.000Z after a failure"
        );
        for kind in RefusalKind::ALL {
            let refused = Unavailability::NotLeased { refused: Some(kind) };
            assert!(describe(&refused, &user).starts_with("no lease: "));
            let expected = match kind {
                RefusalKind::NotServed => "serves other organisations only",
                RefusalKind::Price => "asks for a price",
                _ => "no lease",
            };
            assert_eq!(kind_label(&refused), expected);
        }
    }
}
