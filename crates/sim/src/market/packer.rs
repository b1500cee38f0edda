//! A central packer that knows every job and its exact run time: first-fit decreasing over time.
//!
//! Jobs are placed in the order of their work, the largest first, each at the earliest time at which all of its members fit
//! at once, each member on the first worker with room for as long as it runs.

use super::plain::PlainJob;

/// A member that is placed: from, to, cores.
type Placed = (f64, f64, u64);

/// When the last job ends, in seconds after the first could begin.
pub fn makespan_s(workers: usize, cores: u64, jobs: &[PlainJob]) -> f64 {
    let mut order: Vec<&PlainJob> = jobs.iter().collect();
    order.sort_by(|a, b| core_s(b).total_cmp(&core_s(a)));
    let mut placed: Vec<Vec<Placed>> = vec![Vec::new(); workers];
    let mut ends: Vec<f64> = Vec::new();
    for job in order {
        let mut times: Vec<f64> =
            ends.iter().copied().filter(|at| *at > job.at_s).chain([job.at_s]).collect();
        times.sort_by(f64::total_cmp);
        times.dedup();
        let found = times.into_iter().find_map(|at| Some((at, place(&placed, cores, job, at)?)));
        for (worker, member) in found.into_iter().flat_map(|(_, members)| members) {
            ends.push(member.1);
            placed[worker].push(member);
        }
    }
    ends.into_iter().fold(0.0, f64::max)
}

/// The time that no schedule beats: all work on all cores, or the last arrival with its longest run.
pub fn bound_s(workers: usize, cores: u64, jobs: &[PlainJob]) -> f64 {
    let longest = |job: &PlainJob| job.roles.iter().map(|(_, _, run_s)| *run_s).fold(0.0, f64::max);
    let alone = jobs.iter().map(|job| job.at_s + longest(job)).fold(0.0, f64::max);
    work_s(workers, cores, jobs).max(alone)
}

/// The work of all jobs, in seconds of all workers.
pub fn work_s(workers: usize, cores: u64, jobs: &[PlainJob]) -> f64 {
    jobs.iter().map(core_s).sum::<f64>() / (workers as f64 * cores as f64)
}

fn core_s(job: &PlainJob) -> f64 {
    let role =
        |(members, cores, run_s): &(u32, u64, f64)| f64::from(*members) * *cores as f64 * run_s;
    job.roles.iter().map(role).sum()
}

/// Where the members of a job that begins at `at` would run, if all fit.
fn place(
    placed: &[Vec<Placed>],
    cores: u64,
    job: &PlainJob,
    at: f64,
) -> Option<Vec<(usize, Placed)>> {
    let mut members: Vec<(usize, Placed)> = Vec::new();
    for (count, needs, run_s) in &job.roles {
        let (until, mut left) = (at + run_s, *count);
        for (worker, of_worker) in placed.iter().enumerate() {
            while left > 0 {
                let own = members.iter().filter(|(it, _)| *it == worker).map(|(_, it)| it);
                let all: Vec<&Placed> = of_worker.iter().chain(own).collect();
                if peak(&all, at, until) + needs > cores {
                    break;
                }
                members.push((worker, (at, until, *needs)));
                left -= 1;
            }
        }
        if left > 0 {
            return None;
        }
    }
    Some(members)
}

/// The most cores that are in use at a time between the two.
fn peak(placed: &[&Placed], from: f64, to: f64) -> u64 {
    let overlapping = || placed.iter().filter(|it| it.0 < to && it.1 > from);
    // The use only grows where a member begins.
    let starts = overlapping().map(|it| it.0.max(from));
    let at =
        |time: f64| overlapping().filter(|it| it.0 <= time && it.1 > time).map(|it| it.2).sum();
    starts.map(at).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(at_s: f64, members: u32, cores: u64, run_s: f64) -> PlainJob {
        PlainJob { at_s, roles: vec![(members, cores, run_s)] }
    }

    #[test]
    fn gangs_begin_together_and_fit() {
        let jobs = [job(0.0, 2, 1_000, 10.0), job(0.0, 1, 1_000, 5.0), job(3.0, 1, 500, 4.0)];
        assert_eq!(makespan_s(1, 1_000, &jobs), 9.0, "two members never fit one worker");
        assert_eq!(makespan_s(2, 1_000, &jobs), 15.0);
        assert_eq!(bound_s(2, 1_000, &jobs), 13.5);
        assert_eq!(makespan_s(4, 1_000, &jobs), 10.0);
    }
}
