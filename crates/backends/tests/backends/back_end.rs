//! One back end and calls to it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use hypha_backends::{BackEnd, BackEndSettings, CallOutcome, Format, HttpError};
use hypha_model::{FailureKind, InputKind, Payload, TaskError};

use super::fake;
use super::lab::{DEADLINE, name};

fn openai(address: SocketAddr) -> BackEnd {
    BackEnd::new(BackEndSettings::new(format!("http://{address}"), Format::Openai)).unwrap()
}

async fn answer(server: &BackEnd, form: InputKind, input: &str) -> CallOutcome {
    let call = server.start(Some(&name("m")), form, &Payload::from(input.as_bytes()), false);
    tokio::time::timeout(DEADLINE, call.outcome()).await.expect("no response")
}

fn completed(text: &str) -> CallOutcome {
    CallOutcome::Completed { payload: Payload::from(text.as_bytes()) }
}

#[tokio::test]
async fn bodies_go_to_their_routes_unchanged_and_with_the_key() {
    let (address, seen) = fake::serve_with(|seen| seen.path.clone().into_response()).await;
    let mut config = BackEndSettings::new(format!("http://{address}/base/v1"), Format::Openai);
    config.api_key = Some("sesame".to_owned());
    let server = BackEnd::new(config).unwrap();
    let odd = "{ \"messages\" : [],\n \"n\": 1.0000000000000000001 }";
    for (form, path) in [
        (InputKind::Chat, "/base/v1/chat/completions"),
        (InputKind::Completion, "/base/v1/completions"),
        (InputKind::Embedding, "/base/v1/embeddings"),
    ] {
        assert_eq!(answer(&server, form, odd).await, completed(path));
    }
    assert_eq!(
        answer(&server, InputKind::Task, "\"hi\"").await,
        completed("/base/v1/chat/completions")
    );
    let seen = seen.lock().unwrap();
    assert!(seen[..3].iter().all(|seen| seen.body == odd.as_bytes()));
    assert!(seen.iter().all(|seen| seen.authorization.as_deref() == Some("Bearer sesame")));
    let body: serde_json::Value = serde_json::from_slice(&seen[3].body).unwrap();
    assert_eq!(body["messages"][0]["content"], "hi");
    assert_eq!(body["model"], "m");
}

#[tokio::test]
async fn json_back_end_is_called_at_its_own_url() {
    let (address, seen) = fake::serve_with(|seen| seen.body.clone().into_response()).await;
    let config = BackEndSettings::new(format!("http://{address}/run?x=1"), Format::Json);
    let server = BackEnd::new(config).unwrap();
    assert_eq!(answer(&server, InputKind::Task, "[1, 2]").await, completed("[1, 2]"));
    assert_eq!(seen.lock().unwrap()[0].path, "/run?x=1");
    assert!(server.health().await.is_ok());
    assert_eq!(seen.lock().unwrap().len(), 1, "the health check is only a connection");
}

#[tokio::test]
async fn invalid_input_is_not_sent() {
    let server = openai(fake::unused_address().await);
    match answer(&server, InputKind::Task, "{}").await {
        CallOutcome::Failed(TaskError { kind: FailureKind::InvalidInput, message, .. }) => {
            assert!(message.contains("`messages`"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn http_status_decides_failure_kind() {
    let (address, seen) = fake::serve_with(|seen| {
        let status: u16 = std::str::from_utf8(&seen.body).unwrap().parse().unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        (status, [(LOCATION, "/elsewhere")], "because").into_response()
    })
    .await;
    let server = openai(address);
    let cases = [
        (200, None),
        (201, None),
        (302, Some(FailureKind::BackendFailed)),
        (400, Some(FailureKind::InvalidInput)),
        (401, Some(FailureKind::BackendFailed)),
        (404, Some(FailureKind::InvalidInput)),
        (408, Some(FailureKind::BackendFailed)),
        (422, Some(FailureKind::InvalidInput)),
        (429, Some(FailureKind::BackendBusy)),
        (500, Some(FailureKind::BackendError)),
        (501, Some(FailureKind::InvalidInput)),
        (502, Some(FailureKind::BackendError)),
        (503, Some(FailureKind::BackendBusy)),
    ];
    for (status, expected) in cases {
        match (answer(&server, InputKind::Chat, &status.to_string()).await, expected) {
            (CallOutcome::Completed { .. }, None) => {}
            (CallOutcome::Failed(error), Some(kind)) => {
                let (message, status) = ("because".to_owned(), Some(status));
                assert_eq!(error, TaskError { status, ..TaskError::new(kind, message) });
            }
            other => panic!("{status}: {other:?}"),
        }
    }
    assert_eq!(seen.lock().unwrap().len(), cases.len(), "a redirect is not followed");
}

#[tokio::test]
async fn busy_back_end_says_when_to_try_again() {
    let (address, _) = fake::serve_with(|seen| {
        let retry_after = String::from_utf8(seen.body.to_vec()).unwrap();
        (StatusCode::TOO_MANY_REQUESTS, [("retry-after", retry_after)], "later").into_response()
    })
    .await;
    let server = openai(address);
    for (header, expected) in
        [("7", Some(7)), ("0", Some(0)), ("Wed, 21 Oct 2026 07:28:00 GMT", None)]
    {
        match answer(&server, InputKind::Chat, header).await {
            CallOutcome::Failed(error) => assert_eq!(error.retry_after_s, expected, "{header}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn malformed_response_fails_and_may_be_retried_elsewhere() {
    let addresses = [
        fake::unused_address().await,
        fake::raw(b"", true).await,
        fake::raw(b"garbage\r\n\r\n", true).await,
        fake::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", true).await,
        fake::raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", false).await,
    ];
    for (index, address) in addresses.into_iter().enumerate() {
        match answer(&openai(address), InputKind::Chat, "{}").await {
            CallOutcome::Unreachable { error } if index == 0 => {
                assert!(error.starts_with("no connection to 127.0.0.1:"), "{error}");
            }
            CallOutcome::Failed(error) if index > 0 => {
                assert_eq!(error.kind, FailureKind::BackendFailed, "{index}: {error}");
                assert_eq!(error.status, None, "{index}: {error}");
            }
            other => panic!("{index}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn responses_are_bounded_even_without_content_length() {
    let big = || "x".repeat(1_000);
    let (address, _) = fake::serve_with(move |seen| match seen.body.first() {
        Some(b'a') => big().into_response(),
        Some(b'b') => {
            let pieces =
                futures::stream::iter((0..10).map(|_| Ok::<_, std::io::Error>("x".repeat(100))));
            axum::body::Body::from_stream(pieces).into_response()
        }
        _ => (StatusCode::BAD_REQUEST, "e".repeat(1 << 20)).into_response(),
    })
    .await;
    let with_limit = |limit| {
        let mut config = BackEndSettings::new(format!("http://{address}"), Format::Json);
        config.max_response_bytes = limit;
        BackEnd::new(config).unwrap()
    };
    for input in ["a", "b"] {
        assert_eq!(answer(&with_limit(1_000), InputKind::Task, input).await, completed(&big()));
        match answer(&with_limit(999), InputKind::Task, input).await {
            CallOutcome::Failed(error) if error.kind == FailureKind::LimitExceeded => {
                let error = error.message;
                assert!(error.contains("limit of 999 bytes"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    match answer(&with_limit(1_000), InputKind::Task, "c").await {
        CallOutcome::Failed(error) => {
            assert!(error.message.len() < 20_000, "{}", error.message.len());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stream_is_passed_on_piece_by_piece_and_is_the_result() {
    let (pieces, response) = fake::manual_body();
    let response = std::sync::Mutex::new(Some(response));
    let response = std::sync::Arc::new(response);
    let (address, _) = fake::serve_with(move |_| response.lock().unwrap().take().unwrap()).await;
    let server = openai(address);
    let mut call = server.start(None, InputKind::Chat, &Payload::from(&b"{}"[..]), true);
    for piece in ["data: 1\n\n", "data: [DONE]\n\n"] {
        pieces.send(piece.into()).await.unwrap();
        let next = tokio::time::timeout(DEADLINE, call.next()).await.unwrap();
        assert_eq!(
            next.as_deref(),
            Some(piece.as_bytes()),
            "unchanged, and before the next is sent"
        );
    }
    drop(pieces);
    assert_eq!(call.next().await, None);
    assert_eq!(call.next().await, None);
    assert_eq!(call.outcome().await, completed("data: 1\n\ndata: [DONE]\n\n"));
}

#[tokio::test]
async fn failed_stream_has_no_pieces() {
    let (address, _) = fake::serve_with(|_| (StatusCode::BAD_GATEWAY, "no").into_response()).await;
    let mut call = openai(address).start(None, InputKind::Chat, &Payload::from(&b"{}"[..]), true);
    assert_eq!(call.next().await, None);
    let CallOutcome::Failed(error) = call.outcome().await else {
        panic!("the call has not failed")
    };
    assert_eq!(error.kind, FailureKind::BackendError);
}

#[tokio::test]
async fn dropping_a_call_ends_the_request() {
    let (pieces, response) = fake::manual_body();
    let response = std::sync::Arc::new(std::sync::Mutex::new(Some(response)));
    let (address, _) = fake::serve_with(move |_| response.lock().unwrap().take().unwrap()).await;
    let mut call = openai(address).start(None, InputKind::Chat, &Payload::from(&b"{}"[..]), true);
    pieces.send("a".into()).await.unwrap();
    assert!(call.next().await.is_some());
    drop(call);
    tokio::time::timeout(DEADLINE, pieces.closed()).await.expect("the request was not ended");
}

#[tokio::test]
async fn waiting_for_a_piece_is_cancel_safe() {
    let (pieces, response) = fake::manual_body();
    let response = std::sync::Arc::new(std::sync::Mutex::new(Some(response)));
    let (address, _) = fake::serve_with(move |_| response.lock().unwrap().take().unwrap()).await;
    let mut call = openai(address).start(None, InputKind::Chat, &Payload::from(&b"{}"[..]), true);
    for piece in ["a", "b", "c"] {
        let cancelled = tokio::time::timeout(Duration::from_millis(1), call.next()).await;
        assert!(cancelled.is_err());
        pieces.send(piece.into()).await.unwrap();
        assert_eq!(call.next().await.as_deref(), Some(piece.as_bytes()));
    }
}

#[tokio::test]
async fn open_connections_are_reused_and_closed_ones_are_not() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (accepted, mut opened) = tokio::sync::watch::channel(0);
    let (dropped, mut closed) = tokio::sync::watch::channel(0);
    // Responds to three requests on each connection, and then closes it without notice.
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            accepted.send_modify(|count| *count += 1);
            for _ in 0..3 {
                let mut read = vec![0; 4_096];
                let _ = stream.read(&mut read).await;
                let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                let _ = stream.write_all(ok).await;
            }
            drop(stream);
            dropped.send_modify(|count| *count += 1);
        }
    });
    let server =
        BackEnd::new(BackEndSettings::new(format!("http://{address}"), Format::Json)).unwrap();
    let (other, _) = fake::serve_with(|_| "ok".into_response()).await;
    let other =
        BackEnd::new(BackEndSettings::new(format!("http://{other}"), Format::Json)).unwrap();
    for round in 1..=3 {
        for _ in 0..3 {
            assert_eq!(answer(&server, InputKind::Task, "1").await, completed("ok"));
            assert_eq!(*opened.borrow_and_update(), round);
        }
        closed.wait_for(|count| *count == round).await.unwrap();
        // After this exchange, earlier events of the network have been processed.
        assert_eq!(answer(&other, InputKind::Task, "1").await, completed("ok"));
    }
}

#[tokio::test]
async fn models_and_health_are_requested() {
    let (address, _) = fake::serve_with(|seen| match seen.path.as_str() {
        "/v1/models" => {
            r#"{"object":"list","data":[{"id":"a"},{"id":" no name "},{"id":"b"}]}"#.into_response()
        }
        "/well" => "yes".into_response(),
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    })
    .await;
    let server = openai(address);
    assert_eq!(server.models().await.unwrap(), [name("a"), name("b")]);
    assert!(server.health().await.is_ok());
    let with_path = |path: &str| {
        let mut config = BackEndSettings::new(format!("http://{address}"), Format::Openai);
        config.health_path = Some(path.to_owned());
        BackEnd::new(config).unwrap()
    };
    assert!(with_path("/well").health().await.is_ok());
    assert!(matches!(with_path("/ill").health().await, Err(HttpError::Status { .. })));
    let (malformed, _) = fake::serve_with(|_| "[]".into_response()).await;
    assert!(openai(malformed).models().await.is_err());
    assert!(matches!(
        openai(fake::unused_address().await).health().await,
        Err(HttpError::Connect { .. })
    ));
    let (silent, _count) = fake::never_answering().await;
    let mut config = BackEndSettings::new(format!("http://{silent}"), Format::Openai);
    config.check_timeout = Duration::from_millis(20);
    assert!(matches!(BackEnd::new(config).unwrap().health().await, Err(HttpError::TimedOut(_))));
}

#[tokio::test]
async fn many_calls_at_once_do_not_mix() {
    let (address, _) = fake::serve_with(|seen| seen.body.clone().into_response()).await;
    let server =
        BackEnd::new(BackEndSettings::new(format!("http://{address}"), Format::Json)).unwrap();
    let calls = (0..300).map(|number| {
        let server = server.clone();
        tokio::spawn(async move {
            for round in 0..5 {
                let text = format!("{number} {round} {}", "y".repeat(number * 300));
                assert_eq!(answer(&server, InputKind::Task, &text).await, completed(&text));
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[test]
fn connection_is_shared_between_threads_and_replaced_where_it_is_used() {
    let reactor = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let serving = tokio::runtime::Runtime::new().unwrap();
    let port = async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.port().to_string();
    let router = Router::new().fallback(port).into_make_service_with_connect_info::<SocketAddr>();
    let listener = serving.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let server = openai(listener.local_addr().unwrap());
    serving.spawn(async { axum::serve(listener, router).await });
    // A connection needs the reactor that it was made with.
    let home = reactor();
    let first = home.block_on(answer(&server, InputKind::Chat, "{}"));
    let calls: Vec<CallOutcome> = std::thread::scope(|scope| {
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let other = scope.spawn(|| {
            let elsewhere = reactor();
            let calls = (0..80).map(|_| elsewhere.block_on(answer(&server, InputKind::Chat, "{}")));
            let calls = calls.collect();
            drop(end);
            calls
        });
        let _ = home.block_on(ended);
        other.join().unwrap()
    });
    assert_eq!(calls[0], first);
    let changes = calls.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(changes, 1, "{calls:?}");
}
