//! The tests of the crate: one program, a module for each subject.

mod broken;
mod folder;
mod fuzzed;
mod read;
mod real;
mod seeds;
mod support;

/// Counts for `support::peak`.
#[global_allocator]
static ALLOCATOR: support::peak::Counting = support::peak::Counting;
