//! A trace passes with a request from one node to the next, and both export to the collector.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::lab::{self, Lab};
use crate::process::WAIT_TIMEOUT;

/// Receives spans over HTTP, by the service that sent them.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<HashMap<String, Vec<Span>>>>,
}

impl Collector {
    /// Listens for as long as the test runs.
    fn start() -> (Collector, String) {
        let collector = Collector::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let taking = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let taking = taking.clone();
                std::thread::spawn(move || taking.serve(stream));
            }
        });
        (collector, endpoint)
    }

    /// Requests of one connection, one after the other, until it closes.
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut answers = stream.try_clone().ok()?;
        let mut requests = BufReader::new(stream);
        loop {
            let mut first = String::new();
            requests.read_line(&mut first).ok().filter(|count| *count > 0)?;
            let mut length = 0;
            loop {
                let mut line = String::new();
                requests.read_line(&mut line).ok()?;
                let line = line.trim().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(count) = line.strip_prefix("content-length:") {
                    length = count.trim().parse().ok()?;
                }
            }
            let mut body = vec![0; length];
            requests.read_exact(&mut body).ok()?;
            if first.starts_with("POST /v1/traces ") {
                self.take(&body);
            }
            answers.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }

    fn take(&self, body: &[u8]) {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let service = attributes.iter().find(|one| one.key == "service.name").unwrap();
            let service = format!("{:?}", service.value);
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.spans.lock().unwrap().entry(service).or_default().extend(spans);
        }
    }

    /// The spans of this name that a service with `role` in its name sent.
    fn spans(&self, role: &str, name: &str) -> Vec<Span> {
        let spans = self.spans.lock().unwrap();
        let of_role = spans.iter().filter(|(service, _)| service.contains(role));
        of_role
            .flat_map(|(_, spans)| spans.iter().filter(|span| span.name == name).cloned())
            .collect()
    }
}

#[test]
fn a_trace_goes_from_the_scheduler_to_the_worker() {
    let (collector, endpoint) = Collector::start();
    let lab = Lab::new("traces");
    let gateway = lab.member("gateway", "gateway", &[], "").start();
    let front = lab::address(&gateway);
    let told =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_TRACES_SAMPLER", "always_on")];
    let worker = lab.member("worker", "worker", &[&front], "");
    let mut worker = worker.start_among(&told);
    let scheduler = lab.member("scheduler", "scheduler", &[&front], "");
    let mut scheduler = scheduler.start_among(&told);
    scheduler.wait_for_line("a worker answers", WAIT_TIMEOUT);
    // Pending spans are sent when they stop.
    assert!(scheduler.terminate(WAIT_TIMEOUT).success());
    assert!(worker.terminate(WAIT_TIMEOUT).success());

    let greetings = collector.spans("scheduler", "check worker health");
    let requests = collector.spans("worker", "request");
    assert!(!greetings.is_empty(), "the scheduler sent no span");
    let continued = |greeting: &Span| {
        requests.iter().any(|request| {
            request.trace_id == greeting.trace_id && request.parent_span_id == greeting.span_id
        })
    };
    assert!(greetings.iter().any(continued), "{greetings:?} {requests:?}");
}
