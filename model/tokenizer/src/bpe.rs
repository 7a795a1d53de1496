//! Byte-pair encoding (BPE) of a text, piece by piece.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::chars::{self, push_utf8, utf8_len};
use super::error::TokenizerError;
use super::limit::Limit;
use super::pretokenize::Pretokenizer;
use super::space::{SpaceCuts, escape};
use super::table::{Merge, PairMap, TokenTable};
use super::wordpiece;

/// Symbol of a character that occurs in no token and no merge.
const UNKNOWN: u32 = u32::MAX;

/// Up to this number of symbols, the next merge is found by a scan of all pairs, which is faster
/// than a heap. Above it, the heap avoids quadratic time.
const SCAN_LIMIT: usize = 40;

/// Maximum length of a piece that is cached within one text.
const CACHED_LEN: usize = 64;

/// The merges, over symbols. Symbols are the ids of the vocabulary, then the texts that occur only
/// in merges.
#[derive(Debug)]
pub struct Bpe {
    pre: &'static Pretokenizer,
    n_vocab: u32,
    merges: PairMap,
    /// Byte-level: the symbol of each byte. Raw UTF-8: the `<0xXX>` token of each byte.
    bytes: Box<[Option<u32>; 256]>,
    /// Raw UTF-8: the positions at which lines can be split into words.
    cuts: SpaceCuts,
}

impl Bpe {
    /// Reads the merges (`left right`, in order of rank). Texts that are not tokens are added to
    /// the table after the vocabulary.
    pub fn new(
        pre: &'static Pretokenizer,
        table: &mut TokenTable,
        merges: &[&[u8]],
    ) -> Result<Bpe, TokenizerError> {
        let n_vocab = table.len() as u32;
        let mut map = PairMap::with_capacity(merges.len());
        let mut cuts = SpaceCuts::default();
        let mut joined = Vec::new();
        for (i, merge) in merges.iter().enumerate() {
            // The left part may begin with a space, so the separator is searched after its first
            // byte.
            let space = merge.iter().skip(1).position(|&b| b == b' ').map(|at| at + 1);
            let parts = space.and_then(|at| Some((merge.get(..at)?, merge.get(at + 1..)?)));
            let Some((left, right)) = parts.filter(|(_, right)| !right.is_empty()) else {
                let text = String::from_utf8_lossy(merge).into_owned();
                return Err(TokenizerError::vocabulary(
                    "tokenizer.ggml.merges",
                    format!("merge {i} ({text:?}) is not two strings with a space between them"),
                ));
            };
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            if pre.raw_utf8 {
                cuts.observe(&joined);
            }
            let (left, right) = (table.intern(left).0, table.intern(right).0);
            map.insert(left, right, Merge { rank: i as u32, into: table.intern(&joined).0 });
        }
        let mut bytes = Box::new([None; 256]);
        for (b, entry) in (0..=255u8).zip(bytes.iter_mut()) {
            *entry = if pre.raw_utf8 {
                table.get(format!("<0x{b:02X}>").as_bytes()).filter(|&id| id < n_vocab)
            } else {
                let mut letter = Vec::new();
                push_utf8(&mut letter, byte_to_letter(b));
                Some(table.intern(&letter).0)
            };
        }
        Ok(Bpe { pre, n_vocab, merges: map, bytes, cuts })
    }

    /// Prepares a text for lookup: raw UTF-8 with spaces replaced, or unchanged white space.
    /// Converts to lower case if requested.
    pub fn prepare<'t>(&self, text: &'t [u8], lowercase: bool) -> Cow<'t, [u8]> {
        if self.pre.words_only {
            let text = chars::normalize(text);
            return if lowercase { Cow::Owned(wordpiece::lowercase(&text)) } else { text };
        }
        match self.pre.raw_utf8 {
            true => Cow::Owned(chars::normalize(&escape(text, false)).into_owned()),
            false => chars::normalize(text),
        }
    }

    /// Bytes that may produce no token. `None`: white space may also produce no token.
    pub fn droppable_bytes(&self, table: &TokenTable) -> Option<[bool; 256]> {
        let mut out = [false; 256];
        let mut leave = |b: u8| out.get_mut(usize::from(b)).into_iter().for_each(|out| *out = true);
        if self.pre.words_only {
            return None;
        }
        if self.pre.raw_utf8 {
            let without = (0..=255u8).zip(self.bytes.iter()).filter(|(_, token)| token.is_none());
            without.for_each(|(b, _)| leave(b));
            return Some(out);
        }
        // A symbol that is not a token is spelled in bytes. If none of its bytes is a token, it
        // produces no token.
        let is_token = |b: &u8| table.get(&[*b]).is_some_and(|id| id < self.n_vocab);
        for text in (self.n_vocab..table.len() as u32).filter_map(|id| table.text(id)) {
            if !text.iter().any(is_token) {
                let letters = String::from_utf8_lossy(text);
                letters.chars().filter_map(|c| letter_to_byte(u32::from(c))).for_each(&mut leave);
            }
        }
        Some(out)
    }

    /// The state for encoding one text of any number of fragments.
    pub fn session<'t>(&'t self, table: &'t TokenTable, limit: &'t Limit) -> Session<'t> {
        Session {
            bpe: self,
            table,
            limit,
            cache: HashMap::new(),
            memory: Vec::new(),
            scratch: Scratch::default(),
        }
    }
}

/// The state of encoding one text.
pub struct Session<'t> {
    bpe: &'t Bpe,
    table: &'t TokenTable,
    limit: &'t Limit,
    /// The range in `memory` of the ids of a piece.
    cache: HashMap<&'t [u8], (usize, usize)>,
    memory: Vec<u32>,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    merges: Vec<Option<Merge>>,
    links: Vec<(u32, u32)>,
    heap: BinaryHeap<Reverse<Candidate>>,
    letters: Vec<u8>,
}

/// A part of a piece: its symbol and its byte range.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    start: usize,
    end: usize,
}

/// A merge that was possible when it was added: lowest rank first, then leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    ids: (u32, u32),
    into: u32,
}

impl<'t> Session<'t> {
    /// Appends the ids of a text from [`chars::normalize`] (raw UTF-8: with spaces already
    /// replaced).
    pub fn encode(&mut self, text: &'t [u8], out: &mut Vec<u32>) {
        let bpe = self.bpe;
        bpe.pre.split(text, &mut |piece| match bpe.pre.raw_utf8 {
            true if bpe.pre.words_only && chars::char_at(piece, 0).is(chars::SPACE) => {}
            true => bpe.cuts.split(piece, |word| self.piece(word, out)),
            false => self.piece(piece, out),
        });
    }

    fn piece(&mut self, piece: &'t [u8], out: &mut Vec<u32>) {
        if self.limit.is_over(out.len()) {
            return;
        }
        if piece.len() > CACHED_LEN {
            return self.merge(piece, out);
        }
        if let Some(&(start, end)) = self.cache.get(piece) {
            out.extend_from_slice(self.memory.get(start..end).unwrap_or_default());
            return;
        }
        let start = out.len();
        self.merge(piece, out);
        let ids = out.get(start..).unwrap_or_default();
        let at = self.memory.len();
        self.memory.extend_from_slice(ids);
        self.cache.insert(piece, (at, self.memory.len()));
    }

    fn merge(&mut self, piece: &[u8], out: &mut Vec<u32>) {
        let Session { bpe, table, limit, scratch, .. } = self;
        let whole = if bpe.pre.raw_utf8 {
            (bpe.pre.whole_lines && piece.iter().all(|&b| b == b'\n'))
                .then(|| table.get(piece))
                .flatten()
        } else if bpe.pre.ignore_merges {
            scratch.letters.clear();
            for &b in piece {
                push_utf8(&mut scratch.letters, byte_to_letter(b));
            }
            table.get(&scratch.letters)
        } else {
            None
        };
        if let Some(id) = whole.filter(|&id| id < bpe.n_vocab) {
            out.push(id);
            return;
        }
        bpe.symbols(table, piece, &mut scratch.symbols);
        if scratch.symbols.len() <= SCAN_LIMIT {
            bpe.merge_by_scan(scratch);
        } else {
            bpe.merge_by_heap(scratch, limit);
        }
        for symbol in &scratch.symbols {
            if symbol.id < bpe.n_vocab {
                out.push(symbol.id);
            } else {
                let text = piece.get(symbol.start..symbol.end).unwrap_or_default();
                bpe.spell(table, symbol.id, text, out);
            }
        }
    }
}

impl Bpe {
    fn symbols(&self, table: &TokenTable, piece: &[u8], symbols: &mut Vec<Symbol>) {
        symbols.clear();
        let mut start = 0;
        while let Some(&first) = piece.get(start) {
            let symbol = if self.pre.raw_utf8 {
                let end = (start + utf8_len(first)).min(piece.len());
                let id = piece.get(start..end).and_then(|c| table.get(c)).unwrap_or(UNKNOWN);
                Symbol { id, start, end }
            } else {
                let id = self.bytes.get(usize::from(first)).copied().flatten().unwrap_or(UNKNOWN);
                Symbol { id, start, end: start + 1 }
            };
            start = symbol.end;
            symbols.push(symbol);
        }
    }

    fn lookup(&self, left: Symbol, right: Symbol) -> Option<Merge> {
        self.merges.get(left.id, right.id)
    }

    /// Merges the pair with the lowest rank (leftmost first), until no pair can be merged. The time
    /// is quadratic in the number of symbols.
    fn merge_by_scan(&self, scratch: &mut Scratch) {
        let Scratch { symbols, merges, .. } = scratch;
        merges.clear();
        merges.extend(symbols.windows(2).map(|pair| match pair {
            [left, right] => self.lookup(*left, *right),
            _ => None,
        }));
        loop {
            let best =
                merges.iter().enumerate().filter_map(|(i, m)| m.map(|m| (m.rank, i, m.into))).min();
            let Some((_, i, into)) = best else { return };
            let end = symbols.remove(i + 1).end;
            merges.remove(i);
            let Some(merged) = symbols.get_mut(i) else { return };
            (merged.id, merged.end) = (into, end);
            let merged = *merged;
            if let (Some(right), Some(entry)) = (symbols.get(i + 1), merges.get_mut(i)) {
                *entry = self.lookup(merged, *right);
            }
            if i > 0
                && let (Some(left), Some(entry)) = (symbols.get(i - 1), merges.get_mut(i - 1))
            {
                *entry = self.lookup(*left, merged);
            }
        }
    }

    /// Like [`Session::merge_by_scan`], with a heap of candidates and a linked list. The time is n
    /// log n.
    fn merge_by_heap(&self, scratch: &mut Scratch, limit: &Limit) {
        const NONE: u32 = u32::MAX;
        let Scratch { symbols, links, heap, .. } = scratch;
        let n = symbols.len() as u32;
        // Pairs (previous, next). The next of a merged symbol is the symbol itself.
        links.clear();
        links.extend((0..n).map(|i| (i.wrapping_sub(1), if i + 1 < n { i + 1 } else { NONE })));
        heap.clear();
        let note = |heap: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
            let (Some(l), Some(r)) = (symbols.get(left as usize), symbols.get(right as usize))
            else {
                return;
            };
            if let Some(Merge { rank, into }) = self.lookup(*l, *r) {
                heap.push(Reverse(Candidate { rank, left, right, ids: (l.id, r.id), into }));
            }
        };
        for i in 1..n {
            note(heap, symbols, i - 1, i);
        }
        while let Some(Reverse(c)) = heap.pop() {
            if limit.cancel.is_cancelled() {
                return;
            }
            let (left, right) = (c.left as usize, c.right as usize);
            let (Some(&(before, next)), Some(&(_, after))) = (links.get(left), links.get(right))
            else {
                return;
            };
            let (Some(l), Some(&r)) = (symbols.get(left), symbols.get(right)) else { return };
            let stale = next != c.right || after == c.right || (l.id, r.id) != c.ids;
            if stale {
                continue;
            }
            if let Some(l) = symbols.get_mut(left) {
                (l.id, l.end) = (c.into, r.end);
            }
            if let Some(link) = links.get_mut(left) {
                link.1 = after;
            }
            if let Some(link) = links.get_mut(right) {
                *link = (c.right, c.right);
            }
            if let Some(link) = links.get_mut(after as usize) {
                link.0 = c.left;
            }
            note(heap, symbols, before, c.left);
            note(heap, symbols, c.left, after);
        }
        let mut i = 0;
        symbols.retain(|_| {
            let kept = links.get(i).is_some_and(|link| link.1 as usize != i);
            i += 1;
            kept
        });
    }

    /// Spells a symbol that is not a token by the tokens of its bytes. Bytes without a token are
    /// dropped, as in llama.cpp. Byte-level vocabularies that lack some bytes depend on this (the
    /// vocabulary of Falcon has no control characters).
    fn spell(&self, table: &TokenTable, id: u32, text: &[u8], out: &mut Vec<u32>) {
        if self.pre.raw_utf8 {
            out.extend(
                text.iter().filter_map(|&b| self.bytes.get(usize::from(b)).copied().flatten()),
            );
        } else {
            let letters = table.text(id).unwrap_or_default();
            out.extend(
                letters.iter().filter_map(|&b| table.get(&[b])).filter(|&id| id < self.n_vocab),
            );
        }
    }
}

/// The letter of a byte in byte-level BPE. Printable bytes are unchanged; the other bytes are
/// U+0100 and following, in order.
pub fn byte_to_letter(b: u8) -> u32 {
    let b = u32::from(b);
    match b {
        0..=0x20 => 0x100 + b,
        0x7F..=0xA0 => 0x121 + (b - 0x7F),
        0xAD => 0x143,
        _ => b,
    }
}

/// The byte of a letter.
pub fn letter_to_byte(letter: u32) -> Option<u8> {
    match letter {
        0x100..=0x120 => Some((letter - 0x100) as u8),
        0x121..=0x142 => Some((letter - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(letter as u8),
        _ => None,
    }
}

/// Appends the bytes of a byte-level token. Letters outside the alphabet are unchanged. Some tokens
/// have such letters, but no text produces these tokens.
pub fn decode_letters(text: &[u8], out: &mut Vec<u8>) {
    let mut pos = 0;
    while pos < text.len() {
        let c = chars::char_at(text, pos);
        match letter_to_byte(c.cp) {
            Some(b) => out.push(b),
            None => push_utf8(out, c.cp),
        }
        pos += c.len.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_is_a_bijection() {
        let letters: std::collections::HashSet<u32> = (0..=255).map(byte_to_letter).collect();
        assert_eq!(letters.len(), 256);
        for b in 0..=255u8 {
            assert_eq!(letter_to_byte(byte_to_letter(b)), Some(b));
        }
        assert_eq!(byte_to_letter(b' '), 0x120);
        assert_eq!(byte_to_letter(b'\n'), 0x10A);
        assert_eq!(letter_to_byte(0x144), None);
    }

    #[test]
    fn long_pieces_merge_like_short_ones() {
        let mut seed = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 33) as usize % n
        };
        for round in 0..300 {
            // The order of these merges of existing texts does not depend on their lengths.
            let mut table = TokenTable::with_capacity(0, 0);
            let mut texts: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
            let mut merges = Vec::new();
            for _ in 0..next(30) {
                let (left, right) =
                    (texts[next(texts.len())].clone(), texts[next(texts.len())].clone());
                texts.push(format!("{left}{right}"));
                merges.insert(next(merges.len() + 1), format!("{left} {right}"));
            }
            let merges: Vec<&[u8]> = merges.iter().map(|m| m.as_bytes()).collect();
            let bpe = Bpe::new(Pretokenizer::find("gpt-2").unwrap(), &mut table, &merges).unwrap();
            let piece: Vec<u8> = (0..next(120)).map(|_| b"abc"[next(3)]).collect();
            let ids = |merge: fn(&Bpe, &mut Scratch)| {
                let mut scratch = Scratch::default();
                bpe.symbols(&table, &piece, &mut scratch.symbols);
                merge(&bpe, &mut scratch);
                let ids: Vec<_> = scratch.symbols.iter().map(|s| (s.id, s.start, s.end)).collect();
                ids
            };
            assert_eq!(
                ids(|bpe, scratch| bpe.merge_by_heap(scratch, &Limit::default())),
                ids(Bpe::merge_by_scan),
                "round {round}"
            );
        }
    }
}
