//! Limits on the number of tokens of a text, and a lower bound that is known before tokenising.

use super::special::attr;
use super::table::TokenTable;
use crate::cancel::Cancel;

/// The limit of an encoding.
#[derive(Debug, Clone, Default)]
pub struct Limit {
    /// Maximum number of tokens; `None`: no limit.
    pub most: Option<usize>,
    /// Cancels the encoding.
    pub cancel: Cancel,
}

impl Limit {
    /// Whether to stop: `tokens` exceeds the limit, or the encoding was cancelled.
    pub(super) fn is_over(&self, tokens: usize) -> bool {
        self.most.is_some_and(|most| tokens > most) || self.cancel.is_cancelled()
    }
}

/// The reasons why a text was not encoded to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped {
    /// The text has more tokens than the limit.
    #[error("the text has {least} tokens or more")]
    TooMany {
        /// The text has at least this many tokens.
        least: usize,
    },
    /// The encoding was cancelled.
    #[error("the encoding was cancelled")]
    Cancelled,
}

/// The maximum number of bytes that one token covers.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    /// Maximum number of counted bytes of a token.
    most: usize,
    /// For each byte, whether it always produces a token.
    counted: Box<[bool; 256]>,
}

impl Reach {
    /// Computes the maximum from the longest token text. `droppable` are the bytes that the
    /// vocabulary may drop. The texts of byte-level BPE (letters of one or two bytes) and RWKV
    /// (escapes) are never shorter than the bytes that they cover.
    pub fn new(table: &TokenTable, attrs: &[u8], droppable: &[bool; 256]) -> Reach {
        // PLaMo 2 drops the byte order mark at the start of a text, and at most one before each
        // special token.
        const MARK: usize = 3;
        let longest = (0..table.len() as u32).map(|id| table.text(id).map_or(0, <[u8]>::len)).max();
        // Special tokens may also include any amount of white space.
        let take = attrs.iter().any(|a| a & (attr::LSTRIP | attr::RSTRIP) != 0);
        let mut counted = Box::new([true; 256]);
        for ((b, counted), out) in (0..=255u8).zip(counted.iter_mut()).zip(droppable) {
            *counted = !(*out || take && matches!(b, b' ' | 9..=13));
        }
        Reach { most: longest.unwrap_or(0).max(1) + MARK, counted }
    }

    /// The minimum number of tokens of a text.
    pub fn fewest(&self, text: &[u8]) -> usize {
        let is_counted = |b: &&u8| self.counted.get(usize::from(**b)).copied().unwrap_or(false);
        // One more byte order mark may follow the last special token.
        (text.iter().filter(is_counted).count() / self.most).saturating_sub(1)
    }
}
