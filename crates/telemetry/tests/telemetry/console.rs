//! What a process logs on stderr. Each test runs one of the ignored tests below in a process of its own, and
//! reads its output; two more need an environment variable that only a new process can have.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use axum::http::StatusCode;
use hypha_telemetry::{LogFormat, Metrics, Protocol, Settings, start};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

use crate::failures::unused_port;
use crate::receiver::Receiver;
use crate::settings;

fn child(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("console::{name}"), "--ignored", "--nocapture"]);
    command.stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
#[ignore = "run by json_is_one_object_a_line"]
fn child_json() {
    let settings = Settings { log_format: LogFormat::Json, ..Settings::default() };
    let _telemetry = start(&settings).unwrap();
    tracing::info_span!("job", id = 7).in_scope(|| tracing::info!(answer = 42, "hello\nworld"));
    tracing::debug!("hidden");
}

#[test]
fn json_is_one_object_a_line() {
    let said = stderr(&child("child_json").output().unwrap());
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert_eq!(lines[0]["fields"]["message"], "hello\nworld");
    assert_eq!(lines[0]["fields"]["answer"], 42);
    assert_eq!(lines[0]["span"]["id"], 7);
}

#[test]
#[ignore = "run by human_lines_in_a_file_have_no_colours and a_closed_stderr_is_survived"]
fn child_human() {
    let _telemetry = start(&Settings::default()).unwrap();
    for _ in 0..100 {
        tracing::info!(answer = 42, "hello");
    }
}

#[test]
fn human_lines_in_a_file_have_no_colours() {
    let said = stderr(&child("child_human").output().unwrap());
    assert_eq!(said.lines().count(), 100, "{said}");
    assert!(said.contains("INFO") && said.contains("hello answer=42"), "{said}");
    assert!(!said.contains('\x1b'), "{said}");
}

#[test]
fn a_closed_stderr_is_survived() {
    let mut process =
        child("child_human").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stderr.take());
    assert!(process.wait().unwrap().success());
}

#[tokio::test]
#[ignore = "run by outage_and_recovery_are_logged_once"]
async fn child_outage() {
    let receiver = Receiver::answering(|number| match number {
        0 => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::OK,
    })
    .await;
    let mut telemetry = start(&settings(Protocol::HttpProtobuf, receiver.port)).unwrap();
    telemetry.export_metrics(&Metrics::new("1", "worker"));
    receiver.wait_for_a_request().await;
    telemetry.stop().await;
}

#[test]
fn outage_and_recovery_are_logged_once() {
    let said = stderr(&child("child_outage").output().unwrap());
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("WARN") && lines[0].contains("500"), "{said}");
    assert!(lines[1].contains("is back") && lines[1].contains("lost_batches=1"), "{said}");
    assert!(!said.contains("sesame"), "{said}");
}

#[tokio::test]
#[ignore = "run by an_absent_collector_is_one_line_a_signal"]
async fn child_absent() {
    let port = unused_port().await;
    let endpoint = Some(format!("http://127.0.0.1:{port}/?token=sesame"));
    let settings = Settings { endpoint, ..settings(Protocol::HttpProtobuf, port) };
    let mut telemetry = start(&settings).unwrap();
    telemetry.export_metrics(&Metrics::new("1", "worker"));
    for _ in 0..5000 {
        tracing::info_span!("work").in_scope(|| ());
    }
    telemetry.stop().await;
}

#[test]
fn an_absent_collector_is_one_line_a_signal() {
    let said = stderr(&child("child_absent").output().unwrap());
    for signal in ["traces", "metrics"] {
        let wanted = format!("signal=\"{signal}\"");
        assert_eq!(said.lines().filter(|it| it.contains(&wanted)).count(), 1, "{said}");
    }
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("refused") && !said.contains("sesame"), "{said}");
}

#[tokio::test]
#[ignore = "run by rejected_spans_are_logged and plain_http_needs_no_root_certificates"]
async fn child_rejected() {
    let receiver = Receiver::rejecting_spans().await;
    let telemetry = start(&settings(Protocol::HttpProtobuf, receiver.port)).unwrap();
    tracing::info_span!("work").in_scope(|| ());
    telemetry.stop().await;
}

#[test]
fn rejected_spans_are_logged() {
    let said = stderr(&child("child_rejected").output().unwrap());
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("1 of the traces were rejected: the quota is used up"), "{said}");
}

/// The same on a machine that has no certificates at all, as in a bare container.
#[test]
fn plain_http_needs_no_root_certificates() {
    let mut command = child("child_rejected");
    command.env("SSL_CERT_FILE", "/nonexistent").env_remove("SSL_CERT_DIR");
    let said = stderr(&command.output().unwrap());
    assert!(said.contains("the quota is used up"), "{said}");
}

async fn child_https(protocol: Protocol) {
    let port = std::env::var("TEST_PORT").unwrap();
    let endpoint = Some(format!("https://localhost:{port}/otlp/"));
    let telemetry = start(&Settings { endpoint, ..settings(protocol, 0) }).unwrap();
    tracing::info_span!("work").in_scope(|| ());
    telemetry.stop().await;
}

#[tokio::test]
#[ignore = "run by https_works_with_a_known_certificate_only"]
async fn child_https_http() {
    child_https(Protocol::HttpProtobuf).await;
}

#[tokio::test]
#[ignore = "run by https_works_with_a_known_certificate_only"]
async fn child_https_grpc() {
    child_https(Protocol::Grpc).await;
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn https_works_with_a_known_certificate_only() {
    let (known, unknown) = (authority("known"), authority("unknown"));
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &known).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];

    let directory = tempfile::tempdir().unwrap();
    for protocol in ["child_https_http", "child_https_grpc"] {
        for (name, authority, arrives) in [("known", &known, 1), ("unknown", &unknown, 0)] {
            let receiver = Receiver::secure(TlsAcceptor::from(Arc::new(config.clone()))).await;
            let roots = directory.path().join(name);
            std::fs::write(&roots, authority.pem()).unwrap();
            let mut command = child(protocol);
            command.env("SSL_CERT_FILE", &roots).env_remove("SSL_CERT_DIR");
            command.env("TEST_PORT", receiver.port.to_string());
            let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await;
            let said = stderr(&output.unwrap());
            assert_eq!(receiver.spans().len(), arrives, "{protocol} {name}: {said}");
            assert_eq!(said.is_empty(), arrives == 1, "{protocol} {name}: {said}");
        }
    }
}
