//! AdamW: gradient descent with a step size for each parameter (Loshchilov and Hutter, 2019), and gradient clipping.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::params::Layout;

/// What the optimiser is set to. The learning rate comes with each step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWSettings {
    /// How slowly the mean of the gradients moves, 0 to 1.
    pub beta_1: f64,
    /// How slowly the mean of their squares moves, 0 to 1.
    pub beta_2: f64,
    /// Added to the root of the mean square, so that a gradient near zero does not become a large step.
    pub epsilon: f64,
    /// The share of each matrix that a step at learning rate 1 takes away. Biases and norms do not decay.
    pub weight_decay: f64,
    /// A longer gradient is shortened to this length; infinity for no limit.
    pub max_gradient_norm: f64,
}

impl Default for AdamWSettings {
    fn default() -> Self {
        Self { beta_1: 0.9, beta_2: 0.95, epsilon: 1e-8, weight_decay: 0.1, max_gradient_norm: 1.0 }
    }
}

/// The optimiser's state: the two running means, laid out like the parameters, and the number of steps taken.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdamW {
    pub(crate) first_moment: Vec<f32>,
    pub(crate) second_moment: Vec<f32>,
    pub(crate) steps: u64,
}

/// A part of all buffers, for one thread.
pub(crate) struct Part<'a> {
    /// Where the part starts in the whole.
    pub(crate) start: usize,
    pub(crate) parameters: &'a mut [f32],
    pub(crate) gradient: &'a [f32],
    pub(crate) first_moment: &'a mut [f32],
    pub(crate) second_moment: &'a mut [f32],
}

/// The factors of one step, the same for all parameters of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    gradient_scale: f32,
    beta_1: f32,
    beta_2: f32,
    /// The learning rate, corrected for a first moment that starts at zero.
    rate: f32,
    /// Corrects the root of the second moment in the same way.
    root_scale: f32,
    epsilon: f32,
    kept: f32,
}

impl AdamW {
    pub(crate) fn new(parameters: usize) -> Self {
        Self { first_moment: vec![0.0; parameters], second_moment: vec![0.0; parameters], steps: 0 }
    }

    /// Counts a step and gives its factors. `gradient_norm` is the length of the whole gradient.
    pub(crate) fn begin(
        &mut self,
        settings: &AdamWSettings,
        learning_rate: f64,
        gradient_norm: f64,
    ) -> Update {
        self.steps = self.steps.saturating_add(1);
        let steps = self.steps as f64;
        let is_long = gradient_norm > settings.max_gradient_norm;
        let scale = if is_long { settings.max_gradient_norm / gradient_norm } else { 1.0 };
        Update {
            gradient_scale: scale as f32,
            beta_1: settings.beta_1 as f32,
            beta_2: settings.beta_2 as f32,
            rate: (learning_rate / (1.0 - settings.beta_1.powf(steps))) as f32,
            root_scale: (1.0 / (1.0 - settings.beta_2.powf(steps)).sqrt()) as f32,
            epsilon: settings.epsilon as f32,
            kept: (1.0 - learning_rate * settings.weight_decay) as f32,
        }
    }
}

impl Update {
    /// Moves the parameters of `part`. Only matrices decay.
    pub(crate) fn apply(&self, part: Part<'_>, layout: &Layout) {
        let whole = part.start..part.start + part.parameters.len();
        for tensor in layout.tensors() {
            let range = intersect(&tensor.range, &whole);
            let range = range.start - part.start..range.end - part.start;
            let kept = if tensor.is_matrix() { self.kept } else { 1.0 };
            self.apply_to(
                &mut part.parameters[range.clone()],
                &part.gradient[range.clone()],
                &mut part.first_moment[range.clone()],
                &mut part.second_moment[range],
                kept,
            );
        }
    }

    fn apply_to(
        &self,
        parameters: &mut [f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        kept: f32,
    ) {
        let len = parameters.len();
        // Equal lengths, said once, free the loop from a check at each access.
        let (gradient, first, second) = (&gradient[..len], &mut first[..len], &mut second[..len]);
        let (rest_1, rest_2) = (1.0 - self.beta_1, 1.0 - self.beta_2);
        for i in 0..len {
            let gradient = gradient[i] * self.gradient_scale;
            first[i] = self.beta_1 * first[i] + rest_1 * gradient;
            second[i] = self.beta_2 * second[i] + rest_2 * gradient * gradient;
            let root = second[i].sqrt() * self.root_scale + self.epsilon;
            parameters[i] = parameters[i] * kept - self.rate * first[i] / root;
        }
    }
}

/// The common part of two ranges; empty, and inside `whole`, where there is none.
fn intersect(range: &Range<usize>, whole: &Range<usize>) -> Range<usize> {
    let start = range.start.clamp(whole.start, whole.end);
    start..range.end.clamp(start, whole.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const CONFIG: Config = Config { layers: 1, width: 1, heads: 1, context: 1, vocabulary: 1 };

    /// One step for all parameters at `value` with the same `gradient`; the norm is taken as 2, the limit is 1.
    fn take_step(optimizer: &mut AdamW, parameters: &mut [f32], gradient: f32) {
        let layout = Layout::new(&CONFIG);
        let update = optimizer.begin(&AdamWSettings::default(), 0.1, 2.0);
        let gradients = vec![gradient; layout.len()];
        // Two parts that meet inside a tensor, as two threads would have them.
        let cut = 7;
        let (left, right) = parameters.split_at_mut(cut);
        let (first_left, first_right) = optimizer.first_moment.split_at_mut(cut);
        let (second_left, second_right) = optimizer.second_moment.split_at_mut(cut);
        let parts = [
            (0, left, &gradients[..cut], first_left, second_left),
            (cut, right, &gradients[cut..], first_right, second_right),
        ];
        for (start, parameters, gradient, first_moment, second_moment) in parts {
            let part = Part { start, parameters, gradient, first_moment, second_moment };
            update.apply(part, &layout);
        }
    }

    #[test]
    fn steps_match_values_computed_by_hand() {
        let layout = Layout::new(&CONFIG);
        let mut optimizer = AdamW::new(layout.len());
        let mut parameters = vec![1.0f32; layout.len()];
        let close = |actual: f32, expected: f64| (f64::from(actual) - expected).abs() < 1e-6;

        // Clipped, the gradient 4 is 2. m = 0.1 * 2, v = 0.05 * 4; corrected, m = 2 and v = 4: the step is 0.1 * 2 / 2.
        take_step(&mut optimizer, &mut parameters, 4.0);
        // Clipped, the gradient -2 is -1. m = 0.9 * 0.2 - 0.1 = 0.08, by 0.19: 0.421052632.
        // v = 0.95 * 0.2 + 0.05 = 0.24, by 0.0975: 2.461538462, whose root is 1.568929081. The step is 0.026836946.
        let after_first = parameters.clone();
        take_step(&mut optimizer, &mut parameters, -2.0);

        assert_eq!(optimizer.steps, 2);
        for tensor in layout.tensors() {
            for i in tensor.range.clone() {
                let kept = if tensor.shape.len() == 2 { 0.99 } else { 1.0 };
                let first = kept - 0.1;
                assert!(close(after_first[i], first), "{}: {}", tensor.name, after_first[i]);
                let second = first * kept - 0.026_836_946;
                assert!(close(parameters[i], second), "{}: {}", tensor.name, parameters[i]);
                assert!(close(optimizer.first_moment[i], 0.08), "{}", tensor.name);
                assert!(close(optimizer.second_moment[i], 0.24), "{}", tensor.name);
            }
        }
    }

    #[test]
    fn short_gradients_are_not_clipped() {
        let mut optimizer = AdamW::new(1);
        for (norm, expected) in [(0.5, 1.0), (1.0, 1.0), (4.0, 0.25), (0.0, 1.0)] {
            let update = optimizer.begin(&AdamWSettings::default(), 0.1, norm);
            assert_eq!(update.gradient_scale, expected, "{norm}");
        }
    }
}
