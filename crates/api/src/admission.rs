//! Admits requests, and identifies their callers.

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};

use crate::caller::Caller;
use crate::error::Error;
use crate::settings::Settings;
use crate::web_access::Cors;

/// Longer than any token; nothing longer is hashed.
const MAX_TOKEN_BYTES: usize = 512;

/// Routes that need no token: they reveal nothing, or require a proof of another kind.
const PUBLIC_ROUTES: [&str; 5] =
    ["/healthz", "/readyz", "/openapi.json", "/notify/task_complete", "/result/submit"];

/// Health checks may name any host: they reveal nothing, and a load balancer's name is not configured.
const HEALTH_ROUTES: [&str; 2] = ["/healthz", "/readyz"];

/// What becomes of a request.
pub(crate) enum Admission {
    /// It is routed.
    Route,
    /// It is routed, and these headers are added to its response.
    RouteWith(Cors),
    /// This is the response.
    Respond(Response),
}

/// Identifies the caller of `request` and puts a [`Caller`] into its extensions, or refuses the request.
pub(crate) fn admit(settings: &Settings, request: &mut Request) -> Admission {
    let identified = identify(settings, request);
    let Some(cors) = settings.web.cors(request.headers()) else {
        return match identified {
            Ok(()) => Admission::Route,
            Err(error) => Admission::Respond(error.into_response()),
        };
    };
    let is_refused_page = settings.tokens.is_none() && identified.is_err();
    let preflight = if is_refused_page { None } else { cors.preflight(request) };
    match (preflight, identified) {
        (Some(response), _) => Admission::Respond(cors.add_to(response)),
        (None, Ok(())) => Admission::RouteWith(cors),
        // A page of an allowed origin may read why it is refused.
        (None, Err(error)) => Admission::Respond(cors.add_to(error.into_response())),
    }
}

fn identify(settings: &Settings, request: &mut Request) -> Result<(), Error> {
    let caller = match &settings.tokens {
        None => match settings.web.check(request) {
            Ok(()) => Caller::ANONYMOUS_ADMIN,
            Err(_) if HEALTH_ROUTES.contains(&request.uri().path()) => return Ok(()),
            Err(refused) => return Err(refused),
        },
        Some(_) if is_public(request.uri()) => return Ok(()),
        Some(tokens) => bearer_token(request.headers())
            .and_then(|token| tokens.caller(token))
            .ok_or_else(Error::unauthorized)?,
    };
    request.extensions_mut().insert(caller);
    Ok(())
}

fn is_public(uri: &Uri) -> bool {
    let path = uri.path();
    let under = |open: &str| path.strip_prefix(open).is_some_and(|rest| rest.starts_with('/'));
    PUBLIC_ROUTES.iter().any(|open| path == *open || under(open))
}

/// The token of `Authorization: Bearer …`.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && token.len() <= MAX_TOKEN_BYTES).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_segments_are_public() {
        let open = |path: &'static str| is_public(&Uri::from_static(path));
        assert!(open("/healthz") && open("/notify/task_complete?secret=x"));
        assert!(open("/notify/task_complete/secret"));
        assert!(!open("/healthzz") && !open("/api/v1/tasks") && !open("/metrics") && !open("/"));
        assert!(!open("/notify"));
    }

    #[test]
    fn only_bearer_tokens_are_read_in_any_case() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            bearer_token(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(of("Basic abc"), None);
        assert_eq!(of("Bearer"), None);
        assert_eq!(of(&format!("Bearer {}", "x".repeat(513))), None);
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }
}
