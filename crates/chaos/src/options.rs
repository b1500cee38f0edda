//! The command line of `cargo xtask chaos`.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The size of a full run.
const ROUNDS: u32 = 50;
const WORKERS: u32 = 2;
/// Each is a process; more show nothing that fewer do not.
const MAX_WORKERS: u32 = 16;
/// About a day.
const MAX_ROUNDS: u32 = 10_000;

/// How long a run is, and the seed of its plan.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// How many rounds.
    pub rounds: u32,
    /// The seed of the run's plan. Timing still depends on the machine.
    pub seed: u64,
    /// How many workers.
    pub workers: u32,
    /// The program to use instead of building one.
    pub hypha: Option<PathBuf>,
}

impl Options {
    /// Parses the arguments; an error says in one line what to give instead.
    pub fn read(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options { rounds: ROUNDS, seed: fresh(), workers: WORKERS, hypha: None };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--rounds" => options.rounds = number(word, value, MAX_ROUNDS.into())? as u32,
                "--workers" => options.workers = number(word, value, MAX_WORKERS.into())? as u32,
                "--seed" => {
                    options.seed =
                        value.parse().map_err(|_| format!("--seed {value}: give a number"))?;
                }
                "--hypha" => options.hypha = Some(value.into()),
                _ => return Err(format!("{word}: give --rounds, --seed, --workers or --hypha")),
            }
        }
        Ok(options)
    }
}

fn number(name: &str, value: &str, most: u64) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("{name} {value}: give a number from 1 to {most}"))
}

/// Another plan each time; short enough to type.
fn fresh() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) % 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_line(line: &str) -> Result<Options, String> {
        Options::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_parsed_and_invalid_ones_named() {
        let options = read_line("--rounds 6 --seed 18 --workers 3 --hypha a/hypha").expect("read");
        let hypha = Some(PathBuf::from("a/hypha"));
        assert_eq!(options, Options { rounds: 6, seed: 18, workers: 3, hypha });
        assert_eq!(read_line("").expect("read").rounds, ROUNDS);
        for wrong in ["--rounds", "--rounds 0", "--rounds x", "--workers 17", "--seed -1", "fast 1"]
        {
            let word = wrong.split(' ').next().expect("a word");
            assert!(read_line(wrong).expect_err(wrong).contains(word), "{wrong}");
        }
    }
}
