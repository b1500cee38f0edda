//! Requests that a web page in a browser may have sent.

use hypha_api::{NewToken, Role, Settings, Tokens, WebAccess};
use reqwest::{Method, Response};

use crate::memory::Memory;
use crate::server::Server;

const STRATEGY: &str = "/api/v1/scheduler";
const APP: &str = "https://app.example.org";

async fn server(origins: &[&str], with_tokens: bool) -> Server {
    let web = WebAccess {
        allowed_hosts: vec!["gpu-box".to_owned()],
        allowed_origins: origins.iter().map(|origin| (*origin).to_owned()).collect(),
        ..WebAccess::default()
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let (token, entry) = Tokens::issue(&NewToken { role: Role::Admin, ..NewToken::default() });
    std::fs::write(&path, entry).unwrap();
    let tokens = with_tokens.then(|| Tokens::load(&path).unwrap());
    let mut server =
        Server::with(Memory::new(), Settings { web, tokens, ..Settings::default() }).await;
    server.token = with_tokens.then_some(token);
    server
}

async fn send(server: &Server, method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
    let body = if method == Method::PUT { r#"{"strategy": "fifo"}"# } else { "" };
    let mut request = server.request(method, path).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

async fn strategy(server: &Server) -> String {
    server.get(STRATEGY).await.1["strategy"].to_string()
}

#[tokio::test]
async fn pages_of_other_sites_cannot_use_a_scheduler_without_tokens() {
    let server = server(&[], false).await;
    let before = strategy(&server).await;
    let own = format!("http://{}", server.address);
    for headers in [
        &[("host", "evil.example")][..],
        // After DNS rebinding, the page is of the same origin.
        &[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")],
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://localhost:3000"), ("content-type", "application/json")],
    ] {
        let response = send(&server, Method::PUT, STRATEGY, headers).await;
        assert_eq!(response.status(), 403, "{headers:?}");
        assert_eq!(header(&response, "access-control-allow-origin"), None);
        assert!(response.text().await.unwrap().contains("which requires no token"));
        for path in ["/v1/models", "/queue/info", "/metrics", "/no-such", "/notify/task_complete"] {
            let response = send(&server, Method::GET, path, headers).await;
            assert_eq!(response.status(), 403, "{path} {headers:?}");
        }
        assert_eq!(send(&server, Method::GET, "/healthz", headers).await.status(), 200);
    }
    let preflight = [("origin", APP), ("access-control-request-method", "PUT")];
    assert_eq!(send(&server, Method::OPTIONS, STRATEGY, &preflight).await.status(), 403);
    assert_eq!(strategy(&server).await, before);
    for headers in [&[("host", "gpu-box:8080")][..], &[("host", "localhost")], &[("origin", &own)]]
    {
        let response = send(&server, Method::PUT, STRATEGY, headers).await;
        assert_eq!(response.status(), 200, "{headers:?}");
    }
}

#[tokio::test]
async fn pages_of_allowed_origins_get_the_headers_that_browsers_look_for() {
    for with_tokens in [false, true] {
        let server = server(&[APP], with_tokens).await;
        let mut preflight = vec![
            ("origin", APP),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "authorization,x-stainless-os"),
            ("access-control-request-private-network", "true"),
        ];
        // A preflight has no token.
        let bare = server.client.request(Method::OPTIONS, server.url(STRATEGY));
        let asked =
            preflight.iter().fold(bare, |request, (name, value)| request.header(*name, *value));
        let response = asked.send().await.unwrap();
        assert_eq!(response.status(), 204);
        for (name, expected) in [
            ("access-control-allow-origin", APP),
            ("access-control-allow-methods", "*"),
            ("access-control-allow-headers", "authorization,x-stainless-os"),
            ("access-control-allow-private-network", "true"),
        ] {
            assert_eq!(header(&response, name), Some(expected), "{name}");
        }
        let varies: Vec<_> = response.headers().get_all("vary").iter().collect();
        assert_eq!(varies, ["access-control-request-headers", "origin"]);

        let response = send(&server, Method::PUT, STRATEGY, &[("origin", APP)]).await;
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "access-control-allow-origin"), Some(APP));
        assert_eq!(header(&response, "vary"), Some("origin"));
        let missing = send(&server, Method::GET, "/no-such", &[("origin", APP)]).await;
        assert_eq!(missing.status(), 404);
        assert_eq!(header(&missing, "access-control-allow-origin"), Some(APP), "errors too");

        preflight[0].1 = "https://evil.example";
        let response = send(&server, Method::OPTIONS, STRATEGY, &preflight).await;
        assert!(response.status().is_client_error());
        assert_eq!(header(&response, "access-control-allow-origin"), None);
        let response = send(&server, Method::PUT, STRATEGY, &[preflight[0]]).await;
        // With a token it is served, since the page had the token; the browser withholds the response.
        assert_eq!(response.status(), if with_tokens { 200 } else { 403 });
        assert_eq!(header(&response, "access-control-allow-origin"), None);
        let plain = send(&server, Method::GET, STRATEGY, &[]).await;
        assert_eq!(header(&plain, "vary"), Some("origin"), "for caches");
    }
}

#[tokio::test]
async fn any_origin_may_be_allowed_where_tokens_are_required() {
    let mut server = server(&["*"], true).await;
    for origin in [APP, "null"] {
        let response = send(&server, Method::GET, STRATEGY, &[("origin", origin)]).await;
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "access-control-allow-origin"), Some("*"));
        assert_eq!(header(&response, "access-control-allow-credentials"), None);
    }
    server.token = None;
    let response = send(&server, Method::GET, STRATEGY, &[("origin", APP)]).await;
    assert_eq!(response.status(), 401);
    assert_eq!(header(&response, "access-control-allow-origin"), Some("*"));
}

/// A token is not sent by the browser on its own, so the name of the server proves nothing more.
#[tokio::test]
async fn hosts_are_not_checked_where_tokens_are_required() {
    let server = server(&[], true).await;
    for host in ["scheduler.example.org", "gpu-box"] {
        let response = send(&server, Method::GET, STRATEGY, &[("host", host)]).await;
        assert_eq!(response.status(), 200, "{host}");
        assert_eq!(header(&response, "vary"), None);
    }
}
