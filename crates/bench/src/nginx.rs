//! nginx as a reference, where it is installed. All its files are in the lab's directory.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::http::HttpConnection;
use crate::lab::{Lab, Process, free_address};

/// How long nginx may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How often that is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Starts nginx in front of the back ends; `None` if it is not installed.
pub(crate) async fn start(
    lab: &Lab,
    backends: &[SocketAddr],
) -> anyhow::Result<Option<(Process, SocketAddr)>> {
    let found = Command::new("nginx").arg("-v").stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let address = free_address()?;
    let (config, directory) = (lab.path("nginx.conf"), lab.path(""));
    std::fs::write(&config, configuration(address, backends)).context("cannot write nginx.conf")?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(directory).arg("-e").arg("stderr").arg("-c").arg(&config);
    let mut process = lab.start("nginx", command.stdin(Stdio::null()))?;
    let until = Instant::now() + START_TIMEOUT;
    while HttpConnection::connect(address).await.is_err() {
        process.check()?;
        ensure!(Instant::now() < until, "nginx does not listen: {}", process.tail());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(Some((process, address)))
}

/// Two processes, persistent connections on both sides, and no access log.
fn configuration(address: SocketAddr, backends: &[SocketAddr]) -> String {
    let servers: String =
        backends.iter().map(|backend| format!("    server {backend};\n")).collect();
    format!(
        "daemon off;\n\
         worker_processes 2;\n\
         pid nginx.pid;\n\
         error_log stderr warn;\n\
         events {{ worker_connections 2048; }}\n\
         http {{\n\
         \x20 access_log off;\n\
         \x20 client_body_temp_path body;\n\
         \x20 proxy_temp_path proxy;\n\
         \x20 fastcgi_temp_path fastcgi;\n\
         \x20 uwsgi_temp_path uwsgi;\n\
         \x20 scgi_temp_path scgi;\n\
         \x20 keepalive_requests 1000000000;\n\
         \x20 tcp_nodelay on;\n\
         \x20 upstream backends {{\n\
         {servers}\
         \x20   keepalive 128;\n\
         \x20   keepalive_requests 1000000000;\n\
         \x20 }}\n\
         \x20 server {{\n\
         \x20   listen {address};\n\
         \x20   location / {{\n\
         \x20     proxy_pass http://backends;\n\
         \x20     proxy_http_version 1.1;\n\
         \x20     proxy_set_header Connection \"\";\n\
         \x20   }}\n\
         \x20 }}\n\
         }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_is_named() {
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let text = configuration(address(1), &[address(2), address(3)]);
        assert!(text.contains("listen 127.0.0.1:1;"), "{text}");
        assert!(text.contains("server 127.0.0.1:2;\n    server 127.0.0.1:3;"), "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
    }
}
