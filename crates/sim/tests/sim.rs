//! Whole worlds.

use hypha_sim::check;
use hypha_sim::scenario::Scope;

#[test]
fn seeds_hold_every_promise() {
    let scope = Scope::default();
    for seed in 0..3000 {
        if let Some(violation) = check::run(seed, &scope).violation {
            panic!("seed {seed}: {violation}");
        }
    }
}
