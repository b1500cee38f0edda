//! Small programs that run on a host of a topology: the test binary starts itself there.
//!
//! They print to standard error, where the test harness prints nothing, and take orders as lines
//! on standard input.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::spawn;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::Host;
use crate::http;
use crate::process::{Node, WAIT_TIMEOUT};

/// The role of the process on the other side; unset in an ordinary test run.
const ROLE: &str = "HYPHA_TEST_ACTOR";
/// The path of the test that is the actor.
const ENTRY: &str = "hosts::actor::actor";

/// One attempt to connect. A link of a topology answers within milliseconds; the kernel repeats a lost SYN
/// after one second, and that repetition is to be part of the attempt.
const TRY: Duration = Duration::from_millis(1500);
/// Attempts to punch a hole: the first succeeds, unless the two sides start more than one attempt apart.
const PUNCH_TRIES: usize = 3;
/// Pending connections of a listener: a test has fewer.
const BACKLOG: i32 = 16;

const HELLO: &str = "hello";
const LISTENING: &str = "listening on port ";
const ANSWER: &str = "answer: ";

/// Accepts connections, sends each the address that it comes from, then prints `heard: <word>` for each word
/// that it receives, and sends it back.
pub struct Echo {
    pub address: SocketAddr,
    pub node: Node,
}

impl Echo {
    pub fn start(host: &Host) -> Echo {
        let (node, address) = start(host, "echo");
        Echo { address, node }
    }
}

/// Listens on a port, and dials from this same port, as libp2p does.
pub struct Dialler {
    /// On its own network.
    pub address: SocketAddr,
    pub node: Node,
}

impl Dialler {
    pub fn start(host: &Host) -> Dialler {
        let (node, address) = start(host, "dialler");
        Dialler { address, node }
    }

    /// Dials: `seen as <address>` (by an echo), `timed out`, `refused`, or another failure.
    pub fn dial(&mut self, to: SocketAddr) -> String {
        ask(&mut self.node, &format!("dial {to}"))
    }

    /// The address under which an echo sees this host.
    pub fn seen_by(&mut self, echo: &Echo) -> SocketAddr {
        let answer = self.dial(echo.address);
        let seen = answer.strip_prefix("seen as ").unwrap_or_else(|| panic!("{answer}"));
        seen.parse().unwrap()
    }

    /// Sends a word to the echo dialled last, which prints `came back: <word>` when the word returns.
    pub fn send(&mut self, word: &str) {
        assert_eq!(ask(&mut self.node, &format!("send {word}")), "sent");
    }

    /// Starts to dial a peer that dials us. [`Dialler::has_punched`] returns the outcome.
    pub fn punch(&mut self, to: SocketAddr) {
        self.node.say(&format!("punch {to}"));
    }

    /// Whether both sides have received each other's word.
    pub fn has_punched(&mut self) -> bool {
        self.node.wait_for_line("punched: {}", WAIT_TIMEOUT) == "true"
    }
}

/// Requests a path from a server on its own host, also on the loopback interface.
pub struct Browser {
    node: Node,
}

impl Browser {
    pub fn start(host: &Host) -> Browser {
        let (node, _) = start(host, "browser");
        Browser { node }
    }

    /// The body of a response, which must be one line of text with the status 200.
    #[track_caller]
    pub fn get(&mut self, address: &str, path: &str) -> String {
        let answer = ask(&mut self.node, &format!("{address} {path}"));
        let body = answer.strip_prefix("200 ").unwrap_or_else(|| panic!("{path}: {answer}"));
        body.to_owned()
    }
}

fn ask(node: &mut Node, order: &str) -> String {
    let mark = node.mark();
    node.say(order);
    let line = node.wait_for_line_after(mark, ANSWER, WAIT_TIMEOUT);
    line.strip_prefix(ANSWER).unwrap().to_owned()
}

fn start(host: &Host, role: &str) -> (Node, SocketAddr) {
    let binary = std::env::current_exe().unwrap();
    let mut command = host.command(binary.to_str().unwrap());
    command.args([ENTRY, "--exact", "--ignored", "--nocapture"]).env(ROLE, role);
    let node = Node::start(&format!("{role} on {}", host.address()), &mut command);
    let port: u16 = node.wait_for_line(&format!("{LISTENING}{{}}"), WAIT_TIMEOUT).parse().unwrap();
    (node, SocketAddr::from((host.address(), port)))
}

#[test]
#[ignore = "an actor in other tests, which start it on one of their hosts"]
fn actor() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let listener = bound(0);
    listener.listen(BACKLOG).unwrap();
    let listener = TcpListener::from(listener);
    let port = listener.local_addr().unwrap().port();
    eprintln!("{LISTENING}{port}");
    match role.as_str() {
        "echo" => serve(&listener, tell_and_repeat),
        "dialler" => take_orders(listener, port),
        "browser" => browse(),
        unknown => panic!("no actor is called {unknown}"),
    }
}

/// A socket on a port that others of this process may be bound to as well.
fn bound(port: u16) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into()).unwrap();
    socket
}

fn connect(port: u16, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = bound(port);
    socket.connect_timeout(&to.into(), TRY)?;
    Ok(socket.into())
}

fn serve(listener: &TcpListener, each: impl Fn(TcpStream) + Clone + Send + 'static) {
    for stream in listener.incoming().map_while(Result::ok) {
        let each = each.clone();
        spawn(move || each(stream));
    }
}

/// The other side may disconnect at any time.
fn tell_and_repeat(mut stream: TcpStream) {
    let _ = stream.peer_addr().and_then(|peer| writeln!(stream, "{peer}"));
    let words = BufReader::new(stream.try_clone().unwrap()).lines();
    for word in words.map_while(Result::ok) {
        eprintln!("heard: {word}");
        let _ = writeln!(stream, "{word}");
    }
}

fn take_orders(listener: TcpListener, port: u16) {
    // If two hosts dial each other, one connection may arrive at the listener.
    let has_met = Arc::new(AtomicBool::new(false));
    let meets = has_met.clone();
    spawn(move || {
        serve(&listener, move |stream| {
            eprintln!("accepted {:?}", stream.peer_addr());
            meets.fetch_or(meet(stream), Ordering::Relaxed);
        });
    });
    let mut last = None;
    for line in io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ').unwrap() {
            ("dial", to) => match dial(port, to.parse().unwrap()) {
                Ok((seen, stream)) => {
                    last = Some(stream);
                    eprintln!("{ANSWER}seen as {seen}");
                }
                Err(error) => eprintln!("{ANSWER}{}", in_words(&error)),
            },
            ("send", word) => {
                writeln!(last.as_mut().unwrap(), "{word}").unwrap();
                eprintln!("{ANSWER}sent");
            }
            ("punch", to) => {
                let to = to.parse().unwrap();
                let punched = (0..PUNCH_TRIES)
                    .any(|_| connect(port, to).is_ok_and(meet) || has_met.load(Ordering::Relaxed));
                eprintln!("punched: {punched}");
            }
            unknown => panic!("{unknown:?} is no order"),
        }
    }
}

fn browse() {
    for line in io::stdin().lines().map_while(Result::ok) {
        let (address, path) = line.split_once(' ').unwrap();
        match http::get(address.parse().unwrap(), path) {
            Ok((status, body)) => eprintln!("{ANSWER}{status} {body}"),
            Err(error) => eprintln!("{ANSWER}{}", in_words(&error)),
        }
    }
}

/// Connects to an echo, and prints the words that it sends back later.
fn dial(port: u16, to: SocketAddr) -> io::Result<(String, TcpStream)> {
    let stream = connect(port, to)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let seen = lines.next().ok_or(ErrorKind::UnexpectedEof)??;
    spawn(move || {
        for line in lines {
            match line {
                Ok(word) => eprintln!("came back: {word}"),
                Err(error) => eprintln!("broken: {error}"),
            }
        }
    });
    Ok((seen, stream))
}

/// Both say hello; whether it arrived.
fn meet(mut stream: TcpStream) -> bool {
    let mut heard = String::new();
    stream.set_read_timeout(Some(TRY)).is_ok()
        && writeln!(stream, "{HELLO}").is_ok()
        && BufReader::new(stream).read_line(&mut heard).is_ok()
        && heard.trim_end() == HELLO
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => "timed out".to_owned(),
        ErrorKind::ConnectionRefused => "refused".to_owned(),
        _ => error.to_string(),
    }
}
