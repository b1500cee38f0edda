//! How tasks that run at once on a worker slow each other: the model, in one place.
//!
//! Of n tasks at once, each runs at `1 / (1 + a (n - 1))` of its speed alone; `a` is the slowdown. With a = 0 they
//! do not affect each other, with a = 1 they share the worker as if it ran them in turn, and above that they
//! interfere. Prompts, answers and sizes make no difference, and a task that begins or ends changes the others' speed
//! at once. An assumption, not a measurement: the first-order shape of what servers that batch requests do.

/// How many tasks run at once, and what that costs each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// Tasks at once on each worker, at least one.
    pub at_once: u32,
    /// The `a` of the model, not negative.
    pub slowdown: f64,
}

impl Batching {
    /// One task at a time.
    pub const NONE: Batching = Batching { at_once: 1, slowdown: 0.0 };
    /// Four times what inference servers run at once by default; each begin and end looks at all of a worker's runs.
    pub const MAX_AT_ONCE: u32 = 1_024;
    /// Far above 1, where batching is never worth it.
    pub const MAX_SLOWDOWN: f64 = 10.0;

    /// What a worker does in a second at best, in seconds of work of a task alone. More tasks at once do more together
    /// if a < 1, and less if a > 1, so the best is one task or all.
    pub fn peak(&self) -> f64 {
        let full = f64::from(self.at_once) * pace(self.slowdown, self.at_once as usize);
        full.max(1.0)
    }
}

/// The speed of each of `running` tasks at once, relative to alone.
pub(crate) fn pace(slowdown: f64, running: usize) -> f64 {
    1.0 / (1.0 + slowdown * running.saturating_sub(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_what_no_number_at_once_exceeds() {
        for slowdown in [0.0, 0.05, 0.5, 1.0, 3.0] {
            for at_once in [1_u32, 2, 16] {
                let peak = Batching { at_once, slowdown }.peak();
                let done = |running: u32| f64::from(running) * pace(slowdown, running as usize);
                let most = (1..=at_once).map(done).fold(0.0, f64::max);
                assert!((peak - most).abs() < 1e-12, "{slowdown}, {at_once}: {peak}, {most}");
            }
        }
    }
}
