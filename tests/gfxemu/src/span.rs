//! Ranges of registers.

/// Registers that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Vector (accumulation registers included) or scalar.
    pub vector: bool,
    /// The first.
    pub first: u16,
    /// How many.
    pub count: u16,
}
