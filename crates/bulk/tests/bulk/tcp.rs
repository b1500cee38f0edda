//! The dedicated connection: which peers are admitted, and what refused ones cost.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hypha_bulk::PeerKey;
use hypha_bulk::tcp::{AdmitPeer, Connection, DialError, Listener, TcpLimits, dial};
use hypha_pki::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::pki::{Node, admit};

const WITHIN: Duration = Duration::from_secs(10);

async fn listen(node: &Arc<Node>, limits: TcpLimits, admit: Arc<AdmitPeer>) -> Listener {
    let node = Arc::clone(node);
    let any = "127.0.0.1:0".parse().unwrap();
    Listener::bind(any, limits, Arc::new(move || node.server()), admit).await.unwrap()
}

async fn dial_as(node: &Node, listener: &Listener) -> Result<Connection, DialError> {
    dial(listener.local_addr(), node.client(), Node::name(), &admit, WITHIN).await
}

async fn works(node: &Node, listener: &mut Listener) {
    let mut near = dial_as(node, listener).await.unwrap();
    let mut far = listener.accept().await.unwrap();
    near.stream.write_all(b"hello").await.unwrap();
    near.stream.flush().await.unwrap();
    let mut bytes = [0; 5];
    far.stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"hello");
    assert_eq!(far.peer, admit(&far.certificates).unwrap());
    assert_ne!(far.peer, near.peer);
}

#[tokio::test]
async fn both_sides_know_each_other() {
    let (one, two) = Node::pair();
    let mut listener = listen(&one, TcpLimits::default(), Arc::new(admit)).await;
    works(&two, &mut listener).await;
}

/// Under TLS 1.3 a dialler is connected before it is verified: it must get the verdict, and the reason.
#[tokio::test]
async fn a_dialler_that_is_not_admitted_gets_the_reason() {
    let (one, two) = Node::pair();
    let refuse = |_: &[CertificateDer<'_>]| Err::<PeerKey, _>("workers only".to_owned());
    let listener = listen(&one, TcpLimits::default(), Arc::new(refuse)).await;
    let error = dial_as(&two, &listener).await.map(drop).unwrap_err();
    assert!(matches!(&error, DialError::Refused { reason, .. } if reason == "workers only"));
}

#[tokio::test]
async fn a_dialler_refuses_the_wrong_peer() {
    let (one, two) = Node::pair();
    let listener = listen(&one, TcpLimits::default(), Arc::new(admit)).await;
    let refuse = |_: &[CertificateDer<'_>]| Err("another peer was meant".to_owned());
    let address = listener.local_addr();
    let dialled = dial(address, two.client(), Node::name(), &refuse, WITHIN).await;
    assert!(matches!(dialled.map(drop), Err(DialError::NotAdmitted { .. })));
}

#[tokio::test]
async fn an_untrusted_peer_is_refused_and_does_not_affect_others() {
    let (one, two) = Node::pair();
    let (stranger, _) = Node::pair();
    let mut listener = listen(&one, TcpLimits::default(), Arc::new(admit)).await;
    let dialled = dial_as(&stranger, &listener).await.map(drop);
    assert!(matches!(dialled, Err(DialError::Connect { .. })), "{dialled:?}");
    works(&two, &mut listener).await;
}

/// More silent or invalid connections than there is room for.
#[tokio::test]
async fn a_flood_does_not_keep_others_out() {
    let (one, two) = Node::pair();
    let limits = TcpLimits { handshakes: 8, handshake_timeout: Duration::from_secs(60) };
    let mut listener = listen(&one, limits, Arc::new(admit)).await;
    let mut held = Vec::new();
    for index in 0..50 {
        let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
        if index % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        }
        held.push(stream);
    }
    works(&two, &mut listener).await;
    // The first ones were dropped, long before their timeout.
    let mut nothing = Vec::new();
    let closed = tokio::time::timeout(WITHIN, held[1].read_to_end(&mut nothing)).await.unwrap();
    assert!(matches!(closed, Ok(0)) || closed.is_err_and(|error| is_reset(&error)));
}

fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

/// A silent connection is dropped at its timeout, even if there is room.
#[tokio::test]
async fn a_silent_connection_is_dropped() {
    let (one, _) = Node::pair();
    let limits = TcpLimits { handshake_timeout: Duration::from_millis(50), handshakes: 8 };
    let listener = listen(&one, limits, Arc::new(admit)).await;
    let mut stream = TcpStream::connect(listener.local_addr()).await.unwrap();
    let closed = tokio::time::timeout(WITHIN, stream.read_u8()).await.unwrap();
    assert!(closed.is_err());
}

#[tokio::test]
async fn reloaded_certificates_apply_to_the_next_connection() {
    let (old_listens, old_dials) = Node::pair();
    let (new_listens, new_dials) = Node::pair();
    let now = Arc::new(Mutex::new(old_listens));
    let given = Arc::clone(&now);
    let tls = Arc::new(move || given.lock().unwrap().server());
    let any = "127.0.0.1:0".parse().unwrap();
    let mut listener =
        Listener::bind(any, TcpLimits::default(), tls, Arc::new(admit)).await.unwrap();
    works(&old_dials, &mut listener).await;
    *now.lock().unwrap() = new_listens;
    works(&new_dials, &mut listener).await;
    assert!(dial_as(&old_dials, &listener).await.is_err());
}
