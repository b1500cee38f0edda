//! Who sends a request, and what they may do.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use hypha_model::{Name, Priority, TaskSpec};
use serde::Deserialize;

use crate::app_state::AppState;
use crate::error::Error;

/// The caller of a request. Put into the request's extensions before it is routed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Caller {
    /// The tenant on whose behalf the caller acts.
    pub(crate) tenant: Option<Name>,
    /// The role of the caller.
    pub(crate) role: Role,
    /// The highest priority that the caller may request.
    pub(crate) priority_ceiling: Option<Priority>,
    /// How many tasks of the tenant may be open, interactive requests included.
    pub(crate) quota: Option<u32>,
    /// How much the tenant may have, relative to the others.
    pub(crate) weight: Option<f64>,
}

/// The role of a caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Submit tasks, and see and cancel those of the same tenant.
    #[default]
    User,
    /// Everything.
    Admin,
}

impl Role {
    /// The name in the token file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Admin => "admin",
        }
    }
}

impl Caller {
    /// The caller of every request, where there are no tokens.
    pub(crate) const ANONYMOUS_ADMIN: Caller = Caller {
        tenant: None,
        role: Role::Admin,
        priority_ceiling: None,
        quota: None,
        weight: None,
    };

    /// Whether the caller may see a task.
    pub(crate) fn may_see(&self, spec: &TaskSpec) -> bool {
        self.may_see_tenant(spec.tenant.as_ref())
    }

    /// Whether the caller may see what belongs to a tenant.
    pub(crate) fn may_see_tenant(&self, tenant: Option<&Name>) -> bool {
        self.role == Role::Admin || self.tenant.as_ref() == tenant
    }

    /// The tenant whose tasks the caller may see; `None` if all.
    pub(crate) fn visible_tenant(&self) -> Option<Option<Name>> {
        (self.role != Role::Admin).then(|| self.tenant.clone())
    }

    /// Refuses a caller who is not an administrator.
    pub(crate) fn require_admin(&self) -> Result<(), Error> {
        match self.role {
            Role::Admin => Ok(()),
            Role::User => Err(Error::forbidden(
                "this needs a token with the role admin, and yours has the role user",
            )),
        }
    }

    /// Refuses a priority above the ceiling.
    pub(crate) fn check_priority(&self, asked: Priority) -> Result<(), Error> {
        match self.priority_ceiling {
            Some(ceiling) if asked > ceiling => Err(Error::unprocessable(format!(
                "priority {} is above {}, the highest that this token may request",
                asked.as_f64(),
                ceiling.as_f64()
            ))),
            _ => Ok(()),
        }
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Caller, Error> {
        // Only an admitted request has one: any other must not become an administrator.
        parts.extensions.get::<Caller>().cloned().ok_or_else(Error::unauthorized)
    }
}
