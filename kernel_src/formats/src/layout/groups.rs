//! The encoding of the factors of groups.

/// The contents of the `groups` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Groups {
    /// No section: only the block has a scale.
    None,
    /// One byte `s` and one byte `t` for each group of 32.
    BytePair,
    /// One byte for each group of 16, with `s` in the low nibble and `t` in the high nibble.
    NibblePair,
    /// A signed byte for each group of 16, after subtraction of the bias.
    Signed16,
    /// A signed byte for each group of 32, after subtraction of the bias.
    Signed32,
    /// A nibble `n` for each group of 16, the first of two in the low nibble: `s = 2n + 1`.
    Odd16,
    /// No section: `n` is in the top nibble of the signs of 32 weights, `s = 2n + 1`.
    InSigns,
    /// No section: `n` is in bits 12 to 14 of the high bits of 32 weights, `s = 2n + 1`.
    InHigh,
    /// A UE4M3 byte for each group of 16.
    Ue4m3,
}

impl Groups {
    /// Bytes of the section for each 32 weights.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Groups::None | Groups::InSigns | Groups::InHigh => 0,
            Groups::Signed32 | Groups::Odd16 => 1,
            Groups::BytePair | Groups::NibblePair | Groups::Signed16 | Groups::Ue4m3 => 2,
        }
    }
}
