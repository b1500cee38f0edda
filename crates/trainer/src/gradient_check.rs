//! Checks the backward pass, in double precision, against differences of the loss on both sides of each parameter.

use hypha_model::Rng;

use crate::activations::Activations;
use crate::config::Config;
use crate::model::{Batch, Model};
use crate::real::Real;

/// Odd sizes, so that no vector or block divides them.
const CONFIG: Config = Config { layers: 2, width: 10, heads: 2, context: 7, vocabulary: 13 };
const SEQUENCES: usize = 3;

fn tokens(length: usize, rng: &mut Rng) -> Vec<u32> {
    let vocabulary = CONFIG.vocabulary as u64;
    (0..SEQUENCES * (length + 1)).map(|_| rng.below(vocabulary) as u32).collect()
}

/// Far from the initial values, where half of the tensors are constant and most gradients small.
fn parameters(model: &Model, rng: &mut Rng) -> Vec<f64> {
    model.layout.initial_values(1).iter().map(|v| f64::from(*v) + 0.3 * rng.normal()).collect()
}

fn gradient<R: Real>(model: &Model, parameters: &[R], batch: Batch<'_>, scale: f64) -> Vec<R> {
    let mut activations = Activations::default();
    let mut gradient = vec![R::ZERO; parameters.len()];
    model.forward(parameters, &mut activations, batch);
    model.backward(&mut gradient, parameters, &mut activations, batch, scale);
    gradient
}

#[test]
fn gradient_of_every_parameter_is_the_slope_of_the_loss() {
    const STEP: f64 = 1e-5;
    let model = Model::new(CONFIG);
    let mut rng = Rng::new(11);
    for length in [CONFIG.context, 4] {
        let tokens = tokens(length, &mut rng);
        let batch = Batch { tokens: &tokens, sequences: SEQUENCES };
        let mut parameters = parameters(&model, &mut rng);
        let scale = 0.7;
        let gradient = gradient(&model, &parameters, batch, scale);
        let mut activations = Activations::default();
        let mut loss = |parameters: &[f64]| model.forward(parameters, &mut activations, batch);
        for tensor in model.layout.tensors() {
            let mut largest = 0.0f64;
            for i in tensor.range.clone() {
                let value = parameters[i];
                parameters[i] = value + STEP;
                let above = loss(&parameters);
                parameters[i] = value - STEP;
                let below = loss(&parameters);
                parameters[i] = value;
                let slope = scale * (above - below) / (2.0 * STEP);
                let error = (gradient[i] - slope).abs() / (1.0 + slope.abs());
                assert!(error < 1e-7, "{} at {i}: {} is not {slope}", tensor.name, gradient[i]);
                largest = largest.max(slope.abs());
            }
            assert!(largest > 1e-3, "{} has no gradient worth checking: {largest}", tensor.name);
        }
    }
}

#[test]
fn single_precision_gives_the_gradient_of_double_precision() {
    let model = Model::new(CONFIG);
    let mut rng = Rng::new(12);
    let tokens = tokens(CONFIG.context, &mut rng);
    let batch = Batch { tokens: &tokens, sequences: SEQUENCES };
    let exact = parameters(&model, &mut rng);
    let rounded: Vec<f32> = exact.iter().map(|value| *value as f32).collect();
    let exact: Vec<f64> = rounded.iter().map(|value| f64::from(*value)).collect();
    let single = gradient(&model, &rounded, batch, 1.0);
    let double = gradient(&model, &exact, batch, 1.0);
    for tensor in model.layout.tensors() {
        let range = tensor.range.clone();
        let length = double[range.clone()].iter().map(|g| g * g).sum::<f64>().sqrt();
        let error = range.map(|i| (f64::from(single[i]) - double[i]).powi(2)).sum::<f64>().sqrt();
        assert!(error < 2e-6 * (1.0 + length), "{}: {error:e} of {length}", tensor.name);
    }
}
