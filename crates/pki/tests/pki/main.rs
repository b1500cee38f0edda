//! Certificates from issue to verification.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod handshake;
mod issue;
mod load;
mod reload;
mod signed_crl;
mod verify;
mod world;
