//! The tests of the crate: one program, a module for each subject.

mod folder;
mod hostile;
mod oracle;
mod stop;
mod support;
mod templates;

/// Counts for `support::peak`.
#[global_allocator]
static ALLOCATOR: support::peak::Counting = support::peak::Counting;
