//! Programs that try to get out of their sandbox, with a root directory of their own and with Landlock alone.

use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use hypha_executor::{Confinement, Launcher, OpenError, Process, Sandbox, SandboxError};

use crate::support::{Bench, attempt, text};

/// Each line of output is an attempted escape and its result: `done`, or the kernel's refusal. Files of the
/// system are set to what they are, so that an escape does no harm.
const ESCAPES: &str = r#"
import os, socket, sys
outside, directory = sys.argv[1], os.path.dirname(sys.argv[1])
def attempt(name, escape):
    try:
        escape()
        print(name, "done")
    except OSError as error:
        print(name, "refused:", error.strerror)
def connect(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
attempt("write", lambda: open(outside, "r+").write("x"))
attempt("append", lambda: open(outside, "a").write("x"))
attempt("truncate", lambda: os.truncate(outside, 0))
attempt("chmod", lambda: os.chmod(outside, 0o777))
attempt("chown", lambda: os.chown(outside, os.getuid(), os.getgid()))
attempt("re-date", lambda: os.utime(outside, (1, 1)))
attempt("attribute", lambda: os.setxattr(outside, "user.hypha", b"x"))
attempt("remove", lambda: os.remove(outside))
attempt("rename", lambda: os.rename(outside, outside + ".moved"))
attempt("link", lambda: os.link(outside, "stolen"))
attempt("create", lambda: open(os.path.join(directory, "made"), "w"))
attempt("chmod-directory", lambda: os.chmod(directory, 0o777))
attempt("device", lambda: os.chmod("/dev/null", os.stat("/dev/null").st_mode & 0o7777))
attempt("system", lambda: os.chmod("/usr/bin/env", os.stat("/usr/bin/env").st_mode & 0o7777))
attempt("socket", lambda: connect(os.path.join(directory, "socket")))
attempt("abstract-socket", lambda: connect("\0" + sys.argv[2]))
"#;
/// Those of them that Landlock cannot refuse on every kernel that has it.
const BEYOND_LANDLOCK: &[&str] = &[
    "chmod",
    "chown",
    "re-date",
    "attribute",
    "chmod-directory",
    "device",
    "system",
    "socket",
    "abstract-socket",
];

/// A machine around the sandbox: a file and sockets that belong to others.
struct Outside {
    directory: PathBuf,
    file: PathBuf,
    abstract_name: String,
    sockets: [UnixListener; 2],
}

impl Outside {
    fn new(bench: &Bench) -> Outside {
        let directory = bench.root.path().join("outside");
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("file");
        std::fs::write(&file, "untouched").unwrap();
        let abstract_name = format!("hypha-test-{}", directory.display());
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let sockets = [
            UnixListener::bind(directory.join("socket")).unwrap(),
            UnixListener::bind_addr(&address).unwrap(),
        ];
        sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        Outside { directory, file, abstract_name, sockets }
    }

    /// Everything that an escape could change.
    fn state(&self) -> impl PartialEq + std::fmt::Debug {
        let of = |path: &Path| {
            let metadata = std::fs::metadata(path).unwrap();
            (metadata.mode(), metadata.uid(), metadata.mtime(), metadata.nlink())
        };
        let names: Vec<_> = std::fs::read_dir(&self.directory).unwrap().flatten().collect();
        let content = std::fs::read_to_string(&self.file).ok();
        (of(&self.file), of(&self.directory), content, names.len())
    }

    fn connections(&self) -> usize {
        let refused = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.sockets.iter().filter(|socket| !socket.accept().is_err_and(refused)).count()
    }
}

fn escaping(bench: &mut Bench, outside: &Outside) {
    bench.config.command = PathBuf::from("/usr/bin/python3");
    let file = outside.file.display().to_string();
    bench.config.args =
        vec!["-c".to_owned(), ESCAPES.to_owned(), file, outside.abstract_name.clone()];
}

/// The escapes that succeeded.
async fn escaped(bench: &Bench) -> Vec<String> {
    let text = text(&bench.run(attempt("m", "")).await);
    let lines: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(lines.len(), ESCAPES.matches("\nattempt(").count(), "{text}");
    let done = lines.into_iter().filter(|(_, result)| *result == "done");
    done.map(|(name, _)| name.to_owned()).collect()
}

/// How the program is confined here, and what that leaves open.
fn sandbox(bench: &Bench) -> (Sandbox, String) {
    let process = Process::open(bench.config.clone()).unwrap();
    (process.sandbox().clone(), process.gaps().join(", "))
}

/// Whether programs get a root directory of their own here; if not, the test is skipped.
fn has_own_root(test: &str) -> bool {
    let has = sandbox(&Bench::new("true")).0.own_root.is_ok();
    if !has {
        eprintln!("SKIPPED: escapes::{test}: no user namespace can be made here [needs: userns]");
    }
    has
}

/// A launcher on a machine whose kernel lets no user create a namespace.
fn without_namespaces() -> Launcher {
    let launcher = env!("CARGO_BIN_EXE_hypha-launcher");
    let able = Command::new("/usr/bin/unshare").args(["-Ur", "true"]).output();
    if !able.is_ok_and(|output| output.status.success()) {
        return Launcher { program: PathBuf::from(launcher), args: Vec::new() };
    }
    let switch_off = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let args = ["-Ur", "/bin/sh", "-c", switch_off, launcher];
    Launcher { program: PathBuf::from("/usr/bin/unshare"), args: args.map(str::to_owned).into() }
}

#[tokio::test]
async fn nothing_outside_can_be_changed_or_connected_to() {
    if !has_own_root("nothing_outside_can_be_changed_or_connected_to") {
        return;
    }
    for network in [true, false] {
        let mut bench = Bench::new("");
        bench.config.network = network;
        let outside = Outside::new(&bench);
        escaping(&mut bench, &outside);
        let before = outside.state();
        let (_, gaps) = sandbox(&bench);
        let expected: &[&str] = match gaps.contains("abstract") {
            true => &["abstract-socket"],
            false => &[],
        };
        assert_eq!(escaped(&bench).await, expected, "network: {network}");
        assert_eq!((outside.state(), outside.connections()), (before, expected.len()));
    }
}

#[tokio::test]
async fn what_may_be_read_can_still_not_be_changed() {
    if !has_own_root("what_may_be_read_can_still_not_be_changed") {
        return;
    }
    let mut bench = Bench::new("");
    bench.config.network = false;
    let outside = Outside::new(&bench);
    escaping(&mut bench, &outside);
    bench.config.read = vec![outside.file.clone()];
    let before = outside.state();
    assert_eq!(escaped(&bench).await, <[&str; 0]>::default());
    assert_eq!(outside.state(), before);
    bench.config.read.clear();
    bench.config.write = vec![outside.directory.clone()];
    let escaped = escaped(&bench).await;
    assert!(escaped.contains(&"chmod".to_owned()) && escaped.contains(&"socket".to_owned()));
    assert!(!outside.file.exists(), "what may be written may be removed");
}

#[tokio::test]
async fn only_what_is_listed_exists() {
    if !has_own_root("only_what_is_listed_exists") {
        return;
    }
    let mut bench = Bench::new("");
    let root = bench.root.path().canonicalize().unwrap();
    std::fs::write(root.join("secret"), "").unwrap();
    std::fs::create_dir_all(root.join("real/models")).unwrap();
    std::os::unix::fs::symlink("real", root.join("link")).unwrap();
    bench.config.read = vec![root.join("link/models")];
    let candidates = [
        "link/models",
        "real/models",
        "link/../secret",
        "secret",
        "outside",
        "/usr",
        "/proc/self",
        "/dev/null",
        "/dev/fd/0",
        "/dev/tty",
        "/dev/shm",
        "/root",
        "/home",
        "/var",
        "/run",
        "/etc/passwd",
        "/etc/shadow",
    ];
    let paths = candidates.map(|path| root.join(path).display().to_string()).join(" ");
    bench.config.args[1] =
        format!("for path in {paths}; do test -e $path && echo $path; done; true");
    let text = text(&bench.run(attempt("m", "")).await);
    let seen: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
    let expected = [
        "link/models",
        "real/models",
        "/usr",
        "/proc/self",
        "/dev/null",
        "/dev/fd/0",
        "/etc/passwd",
    ];
    assert_eq!(seen, expected.map(|path| root.join(path)));
}

#[tokio::test]
async fn the_network_is_that_of_the_machine_or_none() {
    if !has_own_root("the_network_is_that_of_the_machine_or_none") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    // Then to itself, which always works.
    let script = format!(
        "import socket\n\
         try: socket.create_connection(('127.0.0.1', {port}), 5); print('outside')\n\
         except OSError as error: print(error.strerror)\n\
         own = socket.create_server(('127.0.0.1', 0))\n\
         socket.create_connection(own.getsockname(), 5); print('own')"
    );
    for (network, expected) in [(true, "outside\nown\n"), (false, "Connection refused\nown\n")] {
        let mut bench = Bench::new("");
        bench.config.command = PathBuf::from("/usr/bin/python3");
        bench.config.args = vec!["-c".to_owned(), script.clone()];
        bench.config.network = network;
        assert_eq!(text(&bench.run(attempt("m", "")).await), expected, "network: {network}");
        assert_eq!(listener.accept().is_ok(), network);
    }
}

#[tokio::test]
async fn without_namespaces_landlock_confines_and_the_gaps_are_named() {
    let mut bench = Bench::new("");
    bench.config.launcher = without_namespaces();
    let outside = Outside::new(&bench);
    escaping(&mut bench, &outside);
    let (sandbox, gaps) = sandbox(&bench);
    let why = sandbox.own_root.as_ref().unwrap_err();
    assert!(why.contains("cannot create namespaces"), "{why}");
    assert!(
        gaps.contains("change modes, owners and dates") && !gaps.contains("truncate"),
        "{gaps}"
    );
    let escaped = escaped(&bench).await;
    let contained = |name: &String| BEYOND_LANDLOCK.contains(&name.as_str());
    assert!(escaped.iter().all(contained) && escaped.contains(&"chmod".to_owned()), "{escaped:?}");
    assert_eq!(std::fs::read_to_string(&outside.file).unwrap(), "untouched");
    assert_eq!(gaps.contains("to unix sockets"), escaped.contains(&"socket".to_owned()));
    assert_eq!(gaps.contains("abstract"), escaped.contains(&"abstract-socket".to_owned()));
}

#[tokio::test]
async fn an_executor_that_requires_namespaces_does_not_open_without_them() {
    let mut bench = Bench::new("");
    bench.config.launcher = without_namespaces();
    let open = |bench: &Bench| Process::open(bench.config.clone()).map(|_| ());
    assert!(open(&bench).is_ok());
    bench.config.confinement = Confinement::Namespaces;
    let error = open(&bench).unwrap_err();
    assert!(matches!(error, OpenError::Sandbox(SandboxError::NoNamespaces(_))), "{error}");
    bench.config.confinement = Confinement::Required;
    bench.config.network = false;
    let error = open(&bench).unwrap_err();
    assert!(matches!(error, OpenError::Sandbox(SandboxError::Network(_))), "{error}");
    bench.config.confinement = Confinement::BestEffort;
    assert!(open(&bench).is_ok());
}
