//! Certificates from the issuer's pen to the peer's eye.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod handshake;
mod issue;
mod load;
mod reload;
mod verify;
mod world;
