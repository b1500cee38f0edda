//! The OpenAPI document of all surfaces together.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, PathItem, Ref, RefOr,
    ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use crate::error::ErrorBody;
use crate::{health, instances, jobs, market, openai, pools, scheduler, tasks, workers};

/// The name of bearer tokens in the document.
const SCHEME: &str = "token";

/// The whole document.
pub(crate) fn openapi_document(version: &str) -> OpenApi {
    let mut whole = OpenApi::new(
        InfoBuilder::new()
            .title("Hypha")
            .version(version)
            .description(Some("One scheduler for scattered machines: tasks, jobs, workers, models"))
            .license(Some(LicenseBuilder::new().name("Apache-2.0").build()))
            .build(),
        utoipa::openapi::Paths::new(),
    );
    for surface in [
        tasks::openapi(),
        jobs::openapi(),
        market::openapi(),
        pools::openapi(),
        workers::openapi(),
        scheduler::openapi(),
    ] {
        whole.merge(with_error_responses(surface));
    }
    for surface in [health::openapi(), instances::openapi(), openai::openapi()] {
        whole.merge(surface);
    }
    let components = whole.components.get_or_insert_with(Components::new);
    components.schemas.insert(ErrorBody::name().into_owned(), ErrorBody::schema());
    let mut schemas = Vec::new();
    ErrorBody::schemas(&mut schemas);
    components.schemas.extend(schemas);
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    components.add_security_scheme(SCHEME, SecurityScheme::Http(bearer));
    // A scheduler without a token file requires none.
    let or_nothing = SecurityRequirement::default();
    whole.security = Some(vec![SecurityRequirement::new(SCHEME, Vec::<String>::new()), or_nothing]);
    whole
}

/// Adds the responses that every route of the task API may return.
fn with_error_responses(mut document: OpenApi) -> OpenApi {
    for path in document.paths.paths.values_mut() {
        for operation in operations(path) {
            for (status, description) in [
                ("400", "The request is invalid"),
                ("401", "The token is missing or unknown"),
                ("403", "The token may not do this"),
                ("503", "The scheduler cannot acknowledge anything at present"),
            ] {
                let known = &mut operation.responses.responses;
                known.entry(status.to_owned()).or_insert_with(|| error_response(description));
            }
        }
    }
    document
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut path.get, &mut path.put, &mut path.post, &mut path.delete].into_iter().flatten()
}

fn error_response(description: &str) -> RefOr<utoipa::openapi::Response> {
    let schema = Ref::from_schema_name(ErrorBody::name());
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new()
        .description(description)
        .content("application/json", content)
        .build()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_resolves() {
        let text = serde_json::to_string(&openapi_document("1")).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut found = 0;
        for part in text.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(value.pointer(pointer).is_some(), "{pointer}");
            found += 1;
        }
        assert!(found > 20, "{found} references");
    }
}
