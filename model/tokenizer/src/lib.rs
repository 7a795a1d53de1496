//! Converts text to token ids and back, with the vocabulary of the file.
//!
//! There are six algorithms: byte-level BPE (`gpt2`, and `gemma4` with raw UTF-8), SentencePiece
//! (`llama`), its unigram model (`t5`), WordPiece (`bert`), RWKV's longest match, and PLaMo 2
//! (`plamo2`). Ids equal llama.cpp's ids, for which GGUF vocabularies are written, including bytes
//! that are not UTF-8. If llama.cpp differs from a model's original tokenizer, kjit follows
//! llama.cpp.
//!
//! Time is linear in the length of the text, except for the merges of one very long word: n log n.

#![cfg_attr(not(test), forbid(unsafe_code))]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod bpe;
pub mod cancel;
mod chars;
mod decode;
mod error;
mod limit;
mod literal;
mod non_exhaustive;
mod partition;
mod plamo2;
mod pretokenize;
mod rwkv;
mod space;
mod special;
mod special_ids;
mod spm;
mod table;
mod trie;
pub mod unicode;
mod unigram;
mod vocabulary;
mod wordpiece;

use std::borrow::Cow;
use std::ops::Range;

pub use decode::{DecodeOptions, Detokenizer};
pub use error::TokenizerError;
pub use limit::{Limit, Stopped};
#[doc(hidden)]
pub use non_exhaustive::NonExhaustive;
pub use special_ids::SpecialIds;
pub use vocabulary::{FimIds, Vocabulary};

use bpe::Bpe;
use kjit_gguf::Gguf;
use limit::Reach;
use partition::{Fragment, Partition};
use plamo2::Plamo2;
use pretokenize::Pretokenizer;
use rwkv::Rwkv;
use space::escape;
use special::Resolved;
use spm::Spm;
use table::TokenTable;
use unigram::{Normalizer, Unigram};
use wordpiece::WordPiece;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
/// Options of encoding. The default is [`EncodeOptions::PLAIN`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Adds BOS at the start and EOS at the end if the model requires them.
    pub add_special: bool,
    /// Recognises control tokens in the text (`<|im_end|>`). User-defined tokens are always
    /// recognised.
    pub parse_special: bool,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl EncodeOptions {
    /// A prompt from a chat template, or text with the markup of the model.
    pub const PROMPT: EncodeOptions = EncodeOptions::of(true, true);
    /// Plain text.
    pub const PLAIN: EncodeOptions = EncodeOptions::of(false, false);
    /// Text at the start of a context, without markup.
    pub const RAW_PROMPT: EncodeOptions = EncodeOptions::of(true, false);

    const fn of(add_special: bool, parse_special: bool) -> EncodeOptions {
        EncodeOptions { add_special, parse_special, _more: NonExhaustive(()) }
    }
}

/// Output of a chat template, which may already contain BOS.
const CHAT: EncodeOptions = EncodeOptions::of(false, true);

/// A vocabulary with its algorithm.
#[derive(Debug)]
pub struct Tokenizer {
    /// The vocabulary, then the texts that occur only in merges.
    table: TokenTable,
    attrs: Vec<u8>,
    algorithm: Algorithm,
    partition: Partition,
    special: SpecialIds,
    fim: FimIds,
    eog: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    clean_spaces: bool,
    /// Tokens are UTF-8 with U+2581 for spaces, not letters of byte-level BPE's alphabet.
    raw_utf8: bool,
    /// Text is converted to lower case first (BPE of whole words).
    lowercase: bool,
    /// `None` if an unlimited number of bytes may become one token or no token.
    reach: Option<Reach>,
    remarks: Vec<String>,
}

#[derive(Debug)]
enum Algorithm {
    Bpe(Bpe),
    Spm(Spm),
    WordPiece(WordPiece),
    Unigram(Unigram),
    Rwkv(Rwkv),
    Plamo2(Plamo2),
}

/// The defaults of an algorithm for keys that are missing in the file.
#[derive(Default)]
struct Defaults {
    ids: SpecialIds,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    clean_spaces: bool,
    raw_utf8: bool,
}

impl Tokenizer {
    /// Builds the tokenizer of a file: a model of any architecture, or a vocabulary-only file.
    ///
    /// # Errors
    /// See [`Self::new`]; also keys of the wrong type.
    pub fn from_gguf(file: &Gguf) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(&Vocabulary::from_gguf(file)?)
    }

    /// Builds the tokenizer of a vocabulary.
    ///
    /// # Errors
    /// The algorithm or pre-tokenizer is unknown, or lists are missing or inconsistent.
    pub fn new(vocabulary: &Vocabulary<'_>) -> Result<Tokenizer, TokenizerError> {
        let kind = Kind::of(vocabulary)?;
        let mut table = read_tokens(vocabulary)?;
        let n_vocab = table.len() as u32;
        let defaults = kind.defaults();
        let Resolved { ids, fim, attrs, eog, remarks } =
            special::resolve(vocabulary, &table, n_vocab, defaults.ids)?;
        let partition = Partition::new(&table, &attrs)?;
        let mut add_bos = vocabulary.add_bos.unwrap_or(defaults.add_bos);
        let add_eos = vocabulary.add_eos.unwrap_or(defaults.add_eos);
        let add_space_prefix = vocabulary.add_space_prefix.unwrap_or(defaults.add_space_prefix);
        let scores = || {
            let scores = vocabulary.scores.clone().unwrap_or_else(|| vec![0.0; n_vocab as usize]);
            fits("scores", scores.len(), n_vocab).map(|()| scores)
        };
        let algorithm = match kind {
            Kind::Bpe(pre) => {
                let merges = vocabulary.merges.as_deref().ok_or_else(|| missing("merges"))?;
                Algorithm::Bpe(Bpe::new(pre, &mut table, merges)?)
            }
            Kind::Spm => {
                // Only a token of type unknown may represent bytes; the default id 0 may have a
                // different type.
                let is_unknown = |id: &u32| {
                    attrs.get(*id as usize).is_some_and(|a| a & special::attr::UNKNOWN != 0)
                };
                Algorithm::Spm(Spm::new(
                    &table,
                    scores()?,
                    vocabulary.never,
                    ids.unk.filter(is_unknown),
                )?)
            }
            Kind::WordPiece => {
                add_bos = true;
                let lowercase = vocabulary.lowercase.unwrap_or(true);
                Algorithm::WordPiece(WordPiece {
                    lowercase,
                    strip_accents: vocabulary.strip_accents.unwrap_or(lowercase),
                    max_token_len: vocabulary
                        .tokens
                        .iter()
                        .map(|text| text.len())
                        .max()
                        .unwrap_or(0),
                    unknown: ids.unk.ok_or_else(|| missing("unknown_token_id"))?,
                })
            }
            Kind::Unigram => {
                let merge_spaces = vocabulary.merge_spaces.unwrap_or(false);
                let normalizer = Normalizer {
                    rules: &vocabulary.charsmap,
                    space_in_front: add_space_prefix,
                    merge_spaces,
                };
                let unknown = ids.unk.ok_or_else(|| missing("unknown_token_id"))?;
                Algorithm::Unigram(Unigram::new(&table, &attrs, scores()?, unknown, &normalizer)?)
            }
            // RWKV and PLaMo 2 never add BOS or EOS.
            Kind::Rwkv => {
                add_bos = false;
                Algorithm::Rwkv(Rwkv::new(&table, ids.unk)?)
            }
            Kind::Plamo2 => {
                add_bos = false;
                Algorithm::Plamo2(Plamo2::new(&table, &attrs, &scores()?)?)
            }
        };
        if kind.is_word_piece() && ids.sep.is_none() {
            return Err(missing("seperator_token_id"));
        }
        if add_bos && ids.bos.is_none() {
            return Err(TokenizerError::vocabulary(
                "tokenizer.ggml.bos_token_id",
                "missing, but the vocabulary requires BOS before every text",
            ));
        }
        if add_eos && ids.eos.is_none() {
            return Err(TokenizerError::vocabulary(
                "tokenizer.ggml.eos_token_id",
                "missing, but the vocabulary requires EOS at the end of every text",
            ));
        }
        let droppable_bytes = match &algorithm {
            Algorithm::Bpe(bpe) => bpe.droppable_bytes(&table),
            Algorithm::Rwkv(rwkv) => Some(rwkv.droppable_bytes()),
            Algorithm::Spm(_) | Algorithm::Plamo2(_) => Some([false; 256]),
            // An unknown word of any length is one token.
            Algorithm::WordPiece(_) | Algorithm::Unigram(_) => None,
        };
        let reach = droppable_bytes.map(|bytes| Reach::new(&table, &attrs, &bytes));
        Ok(Tokenizer {
            reach,
            table,
            attrs,
            algorithm,
            partition,
            special: ids,
            fim,
            eog,
            add_bos,
            add_eos,
            add_space_prefix,
            clean_spaces: defaults.clean_spaces,
            raw_utf8: defaults.raw_utf8,
            lowercase: vocabulary.lowercase.unwrap_or(false),
            remarks,
        })
    }

    /// The ids of a text, which may contain bytes that are not UTF-8. Byte-level BPE and WordPiece
    /// replace invalid bytes by U+FFFD; SentencePiece uses them unchanged.
    pub fn encode(&self, text: &[u8], options: EncodeOptions) -> Vec<u32> {
        self.encode_to(text, &[], options, &Limit::default())
    }

    /// Like [`Tokenizer::encode`], with a limit on the number of tokens. A text that clearly
    /// exceeds the limit is not encoded. Other texts are encoded up to the limit.
    ///
    /// # Errors
    /// The text has too many tokens, or the encoding was cancelled.
    pub fn encode_within(
        &self,
        text: &[u8],
        options: EncodeOptions,
        limit: &Limit,
    ) -> Result<Vec<u32>, Stopped> {
        self.encode_parts_within(text, &[], options, limit)
    }

    /// Like [`Tokenizer::encode_within`], but control tokens are text in the given byte ranges
    /// (ascending).
    fn encode_parts_within(
        &self,
        text: &[u8],
        literal: &[Range<usize>],
        options: EncodeOptions,
        limit: &Limit,
    ) -> Result<Vec<u32>, Stopped> {
        let too_many = |least: usize| limit.most.is_some_and(|most| least > most);
        let least = self.reach.as_ref().map_or(0, |reach| reach.fewest(text));
        if too_many(least) {
            return Err(Stopped::TooMany { least });
        }
        let ids = self.encode_to(text, literal, options, limit);
        match ids.len() {
            _ if limit.cancel.is_cancelled() => Err(Stopped::Cancelled),
            least if too_many(least) => Err(Stopped::TooMany { least }),
            _ => Ok(ids),
        }
    }

    /// Returns the ids, up to the limit.
    fn encode_to(
        &self,
        text: &[u8],
        literal: &[Range<usize>],
        options: EncodeOptions,
        limit: &Limit,
    ) -> Vec<u32> {
        let mut out = Vec::new();
        let bos_and_end = match &self.algorithm {
            Algorithm::WordPiece(_) => (self.special.bos, self.special.sep),
            Algorithm::Rwkv(_) | Algorithm::Plamo2(_) => (None, None),
            _ => (
                self.special.bos.filter(|_| self.add_bos),
                self.special.eos.filter(|_| self.add_eos),
            ),
        };
        out.extend(bos_and_end.0.filter(|_| options.add_special));
        let fragments = self.partition.split(&self.table, text, literal, options.parse_special);
        let bytes = |start: usize, end: usize| text.get(start..end).unwrap_or_default();
        match &self.algorithm {
            Algorithm::Bpe(bpe) => {
                // The session caches words from the texts, so the texts must outlive it.
                let texts: Vec<Cow<'_, [u8]>> = fragments
                    .iter()
                    .map(|fragment| match *fragment {
                        Fragment::Token(_) => Cow::Borrowed::<[u8]>(&[]),
                        Fragment::Text { start, end } => {
                            bpe.prepare(bytes(start, end), self.lowercase)
                        }
                    })
                    .collect();
                let mut session = bpe.session(&self.table, limit);
                for (fragment, text) in fragments.iter().zip(&texts) {
                    if limit.is_over(out.len()) {
                        break;
                    }
                    match *fragment {
                        Fragment::Token(id) => out.push(id),
                        Fragment::Text { .. } => session.encode(text, &mut out),
                    }
                }
            }
            Algorithm::Spm(spm) => {
                let mut session = spm.session(&self.table, limit);
                let mut after_special = true;
                for fragment in fragments {
                    if limit.is_over(out.len()) {
                        break;
                    }
                    match fragment {
                        Fragment::Token(id) => out.push(id),
                        Fragment::Text { start, end } => {
                            let text =
                                escape(bytes(start, end), self.add_space_prefix && after_special);
                            session.encode(&text, &mut out);
                        }
                    }
                    after_special = matches!(fragment, Fragment::Token(_));
                }
            }
            Algorithm::WordPiece(a) => {
                each(
                    &fragments,
                    &mut out,
                    |text, out| a.encode(&self.table, text, out),
                    bytes,
                    limit,
                );
            }
            Algorithm::Unigram(a) => {
                each(&fragments, &mut out, |text, out| a.encode(text, out), bytes, limit)
            }
            Algorithm::Rwkv(a) => {
                each(&fragments, &mut out, |text, out| a.encode(text, limit, out), bytes, limit)
            }
            Algorithm::Plamo2(a) => {
                each(&fragments, &mut out, |text, out| a.encode(text, out), bytes, limit)
            }
        }
        out.extend(bos_and_end.1.filter(|_| options.add_special));
        out
    }

    /// The ids of a chat template's output. Control tokens are recognised. BOS is added if the
    /// model requires it and the template did not write it.
    pub fn encode_chat(&self, prompt: &str) -> Vec<u32> {
        self.with_bos(self.encode(prompt.as_bytes(), CHAT))
    }

    /// Like [`Tokenizer::encode_chat`], with a limit on the number of tokens.
    ///
    /// # Errors
    /// See [`Self::encode_within`].
    pub fn encode_chat_within(&self, prompt: &str, limit: &Limit) -> Result<Vec<u32>, Stopped> {
        self.encode_within(prompt.as_bytes(), CHAT, limit).map(|ids| self.with_bos(ids))
    }

    /// The ids of a later part of a chat template's output, such as the text after an image. BOS is
    /// not added.
    ///
    /// # Errors
    /// See [`Self::encode_within`].
    pub fn encode_chat_rest_within(&self, text: &str, limit: &Limit) -> Result<Vec<u32>, Stopped> {
        self.encode_within(text.as_bytes(), CHAT, limit)
    }

    /// Adds BOS if the model requires it and it is missing.
    fn with_bos(&self, ids: Vec<u32>) -> Vec<u32> {
        match self.special.bos {
            Some(bos) if self.add_bos && ids.first() != Some(&bos) => {
                [&[bos], ids.as_slice()].concat()
            }
            _ => ids,
        }
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.attrs.len()
    }

    /// The ids of special tokens.
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// The ids of the tokens for fill-in-the-middle. If the file does not name them, they are found
    /// by well-known texts.
    pub fn fim(&self) -> FimIds {
        self.fim
    }

    /// Id of BOS (begin of sequence).
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// Id of EOS (end of sequence).
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// Id of EOT (end of turn).
    pub fn eot(&self) -> Option<u32> {
        self.special.eot
    }

    /// Whether the model requires BOS at the start of every text.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model requires EOS at the end of every text.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether a token ends the generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// Warnings about ignored parts of the vocabulary, one line each.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The tokens that end the generation, in ascending order.
    pub fn eog_ids(&self) -> &[u32] {
        &self.eog
    }

    /// Whether a token is a control or unknown token, which text produces only with
    /// `parse_special`.
    ///
    /// # Errors
    /// The id is outside the vocabulary.
    pub fn is_control(&self, id: u32) -> Result<bool, TokenizerError> {
        Ok(self.attrs(id)? & (special::attr::CONTROL | special::attr::UNKNOWN) != 0)
    }

    /// The id of a control or user-defined token by its text.
    pub fn special_id(&self, text: &str) -> Option<u32> {
        let id = self.table.get(text.as_bytes())?;
        let special = special::attr::CONTROL | special::attr::USER_DEFINED;
        (self.attrs.get(id as usize)? & special != 0).then_some(id)
    }

    /// The text of a token in the vocabulary (for byte-level BPE in its alphabet).
    ///
    /// # Errors
    /// The id is outside the vocabulary.
    pub fn token_text(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.attrs(id)?;
        Ok(self.table.text(id).unwrap_or_default())
    }

    fn attrs(&self, id: u32) -> Result<u8, TokenizerError> {
        let attrs = self.attrs.get(id as usize).copied();
        attrs.ok_or(TokenizerError::IdOutOfRange { id, n_vocab: self.n_vocab() })
    }
}

/// Encodes fragments independently.
fn each<'t>(
    fragments: &[Fragment],
    out: &mut Vec<u32>,
    encode: impl Fn(&'t [u8], &mut Vec<u32>),
    bytes: impl Fn(usize, usize) -> &'t [u8],
    limit: &Limit,
) {
    for fragment in fragments {
        if limit.is_over(out.len()) {
            return;
        }
        match *fragment {
            Fragment::Token(id) => out.push(id),
            Fragment::Text { start, end } => encode(bytes(start, end), out),
        }
    }
}

enum Kind {
    Bpe(&'static Pretokenizer),
    Spm,
    WordPiece,
    Unigram,
    Rwkv,
    Plamo2,
}

impl Kind {
    fn of(vocabulary: &Vocabulary<'_>) -> Result<Kind, TokenizerError> {
        let pre = match vocabulary.model {
            "gpt2" | "whitespace" => {
                vocabulary.pre.filter(|pre| !pre.is_empty()).unwrap_or("default")
            }
            "gemma4" => "gemma4",
            "llama" => return Ok(Kind::Spm),
            "bert" => return Ok(Kind::WordPiece),
            "t5" => return Ok(Kind::Unigram),
            "rwkv" => return Ok(Kind::Rwkv),
            "plamo2" => return Ok(Kind::Plamo2),
            "none" | "no_vocab" => {
                return Err(TokenizerError::NoVocabulary(vocabulary.model.to_owned()));
            }
            other => return Err(TokenizerError::UnknownModel(other.to_owned())),
        };
        Pretokenizer::find(pre).map(Kind::Bpe).ok_or_else(|| TokenizerError::UnknownPre {
            name: pre.to_owned(),
            known: Pretokenizer::names().collect::<Vec<_>>().join(", "),
        })
    }

    fn is_word_piece(&self) -> bool {
        matches!(self, Kind::WordPiece)
    }

    fn defaults(&self) -> Defaults {
        match self {
            Kind::Bpe(pre) => {
                let legacy = Some(11).filter(|_| !pre.raw_utf8);
                Defaults {
                    ids: SpecialIds {
                        bos: legacy.filter(|_| !pre.no_default_bos),
                        eos: legacy,
                        ..Default::default()
                    },
                    add_bos: pre.add_bos,
                    clean_spaces: pre.clean_spaces,
                    raw_utf8: pre.raw_utf8,
                    ..Default::default()
                }
            }
            Kind::Unigram => Defaults {
                ids: SpecialIds { eos: Some(1), unk: Some(2), pad: Some(0), ..Default::default() },
                add_eos: true,
                ..Default::default()
            },
            Kind::Rwkv => Defaults::default(),
            Kind::Plamo2 => Defaults {
                ids: SpecialIds {
                    bos: Some(1),
                    eos: Some(2),
                    unk: Some(0),
                    pad: Some(3),
                    ..Default::default()
                },
                ..Default::default()
            },
            Kind::Spm => Defaults {
                ids: SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..Default::default() },
                add_bos: true,
                add_space_prefix: true,
                ..Default::default()
            },
            Kind::WordPiece => Defaults {
                ids: SpecialIds {
                    bos: Some(101),
                    unk: Some(100),
                    sep: Some(102),
                    pad: Some(0),
                    mask: Some(103),
                    ..Default::default()
                },
                add_bos: true,
                clean_spaces: true,
                ..Default::default()
            },
        }
    }
}

fn missing(key: &str) -> TokenizerError {
    TokenizerError::vocabulary(
        &format!("tokenizer.ggml.{key}"),
        "missing, but this type of tokenizer needs it",
    )
}

fn fits(key: &str, len: usize, n_vocab: u32) -> Result<(), TokenizerError> {
    if len >= n_vocab as usize {
        return Ok(());
    }
    let problem = format!("{len} elements for {n_vocab} tokens");
    Err(TokenizerError::vocabulary(&format!("tokenizer.ggml.{key}"), problem))
}

fn read_tokens(vocabulary: &Vocabulary<'_>) -> Result<TokenTable, TokenizerError> {
    const KEY: &str = "tokenizer.ggml.tokens";
    let n = vocabulary.tokens.len();
    if n == 0 {
        return Err(TokenizerError::vocabulary(KEY, "missing or empty"));
    }
    let n_vocab = u32::try_from(n)
        .map_err(|_| TokenizerError::vocabulary(KEY, "more than 4294967295 tokens"))?;
    if let Some(types) = &vocabulary.types {
        fits("token_type", types.len(), n_vocab)?;
    }
    let mut table =
        TokenTable::with_capacity(n, vocabulary.tokens.iter().map(|text| text.len()).sum());
    for (i, text) in vocabulary.tokens.iter().enumerate() {
        let (id, new) = match text.is_empty() {
            true => table.intern(format!("[EMPTY_{i}]").as_bytes()),
            false => table.intern(text),
        };
        if !new {
            let text = String::from_utf8_lossy(text);
            return Err(TokenizerError::vocabulary(
                KEY,
                format!("tokens {id} and {i} have the same text {text:?}"),
            ));
        }
    }
    Ok(table)
}

// Unit and integration tests are one program. The integration tests use the public API only.
#[cfg(test)]
extern crate self as kjit_tokenizer;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
