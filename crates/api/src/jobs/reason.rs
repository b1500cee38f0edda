//! Why a job waits for workers, in words.

use hypha_market::{NotCounted, RoleShortfall, Shortfall};

/// Why the last advert of a job brought too little.
pub(super) fn describe(shortfall: &Shortfall) -> String {
    if shortfall.is_over_budget {
        return "enough workers offered, but together they cost more than budget_per_hour"
            .to_owned();
    }
    if shortfall.is_not_granted {
        return "enough workers offered, but some did not grant their lease; they are asked again"
            .to_owned();
    }
    let short: Vec<String> =
        shortfall.roles.iter().filter(|role| role.missing > 0).map(describe_role).collect();
    match short.is_empty() {
        true => "too few workers offered".to_owned(),
        false => short.join("; "),
    }
}

/// `worker: 2 of 3 found, and 1 offer costs more than the job pays`.
fn describe_role(role: &RoleShortfall) -> String {
    let needed = role.present + role.missing;
    let mut text = format!("{}: {} of {needed} found", role.role, role.present);
    let refused: Vec<String> =
        role.not_counted.iter().map(|(why, count)| refused(*why, *count)).collect();
    if !refused.is_empty() {
        text += &format!(", and {}", refused.join(", "));
    }
    text
}

fn refused(why: NotCounted, count: u32) -> String {
    let (one, many) = match why {
        NotCounted::Invalid => ("did not answer the advert", "did not answer the advert"),
        NotCounted::TooExpensive => ("costs more than the job pays", "cost more than the job pays"),
        NotCounted::Late => ("came too late", "came too late"),
        NotCounted::Repeated => ("was repeated", "were repeated"),
        NotCounted::TooMany => ("was not among the best", "were not among the best"),
        NotCounted::Expired => ("was not reserved for long", "were not reserved for long"),
    };
    match count {
        1 => format!("1 offer {one}"),
        _ => format!("{count} offers {many}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_is_described_by_role() {
        let role =
            |role: &str, present, missing, not_counted: &[(NotCounted, u32)]| RoleShortfall {
                role: role.parse().unwrap(),
                present,
                missing,
                not_counted: not_counted.iter().copied().collect(),
            };
        let shortfall = Shortfall {
            is_over_budget: false,
            is_not_granted: false,
            roles: vec![
                role("worker", 2, 1, &[(NotCounted::TooExpensive, 1), (NotCounted::Late, 2)]),
                role("parameter_server", 1, 0, &[(NotCounted::Late, 2)]),
            ],
        };
        assert_eq!(
            describe(&shortfall),
            "worker: 2 of 3 found, and 1 offer costs more than the job pays, 2 offers came too late"
        );
        let over = Shortfall { is_over_budget: true, ..shortfall.clone() };
        assert!(describe(&over).contains("budget_per_hour"));
        let withdrawn = Shortfall { is_not_granted: true, ..shortfall };
        assert!(describe(&withdrawn).contains("did not grant"));
    }
}
