//! Vocabularies of T5: the segmentation with the best sum of scores (SentencePiece's unigram
//! model).

use super::chars::{self, REPLACEMENT, push_utf8, utf8_len};
use super::error::TokenizerError;
use super::special::attr;
use super::table::TokenTable;
use super::trie::Trie;

const SPACE_MARK: &[u8] = "\u{2581}".as_bytes();

/// The score of an unknown character is this much lower than the lowest score of a token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Maximum bytes that a rule of the normaliser may replace. The longest rules in use have about
/// twenty bytes. Without the limit, a hostile table could scan the whole text at every position.
const MAX_RULE: usize = 256;

/// Scores, tokens by text, and the normalisation of text.
#[derive(Debug)]
pub struct Unigram {
    tokens: Trie,
    /// User-defined tokens, which normalisation does not change.
    user_defined: Trie,
    /// Scores by token id; 0 for user-defined tokens.
    scores: Vec<f32>,
    unknown: u32,
    unknown_score: f32,
    rules: Rules,
    space_in_front: bool,
    merge_spaces: bool,
}

/// SentencePiece's compiled normaliser. It is an XOR-compressed double array (Kanda, "Space- and
/// Time-Efficient String Dictionaries", 2018) over the replaced texts, and the replacements, each
/// followed by a zero byte.
#[derive(Debug, Default)]
struct Rules {
    nodes: Vec<u32>,
    replacements: Vec<u8>,
}

impl Rules {
    fn new(map: &[u8]) -> Result<Rules, TokenizerError> {
        if map.is_empty() {
            return Ok(Rules::default());
        }
        let wrong = |problem: &str| {
            TokenizerError::vocabulary("tokenizer.ggml.precompiled_charsmap", problem)
        };
        let (len, rest) = map
            .split_first_chunk::<4>()
            .ok_or_else(|| wrong("the table is shorter than its header"))?;
        let (nodes, replacements) = rest
            .split_at_checked(u32::from_le_bytes(*len) as usize)
            .filter(|(_, replacements)| replacements.last() == Some(&0))
            .ok_or_else(|| wrong("the sizes in the header do not match the table"))?;
        let nodes = nodes.as_chunks::<4>().0.iter().map(|node| u32::from_le_bytes(*node)).collect();
        Ok(Rules { nodes, replacements: replacements.to_vec() })
    }

    /// The longest rule that matches the start of a text: the number of bytes replaced, and the
    /// replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        // Bits of a node. 31: the node is a value. 10 to 30: the base of its children, shifted by 8
        // more bits if bit 9 is set. 8: a leaf. 0 to 7: the node's byte.
        let base = |node: u32| (node >> 10) << ((node & (1 << 9)) >> 6);
        let mut at = base(*self.nodes.first()?);
        let mut found = None;
        for (len, &byte) in text.iter().take(MAX_RULE).enumerate() {
            at ^= u32::from(byte);
            let Some(&node) = self.nodes.get(at as usize).filter(|_| byte != 0) else { break };
            if node & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= base(node);
            if node & (1 << 8) != 0 {
                let place = self.nodes.get(at as usize).map(|value| (value & !(1 << 31)) as usize);
                found = place.map(|place| (len + 1, place));
            }
        }
        let (len, place) = found?;
        let rest = self.replacements.get(place..)?;
        Some((len, rest.split(|b| *b == 0).next().unwrap_or_default()))
    }
}

/// The normalisation settings of a file.
#[derive(Debug, Default)]
pub struct Normalizer<'a> {
    pub rules: &'a [u8],
    pub space_in_front: bool,
    pub merge_spaces: bool,
}

impl Unigram {
    /// Creates a vocabulary from the scores (one per token) and the attributes.
    pub fn new(
        table: &TokenTable,
        attrs: &[u8],
        mut scores: Vec<f32>,
        unknown: u32,
        normalizer: &Normalizer,
    ) -> Result<Unigram, TokenizerError> {
        let with = |wanted: u8| {
            let texts = (0..).zip(attrs).filter(|(_, attrs)| **attrs & wanted != 0);
            let texts = texts.map(|(id, _)| (table.text(id).unwrap_or_default(), id)).collect();
            let too_many = || {
                TokenizerError::vocabulary(
                    "tokenizer.ggml.tokens",
                    "too many bytes for a unigram model",
                )
            };
            Trie::new(texts).ok_or_else(too_many)
        };
        let mut worst = f32::MAX;
        for (score, attrs) in scores.iter_mut().zip(attrs) {
            if *attrs & attr::NORMAL != 0 {
                worst = worst.min(*score);
            }
            if *attrs & attr::USER_DEFINED != 0 {
                *score = 0.0;
            }
        }
        Ok(Unigram {
            tokens: with(attr::NORMAL | attr::USER_DEFINED | attr::UNUSED)?,
            user_defined: with(attr::USER_DEFINED)?,
            scores,
            unknown,
            unknown_score: worst - UNKNOWN_PENALTY,
            rules: Rules::new(normalizer.rules)?,
            space_in_front: normalizer.space_in_front,
            merge_spaces: normalizer.merge_spaces,
        })
    }

    /// Appends the ids of a text.
    pub fn encode(&self, text: &[u8], out: &mut Vec<u32>) {
        let text = self.normalize(text);
        // The best segmentation up to each position: the sum, the last token, and its start.
        let mut best = vec![(f64::MIN, self.unknown, 0u32); text.len() + 1];
        if let Some(first) = best.first_mut() {
            first.0 = 0.0;
        }
        let mut at = 0;
        while let Some(&first) = text.get(at) {
            let len = utf8_len(first).min(text.len() - at);
            let sum = best.get(at).map_or(f64::MIN, |b| b.0);
            let mut offer = |len: usize, id: u32, score: f32| {
                let sum = sum + f64::from(score);
                if let Some(best) = best.get_mut(at + len).filter(|best| sum > best.0) {
                    *best = (sum, id, at as u32);
                }
            };
            let mut whole = false;
            self.tokens.prefixes(text.get(at..).unwrap_or_default(), |token, id| {
                whole |= token == len;
                offer(token, id, self.scores.get(id as usize).copied().unwrap_or(0.0));
            });
            if !whole {
                offer(len, self.unknown, self.unknown_score);
            }
            at += len;
        }
        // Follows the segmentation back from the end. Consecutive unknown tokens are one token.
        let start = out.len();
        let mut at = text.len();
        while at > 0 {
            let Some(&(_, id, from)) = best.get(at) else { break };
            if !(id == self.unknown && out.len() > start && out.last() == Some(&id)) {
                out.push(id);
            }
            // Entries are only written forwards, so this is always an earlier position.
            at = (from as usize).min(at - 1);
        }
        if let Some(ids) = out.get_mut(start..) {
            ids.reverse();
        }
    }

    /// Applies the rules, replaces spaces by U+2581, merges consecutive spaces, and adds one space
    /// at the start, as the file specifies.
    fn normalize(&self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + text.len() / 2);
        let (mut in_word, mut has_space) = (false, false);
        let mut at = 0;
        while at < text.len() {
            let rest = text.get(at..).unwrap_or_default();
            let mut kept = 0;
            self.user_defined.prefixes(rest, |len, _| kept = len);
            let mut repaired = Vec::new();
            let (len, piece) = if kept > 0 {
                (kept, rest.get(..kept).unwrap_or_default())
            } else if let Some((len, replacement)) = self.rules.longest(rest) {
                (len, replacement)
            } else {
                let c = chars::char_at(text, at);
                let len = c.len.max(1);
                let is_text = c.cp != REPLACEMENT || rest.starts_with("\u{FFFD}".as_bytes());
                if !is_text {
                    push_utf8(&mut repaired, REPLACEMENT);
                }
                (len, if is_text { rest.get(..len).unwrap_or_default() } else { &repaired })
            };
            for &b in piece {
                if b == b' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        out.extend_from_slice(SPACE_MARK);
                    }
                    continue;
                }
                if !in_word && ((self.space_in_front && !has_space) || self.merge_spaces) {
                    out.extend_from_slice(SPACE_MARK);
                    has_space = true;
                }
                in_word = true;
                out.push(b);
            }
            at += len;
        }
        out
    }
}
