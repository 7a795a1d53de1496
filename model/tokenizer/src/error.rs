//! Errors of vocabularies and of decoding.

use thiserror::Error;

use kjit_gguf::elide::elide;
use kjit_gguf::{self as gguf, QuotedText};

/// The reasons why a vocabulary cannot be used, or an id cannot be decoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key of the file is missing or has the wrong type.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// `tokenizer.ggml.model` names an unknown algorithm.
    #[error("tokenizer.ggml.model: \
        unknown tokenizer {} (known: gpt2, gemma4, llama, bert, t5, rwkv, plamo2)", QuotedText(.0))]
    UnknownModel(String),
    /// The file declares that it has no vocabulary.
    #[error("tokenizer.ggml.model is {}: \
        this file has no vocabulary, so text cannot be tokenized", QuotedText(.0))]
    NoVocabulary(String),
    /// `tokenizer.ggml.pre` names an unknown pre-tokenizer. A guess would give other ids than in
    /// training.
    #[error("tokenizer.ggml.pre: unknown pre-tokenizer {} (known: {known})", QuotedText(name))]
    UnknownPre {
        /// The name in the file.
        name: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// A part of the vocabulary is missing or inconsistent.
    #[error("{key}: {}", elide(problem, 400))]
    Vocabulary {
        /// The metadata key.
        key: String,
        /// Why the part cannot be used.
        problem: String,
    },
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary (0..{n_vocab})")]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Number of tokens in the vocabulary.
        n_vocab: usize,
    },
}

impl TokenizerError {
    pub(super) fn vocabulary(key: &str, problem: impl Into<String>) -> Self {
        TokenizerError::Vocabulary { key: key.to_owned(), problem: problem.into() }
    }
}
