//! Any bytes as what a client of `kjit serve` sends over a connection: each request is answered,
//! none with 500, and nothing is left of it.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../server/tests/it/support/connection.rs"]
mod connection;

fuzz_target!(|bytes: &[u8]| drop(connection::exercise(bytes)));
