//! The hot paths as scenarios whose instructions `cargo xtask counts` counts.
//!
//! A scenario prepares its state and then repeats one operation for a given number of rounds. It runs under callgrind
//! with that many rounds and with twice as many; the difference is the cost of the rounds, on whichever thread they
//! ran, without the preparation. Nothing here depends on the time or on chance, and memory comes from the system's
//! allocator: the one of the `hypha` binary returns memory by the clock.

mod crowd;
mod cycle;
mod observe;
mod place;
mod predict;
mod store;
mod tasks;
mod wire;
mod worker;

use anyhow::{Context, bail};

struct Scenario {
    name: &'static str,
    /// Enough that occasional growth of a table does not show.
    rounds: u64,
    run: fn(rounds: u64) -> anyhow::Result<()>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "place", rounds: 2_000, run: place::run },
    Scenario { name: "place_unserved", rounds: 2_000, run: place::unserved },
    Scenario { name: "predict", rounds: 2_000, run: predict::run },
    Scenario { name: "observe", rounds: 2_000, run: observe::run },
    Scenario { name: "cycle", rounds: 2_000, run: cycle::run },
    Scenario { name: "crowd", rounds: 2_000, run: crowd::predictive },
    Scenario { name: "crowd_fifo", rounds: 2_000, run: crowd::fifo },
    Scenario { name: "worker", rounds: 2_000, run: worker::run },
    Scenario { name: "encode", rounds: 500, run: wire::encode },
    Scenario { name: "decode", rounds: 500, run: wire::decode },
    Scenario { name: "commit", rounds: 300, run: store::run },
];

/// Without arguments it lists the scenarios with their rounds; with both it runs one.
fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => {
            for Scenario { name, rounds, .. } in SCENARIOS {
                println!("{name} {rounds}");
            }
            Ok(())
        }
        [name, rounds] => {
            let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
            let scenario = scenario.with_context(|| format!("there is no scenario {name}"))?;
            (scenario.run)(rounds.parse().context("the number of rounds is not a number")?)
        }
        _ => bail!("give a scenario and a number of rounds, or nothing to list the scenarios"),
    }
}
