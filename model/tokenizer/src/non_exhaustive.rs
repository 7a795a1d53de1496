//! A marker field for structs that may get more fields.

/// A hidden field of structs of options. Other crates write `Options { one, ..Options::default()
/// }`, so a new field does not break them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NonExhaustive(pub(crate) ());
