//! How well run times are predicted, without the influence of scheduling.

use hypha_model::{Name, Payload, Requirement, Span, TaskSpec};
use hypha_predict::{Calibration, LookupTable, Mode, Predictor, Settings};

use crate::compare::{PredictorInput, metadata};
use crate::pool::PoolSpec;
use crate::workload::Request;
use crate::world::WorkerSetup;

/// Runs the requests one after the other, each on the next worker of the pool, and compares each time with
/// the prediction made just before. Workers report no hardware: their speeds are learned.
pub fn calibrate(
    requests: &[Request],
    pool: &PoolSpec,
    predictor_input: PredictorInput,
    table: Option<LookupTable>,
) -> Calibration {
    let mut predictor = Predictor::new(Settings::default());
    if let Some(table) = table {
        predictor.set_table(table);
        // There is a table, so the mode cannot be refused.
        let _ = predictor.set_mode(Mode::LookupTable);
    }
    let speeds = pool.speeds();
    let workers: Vec<_> =
        (0..speeds.len()).map(|at| predictor.add_worker(WorkerSetup::id(at), None)).collect();
    let model: Option<Name> = "model".parse().ok();
    let mut calibration = Calibration::default();
    for (at, request) in requests.iter().enumerate() {
        let spec = TaskSpec {
            requirement: Requirement { model: model.clone(), ..Requirement::default() },
            input: Payload::default(),
            metadata: metadata(request, predictor_input),
            ..TaskSpec::default()
        };
        let (worker, speed) = (workers[at % workers.len()], speeds[at % speeds.len()]);
        let query = predictor.query(&spec);
        let seconds = request.run_s / speed;
        calibration.observe(&predictor.estimate(&query, worker), seconds);
        predictor.observe(&query, worker, Span::from_secs_f64(seconds));
    }
    calibration
}
