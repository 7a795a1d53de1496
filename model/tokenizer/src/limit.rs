//! How many tokens of a text are wanted at most, and what is known of their number before they are
//! counted.

use super::special::attr;
use super::table::TokenTable;
use crate::cancel::Cancel;

/// How far a text is encoded.
#[derive(Debug, Clone, Default)]
pub struct Limit {
    /// Tokens at most; none: as many as there are.
    pub most: Option<usize>,
    /// Who waits for it.
    pub cancel: Cancel,
}

impl Limit {
    /// Whether nothing is wanted behind so many tokens.
    pub(super) fn is_over(&self, tokens: usize) -> bool {
        self.most.is_some_and(|most| tokens > most) || self.cancel.is_cancelled()
    }
}

/// Why a text was not encoded to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// It has more tokens than are wanted.
    #[error("the text has {least} tokens or more")]
    TooMany {
        /// It has so many at least.
        least: usize,
    },
    /// Nobody waits for it.
    #[error("nobody waits for the tokens")]
    Cancelled,
}

/// What a token stands for at most.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    /// Bytes of those that are counted.
    most: usize,
    /// By byte: it is some token's, wherever it stands.
    counted: Box<[bool; 256]>,
}

impl Reach {
    /// Of a vocabulary that leaves some bytes out. Its longest text is measured: that of byte-level
    /// BPE is written in letters of one or two bytes, and RWKV's with escapes, so what it stands
    /// for is no longer.
    pub fn new(table: &TokenTable, attrs: &[u8], left_out: &[bool; 256]) -> Reach {
        // The mark of a text's begin that PLaMo 2 leaves out, one in front of each special token at
        // most.
        const MARK: usize = 3;
        let longest = (0..table.len() as u32).map(|id| table.text(id).map_or(0, <[u8]>::len)).max();
        // Special tokens may take white space besides, as much as there is.
        let take = attrs.iter().any(|a| a & (attr::LSTRIP | attr::RSTRIP) != 0);
        let mut counted = Box::new([true; 256]);
        for ((b, counted), out) in (0..=255u8).zip(counted.iter_mut()).zip(left_out) {
            *counted = !(*out || take && matches!(b, b' ' | 9..=13));
        }
        Reach { most: longest.unwrap_or(0).max(1) + MARK, counted }
    }

    /// Tokens that a text has at least.
    pub fn fewest(&self, text: &[u8]) -> usize {
        let is_counted = |b: &&u8| self.counted.get(usize::from(**b)).copied().unwrap_or(false);
        // Behind the last special token there may be one more mark.
        (text.iter().filter(is_counted).count() / self.most).saturating_sub(1)
    }
}
