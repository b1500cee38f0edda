//! Which scheduler, with which token; and how to handle one that does not answer.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use hypha_client::{ClientError, Options, Scheduler};

use crate::usage::{Failure, read_text};

/// The default address of a scheduler.
const DEFAULT_SCHEDULER: &str = "http://127.0.0.1:8080";

/// How long a scheduler may be unreachable before a waiting command gives up: longer than a restart with a
/// million tasks, shorter than a user waits for a machine that is gone.
const MAX_OUTAGE: Duration = Duration::from_secs(120);
/// Between attempts while it is unreachable.
const OUTAGE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// A full scheduler states when to retry; it is retried at the latest after this.
const MAX_BUSY_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// How to reach the scheduler.
#[derive(Args)]
pub(crate) struct ConnectionArguments {
    /// The scheduler's address; without it HYPHA_SCHEDULER, or else http://127.0.0.1:8080
    #[arg(long, value_name = "URL|HOST:PORT")]
    scheduler: Option<String>,
    /// The token; without it --token-file or HYPHA_TOKEN. Other users of this machine can see arguments
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file with the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with certificates in PEM to trust besides the system's
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl ConnectionArguments {
    /// The scheduler. Nothing is sent yet.
    pub(crate) fn connect(&self) -> Result<Scheduler, Failure> {
        self.connect_with(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn connect_with(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Scheduler, Failure> {
        let address = self.scheduler.clone().or_else(|| variable("HYPHA_SCHEDULER"));
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => Some(read_text(file)?.trim().to_owned()),
            (None, None) => variable("HYPHA_TOKEN"),
        };
        let ca_pem = match &self.ca_file {
            Some(file) => Some(read_text(file)?.into_bytes()),
            None => None,
        };
        let address = match address {
            None => DEFAULT_SCHEDULER.to_owned(),
            // As accepted by `hypha up --api`.
            Some(plain) if !plain.contains("://") => format!("http://{plain}"),
            Some(url) => url,
        };
        Scheduler::connect_with(&address, Options { token, ca_pem }).map_err(failure)
    }
}

/// The message for the user, with what to do about it on this command line.
pub(crate) fn failure(error: ClientError) -> Failure {
    match &error {
        ClientError::Address { .. } => Failure::usage(format!("--scheduler: {error}")),
        ClientError::Token => Failure::usage(format!("--token: {error}")),
        ClientError::Tls(_) => Failure::usage(error),
        ClientError::Unreachable { .. } => {
            let start = "`hypha up` starts one, --scheduler or HYPHA_SCHEDULER names another";
            Failure::work(format!("{error} {start}"))
        }
        _ if error.is_auth_error() => {
            Failure::work(format!("{error}; set --token, --token-file or HYPHA_TOKEN"))
        }
        ClientError::Refused { status: 400 | 413 | 422, .. } => Failure::usage(error),
        _ => Failure::work(error),
    }
}

/// Runs `work` to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::work(format!("cannot start: {error}")))?.block_on(work)
}

/// Makes an idempotent call, and retries it while the scheduler is full, and for up to [`MAX_OUTAGE`] while
/// it is unreachable.
pub(crate) async fn retry_while_unavailable<T>(
    call: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    retry_while_unavailable_reporting(call, &|_| {}).await
}

/// The same, and reports what it waits for.
pub(crate) async fn retry_while_unavailable_reporting<T>(
    call: impl AsyncFn() -> Result<T, ClientError>,
    tell: &dyn Fn(&ClientError),
) -> Result<T, ClientError> {
    let mut away_since: Option<Instant> = None;
    loop {
        let error = match call().await {
            Err(error) if error.is_transient() => error,
            outcome => return outcome,
        };
        tell(&error);
        if let ClientError::Busy { retry_after, .. } = &error {
            away_since = None;
            tokio::time::sleep((*retry_after).min(MAX_BUSY_RETRY_INTERVAL)).await;
            continue;
        }
        if away_since.get_or_insert_with(Instant::now).elapsed() > MAX_OUTAGE {
            return Err(error);
        }
        tokio::time::sleep(OUTAGE_RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> ConnectionArguments {
        ConnectionArguments { scheduler: None, token: None, token_file: None, ca_file: None }
    }

    #[test]
    fn flags_win_over_variables_and_variables_over_the_default() {
        let none = |_: &str| None;
        let set = |name: &str| (name == "HYPHA_SCHEDULER").then(|| "http://b:1".to_owned());
        let address = |connection: &ConnectionArguments, set: &dyn Fn(&str) -> Option<String>| {
            connection.connect_with(set).unwrap().address().to_owned()
        };
        assert_eq!(address(&connection(), &none), DEFAULT_SCHEDULER);
        assert_eq!(address(&connection(), &set), "http://b:1");
        let given =
            ConnectionArguments { scheduler: Some("http://a:1".to_owned()), ..connection() };
        assert_eq!(address(&given, &set), "http://a:1");
        let plain =
            |text: &str| ConnectionArguments { scheduler: Some(text.to_owned()), ..connection() };
        assert_eq!(address(&plain("127.0.0.1:18080"), &set), "http://127.0.0.1:18080");
        assert_eq!(address(&plain("here:1"), &set), "http://here:1");
        assert!(plain("a b").connect_with(&none).is_err());
    }

    #[test]
    fn a_token_comes_from_a_file_or_a_variable() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "hypha_abc\n").unwrap();
        let given = ConnectionArguments { token_file: Some(file.clone()), ..connection() };
        assert!(given.connect_with(&|_| None).is_ok());
        std::fs::write(&file, "two words\n").unwrap();
        let wrong = given.connect_with(&|_| None).err().unwrap().to_string();
        assert!(wrong.starts_with("--token: the token has characters"), "{wrong}");
        let variable = |name: &str| (name == "HYPHA_TOKEN").then(|| "a b".to_owned());
        assert!(connection().connect_with(&variable).is_err());
        let missing =
            ConnectionArguments { token_file: Some(directory.path().join("none")), ..connection() };
        assert!(missing.connect_with(&|_| None).is_err());
    }

    #[test]
    fn failure_names_the_flag_to_set() {
        let gone = ClientError::Unreachable { address: "http://a".into(), reason: "no".into() };
        assert_eq!(
            failure(gone).to_string(),
            "no scheduler answers at http://a (no); is one running? `hypha up` starts one, \
             --scheduler or HYPHA_SCHEDULER names another"
        );
        let refused =
            |status| ClientError::Refused { status, code: String::new(), message: "no".to_owned() };
        assert!(failure(refused(401)).to_string().ends_with("HYPHA_TOKEN"));
        let code = |status| format!("{:?}", failure(refused(status)).exit_code());
        assert_eq!(code(422), format!("{:?}", Failure::usage("").exit_code()));
        assert_eq!(code(404), format!("{:?}", Failure::work("").exit_code()));
    }
}
