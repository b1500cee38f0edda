//! How a command fails: one line for people, and an exit code for programs.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    usage: bool,
}

impl Failure {
    /// Invalid arguments: exit code 2, and nothing was done.
    pub(crate) fn usage(message: impl fmt::Display) -> Failure {
        Failure { message: message.to_string(), usage: true }
    }

    /// The work itself failed: exit code 1.
    pub(crate) fn work(message: impl fmt::Display) -> Failure {
        Failure { message: message.to_string(), usage: false }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.usage { 2 } else { 1 })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints to standard output. A reader that has seen enough (`| head`) is not a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes()).map(|_| ())
}

/// The same for any bytes; returns whether the output is still being read.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<bool, Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::work(format!("cannot print: {error}"))),
    }
}

/// The largest input file that is read: an hour of a busy trace is a few megabytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Reads a text file that the user named.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    let named =
        |problem: &dyn fmt::Display| Failure::usage(format!("{}: {problem}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| named(&error))?.len();
    if size > MAX_FILE_BYTES {
        return Err(named(&format!(
            "{size} bytes are too many, at most {MAX_FILE_BYTES} are read"
        )));
    }
    std::fs::read_to_string(path).map_err(|error| named(&error))
}
