//! The tests of this crate.

mod bits;
mod whole;
