//! The OpenAPI document of the bridge.

use serde_json::{Value, json};

pub(super) fn document() -> Value {
    let done = |what: &str| json!({ "204": { "description": what } });
    let bytes = json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } });
    let text = json!({ "text/plain": { "schema": { "type": "string" } } });
    let permille = json!({ "type": "integer", "minimum": 0, "maximum": 1000 });
    let header = || json!({ "schema": { "type": "string" } });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Hypha attempt bridge", "version": "1" },
        "security": [{ "attempt": [] }],
        "components": { "securitySchemes": { "attempt": { "type": "http", "scheme": "bearer" } } },
        "paths": {
            "/v1/input": { "get": {
                "summary": "The input of the attempt",
                "responses": { "200": { "description": "the input", "content": bytes } }
            } },
            "/v1/status": { "get": {
                "summary": "The status of the attempt",
                "responses": { "200": { "description": "the status", "content": {
                    "application/json": { "schema": { "type": "object", "properties": {
                        "attempt": { "type": "string" },
                        "model": { "type": "string" },
                        "stream": { "type": "boolean" },
                        "input_bytes": { "type": "integer" },
                        "progress": permille,
                        "result": { "type": "boolean" }
                    } } }
                } } }
            } },
            "/v1/progress": { "post": {
                "summary": "Its progress",
                "requestBody": { "required": true, "content": { "application/json": { "schema": {
                    "type": "object",
                    "required": ["permille"],
                    "properties": { "permille": permille },
                    "additionalProperties": false
                } } } },
                "responses": done("noted")
            } },
            "/v1/output": { "post": {
                "summary": "A piece of the output, passed on at once; together they are the result",
                "requestBody": { "required": true, "content": bytes },
                "responses": {
                    "204": { "description": "passed on" },
                    "413": { "description": "the piece is too large, or all together are: nothing of it counts" }
                }
            } },
            "/v1/result": { "put": {
                "summary": "The result, instead of pieces or standard output",
                "requestBody": { "required": true, "content": bytes },
                "responses": {
                    "204": { "description": "taken" },
                    "413": { "description": "it is too large" }
                }
            } },
            "/v1/failure": { "post": {
                "summary": "An error message, instead of a result: the task may be retried elsewhere",
                "requestBody": { "required": true, "content": text },
                "responses": done("noted")
            } },
            "/v1/refusal": { "post": {
                "summary": "What is wrong with the input, instead of a result: the task is not retried",
                "requestBody": { "required": true, "content": text },
                "responses": done("noted")
            } },
            "/v1/next": { "get": {
                "summary": "Waits for an attempt and returns its input; the output of the last one is complete",
                "responses": {
                    "200": { "description": "the input", "content": bytes, "headers": {
                        "hypha-attempt": header(), "hypha-model": header(), "hypha-stream": header()
                    } },
                    "204": { "description": "none yet: request again" },
                    "409": { "description": "the current attempt has no answer yet" },
                    "410": { "description": "there will be none: exit" }
                }
            } }
        }
    })
}
