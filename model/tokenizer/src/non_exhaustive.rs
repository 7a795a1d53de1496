//! A marker field for structs that may get more fields later.

/// A hidden field of option structs. Other crates must write `Options { one, ..Options::default()
/// }`, so a new field does not break them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NonExhaustive(pub(crate) ());
