//! Integration tests of the crate: one program, a module for each subject.

mod folder;
mod hostile;
mod oracle;
mod stop;
mod support;
mod templates;

/// `support::peak` reads its counters.
#[global_allocator]
static ALLOCATOR: support::peak::Counting = support::peak::Counting;
