//! A mark of structs that may get more fields.

/// A hidden field of structs of options. Other crates write
/// `Options { one, ..Options::default() }`; a new field is then no break.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NonExhaustive(());
