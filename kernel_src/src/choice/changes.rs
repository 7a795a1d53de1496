//! What is done to a sequence's logits before its next token is chosen, as words in a device's
//! memory: `gpu/adjust.h` reads them.

/// Tokens that a list has at most. All that OpenAI's clients may bias, and a window of penalties
/// beside them.
pub const MOST: usize = 1024;
/// Words in front of the entries: how many there are, whether there is a mask, the penalty of
/// repeated tokens, 0.
pub const HEAD: usize = 4;

/// What is done to one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// The token.
    pub id: u32,
    /// Added, before all else.
    pub bias: f32,
    /// Subtracted, after all else.
    pub minus: f32,
    /// Divided by the penalty of repeated tokens if positive, multiplied if negative.
    pub repeated: bool,
}

/// Words of a slot's mask.
#[must_use]
pub fn mask(vocab: usize) -> usize {
    // Two to each word of the host's.
    2 * vocab.div_ceil(64)
}

/// Words of a slot.
#[must_use]
pub fn stride(vocab: usize) -> usize {
    (HEAD + 4 * MOST + mask(vocab)).next_multiple_of(4)
}

/// The words in front of a slot's mask, of no more than [`MOST`] entries.
#[must_use]
pub fn words(entries: &[Entry], masked: bool, repeat: f32) -> Vec<u32> {
    let head = [entries.len().min(MOST) as u32, u32::from(masked), repeat.to_bits(), 0];
    let one = |e: &Entry| [e.id, e.bias.to_bits(), e.minus.to_bits(), u32::from(e.repeated)];
    head.into_iter().chain(entries.iter().take(MOST).flat_map(one)).collect()
}
