//! SentencePiece BPE. It repeatedly joins the adjacent pair whose result is the token with the best
//! score. Parts that are not tokens at the end become bytes.

use std::collections::{BinaryHeap, HashMap};

use super::error::TokenizerError;
use super::limit::Limit;
use super::space::{SpaceCuts, character};
use super::table::TokenTable;

/// Maximum length of a piece that is cached within one text.
const CACHED_LEN: usize = 64;

/// Scores and byte tokens.
#[derive(Debug)]
pub struct Spm {
    scores: Vec<f32>,
    /// Tokens with this score or less are never joined.
    never: Option<f32>,
    bytes: Box<[u32; 256]>,
    cuts: SpaceCuts,
}

impl Spm {
    /// Creates a vocabulary from the scores (one per token) and finds the byte tokens. `unknown`
    /// replaces missing byte tokens.
    pub fn new(
        table: &TokenTable,
        scores: Vec<f32>,
        never: Option<f32>,
        unknown: Option<u32>,
    ) -> Result<Spm, TokenizerError> {
        let mut bytes = Box::new([0; 256]);
        for (b, entry) in (0..=255u8).zip(bytes.iter_mut()) {
            let token = table
                .get(format!("<0x{b:02X}>").as_bytes())
                .or_else(|| table.get(&[b]))
                .or(unknown);
            *entry = token.ok_or_else(|| {
                TokenizerError::vocabulary(
                    "tokenizer.ggml.tokens",
                    format!(
                        "byte {b} cannot be encoded: \
                        the vocabulary has no token <0x{b:02X}> and no unknown token"
                    ),
                )
            })?;
        }
        let mut cuts = SpaceCuts::default();
        for id in 0..table.len() as u32 {
            cuts.observe(table.text(id).unwrap_or_default());
        }
        Ok(Spm { scores, never, bytes, cuts })
    }

    /// The state for encoding one text of any number of fragments.
    pub fn session<'t>(&'t self, table: &'t TokenTable, limit: &'t Limit) -> Session<'t> {
        Session {
            spm: self,
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
    spm: &'t Spm,
    table: &'t TokenTable,
    limit: &'t Limit,
    cache: HashMap<Box<[u8]>, (usize, usize)>,
    memory: Vec<u32>,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

const NONE: u32 = u32::MAX;

/// A part of the piece. It is empty after it was joined to the previous part.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    len: u32,
    previous: u32,
    next: u32,
}

/// A join that was possible when it was added: best score first, then leftmost.
struct Candidate {
    score: f32,
    left: u32,
    right: u32,
    len: u32,
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl Session<'_> {
    /// Appends the ids of a text in which spaces are already U+2581.
    pub fn encode(&mut self, text: &[u8], out: &mut Vec<u32>) {
        let spm = self.spm;
        spm.cuts.split(text, |piece| self.piece(piece, out));
    }

    fn piece(&mut self, piece: &[u8], out: &mut Vec<u32>) {
        if self.limit.is_over(out.len()) {
            return;
        }
        if piece.len() > CACHED_LEN {
            return self.join(piece, out);
        }
        if let Some(&(start, end)) = self.cache.get(piece) {
            out.extend_from_slice(self.memory.get(start..end).unwrap_or_default());
            return;
        }
        let start = out.len();
        self.join(piece, out);
        let at = self.memory.len();
        self.memory.extend_from_slice(out.get(start..).unwrap_or_default());
        self.cache.insert(piece.into(), (at, self.memory.len()));
    }

    fn join(&mut self, piece: &[u8], out: &mut Vec<u32>) {
        let Session { spm, table, limit, scratch: Scratch { symbols, heap }, .. } = self;
        let token = |start: u32, len: u32| {
            piece.get(start as usize..(start + len) as usize).and_then(|text| table.get(text))
        };
        let note = |heap: &mut BinaryHeap<Candidate>, symbols: &[Symbol], left: u32, right: u32| {
            let (Some(l), Some(r)) = (symbols.get(left as usize), symbols.get(right as usize))
            else {
                return;
            };
            let len = l.len + r.len;
            if let Some(id) = token(l.start, len) {
                // avoids -0.0
                let score = spm.scores.get(id as usize).copied().unwrap_or(0.0) + 0.0;
                if spm.never.is_none_or(|never| score > never) {
                    heap.push(Candidate { score, left, right, len });
                }
            }
        };
        symbols.clear();
        heap.clear();
        let mut start = 0;
        while start < piece.len() {
            let len = character(piece, start).len();
            let i = symbols.len() as u32;
            symbols.push(Symbol {
                start: start as u32,
                len: len as u32,
                previous: i.wrapping_sub(1),
                next: i + 1,
            });
            start += len;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        for i in 1..symbols.len() as u32 {
            note(heap, symbols, i - 1, i);
        }
        while let Some(c) = heap.pop() {
            if limit.cancel.is_cancelled() {
                return;
            }
            let (Some(&l), Some(&r)) =
                (symbols.get(c.left as usize), symbols.get(c.right as usize))
            else {
                continue;
            };
            if l.len == 0 || r.len == 0 || l.len + r.len != c.len {
                continue;
            }
            if let Some(l) = symbols.get_mut(c.left as usize) {
                (l.len, l.next) = (c.len, r.next);
            }
            if let Some(r) = symbols.get_mut(c.right as usize) {
                r.len = 0;
            }
            if let Some(after) = symbols.get_mut(r.next as usize) {
                after.previous = c.left;
            }
            note(heap, symbols, l.previous, c.left);
            note(heap, symbols, c.left, r.next);
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            match token(symbol.start, symbol.len) {
                Some(id) => out.push(id),
                None => {
                    let text =
                        piece.get(symbol.start as usize..(symbol.start + symbol.len) as usize);
                    out.extend(
                        text.unwrap_or_default()
                            .iter()
                            .filter_map(|&b| spm.bytes.get(usize::from(b)).copied()),
                    );
                }
            }
        }
    }
}
