//! `/scheduler/set` and `/scheduler/predict_mode`: how tasks are placed, and how run times are predicted.

use axum::extract::State;
use axum::response::Response;
use hypha_engine::{Command, Reply};
use hypha_placement::Strategy;
use hypha_predict::Mode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::envelope::{self, Envelope};
use crate::app_state::AppState;
use crate::caller::Caller;
use crate::error::{Error, ErrorBody};
use crate::json::Json;

/// The strategy to place tasks by.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesStrategy)]
pub(crate) struct StrategyBody {
    /// The name of a strategy, with hyphens or underscores.
    #[schema(example = "shortest_queue")]
    name: String,
}

/// The source of predictions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InstancesMode)]
pub(crate) struct ModeBody {
    /// `default` or `lookup_table`.
    #[schema(example = "default")]
    mode: String,
}

/// Changes the strategy.
#[utoipa::path(
    post, path = "/scheduler/set", tag = "task instances", request_body = StrategyBody,
    responses(
        (status = 200, description = "The strategy is in use", body = Envelope),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (status = "4XX", description = "The strategy is refused; 422 lists the known ones", body = Envelope),
        (status = 503, description = "The scheduler cannot acknowledge anything at present", body = Envelope),
    )
)]
pub(crate) async fn set_strategy(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    body: Result<Json<StrategyBody>, Error>,
) -> Response {
    let set = async {
        caller?.require_admin()?;
        let strategy: Strategy = body?.0.name.parse().map_err(invalid)?;
        match app.service.execute(Command::SetStrategy(strategy)).await? {
            Reply::StrategySet(set) => set.map_err(invalid),
            _ => Err(Error::internal()),
        }
    };
    envelope::respond(set.await)
}

/// Changes the predictor's mode.
#[utoipa::path(
    post, path = "/scheduler/predict_mode", tag = "task instances", request_body = ModeBody,
    responses(
        (status = 200, description = "The mode is in use", body = Envelope),
        (status = 401, description = "The token is missing or unknown", body = ErrorBody),
        (status = "4XX", description = "The mode is refused; 409 if there is no lookup table", body = Envelope),
        (status = 503, description = "The scheduler cannot acknowledge anything at present", body = Envelope),
    )
)]
pub(crate) async fn set_mode(
    State(app): State<AppState>,
    caller: Result<Caller, Error>,
    body: Result<Json<ModeBody>, Error>,
) -> Response {
    let set = async {
        caller?.require_admin()?;
        let mode: Mode = body?.0.mode.parse().map_err(invalid)?;
        match app.service.execute(Command::SetMode(mode)).await? {
            Reply::ModeSet(set) => set.map_err(|error| Error::conflict(error.to_string())),
            _ => Err(Error::internal()),
        }
    };
    envelope::respond(set.await)
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::unprocessable(error.to_string())
}
