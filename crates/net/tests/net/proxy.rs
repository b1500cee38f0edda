//! A TCP proxy on loopback that stalls and cuts its connections, each time so many bytes have passed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hypha_net::{Multiaddr, ip_of, multiaddr::Protocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Not that of the nodes, so that it can be distinguished from theirs.
const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

pub(crate) struct Proxy {
    address: Multiaddr,
    faults: Arc<Faults>,
}

struct Faults {
    every: u64,
    stall: Duration,
    passed: AtomicU64,
    made: AtomicUsize,
    stalled: watch::Sender<bool>,
    connections: Mutex<Vec<AbortHandle>>,
}

impl Proxy {
    /// In front of `target`, with the same peer id. Every `every` bytes there is a fault: alternately nothing moves for
    /// `stall`, and all connections are cut.
    pub(crate) async fn start(target: &Multiaddr, every: u64, stall: Duration) -> Proxy {
        let port = target.iter().find_map(|part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        });
        let to = SocketAddr::new(ip_of(target).unwrap(), port.unwrap());
        let listener = TcpListener::bind((OWN_ADDRESS, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let address = target
            .iter()
            .map(|part| match part {
                Protocol::Ip4(_) => Protocol::Ip4(OWN_ADDRESS),
                Protocol::Tcp(_) => Protocol::Tcp(own),
                other => other,
            })
            .collect();
        let faults = Arc::new(Faults {
            every,
            stall,
            passed: AtomicU64::new(0),
            made: AtomicUsize::new(0),
            stalled: watch::Sender::new(false),
            connections: Mutex::default(),
        });
        tokio::spawn(forward(listener, to, faults.clone()));
        Proxy { address, faults }
    }

    pub(crate) fn address(&self) -> Multiaddr {
        self.address.clone()
    }

    /// How many faults there were.
    pub(crate) fn faults(&self) -> usize {
        self.faults.made.load(Ordering::Relaxed)
    }
}

impl Faults {
    fn passed(self: &Arc<Faults>, bytes: u64) {
        let before = self.passed.fetch_add(bytes, Ordering::Relaxed);
        if before / self.every == (before + bytes) / self.every {
            return;
        }
        if self.made.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            self.stalled.send_replace(true);
            let faults = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(faults.stall).await;
                faults.stalled.send_replace(false);
            });
        } else {
            self.connections.lock().unwrap().drain(..).for_each(|one| one.abort());
        }
    }
}

async fn forward(listener: TcpListener, to: SocketAddr, faults: Arc<Faults>) {
    while let Ok((inner, _)) = listener.accept().await {
        let Ok(outer) = TcpStream::connect(to).await else { continue };
        let (inner_read, inner_write) = inner.into_split();
        let (outer_read, outer_write) = outer.into_split();
        let (there, back) = (faults.clone(), faults.clone());
        let both = tokio::spawn(async move {
            tokio::join!(copy(inner_read, outer_write, there), copy(outer_read, inner_write, back))
        });
        faults.connections.lock().unwrap().push(both.abort_handle());
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, faults: Arc<Faults>) {
    let mut stalled = faults.stalled.subscribe();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        faults.passed(count as u64);
        if stalled.wait_for(|stalled| !stalled).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
