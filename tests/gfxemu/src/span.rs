//! Ranges of registers.

/// A range of registers that an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Whether they are vector registers (including accumulation registers) or scalar registers.
    pub vector: bool,
    /// The first register.
    pub first: u16,
    /// The number of registers.
    pub count: u16,
}
