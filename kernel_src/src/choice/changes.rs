//! Changes to a sequence's logits before its next token is chosen, as words in a device's memory,
//! which `gpu/adjust.h` reads.

/// The most tokens of a list: as many as OpenAI clients may bias, and a window of penalties.
pub const MOST: usize = 1024;
/// Words before the entries: number of entries, whether there is a mask, the repetition penalty, 0.
pub const HEAD: usize = 4;

/// Changes to one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Id of the token.
    pub id: u32,
    /// Added to the logit first.
    pub bias: f32,
    /// Subtracted from the logit last.
    pub minus: f32,
    /// Whether the logit is divided by the repetition penalty if positive, and multiplied by it if
    /// negative.
    pub repeated: bool,
}

/// Number of words of a slot's mask.
#[must_use]
pub fn mask(vocab: usize) -> usize {
    // Two words for each word of the host.
    2 * vocab.div_ceil(64)
}

/// Number of words of a slot.
#[must_use]
pub fn stride(vocab: usize) -> usize {
    (HEAD + 4 * MOST + mask(vocab)).next_multiple_of(4)
}

/// The words before a slot's mask, with at most [`MOST`] entries.
#[must_use]
pub fn words(entries: &[Entry], masked: bool, repeat: f32) -> Vec<u32> {
    let head = [entries.len().min(MOST) as u32, u32::from(masked), repeat.to_bits(), 0];
    let one = |e: &Entry| [e.id, e.bias.to_bits(), e.minus.to_bits(), u32::from(e.repeated)];
    head.into_iter().chain(entries.iter().take(MOST).flat_map(one)).collect()
}
