//! Responses that break off, and connections that a back end closes although it announced to keep them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hypha_backends::{BackEnd, BackEndSettings, CallOutcome, Format};
use hypha_model::{FailureKind, InputKind, Payload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fake;
use super::lab::DEADLINE;

async fn call(server: &BackEnd, form: InputKind, stream: bool) -> CallOutcome {
    let call = server.start(None, form, &Payload::from(&b"{}"[..]), stream);
    tokio::time::timeout(DEADLINE, call.outcome()).await.expect("the call has not ended")
}

#[tokio::test]
async fn response_that_breaks_off_has_failed_if_its_protocol_shows_it() {
    // Neither a length nor chunks: the response ends where the connection ends.
    macro_rules! head {
        ($body:literal) => {
            concat!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", $body).as_bytes()
        };
    }
    let check = async |response: &'static [u8], route: &str, stream: bool, whole: bool| {
        let address = fake::raw(response, true).await;
        let (url, format) = match route {
            "/v1" => (format!("http://{address}"), Format::Openai),
            other => (format!("http://{address}{other}"), Format::Json),
        };
        let server = BackEnd::new(BackEndSettings::new(url, format)).unwrap();
        match call(&server, InputKind::Chat, stream).await {
            CallOutcome::Completed { .. } if whole => {}
            CallOutcome::Failed(error) if !whole => {
                assert_eq!(error.kind, FailureKind::BackendFailed, "{error}");
                assert!(error.message.contains("broke off"), "{error}");
            }
            other => panic!("{route} {}: {other:?}", String::from_utf8_lossy(response)),
        }
    };
    check(head!("data: {\"n\":1}\n\n"), "/v1", true, false).await;
    check(head!("data: {\"n\":1}\n\ndata: [DONE]\n\n"), "/v1", true, true).await;
    check(head!("{\"n\": 1}"), "/v1", true, true).await;
    check(head!("{\"n\": "), "/v1", true, false).await;
    check(head!("{\"n\": "), "/v1", false, false).await;
    let chunked =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n";
    check(chunked, "/v1", true, false).await;
    check(head!("data: {\"type\":\"response.created\"}\n\n"), "/v1/responses", true, false).await;
    check(head!("data: {\"type\":\"response.failed\"}\n\n"), "/v1/responses", true, true).await;
    check(head!("data: {\"type\":\"message_stop\"}\n\n"), "/v1/messages", true, true).await;
    check(head!("data: {\"type\":\"message_delta\"}\n\n"), "/v1/messages", true, false).await;
    check(head!("data: 1\n\n"), "/run", true, true).await;
}

/// A back end that answers the first request of each connection and announces to keep it. It reads the next request of
/// the first connection, works for a while, sends `then`, and closes it.
async fn closing_after_each_response(
    work: Duration,
    then: &'static [u8],
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        let mut is_first = true;
        while let Ok((stream, _)) = listener.accept().await {
            let then = std::mem::take(&mut is_first).then_some((work, then));
            tokio::spawn(serve_connection(stream, then, Arc::clone(&counted)));
        }
    });
    (address, requests)
}

async fn serve_connection(
    mut stream: TcpStream,
    then: Option<(Duration, &'static [u8])>,
    requests: Arc<AtomicUsize>,
) {
    let mut read = vec![0; 1 << 16];
    let ok = b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok";
    while stream.read(&mut read).await.is_ok_and(|count| count > 0) {
        let is_first = requests.fetch_add(1, Ordering::SeqCst) == 0;
        match then {
            Some((work, then)) if !is_first => {
                tokio::time::sleep(work).await;
                let _ = stream.write_all(then).await;
                return;
            }
            _ => stream.write_all(ok).await.unwrap(),
        }
    }
}

#[tokio::test]
async fn request_that_got_no_byte_on_a_kept_connection_is_sent_again_on_a_new_one() {
    let ok = CallOutcome::Completed { payload: Payload::from(&b"ok"[..]) };
    let server = |address| {
        BackEnd::new(BackEndSettings::new(format!("http://{address}"), Format::Json)).unwrap()
    };
    let (address, requests) = closing_after_each_response(Duration::ZERO, b"").await;
    let back_end = server(address);
    for _ in 0..3 {
        assert_eq!(call(&back_end, InputKind::Task, false).await, ok);
    }
    assert_eq!(requests.load(Ordering::SeqCst), 4, "the second was sent twice");

    // The back end has begun to respond, or has had the request for a while: it may have done the work.
    let begun = closing_after_each_response(Duration::ZERO, b"HTTP/1.1 200 OK\r\n").await;
    let worked = closing_after_each_response(Duration::from_secs(3), b"").await;
    for (address, requests) in [begun, worked] {
        let back_end = server(address);
        assert_eq!(call(&back_end, InputKind::Task, false).await, ok);
        let outcome = call(&back_end, InputKind::Task, false).await;
        assert!(matches!(outcome, CallOutcome::Failed(_)), "{outcome:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test]
async fn request_that_got_no_byte_on_a_new_connection_is_not_repeated() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut vec![0; 1 << 16]).await;
        }
    });
    let server = BackEnd::new(BackEndSettings::new(url, Format::Json)).unwrap();
    let outcome = call(&server, InputKind::Task, false).await;
    assert!(matches!(outcome, CallOutcome::Failed(_)), "{outcome:?}");
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}
