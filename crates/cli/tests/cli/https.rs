//! A scheduler that serves HTTPS, to clients that verify its certificate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::command::{done, failed, hypha};
use crate::http;
use crate::lab::Lab;
use crate::process::{Node, WAIT_TIMEOUT};

/// A lab whose authority has certified `127.0.0.1`, and a scheduler that serves HTTPS with that certificate.
fn scheduler(test: &str) -> (Lab, String) {
    let lab = Lab::new(test);
    let [cert, key] = ["cert", "key"].map(|what| lab.path(&format!("lab-ca-{what}.pem")));
    let authority = ["--ca-cert", &cert, "--ca-key", &key, "-d", &lab.path("")];
    let node = ["certutil", "node", "-n", "api", "--role", "scheduler", "--san", "127.0.0.1"];
    done(&[&node[..], &authority].concat());
    let keys = "[scheduler.api]\nbind_address = \"127.0.0.1:0\"\n\
                tls_cert_pem = \"api-cert.pem\"\ntls_key_pem = \"api-key.pem\"\n";
    let config = lab.member("scheduler", "scheduler", &[], keys).config;
    (lab, config)
}

fn start(config: &str) -> Node {
    Node::hypha("scheduler", &["scheduler", "run", "-c", config])
}

/// curl's exit code and output.
fn curl(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("curl").args(["-sS", "--max-time", "30"]).args(arguments).output();
    let output = output.expect("curl is there");
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// curl's code for an untrusted certificate.
const NOT_BELIEVED: Option<i32> = Some(60);

#[test]
fn https_is_served_and_plain_http_is_refused() {
    let (lab, config) = scheduler("https");
    let mut node = start(&config);
    let address = node.wait_for_line("serving the API at https://{}", WAIT_TIMEOUT);
    let address: SocketAddr = address.parse().unwrap();
    let url = format!("https://{address}");
    let trust = lab.path("api-trust.pem");

    let tasks = format!("{url}/api/v1/tasks");
    let submit = ["--cacert", &trust, &tasks, "--json", r#"{"model": "echo", "input": 7}"#];
    let (code, task) = curl(&submit);
    assert_eq!(code, Some(0), "{task}");
    let task: serde_json::Value = serde_json::from_str(&task).unwrap();
    let listed = done(&["tasks", "--json", "--scheduler", &url, "--ca-file", &trust]);
    assert!(listed.contains(task["id"].as_str().unwrap()), "{listed}");

    // A client that does not know the authority, or expects another name, sends nothing.
    let stranger = Lab::new("https-stranger");
    let theirs = stranger.path("lab-ca-trust.pem");
    let elsewhere = format!("https://localhost:{}", address.port());
    for (ca, url) in [(&theirs, &url), (&trust, &elsewhere)] {
        let (code, said) = curl(&["--cacert", ca, &format!("{url}/healthz")]);
        assert_eq!((code, said.as_str()), (NOT_BELIEVED, ""), "{url}");
        let output = hypha(&["tasks", "--scheduler", url, "--ca-file", ca]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("certificate"), "{url}: {error}");
    }

    // A client that speaks without TLS, or sends nonsense, is disconnected, and does not affect others.
    assert!(http::get(address, "/healthz").map_or(true, |(status, _)| status >= 400));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream.write_all(&[0x16, 0x03, 0x01, 0xff, 0xff, 0x01]).unwrap();
    stream.write_all(&[0xff; 1_000]).unwrap();
    let mut answer = Vec::new();
    // Reset or closed: both are an end.
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"));
    let (code, said) = curl(&["--cacert", &trust, &format!("{url}/readyz")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(node.terminate(WAIT_TIMEOUT).success());
}

/// One line that names the file, before anything is served.
#[test]
fn files_that_cannot_be_used_for_https_stop_the_start() {
    let (lab, config) = scheduler("https-files");
    let right = std::fs::read_to_string(&config).unwrap();
    let empty = lab.file("empty.pem", "");
    let wrong = [
        ("api-cert.pem", empty.clone(), "it contains no certificate"),
        ("api-cert.pem", lab.path("api-key.pem"), "it contains no certificate"),
        ("api-key.pem", empty, "cannot be used for TLS"),
        ("api-key.pem", lab.path("scheduler-key.pem"), "cannot be used for TLS"),
    ];
    for (old, new, expected) in wrong {
        std::fs::write(&config, right.replace(old, &new)).unwrap();
        let mut node = start(&config);
        assert_eq!(node.wait(WAIT_TIMEOUT).code(), Some(2), "{new}: {}", node.output());
        let output = node.output();
        assert!(!output.contains("serving the API"), "{output}");
        let last = output.lines().last().unwrap();
        assert!(last.contains(expected), "{new}: {output}");
        assert!(last.contains(&new) || last.contains("api-cert.pem"), "{new}: {output}");
    }
    let none = right.replace("tls_key_pem = \"api-key.pem\"", "");
    std::fs::write(&config, none).unwrap();
    failed(2, &["scheduler", "run", "-c", &config], "give `tls_key_pem` too");
}
