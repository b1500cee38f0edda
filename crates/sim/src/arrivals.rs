//! The moments at which requests arrive. Each function returns `count` moments in ascending order and then
//! the end of the run, in any unit: the caller stretches the whole to the load that it wants.

use hypha_model::Rng;

use crate::trace::Trace;

/// Independent arrivals. The run ends with the request after the last, which makes the moments exactly those
/// of a Poisson process conditioned on the number of arrivals.
pub(crate) fn poisson(count: usize, rng: &mut Rng) -> Vec<f64> {
    let mut now = 0.0;
    let next = |_| {
        now += rng.exponential();
        now
    };
    (0..=count).map(next).collect()
}

/// A Poisson process that is switched on for [`ON_S`] and off for [`OFF_S`], alternately. The switching is
/// regular: with random lengths the longest burst of a run decides its outcome, and seeds differ more
/// than strategies. A pause comes first, so that each burst has one.
pub(crate) fn bursts(count: usize, mean_gap_s: f64, rng: &mut Rng) -> Vec<f64> {
    let on_gap_s = mean_gap_s * ON_S / (ON_S + OFF_S);
    let mut on_s = 0.0;
    let next = |_| {
        on_s += on_gap_s * rng.exponential();
        let pauses = (on_s / ON_S).floor() + 1.0;
        on_s + pauses * OFF_S
    };
    (0..=count).map(next).collect()
}

/// A burst: about as long as a request runs, so that most of it has to wait.
const ON_S: f64 = 5.0;
/// A pause: below full load, long enough to work a burst off.
const OFF_S: f64 = 20.0;

/// The first arrivals of a recording. The run ends with the last of them.
pub(crate) fn recorded(count: usize, trace: &Trace) -> Vec<f64> {
    let taken = trace.rows().iter().take(count);
    let mut moments: Vec<f64> = taken.map(|row| row.arrival.as_secs_f64()).collect();
    moments.extend(moments.last().copied());
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 200_000;

    /// Whether the gaps of `moments` have about this mean and this squared deviation over mean.
    #[track_caller]
    fn check(moments: &[f64], mean: f64, scv: f64) {
        assert_eq!(moments.len(), COUNT + 1);
        let gaps: Vec<f64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap >= 0.0));
        let actual_mean = gaps.iter().sum::<f64>() / COUNT as f64;
        let squares = gaps.iter().map(|gap| (gap / actual_mean - 1.0).powi(2)).sum::<f64>();
        let actual_scv = squares / COUNT as f64;
        assert!((actual_mean / mean - 1.0).abs() < 0.02, "mean {actual_mean}, not {mean}");
        assert!((actual_scv / scv - 1.0).abs() < 0.02, "scv {actual_scv}, not {scv}");
    }

    #[test]
    fn gaps_have_their_distribution() {
        check(&poisson(COUNT, &mut Rng::new(1)), 1.0, 1.0);
        // A gap is 0.1 s, and one in 50 has a pause of 20 s in it; that one is twice as long besides.
        // So E[gap²] = 2 · 0.1² + (20² + 2 · 20 · 0.2) / 50, over 0.5², less 1.
        check(&bursts(COUNT, 0.5, &mut Rng::new(1)), 0.5, 31.7);
        // With a mean gap much longer than a cycle, bursts make no difference.
        check(&bursts(COUNT, 1e9, &mut Rng::new(1)), 1e9, 1.0);
    }

    #[test]
    fn requests_come_in_the_last_fifth_of_each_25_seconds() {
        let moments = bursts(COUNT, 0.5, &mut Rng::new(2));
        assert!(moments.iter().all(|moment| moment % 25.0 >= 20.0 - 1e-6));
        let bursts = moments.chunk_by(|a, b| b - a < 10.0).count() as f64;
        assert!((bursts / (COUNT as f64 * 0.5 / 25.0) - 1.0).abs() < 0.01, "{bursts}");
    }
}
