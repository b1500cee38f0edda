//! The attempt bridge: how a program talks to the worker that runs it, in any language. HTTP over a unix socket in
//! its work directory.
//!
//! | Route | What |
//! |---|---|
//! | `GET /v1/input` | the input of the attempt |
//! | `GET /v1/status` | `{"attempt", "model", "stream", "input_bytes", "progress", "result"}` |
//! | `POST /v1/progress` | `{"permille": 0…1000}`: its progress |
//! | `POST /v1/output` | a piece of its output, which is passed on at once; together they are the result |
//! | `PUT /v1/result` | the result, instead of pieces or standard output |
//! | `POST /v1/failure` | an error message, instead of a result: the task may be retried elsewhere |
//! | `POST /v1/refusal` | what is wrong with the input, instead of a result: the task is not retried |
//! | `GET /v1/next` | waits for an attempt and returns its input: for programs that are kept warm |
//! | `GET /openapi.json` | this table, for programs |
//!
//! The socket's mode keeps other users out, and the secret (`Authorization: Bearer`) keeps out other attempts of the
//! same user.

mod current;
mod listener;
mod openapi;
mod routes;

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::Attempt;
use crate::process::Directory;
use crate::running::RunReporter;
pub(crate) use current::{CurrentAttempt, ProgramAnswer};
use listener::BoundedListener;

/// For its owner alone.
const SOCKET_MODE: u32 = 0o600;
/// The longest name of a socket that the kernel accepts, without the NUL at its end.
pub(crate) const MAX_SOCKET_PATH_BYTES: usize = 107;
/// 256 bits cannot be guessed.
const SECRET_BYTES: usize = 32;

/// A bridge to one process and its children. Closed when it is dropped.
pub(crate) struct Bridge {
    path: PathBuf,
    token: String,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

/// How many attempts a bridge serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BridgeMode {
    Single,
    Sequential,
}

struct Shared {
    /// Compared by digest: the time that takes reveals nothing about the secret.
    token: blake3::Hash,
    mode: BridgeMode,
    result_bytes: usize,
    current: Mutex<Option<CurrentAttempt>>,
    /// An attempt has arrived.
    arrived: Notify,
    /// An attempt was answered.
    answered: Notify,
}

impl Bridge {
    /// A bridge in `directory`, which no other user can enter: the socket is never exposed to others.
    pub(crate) fn open(
        directory: &Directory,
        mode: BridgeMode,
        result_bytes: usize,
    ) -> io::Result<Bridge> {
        let path = directory.bridge();
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        let token = data_encoding::HEXLOWER.encode(&rand::random::<[u8; SECRET_BYTES]>());
        let shared = Arc::new(Shared {
            token: blake3::hash(token.as_bytes()),
            mode,
            result_bytes,
            current: Mutex::new(None),
            arrived: Notify::new(),
            answered: Notify::new(),
        });
        let routes = routes::router(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            // Serving ends with the task: it returns no error of its own.
            let _ = axum::serve(BoundedListener::new(listener), routes).await;
        });
        Ok(Bridge { path, token, shared, server })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Makes `attempt` the current one.
    pub(crate) fn set_current(&self, attempt: &Attempt, reporter: RunReporter) {
        *self.shared.current() = Some(CurrentAttempt::new(attempt, reporter));
        self.shared.arrived.notify_waiters();
    }

    /// Returns once the current attempt was answered.
    pub(crate) async fn wait_answered(&self) {
        loop {
            let answered = self.shared.answered.notified();
            tokio::pin!(answered);
            // Registered before the check, so that no answer is missed in between.
            answered.as_mut().enable();
            if self.shared.current().as_ref().is_some_and(CurrentAttempt::is_answered) {
                return;
            }
            answered.await;
        }
    }

    /// The current attempt with its answer; the program gets no more of it.
    pub(crate) fn take(&self) -> Option<CurrentAttempt> {
        self.shared.current().take()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, Option<CurrentAttempt>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
