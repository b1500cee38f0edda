//! A prediction of the run time of one task on one worker, of 64.

use std::hint::black_box;

use crate::tasks::TrainedPredictor;

pub(crate) fn run(rounds: u64) -> anyhow::Result<()> {
    let TrainedPredictor { mut predictor, workers, specs, .. } = TrainedPredictor::new(64)?;
    for round in 0..rounds as usize {
        let query = predictor.query(&specs[round % specs.len()]);
        black_box(predictor.estimate(&query, workers[round % workers.len()].1));
    }
    Ok(())
}
