//! The command `kjit`.
fn main() {}
