//! The vocabulary of PLaMo 2. It uses the segmentation with the best sum of scores, computed from
//! the end of the text. Characters that occur in no token become bytes.

use super::chars::{self, utf8_len};
use super::error::TokenizerError;
use super::special::attr;
use super::table::TokenTable;
use super::trie::Trie;

/// The cost of a character in bytes, and the cost from which a token is invalid. The unit of costs
/// is 1/10,000 of a score.
const UNKNOWN: i64 = 10_000_000;
const INVALID: i64 = 20_000_000;

#[derive(Debug)]
pub struct Plamo2 {
    tokens: Trie,
    /// Cost by id.
    costs: Vec<i64>,
    bytes: Box<[u32; 256]>,
}

impl Plamo2 {
    /// Creates a vocabulary from the scores (one per token) and the attributes. The attributes mark
    /// byte tokens.
    pub fn new(table: &TokenTable, attrs: &[u8], scores: &[f32]) -> Result<Plamo2, TokenizerError> {
        let wrong = |problem: String| TokenizerError::vocabulary("tokenizer.ggml.tokens", problem);
        let mut bytes = Box::new([0; 256]);
        for (b, entry) in (0..=255u8).zip(bytes.iter_mut()) {
            let id = table.get(format!("<0x{b:02X}>").as_bytes()).filter(|id| is_byte(attrs, *id));
            *entry = id.ok_or_else(|| wrong(format!("no byte token <0x{b:02X}>")))?;
        }
        let texts = (0..attrs.len() as u32).filter(|id| !is_byte(attrs, *id));
        let texts = texts.map(|id| (table.text(id).unwrap_or_default(), id)).collect();
        let tokens =
            Trie::new(texts).ok_or_else(|| wrong("too many bytes for a trie".to_owned()))?;
        let cost = |score: &f32| {
            if score.is_finite() { -((f64::from(*score) * 1e4).round() as i64) } else { INVALID }
        };
        Ok(Plamo2 { tokens, costs: scores.iter().map(cost).collect(), bytes })
    }

    /// Appends the ids of a text.
    pub fn encode(&self, text: &[u8], out: &mut Vec<u32>) {
        let text = chars::normalize(text);
        let text = text.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(&text);
        // The lowest cost from each position to the end, with the token at the position and its
        // length. `None` if the character is spelled in bytes.
        let mut best = vec![(0i64, 0u32, None::<u32>); text.len() + 1];
        let is_start = |b: u8| b & 0xC0 != 0x80;
        for at in (0..text.len()).rev().filter(|at| text.get(*at).is_some_and(|b| is_start(*b))) {
            let rest = text.get(at..).unwrap_or_default();
            let mut least = (i64::MAX, 0, None);
            self.tokens.prefixes(rest, |len, id| {
                let cost = self.costs.get(id as usize).copied().unwrap_or(INVALID);
                let after = best.get(at + len).map_or(0, |b| b.0);
                // If costs are equal, the longest token is used.
                if cost < INVALID && after.saturating_add(cost) <= least.0 {
                    least = (after.saturating_add(cost), len as u32, Some(id));
                }
            });
            let len = utf8_len(rest.first().copied().unwrap_or(0)).min(rest.len());
            let spelt = best.get(at + len).map_or(0, |b| b.0).saturating_add(UNKNOWN);
            if spelt < least.0 {
                least = (spelt, len as u32, None);
            }
            if let Some(best) = best.get_mut(at) {
                *best = least;
            }
        }
        let mut at = 0;
        while let Some(&(_, len, id)) = best.get(at).filter(|_| at < text.len()) {
            let end = at + (len as usize).max(1);
            match id {
                Some(id) => out.push(id),
                None => {
                    let bytes = text.get(at..end).unwrap_or_default().iter();
                    out.extend(bytes.filter_map(|b| self.bytes.get(usize::from(*b)).copied()));
                }
            }
            at = end;
        }
    }
}

fn is_byte(attrs: &[u8], id: u32) -> bool {
    attrs.get(id as usize).is_some_and(|attrs| attrs & attr::BYTE != 0)
}
