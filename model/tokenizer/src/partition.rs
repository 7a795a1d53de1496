//! Splits a text at its special tokens.
//!
//! The rule: the longest special token is split off first, at all its occurrences from left to
//! right, then the next longest token in the rest, and so on. A direct implementation searches the
//! text once for each special token, and Gemma has 6,242 of them. Here one pass with a trie finds
//! all occurrences. Most occurrences do not overlap; these are final. The rule is applied only to
//! stretches of overlapping occurrences, and only for the tokens that occur there.

use std::cmp::Reverse;
use std::ops::Range;

use super::error::TokenizerError;
use super::special::attr;
use super::table::TokenTable;

/// Maximum bytes of all special tokens. The trie takes about 80 bytes per byte; Gemma has 40 kB.
const MAX_BYTES: usize = 4 << 20;

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragment {
    /// A special token.
    Token(u32),
    /// Text between special tokens: never empty.
    Text {
        /// Byte offset of the start.
        start: usize,
        /// Byte offset of the end.
        end: usize,
    },
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub struct Partition {
    /// Special tokens by rank; the longest comes first.
    tokens: Vec<Special>,
    nodes: Vec<Node>,
    /// Child of the root by first byte (0: none).
    first: Box<[u32; 256]>,
}

#[derive(Debug)]
struct Special {
    id: u32,
    len: usize,
    attrs: u8,
}

#[derive(Debug, Default)]
struct Node {
    /// Pairs of byte and child node, in ascending order of bytes.
    children: Vec<(u8, u32)>,
    /// Rank of the token that ends here.
    token: Option<u32>,
}

/// An occurrence of a special token.
#[derive(Clone, Copy)]
struct Match {
    start: usize,
    end: usize,
    rank: u32,
}

impl Partition {
    /// Collects the control, unknown and user-defined tokens.
    ///
    /// # Errors
    /// The tokens exceed [`MAX_BYTES`].
    pub fn new(table: &TokenTable, attrs: &[u8]) -> Result<Partition, TokenizerError> {
        let special = attr::CONTROL | attr::USER_DEFINED | attr::UNKNOWN;
        let mut tokens: Vec<Special> = (0u32..)
            .zip(attrs)
            .filter(|&(_, &attrs)| attrs & special != 0)
            .map(|(id, &attrs)| Special { id, len: table.text(id).map_or(0, <[u8]>::len), attrs })
            .filter(|token| token.len > 0)
            .collect();
        let bytes: usize = tokens.iter().map(|token| token.len).sum();
        if bytes > MAX_BYTES {
            let problem = format!(
                "the special tokens have {bytes} bytes in total, more than the limit of {MAX_BYTES}"
            );
            return Err(TokenizerError::vocabulary("tokenizer.ggml.token_type", problem));
        }
        tokens.sort_by_key(|token| Reverse(token.len));
        let mut partition =
            Partition { tokens, nodes: vec![Node::default()], first: Box::new([0; 256]) };
        for rank in 0..partition.tokens.len() {
            let id = partition.tokens.get(rank).map_or(0, |t| t.id);
            partition.insert(table.text(id).unwrap_or_default(), rank as u32);
        }
        Ok(partition)
    }

    fn insert(&mut self, text: &[u8], rank: u32) {
        let mut at = 0;
        for (depth, &b) in text.iter().enumerate() {
            let fresh = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else { return };
            at = match node.children.binary_search_by_key(&b, |&(b, _)| b) {
                Ok(i) => node.children.get(i).map_or(0, |&(_, child)| child as usize),
                Err(i) => {
                    node.children.insert(i, (b, fresh as u32));
                    self.nodes.push(Node::default());
                    fresh
                }
            };
            if depth == 0
                && let Some(first) = self.first.get_mut(usize::from(b))
            {
                *first = at as u32;
            }
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.token = Some(rank);
        }
    }

    /// Splits a text. Without `parse_special` only user-defined tokens are split off; control and
    /// unknown tokens are text. In the ranges `literal` (in ascending order) they are always text.
    pub fn split(
        &self,
        table: &TokenTable,
        text: &[u8],
        literal: &[Range<usize>],
        parse_special: bool,
    ) -> Vec<Fragment> {
        let mut literal = literal.iter().peekable();
        let mut found = Vec::new();
        // The last stretch in which each token occurred.
        let mut seen: Vec<usize> = Vec::new();
        let mut stretch = 0;
        let mut ranks = Vec::new();
        let mut pos = 0;
        while pos < text.len() {
            // A stretch begins with an occurrence and continues while the next occurrence begins
            // inside it.
            let start = pos;
            let mut end = pos;
            let mut matches = 0usize;
            let mut last = None;
            ranks.clear();
            stretch += 1;
            while pos == start || pos < end {
                while literal.next_if(|range| range.end <= pos).is_some() {}
                let parse_special =
                    parse_special && literal.peek().is_none_or(|range| pos < range.start);
                self.matches_at(text, pos, parse_special, |rank, len| {
                    matches += 1;
                    last = Some(Match { start: pos, end: pos + len, rank });
                    end = end.max(pos + len);
                    seen.resize(self.tokens.len(), 0);
                    if let Some(seen) = seen.get_mut(rank as usize).filter(|seen| **seen != stretch)
                    {
                        *seen = stretch;
                        ranks.push(rank);
                    }
                });
                pos += 1;
            }
            match last {
                Some(only) if matches == 1 => found.push(only),
                Some(_) => {
                    ranks.sort_unstable();
                    self.longest_first(table, text, (start, end), &ranks, &mut found);
                }
                None => {}
            }
        }
        self.fragments(text, &found)
    }

    /// Finds an incomplete control or unknown token at the end of a text (the longest possible).
    /// Returns the offset of its start.
    pub fn begun_at_end(&self, text: &[u8]) -> Option<usize> {
        let special = |token: &&Special| token.attrs & (attr::CONTROL | attr::UNKNOWN) != 0;
        // Longer tokens are not markup. The markup of models has at most about 40 bytes.
        let longest = self.tokens.iter().find(special)?.len.min(4096);
        (text.len().saturating_sub(longest.saturating_sub(1))..text.len()).find(|&start| {
            let end = text.get(start..).unwrap_or_default();
            self.begins(end)
        })
    }

    /// Whether a text is an incomplete special token.
    fn begins(&self, text: &[u8]) -> bool {
        let mut at =
            text.first().and_then(|&b| self.first.get(usize::from(b))).map_or(0, |&n| n as usize);
        for b in text.get(1..).unwrap_or_default() {
            let Some(node) = self.nodes.get(at).filter(|_| at > 0) else { return false };
            let child = node.children.binary_search_by_key(b, |&(b, _)| b).ok();
            at = child.and_then(|i| node.children.get(i)).map_or(0, |&(_, child)| child as usize);
        }
        at > 0 && self.nodes.get(at).is_some_and(|node| !node.children.is_empty())
    }

    fn matches_at(
        &self,
        text: &[u8],
        pos: usize,
        parse_special: bool,
        mut found: impl FnMut(u32, usize),
    ) {
        let bytes = text.get(pos..).unwrap_or_default();
        let mut at =
            bytes.first().and_then(|&b| self.first.get(usize::from(b))).map_or(0, |&n| n as usize);
        let mut len = 1;
        while at > 0 {
            let Some(node) = self.nodes.get(at) else { return };
            if let Some(rank) = node.token
                && self.tokens.get(rank as usize).is_some_and(|token| {
                    parse_special || token.attrs & (attr::CONTROL | attr::UNKNOWN) == 0
                })
            {
                found(rank, len);
            }
            at = bytes.get(len).map_or(0, |b| {
                let child = node.children.binary_search_by_key(b, |&(b, _)| b).ok();
                child.and_then(|i| node.children.get(i)).map_or(0, |&(_, child)| child as usize)
            });
            len += 1;
        }
    }

    /// Applies the rule inside a stretch, for the tokens of these ranks (in ascending order).
    fn longest_first(
        &self,
        table: &TokenTable,
        text: &[u8],
        stretch: (usize, usize),
        ranks: &[u32],
        found: &mut Vec<Match>,
    ) {
        let mut free = vec![stretch];
        let mut taken = Vec::new();
        for &rank in ranks {
            let Some(token) = self.tokens.get(rank as usize) else { continue };
            let token_text = table.text(token.id).unwrap_or_default();
            let mut left = Vec::with_capacity(free.len());
            for &(mut from, to) in &free {
                let mut at = from;
                while at + token.len <= to {
                    if text.get(at..at + token.len) == Some(token_text) {
                        taken.push(Match { start: at, end: at + token.len, rank });
                        if at > from {
                            left.push((from, at));
                        }
                        at += token.len;
                        from = at;
                    } else {
                        at += 1;
                    }
                }
                if from < to {
                    left.push((from, to));
                }
            }
            free = left;
        }
        taken.sort_unstable_by_key(|m| m.start);
        found.append(&mut taken);
    }

    /// The occurrences and the texts between them, without the white space that belongs to a token.
    fn fragments(&self, text: &[u8], found: &[Match]) -> Vec<Fragment> {
        let is_space = |i: usize| text.get(i).is_some_and(|b| matches!(b, b' ' | 9..=13));
        let mut out = Vec::with_capacity(2 * found.len() + 1);
        let mut start = 0;
        for m in found {
            let Some(token) = self.tokens.get(m.rank as usize) else { continue };
            let mut end = m.start;
            if token.attrs & attr::LSTRIP != 0 {
                while end > start && is_space(end - 1) {
                    end -= 1;
                }
            }
            if end > start {
                out.push(Fragment::Text { start, end });
            }
            out.push(Fragment::Token(token.id));
            start = m.end;
            if token.attrs & attr::RSTRIP != 0 {
                let next = found.partition_point(|other| other.start < m.end);
                let limit = found.get(next).map_or(text.len(), |other| other.start);
                while start < limit && is_space(start) {
                    start += 1;
                }
            }
        }
        if start < text.len() {
            out.push(Fragment::Text { start, end: text.len() });
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(tokens: &[(&str, u8)]) -> (TokenTable, Partition) {
        let mut table = TokenTable::with_capacity(8, 64);
        for (text, _) in tokens {
            table.intern(text.as_bytes());
        }
        let attrs: Vec<u8> = tokens.iter().map(|t| t.1).collect();
        let partition = Partition::new(&table, &attrs).unwrap();
        (table, partition)
    }

    fn text(start: usize, end: usize) -> Fragment {
        Fragment::Text { start, end }
    }

    /// A direct implementation of the rule. It searches every fragment once for each token.
    fn split_directly(
        table: &TokenTable,
        attrs: &[u8],
        input: &[u8],
        parse_special: bool,
    ) -> Vec<Fragment> {
        let mut ids: Vec<u32> = (0..attrs.len() as u32).collect();
        let text_of = |id: u32| table.text(id).unwrap();
        ids.sort_by_key(|&id| std::cmp::Reverse(text_of(id).len()));
        let mut fragments = if input.is_empty() { vec![] } else { vec![text(0, input.len())] };
        for id in ids {
            let special = attr::CONTROL | attr::UNKNOWN;
            if attrs[id as usize] & (special | attr::USER_DEFINED) == 0
                || (!parse_special && attrs[id as usize] & special != 0)
            {
                continue;
            }
            let token = text_of(id);
            let mut next = Vec::new();
            for fragment in fragments {
                let Fragment::Text { mut start, end } = fragment else {
                    next.push(fragment);
                    continue;
                };
                while let Some(at) = input[start..end].windows(token.len()).position(|w| w == token)
                {
                    if at > 0 {
                        next.push(text(start, start + at));
                    }
                    next.push(Fragment::Token(id));
                    start += at + token.len();
                }
                if start < end {
                    next.push(text(start, end));
                }
            }
            fragments = next;
        }
        fragments
    }

    #[test]
    fn control_tokens_need_parsing_but_user_defined_do_not() {
        let (t, p) = partition(&[("<s>", attr::CONTROL), ("<x>", attr::USER_DEFINED)]);
        assert_eq!(p.split(&t, b"<s>a<x>", &[], false), [text(0, 4), Fragment::Token(1)]);
        assert_eq!(
            p.split(&t, b"<s>a<x>", &[], true),
            [Fragment::Token(0), text(3, 4), Fragment::Token(1)]
        );
        assert_eq!(p.split(&t, b"", &[], true), []);
    }

    #[test]
    fn whitespace_beside_stripping_token_is_removed() {
        let (t, p) = partition(&[
            ("<l>", attr::CONTROL | attr::LSTRIP),
            ("<r>", attr::CONTROL | attr::RSTRIP),
        ]);
        assert_eq!(
            p.split(&t, b"a \n<l> b", &[], true),
            [text(0, 1), Fragment::Token(0), text(6, 8)]
        );
        assert_eq!(p.split(&t, b"a <r> \n", &[], true), [text(0, 2), Fragment::Token(1)]);
    }

    #[test]
    fn overlapping_special_tokens_are_split_by_priority() {
        let tokens = [
            ("ab", attr::USER_DEFINED),
            ("bca", attr::CONTROL),
            ("cc", attr::USER_DEFINED),
            ("ccc", attr::USER_DEFINED),
            ("c", attr::CONTROL),
            ("abcab", attr::USER_DEFINED),
            ("ba", attr::NORMAL),
            ("bb", attr::UNKNOWN),
        ];
        let (table, p) = partition(&tokens);
        let attrs: Vec<u8> = tokens.iter().map(|t| t.1).collect();
        let mut seed = 0x9E37_79B9_7F4A_7C15u64;
        for round in 0..20_000 {
            let mut input = Vec::new();
            for _ in 0..round % 23 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                input.push(b"aabbccx"[(seed >> 33) as usize % 7]);
            }
            for parse_special in [false, true] {
                assert_eq!(
                    p.split(&table, &input, &[], parse_special),
                    split_directly(&table, &attrs, &input, parse_special),
                    "{:?}",
                    String::from_utf8_lossy(&input)
                );
            }
        }
    }
}
