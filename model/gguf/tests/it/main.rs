//! Integration tests of the crate: one program, a module for each subject.

mod broken;
mod folder;
mod fuzzed;
mod read;
mod real;
mod seeds;
mod support;

/// `support::peak` reads its counters.
#[global_allocator]
static ALLOCATOR: support::peak::Counting = support::peak::Counting;
