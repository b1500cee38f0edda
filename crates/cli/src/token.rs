//! `hypha scheduler token`: creates tokens for the HTTP API.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use hypha_api::{NewToken, Role, Tokens};
use hypha_model::Name;
use hypha_model::amount::parse_priority;

use crate::usage::{Failure, print};

#[derive(Args)]
pub(crate) struct Token {
    /// The file that `tokens_file` in [scheduler.api] names; the token's hash is added to it
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// The tenant on whose behalf it acts; its holder sees the tasks of this tenant only
    #[arg(long)]
    tenant: Option<Name>,
    /// Its role
    #[arg(long, value_enum, default_value = "user")]
    role: TokenRole,
    /// The highest priority that it may request
    #[arg(long, value_name = "PRIORITY", allow_hyphen_values = true)]
    max_priority: Option<String>,
    /// How many tasks of the tenant may be open at once
    #[arg(long, value_name = "TASKS")]
    quota: Option<u32>,
    /// How much the tenant may have while others wait too, relative to them; 1 if not given
    #[arg(long)]
    weight: Option<f64>,
    /// A note for people, such as whose it is
    #[arg(long)]
    name: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum TokenRole {
    /// Submits tasks and sees its own
    User,
    /// Sees and changes everything
    Admin,
}

pub(crate) fn run(token: Token) -> Result<(), Failure> {
    let priority = token.max_priority.as_deref();
    let new = NewToken {
        name: token.name,
        tenant: token.tenant,
        role: match token.role {
            TokenRole::User => Role::User,
            TokenRole::Admin => Role::Admin,
        },
        max_priority: priority
            .map(|text| parse_priority("--max-priority", text))
            .transpose()
            .map_err(Failure::usage)?,
        quota: token.quota,
        weight: token.weight,
    };
    if token.file.exists() {
        // Better detected now than by the scheduler.
        Tokens::load(&token.file).map_err(Failure::work)?;
    }
    let (text, entry) = Tokens::issue(&new);
    let path = token.file.display();
    let written = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&token.file)
        .and_then(|mut file| file.write_all(format!("{}\n", entry.trim_end()).as_bytes()));
    written.map_err(|error| Failure::work(format!("cannot write {path}: {error}")))?;
    eprintln!(
        "added to {path}; a scheduler that runs with it as tokens_file takes it up. The token, \
         shown this once:"
    );
    print(&format!("{text}\n"))
}
