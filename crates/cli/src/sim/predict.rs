//! `hypha sim predict`: how well run times are predicted.

use std::path::PathBuf;
use std::sync::Arc;

use hypha_sim::compare::PredictorInput;
use hypha_sim::pool::PoolSpec;
use hypha_sim::predict::calibrate;
use hypha_sim::workload::Workload;

use super::inputs;
use crate::usage::{Failure, print};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// CSV with TIMESTAMP,ContextTokens,GeneratedTokens
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// The workers, COUNTxSPEED; their speeds are learned
    #[arg(long, default_value = "1x4.0,1x2.0,6x1.0")]
    pool: String,
    /// The features that the predictor is given: input,output | input | none
    #[arg(long, default_value = "input,output")]
    metadata: String,
    /// One sigma of the lognormal noise of run times
    #[arg(long, default_value_t = 0.2)]
    noise: f64,
    /// Predict from this table (JSON or CSV) instead of learning
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// The seed of the noise
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let pool: PoolSpec = arguments.pool.parse().map_err(Failure::usage)?;
    let predictor_input: PredictorInput = arguments.metadata.parse().map_err(Failure::usage)?;
    let noise = inputs::number("--noise", arguments.noise, 0.0, 5.0)?;
    let table = inputs::table(arguments.table.as_ref())?;
    let trace = Arc::new(inputs::trace(&arguments.trace)?);
    let requests =
        Workload::Trace(trace).requests(arguments.seed, pool.total_speed(), 0.8, noise, 0);
    let calibration = calibrate(&requests, &pool, predictor_input, table);
    let error = calibration.mean_absolute_percentage_error();
    let [half, ninety, most] = calibration.coverage_percent();
    let report = match arguments.json {
        true => {
            let report = serde_json::json!({
                "requests": calibration.count(),
                "mape_percent": error,
                "coverage_percent": { "50": half, "90": ninety, "99": most },
            });
            format!("{report}\n")
        }
        false => format!(
            "{} requests, predictor input {predictor_input}, noise {noise}\n\
             mean absolute percentage error  {error:6.1} %\n\
             inside the 50 % interval        {half:6.1} %\n\
             inside the 90 % interval        {ninety:6.1} %\n\
             inside the 99 % interval        {most:6.1} %\n",
            calibration.count()
        ),
    };
    print(&report)
}
