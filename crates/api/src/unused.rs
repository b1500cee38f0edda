//! Why a worker is given nothing at present, in words.

use hypha_engine::scheduler::{LeftAlone, Unused};
use hypha_model::RefusalKind;

use crate::stamp::Stamp;

/// All of it, for whoever looks at one worker.
pub(crate) fn in_words(unused: &Unused) -> String {
    match unused {
        Unused::Removed => "is being removed".to_owned(),
        Unused::NotLeased { refused: None } => "no lease yet".to_owned(),
        Unused::NotLeased { refused: Some(why) } => match why {
            RefusalKind::Busy => "no lease: it serves another scheduler".to_owned(),
            RefusalKind::Unavailable => "no lease: it is not well, or is being stopped".to_owned(),
            RefusalKind::TooSlow => "no lease: it grants only such as are too short".to_owned(),
            why => format!("no lease: {why}"),
        },
        Unused::Lost { since, reason } => format!("lost at {}: {reason}", Stamp(*since)),
        Unused::Unreached { since } => {
            format!("could not be reached at {}, and has not been found well since", Stamp(*since))
        }
        Unused::Late { since } => {
            format!("owes an answer, and has said nothing since {}", Stamp(*since))
        }
        Unused::LeasedToOthers => {
            "other schedulers hold too much of it; more is leased as soon as they hold less"
                .to_owned()
        }
        Unused::LeftAlone(alone) => of_left_alone(alone),
    }
}

/// Why one that failed too often is left alone.
fn of_left_alone(alone: &LeftAlone) -> String {
    let failures = match alone.failures {
        1 => "a failure".to_owned(),
        failures => format!("{failures} failures in a row"),
    };
    format!("left alone until {} after {failures}, the last: {}", Stamp(alone.until), alone.last)
}

/// The kind of it, to be counted.
pub(crate) fn in_short(unused: &Unused) -> &'static str {
    match unused {
        Unused::Removed => "being removed",
        Unused::NotLeased { .. } => "no lease",
        Unused::Lost { .. } => "lost",
        Unused::Unreached { .. } => "not reached",
        Unused::Late { .. } => "does not answer",
        Unused::LeasedToOthers => "held by other schedulers",
        Unused::LeftAlone(_) => "left alone after failures",
    }
}

#[cfg(test)]
mod tests {
    use hypha_model::Time;

    use super::*;

    #[test]
    fn every_reason_says_something_else() {
        let since = Time::from_micros(1_700_000_000_000_000);
        let alone = |failures| LeftAlone { until: since, failures, last: "exit status 1".into() };
        let check = |unused: &Unused, expected: &str| assert_eq!(in_words(unused), expected);
        check(&Unused::Removed, "is being removed");
        check(&Unused::NotLeased { refused: None }, "no lease yet");
        let busy = Unused::NotLeased { refused: Some(RefusalKind::Busy) };
        check(&busy, "no lease: it serves another scheduler");
        let lost = Unused::Lost { since, reason: "it was stopped" };
        check(&lost, "lost at 2023-11-14T22:13:20.000Z: it was stopped");
        check(
            &Unused::Unreached { since },
            "could not be reached at 2023-11-14T22:13:20.000Z, and has not been found well since",
        );
        check(
            &Unused::Late { since },
            "owes an answer, and has said nothing since 2023-11-14T22:13:20.000Z",
        );
        check(
            &Unused::LeasedToOthers,
            "other schedulers hold too much of it; more is leased as soon as they hold less",
        );
        check(
            &Unused::LeftAlone(alone(3)),
            "left alone until 2023-11-14T22:13:20.000Z after 3 failures in a row, \
             the last: exit status 1",
        );
        assert!(of_left_alone(&alone(1)).contains("after a failure, "));
        for kind in RefusalKind::ALL {
            let refused = Unused::NotLeased { refused: Some(kind) };
            assert!(in_words(&refused).starts_with("no lease: "));
            assert_eq!(in_short(&refused), "no lease");
        }
    }
}
