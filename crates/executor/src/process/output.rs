//! The output of a program: a result that is accepted whole or not at all, and the end of everything else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// One read of a pipe returns at most what the pipe holds.
const READ_BYTES: usize = 64 * 1024;

/// The output of a program.
pub(super) struct Output {
    /// All of standard output, or `None` if it exceeded the limit.
    pub(super) stdout: Option<Vec<u8>>,
    /// The end of standard error; of standard output if there was no error.
    pub(super) tail: String,
}

/// Readers of both pipes.
pub(super) struct OutputReaders {
    stdout: JoinHandle<()>,
    stderr: JoinHandle<()>,
    captured: CapturedOutput,
}

/// The output so far.
#[derive(Clone)]
pub(super) struct CapturedOutput {
    stdout: Arc<Mutex<CaptureBuffer>>,
    stderr: Arc<Mutex<CaptureBuffer>>,
    tail_bytes: usize,
}

/// How standard output is used.
pub(super) enum Stdout {
    /// It is the result, up to this size; beyond it, the token is cancelled.
    Result(usize, CancellationToken),
    /// Its end is kept, as that of standard error.
    Log,
}

/// The whole of a stream or its end, within a bound.
#[derive(Default)]
struct CaptureBuffer {
    whole: Option<Vec<u8>>,
    tail: VecDeque<u8>,
}

/// Always reads to the end, so that a program never blocks on a full pipe.
pub(super) fn capture(
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    role: Stdout,
    tail_bytes: usize,
) -> OutputReaders {
    let (whole_bytes, too_large) = match role {
        Stdout::Result(bytes, too_large) => (Some(bytes), too_large),
        Stdout::Log => (None, CancellationToken::new()),
    };
    let kept = |whole: Option<usize>| {
        let kept = CaptureBuffer { whole: whole.map(|_| Vec::new()), tail: VecDeque::new() };
        Arc::new(Mutex::new(kept))
    };
    let captured = CapturedOutput { stdout: kept(whole_bytes), stderr: kept(None), tail_bytes };
    let of_stdout = Arc::clone(&captured.stdout);
    let of_stderr = Arc::clone(&captured.stderr);
    OutputReaders {
        stdout: tokio::spawn(async move {
            let bytes = whole_bytes.unwrap_or(0);
            read_pipe(stdout, &of_stdout, bytes, tail_bytes, || too_large.cancel()).await;
        }),
        stderr: tokio::spawn(async move {
            read_pipe(stderr, &of_stderr, 0, tail_bytes, || {}).await;
        }),
        captured,
    }
}

impl OutputReaders {
    /// A view of it while it is being read.
    pub(super) fn captured(&self) -> CapturedOutput {
        self.captured.clone()
    }

    /// The collected output. `time_limit` is for pipes that an unkillable process still holds.
    pub(super) async fn finish(self, time_limit: Duration) -> Output {
        for mut reader in [self.stdout, self.stderr] {
            if tokio::time::timeout(time_limit, &mut reader).await.is_err() {
                reader.abort();
            }
        }
        self.captured.output()
    }
}

impl CapturedOutput {
    /// Starts over: output of one attempt is not shown with another.
    pub(super) fn clear_tails(&self) {
        for kept in [&self.stdout, &self.stderr] {
            lock(kept).tail.clear();
        }
    }

    /// The end of standard error; of standard output if there was no error.
    pub(super) fn tail(&self) -> String {
        let (stdout, stderr) = (lock(&self.stdout), lock(&self.stderr));
        let (tail, whole) = match &stdout.whole {
            _ if !stderr.tail.is_empty() => (&stderr.tail, &[][..]),
            Some(whole) => (&stdout.tail, &whole[whole.len().saturating_sub(self.tail_bytes)..]),
            None => (&stdout.tail, &[][..]),
        };
        let bytes: Vec<u8> = tail.iter().chain(whole).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn output(&self) -> Output {
        let tail = self.tail();
        Output { stdout: lock(&self.stdout).whole.take(), tail }
    }
}

fn lock(kept: &Mutex<CaptureBuffer>) -> MutexGuard<'_, CaptureBuffer> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read_pipe(
    pipe: Option<impl AsyncRead + Unpin>,
    kept: &Mutex<CaptureBuffer>,
    whole_bytes: usize,
    tail_bytes: usize,
    on_overflow: impl Fn(),
) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let bytes = &buffer[..read];
        let kept = &mut *lock(kept);
        match kept.whole.take() {
            Some(mut whole) if whole.len() + read <= whole_bytes => {
                whole.extend_from_slice(bytes);
                kept.whole = Some(whole);
            }
            Some(whole) => {
                push_tail(&mut kept.tail, &whole, tail_bytes);
                push_tail(&mut kept.tail, bytes, tail_bytes);
                on_overflow();
            }
            None => push_tail(&mut kept.tail, bytes, tail_bytes),
        }
    }
}

fn push_tail(tail: &mut VecDeque<u8>, bytes: &[u8], most: usize) {
    let bytes = &bytes[bytes.len().saturating_sub(most)..];
    let over = (tail.len() + bytes.len()).saturating_sub(most);
    tail.drain(..over);
    tail.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_whole_is_kept_up_to_the_bound_and_the_end_beyond_it() {
        let check = async |given: &'static [u8], whole: Option<&[u8]>, tail: &[u8]| {
            let told = std::cell::Cell::new(0);
            let kept =
                Mutex::new(CaptureBuffer { whole: Some(Vec::new()), ..CaptureBuffer::default() });
            read_pipe(Some(given), &kept, 4, 3, || told.set(told.get() + 1)).await;
            let kept = kept.into_inner().unwrap();
            assert_eq!(kept.whole.as_deref(), whole);
            assert_eq!(Vec::from(kept.tail), tail);
            assert_eq!(told.get(), u32::from(whole.is_none()));
        };
        check(b"", Some(b""), b"").await;
        check(b"abcd", Some(b"abcd"), b"").await;
        check(b"abcde", None, b"cde").await;
    }

    #[test]
    fn a_tail_never_outgrows_its_bound() {
        let mut tail = VecDeque::new();
        for bytes in [&b"ab"[..], b"cd", b"efghij", b"k", b""] {
            push_tail(&mut tail, bytes, 3);
            assert!(tail.len() <= 3);
        }
        assert_eq!(Vec::from(tail), b"ijk");
    }
}
