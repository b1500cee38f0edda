//! `cargo xtask counts`: counts the instructions of the hot paths, and compares them with the stored counts.
//!
//! Times on a shared machine differ by more than most regressions cost; instructions hardly differ at all.

mod baseline;
mod callgrind;

use std::path::Path;

use anyhow::bail;

use crate::{Outcome, cargo};
use baseline::{COUNTS_FILE, CountChange, InstructionCounts, RATIOS, Ratio};

pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<Outcome> {
    let renew = match arguments {
        [] => false,
        [word] if word == "--renew" => true,
        _ => {
            eprintln!("xtask counts: give --renew to write new counts, or nothing to compare");
            return Ok(Outcome::InvalidUsage);
        }
    };
    if let Some(why) = unavailable() {
        bail!("{why}");
    }
    let program = callgrind::build(root)?;
    let counted = callgrind::count_all(root, &program)?;
    if renew {
        counted.write(root)?;
        println!("counts: {COUNTS_FILE} has new counts; say in the commit why they changed");
        return Ok(Outcome::Passed);
    }
    let stored = InstructionCounts::read(root)?;
    Ok(if report(&stored, &counted) { Outcome::Passed } else { Outcome::Failed })
}

/// Why instructions cannot be counted on this machine, if they cannot.
pub(crate) fn unavailable() -> Option<&'static str> {
    // The C library has other memory copies and other mathematics for processors without these.
    let has_feature = |name: &str| {
        let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        known.split_whitespace().any(|word| word == name)
    };
    if std::env::consts::ARCH != "x86_64" || !has_feature("avx2") || !has_feature("fma") {
        return Some("the counts are those of an x86-64 processor with AVX2 and FMA");
    }
    let has_valgrind = cargo::succeeds("valgrind", &["--version"]);
    (!has_valgrind).then_some("valgrind is not installed; install the package of this name")
}

/// Prints each scenario with its stored count; returns whether all are within the tolerance.
fn report(stored: &InstructionCounts, counted: &InstructionCounts) -> bool {
    println!("{:<16}{:>14}{:>14}{:>9}", "counts", "stored", "now", "");
    let mut passed = true;
    for (name, before, now) in baseline::pairs(stored, counted) {
        let verdict = CountChange::of(before, now);
        let shown = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        println!("{name:<16}{:>14}{:>14}  {verdict}", shown(before), shown(now));
        passed &= verdict.passes();
    }
    for ratio in &RATIOS {
        let Ratio { name, of, most_percent } = ratio;
        let shown = ratio.percent(counted).map_or("?".to_owned(), |percent| percent.to_string());
        let failed = if ratio.passes(counted) { "" } else { ": FAILED" };
        println!("{name} is {shown} % of {of}, at most {most_percent} %{failed}");
        passed &= ratio.passes(counted);
    }
    if !passed {
        eprintln!(
            "counts: {} holds the profiles (`callgrind_annotate FILE`). If the cost is worth it, write the new \
             figures with `cargo xtask counts --renew` and commit them with the reason",
            callgrind::PROFILES
        );
    }
    passed
}
