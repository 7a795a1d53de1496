//! Tests of the crate's public API.

mod damaged;
mod goldens;
