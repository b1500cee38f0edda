//! Training as a caller sees it.

use super::*;

const CONFIG: Config = Config { layers: 2, width: 16, heads: 2, context: 12, vocabulary: 128 };
const TEXT: &str = "the cat sat on the mat and the dog sat on the log and ";

/// Sequences of the text, which begin at different places in each step.
fn batch(step: usize, sequences: usize) -> Vec<u32> {
    let text: Vec<u32> = TEXT.bytes().map(u32::from).collect();
    let length = CONFIG.context + 1;
    (0..sequences)
        .flat_map(|i| {
            let start = (7 * step + 11 * i) % text.len();
            text.iter().copied().cycle().skip(start).take(length).collect::<Vec<_>>()
        })
        .collect()
}

fn train(trainer: &mut Trainer, steps: std::ops::Range<usize>) -> Vec<f64> {
    steps.map(|step| trainer.step(&batch(step, 5), 5, 3e-3).unwrap()).collect()
}

#[test]
fn run_repeats_exactly_for_a_seed_and_a_number_of_threads() {
    for threads in [1, 2, 3, 8] {
        let run = |seed| {
            let mut trainer = Trainer::new(CONFIG, seed, threads).unwrap();
            let losses = train(&mut trainer, 0..10);
            (losses, trainer.parameters)
        };
        assert!(run(1) == run(1), "{threads} threads");
        assert!(run(1) != run(2), "{threads} threads");
    }
}

#[test]
fn number_of_threads_changes_only_the_rounding() {
    let run = |threads| train(&mut Trainer::new(CONFIG, 1, threads).unwrap(), 0..10);
    let expected = run(1);
    // Zero counts as one; seven are more than there are sequences.
    for threads in [0, 2, 3, 7] {
        for (loss, expected) in zip(run(threads), &expected) {
            assert!((loss - expected).abs() < 1e-4, "{threads} threads: {loss}, not {expected}");
        }
    }
}

#[test]
fn loss_falls_on_repetitive_text() {
    let mut trainer = Trainer::new(CONFIG, 1, 2).unwrap();
    let losses = train(&mut trainer, 0..200);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..10]), mean(&losses[190..]));
    // At the start every byte is about equally likely: ln 128 = 4.85.
    assert!((4.0..5.0).contains(&first), "{first}");
    assert!(last < 0.4 * first, "{first} to {last}");
    assert_eq!(trainer.steps(), 200);
}

#[test]
fn evaluation_gives_the_loss_of_the_next_step_and_changes_nothing() {
    let mut trainer = Trainer::new(CONFIG, 1, 2).unwrap();
    train(&mut trainer, 0..3);
    let (parameters, optimizer) = (trainer.parameters.clone(), trainer.optimizer.clone());
    let loss = trainer.evaluate(&batch(3, 5), 5).unwrap();
    assert_eq!(trainer.parameters, parameters);
    assert_eq!(trainer.optimizer, optimizer);
    assert_eq!(trainer.step(&batch(3, 5), 5, 3e-3).unwrap(), loss);
}

#[test]
fn loaded_parameters_replace_the_model_and_keep_the_moments() {
    let mut trainer = Trainer::new(CONFIG, 1, 1).unwrap();
    train(&mut trainer, 0..3);
    let optimizer = trainer.optimizer.clone();
    let other = trainer.layout().initial_values(2);
    trainer.load_parameters(&other).unwrap();
    assert_eq!(trainer.parameters(), other);
    assert_eq!(trainer.optimizer, optimizer);
    assert_eq!(trainer.steps(), 3);
}

#[test]
fn settings_and_rate_reach_the_optimizer() {
    let run = |settings, rate| {
        let mut trainer = Trainer::new(CONFIG, 1, 2).unwrap().with_settings(settings);
        trainer.step(&batch(0, 5), 5, rate).unwrap();
        trainer
    };
    let defaults = AdamWSettings::default();
    let still = run(defaults, 0.0);
    assert_eq!(still.parameters, still.layout().initial_values(1));
    let decayed = run(AdamWSettings { weight_decay: 0.5, ..defaults }, 1e-2);
    assert_ne!(decayed.parameters, run(defaults, 1e-2).parameters);
    // The first moment is a tenth of the clipped gradient, whose length is the limit.
    let clipped = run(AdamWSettings { max_gradient_norm: 1e-3, ..defaults }, 1e-2);
    let length = square_norm(&clipped.optimizer.first_moment).sqrt();
    assert!((length / 1e-4 - 1.0).abs() < 1e-3, "{length}");
}

#[test]
fn gradient_is_the_mean_over_the_batch() {
    let settings = AdamWSettings { max_gradient_norm: f64::INFINITY, ..AdamWSettings::default() };
    let first_moment = |tokens: &[u32], sequences| {
        let mut trainer = Trainer::new(CONFIG, 1, 2).unwrap().with_settings(settings);
        trainer.step(tokens, sequences, 0.0).unwrap();
        trainer.optimizer.first_moment
    };
    let tokens = batch(0, 3);
    let (once, twice) = (first_moment(&tokens, 3), first_moment(&tokens.repeat(2), 6));
    let length = square_norm(&once).sqrt();
    let difference: Vec<f32> = zip(&once, &twice).map(|(a, b)| a - b).collect();
    assert!(square_norm(&difference).sqrt() < 1e-5 * length, "{length}");
}

#[test]
fn invalid_input_is_refused_and_changes_nothing() {
    let mut trainer = Trainer::new(CONFIG, 1, 2).unwrap();
    train(&mut trainer, 0..2);
    let (parameters, optimizer) = (trainer.parameters.clone(), trainer.optimizer.clone());
    let cases: [(Vec<u32>, usize, TrainError); 6] = [
        (vec![0; 7], 2, TrainError::UnevenBatch { tokens: 7, batch_size: 2 }),
        (vec![0; 4], 0, TrainError::UnevenBatch { tokens: 4, batch_size: 0 }),
        (Vec::new(), 1, TrainError::SequenceLength { tokens: 0, max: 13 }),
        (vec![0; 2], 2, TrainError::SequenceLength { tokens: 1, max: 13 }),
        (vec![0; 14], 1, TrainError::SequenceLength { tokens: 14, max: 13 }),
        (vec![0, 127, 128], 1, TrainError::UnknownToken { token: 128, vocabulary: 128 }),
    ];
    for (tokens, batch_size, expected) in cases {
        assert_eq!(trainer.step(&tokens, batch_size, 1e-3), Err(expected));
        assert_eq!(trainer.evaluate(&tokens, batch_size), Err(expected));
    }
    for rate in [f64::NAN, f64::INFINITY, -1.0] {
        let error = trainer.step(&batch(0, 1), 1, rate).unwrap_err();
        assert!(matches!(error, TrainError::LearningRate(_)), "{error}");
    }
    let expected = TrainError::ParameterCount { actual: 3, expected: parameters.len() };
    assert_eq!(trainer.load_parameters(&[0.0; 3]), Err(expected));
    assert_eq!(trainer.parameters, parameters);
    assert_eq!(trainer.optimizer, optimizer);
}

#[test]
fn diverged_model_is_reported_and_takes_no_step() {
    let mut trainer = Trainer::new(CONFIG, 1, 2).unwrap();
    let mut parameters = trainer.parameters().to_vec();
    parameters[trainer.layout().tensors()[4].range.start] = f32::NAN;
    trainer.load_parameters(&parameters).unwrap();
    let optimizer = trainer.optimizer.clone();
    let error = trainer.step(&batch(0, 2), 2, 1e-3).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { .. }), "{error}");
    assert_eq!(trainer.optimizer, optimizer);
    let invalid = Config { heads: 3, ..CONFIG };
    assert!(matches!(Trainer::new(invalid, 1, 1), Err(ConfigError::UnevenHeads { .. })));
}
