//! Admits requests, and identifies their callers.

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};

use crate::caller::Caller;
use crate::error::Error;
use crate::settings::Settings;

/// Longer than any token; nothing longer is hashed.
const MAX_TOKEN_BYTES: usize = 512;

/// Routes that need no token: they reveal nothing, or require a proof of another kind.
const PUBLIC_ROUTES: [&str; 5] =
    ["/healthz", "/readyz", "/openapi.json", "/notify/task_complete", "/result/submit"];

/// Identifies the caller of `request` and puts a [`Caller`] into its extensions, or refuses the request.
pub(crate) fn admit(settings: &Settings, request: &mut Request) -> Result<(), Error> {
    let caller = match &settings.tokens {
        None => Caller::ANONYMOUS_ADMIN,
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
