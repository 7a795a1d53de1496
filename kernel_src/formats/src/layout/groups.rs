//! The encoding of the factors of groups.

/// The contents of the `groups` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Groups {
    /// Nothing: there is only the block's scale.
    None,
    /// A byte `s` and a byte `t` for each group of 32.
    BytePair,
    /// A byte for each group of 16, `s` in its low nibble and `t` in its high one.
    NibblePair,
    /// A signed byte for each group of 16, with the bias subtracted.
    Signed16,
    /// A signed byte for each group of 32, with the bias subtracted.
    Signed32,
    /// A nibble `n` for each group of 16, the first of two in the low one: `s = 2n + 1`.
    Odd16,
    /// Nothing: `n` is in the top nibble of the 32's signs, `s = 2n + 1`.
    InSigns,
    /// Nothing: `n` is in bits 12 to 14 of the 32's high bits, `s = 2n + 1`.
    InHigh,
    /// A UE4M3 byte for each group of 16.
    Ue4m3,
}

impl Groups {
    /// Bytes for each 32 weights.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Groups::None | Groups::InSigns | Groups::InHigh => 0,
            Groups::Signed32 | Groups::Odd16 => 1,
            Groups::BytePair | Groups::NibblePair | Groups::Signed16 | Groups::Ue4m3 => 2,
        }
    }
}
