//! Registers workers, and restores them after a restart.

use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use hypha_backends::{
    Format, HttpSettings, HttpWorkers, OpenError, RegisterError, default_networks,
};
use hypha_model::Worker;
use serde_json::json;

use super::fake::{self, Instance};
use super::lab::{Lab, name, new_back_end, scheduler};

#[tokio::test]
async fn instance_reports_its_model_and_its_concurrency() {
    let instance = Instance::start("alpha", 3).await;
    let lab = Lab::new();
    let port = instance.address.port();
    let worker = lab.workers.register_instance("127.0.0.1", port, None).await.unwrap();
    assert_eq!(worker.executors[0].models, [name("alpha")]);
    assert_eq!(worker.concurrency(), 3);
    assert!(lab.workers.knows(worker.id));
    let again = lab.workers.register_instance("127.0.0.1", port, None).await.unwrap();
    assert_eq!(again.id, worker.id);
    assert_eq!(lab.workers.all(), [worker]);
    let other = Instance::start("alpha", 1).await;
    let other =
        lab.workers.register_instance("127.0.0.1", other.address.port(), None).await.unwrap();
    assert_ne!(other.id, again.id);
}

#[tokio::test]
async fn info_route_is_used_where_status_is_missing() {
    let instance = Instance::start("alpha", 1).await;
    let lab = Lab::new();
    instance.state.lock().unwrap().info = Some(json!({"deployed_model": {"model_name": "beta"}}));
    let port = instance.address.port();
    let worker = lab.workers.register_instance("127.0.0.1", port, None).await.unwrap();
    assert_eq!(worker.executors[0].models, [name("beta")]);
}

#[tokio::test]
async fn the_model_of_an_instance_may_be_named() {
    let instance = Instance::start("alpha", 1).await;
    let lab = Lab::new();
    let port = instance.address.port();
    let register = async |model: &str| {
        lab.workers.register_instance("127.0.0.1", port, Some(&name(model))).await
    };
    assert!(register("alpha").await.is_ok());
    let Err(RegisterError::Invalid(reason)) = register("beta").await else {
        panic!("it serves another model")
    };
    assert!(reason.contains("serves `alpha`, and not `beta`"), "{reason}");
    instance.state.lock().unwrap().status = json!({"status": "running"});
    let worker = register("beta").await.unwrap();
    assert_eq!(worker.executors[0].models, [name("beta")]);
}

#[tokio::test]
async fn unreachable_or_unhealthy_back_ends_are_not_registered() {
    let instance = Instance::start("alpha", 1).await;
    let lab = Lab::with(|settings| settings.health_timeout = Duration::from_millis(100));
    let refused = async |port| match lab.workers.register_instance("127.0.0.1", port, None).await {
        Err(RegisterError::Unhealthy(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let check = async |status: serde_json::Value, expected: &str| {
        instance.state.lock().unwrap().status = status;
        let reason = refused(instance.address.port()).await;
        assert!(reason.contains(expected), "{reason}");
    };
    check(json!({"model_type": "m", "status": "error"}), "the status `error`").await;
    check(json!({"status": "running"}), "does not report its model").await;
    check(json!({"model_type": "m", "replicas_running": 0}), "runs no replica").await;
    check(json!({"model_type": " m "}), "the name of the task instance's model").await;
    check(json!(7), "does not report its model").await;
    let (silent, _count) = fake::never_answering().await;
    assert!(refused(silent.port()).await.contains("did not answer within"));
    assert!(
        refused(fake::unused_address().await.port()).await.contains("no connection to 127.0.0.1:")
    );
    let malformed = fake::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{x}", false).await;
    assert!(refused(malformed.port()).await.contains("is not JSON"));
    let endless = fake::raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n{", false).await;
    assert!(refused(endless.port()).await.contains("did not answer within"));
    let headers =
        Box::leak(format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(2 << 20)).into_boxed_str());
    let headers = fake::raw(headers.as_bytes(), false).await;
    refused(headers.port()).await;
    let redirect = format!(
        "HTTP/1.1 302 Found\r\nlocation: http://{}/status\r\ncontent-length: 0\r\n\r\n",
        instance.address
    );
    let redirect = fake::raw(Box::leak(redirect.into_boxed_str()).as_bytes(), false).await;
    assert!(refused(redirect.port()).await.contains("302"));
    assert!(lab.workers.all().is_empty());
}

#[tokio::test]
async fn only_allowed_networks_are_called() {
    let instance = Instance::start("alpha", 1).await;
    let lab = Lab::with(|settings| settings.allowed_networks = vec!["10.0.0.0/8".parse().unwrap()]);
    let port = instance.address.port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "::1"] {
        let result = lab.workers.register_instance(host, port, None).await;
        assert!(matches!(result, Err(RegisterError::NotAllowed(ip)) if ip.is_loopback()), "{host}");
    }
    let url = format!("http://localhost:{port}");
    let server = || new_back_end(url.clone(), Format::Json, 1);
    let result = lab.workers.register_back_end(server()).await;
    assert!(matches!(result, Err(RegisterError::NotAllowed(_))));
    // A back end that the operator configures may be in any network.
    let mut trusted = server();
    trusted.trusted = true;
    assert!(lab.workers.register_back_end(trusted).await.is_ok());

    let lab = Lab::new();
    let named = lab.workers.register_instance("localhost", port, None).await.unwrap();
    // It is the same instance, by whichever name it is found.
    let same = lab.workers.register_instance("127.0.0.1", port, None).await.unwrap();
    assert_eq!((same.id, lab.workers.all().len()), (named.id, 1));
    for host in ["LocalHost", "localhost.", "127.0.0.1"] {
        assert_eq!(lab.workers.instance_at(host, port), Some(named.id), "{host}");
    }
    assert_eq!(lab.workers.instance_at("127.0.0.1", port ^ 1), None);
    for host in ["", "a b", "http://x", "x/y", "x@y", &"x".repeat(300)] {
        let result = lab.workers.register_instance(host, port, None).await;
        assert!(matches!(result, Err(RegisterError::Invalid(_))), "{host}");
    }
    assert!(matches!(
        lab.workers.register_instance("127.0.0.1", 0, None).await,
        Err(RegisterError::Invalid(_))
    ));
    let defaults = default_networks();
    let allowed = |ip: &str| {
        defaults.iter().any(|net| net.contains(&ip.parse::<std::net::IpAddr>().unwrap()))
    };
    for (ip, expected) in [
        ("127.9.9.9", true),
        ("10.1.2.3", true),
        ("172.31.0.1", true),
        ("172.32.0.1", false),
        ("192.168.3.4", true),
        ("169.254.169.254", false),
        ("8.8.8.8", false),
        ("::1", true),
        ("fd00::1", true),
        ("2001:db8::1", false),
    ] {
        assert_eq!(allowed(ip), expected, "{ip}");
    }
}

#[tokio::test]
async fn back_ends_are_registered_with_their_models() {
    let (address, _) = fake::serve_with(|_| r#"{"data":[{"id":"a"}]}"#.into_response()).await;
    let lab = Lab::new();
    let register = |url: String, format, models: &[&str]| {
        let mut new = new_back_end(url, format, 5);
        new.models = models.iter().map(|model| name(model)).collect();
        lab.workers.register_back_end(new)
    };
    let url = format!("http://{address}");
    let worker = register(url.clone(), Format::Openai, &[]).await.unwrap();
    assert_eq!((worker.concurrency(), worker.executors[0].models.clone()), (5, vec![name("a")]));
    let same = register(format!("{url}/v1/"), Format::Openai, &[]).await.unwrap();
    assert_eq!(same.id, worker.id);
    let json = register(url.clone(), Format::Json, &["x"]).await.unwrap();
    assert_ne!(json.id, worker.id);
    let result = register(url, Format::Json, &[]).await;
    assert!(matches!(result, Err(RegisterError::Invalid(reason)) if reason.contains("name them")));
    let unused = fake::unused_address().await;
    let result = register(format!("http://{unused}"), Format::Openai, &["x"]).await;
    assert!(matches!(result, Err(RegisterError::Unhealthy(_))));
    let result = register(format!("https://{unused}"), Format::Openai, &["x"]).await;
    assert!(matches!(result, Err(RegisterError::Invalid(reason)) if reason.contains("https")));
}

#[tokio::test]
async fn workers_are_found_again_and_keys_are_not_written() {
    let instance = Instance::start("m", 2).await;
    let (address, seen) = fake::serve_with(|seen| seen.body.clone().into_response()).await;
    let url = format!("http://{address}/run");
    let mut lab = Lab::new();
    let first = lab.instance(&instance).await.worker;
    let second = lab.server(url.clone(), Format::Json, 4).await.worker;
    let mut keyed = new_back_end(format!("{url}/keyed"), Format::Json, 1);
    keyed.config.api_key = Some("sesame".to_owned());
    let keyed = lab.workers.register_back_end(keyed).await.unwrap();
    let mut trusted = new_back_end(format!("{url}/trusted"), Format::Json, 1);
    trusted.trusted = true;
    let trusted = lab.workers.register_back_end(trusted).await.unwrap();
    assert_eq!(lab.workers.all().len(), 4);
    let authority = |lab: &Lab, id| lab.workers.authority(id).unwrap_or_default();
    assert_eq!(authority(&lab, first.id), instance.address.to_string());
    assert_eq!(authority(&lab, trusted.id), address.to_string());
    let directory = lab.directory;
    let text = std::fs::read_to_string(directory.path().join("http-workers.json")).unwrap();
    assert!(!text.contains("sesame") && !text.contains("keyed") && !text.contains("trusted"));
    assert!(text.contains("\"place\""), "files of earlier versions have this key: {text}");

    let mut lab = Lab::opened(directory, |_| {});
    let mut known: Vec<Worker> = lab.workers.all().iter().map(|it| Worker::clone(it)).collect();
    known.sort_by_key(|worker| worker.concurrency());
    assert_eq!(known, [Worker::clone(&first), Worker::clone(&second)]);
    assert!(!lab.workers.knows(keyed.id));
    assert_eq!(authority(&lab, first.id), instance.address.to_string());
    assert_eq!(authority(&lab, second.id), address.to_string());
    let leased = lab.lease(&first).await;
    lab.dispatch(&leased, 1, "1");
    assert_eq!(lab.next_summary().await, "started 1");
    let leased = lab.lease(&second).await;
    lab.dispatch(&leased, 2, "7");
    assert_eq!(lab.ends().await, "completed 2: 7");
    assert_eq!(seen.lock().unwrap()[0].path, "/run");
    let again =
        lab.workers.register_instance("127.0.0.1", instance.address.port(), None).await.unwrap();
    assert_eq!(again.id, first.id, "the same worker after a restart");
}

#[tokio::test]
async fn changed_instance_replaces_the_old_one() {
    let instance = Instance::start("m", 1).await;
    let mut lab = Lab::new();
    let old = lab.instance(&instance).await;
    instance.state.lock().unwrap().status["replicas_running"] = json!(4);
    let new = lab.instance(&instance).await;
    assert_eq!(new.worker.id, old.worker.id);
    assert_eq!(new.worker.concurrency(), 4);
    assert_eq!(lab.heartbeat(&old, 1).await, "lease unknown");
}

#[tokio::test]
async fn damaged_or_unwritable_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http-workers.json");
    let open =
        || HttpWorkers::open(HttpSettings::new(directory.path()), scheduler(Arc::new(|_, _| ())));
    for damaged in ["", "{", "{\"workers\": [{}]}", "\u{0}"] {
        std::fs::write(&path, damaged).unwrap();
        let error = open().err().unwrap();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("move it away"), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let workers = open().unwrap();
    // A directory is in the place of the new file.
    std::fs::create_dir(directory.path().join("http-workers.json.new")).unwrap();
    let instance = Instance::start("m", 1).await;
    let result = workers.register_instance("127.0.0.1", instance.address.port(), None).await;
    assert!(matches!(result, Err(RegisterError::NotSaved(_))));
    assert!(workers.all().is_empty(), "a worker that is not saved is not acknowledged");
}

#[tokio::test]
async fn removed_worker_is_not_health_checked_until_it_is_readmitted() {
    let mut lab = Lab::with(|settings| settings.health_interval = Duration::from_millis(1));
    let (removed, kept) = (Instance::start("alpha", 1).await, Instance::start("alpha", 1).await);
    let port = |instance: &Instance| instance.address.port();
    let worker = lab.workers.register_instance("127.0.0.1", port(&removed), None).await.unwrap();
    lab.workers.register_instance("127.0.0.1", port(&kept), None).await.unwrap();
    let looks = |instance: &Instance| instance.state.lock().unwrap().looks;
    removed.until(|state| state.looks > 3).await;
    lab.workers.mark_removed(worker.id);
    let (before, so_far) = (looks(&removed), looks(&kept));
    kept.until(|state| state.looks > so_far + 20).await;
    assert!(looks(&removed) <= before + 1, "one check may have been in flight");
    let before = looks(&removed);
    lab.lease(&worker).await;
    removed.until(|state| state.looks > before).await;
}

#[tokio::test]
async fn a_removed_worker_is_kept_until_another_needs_its_place() {
    /// The largest number of workers.
    const MOST: usize = 10_000;
    let instance = Instance::start("alpha", 1).await;
    let mut lab = Lab::new();
    let worker =
        lab.workers.register_instance("127.0.0.1", instance.address.port(), None).await.unwrap();
    let (address, _) = fake::serve_with(|seen| seen.body.clone().into_response()).await;
    let server = lab.server(format!("http://{address}"), Format::Json, 1).await;
    for removed in [&worker, &server.worker] {
        lab.workers.mark_removed(removed.id);
        let again = lab.lease(removed).await;
        assert_eq!(lab.heartbeat(&again, 1).await, "alive 1, holding []", "it is readmitted");
    }
    lab.workers.mark_removed(worker.id);
    let mut lab = Lab::opened(lab.directory, |_| {});
    lab.lease(&worker).await;

    let trusted = |number: usize| {
        let new = new_back_end(format!("http://127.0.0.1:1/{number}"), Format::Json, 1);
        hypha_backends::NewBackEnd { trusted: true, ..new }
    };
    for number in lab.workers.all().len()..MOST {
        lab.workers.register_back_end(trusted(number)).await.unwrap();
    }
    let one_more = lab.workers.register_back_end(trusted(MOST)).await;
    assert!(matches!(one_more, Err(RegisterError::TooMany)), "{one_more:?}");
    lab.workers.mark_removed(worker.id);
    lab.workers.register_back_end(trusted(MOST)).await.unwrap();
    assert!(!lab.workers.knows(worker.id));
    let one_more = lab.workers.register_back_end(trusted(MOST + 1)).await;
    assert!(matches!(one_more, Err(RegisterError::TooMany)), "{one_more:?}");
}
