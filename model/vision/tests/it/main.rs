//! Tests of the crate's public API.
