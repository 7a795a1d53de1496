//! The limits of nesting.

/// Maximum nesting of brackets and blocks in a template.
pub const MAX_NESTING: usize = 64;

/// Maximum nesting of evaluations while a template runs, for example by recursive macros. All
/// levels together use less than 1 MiB of stack in a debug build and less than 512 KiB in a release
/// build. A thread has 2 MiB by default.
pub const MAX_LEVELS: usize = 240;

/// Maximum nesting of lists and objects.
pub const MAX_DEPTH: u16 = 128;
