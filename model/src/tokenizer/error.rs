use thiserror::Error;

use crate::gguf;

/// Why a vocabulary cannot be used, or an id cannot be decoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key of the file is missing or of the wrong type.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// `tokenizer.ggml.model` names an algorithm that is not implemented.
    #[error("tokenizer.ggml.model: unknown tokenizer '{0}' (known: gpt2, gemma4, llama, bert, t5, rwkv, plamo2)")]
    UnknownModel(String),
    /// The file says that it has no vocabulary.
    #[error("tokenizer.ggml.model is '{0}': this file has no vocabulary, so text cannot be tokenized")]
    NoVocabulary(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not implemented; guessing one would give other ids
    /// than the model was trained with.
    #[error("tokenizer.ggml.pre: unknown pre-tokenizer '{name}' (known: {known})")]
    UnknownPre {
        /// The name in the file.
        name: String,
        /// The names that are known, separated by commas.
        known: String,
    },
    /// A part of the vocabulary is missing or does not fit the rest.
    #[error("{key}: {problem}")]
    Vocabulary {
        /// The metadata key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An id that the vocabulary does not have.
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
