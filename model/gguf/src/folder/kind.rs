//! The types of models that run from folders.

/// The model types that run from folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Llama and models with its architecture.
    Llama,
    /// Mistral: llama's architecture, with optional sliding windows.
    Mistral,
    /// Qwen 2 and 2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen 3: norms on query and key heads.
    Qwen3,
    /// Gemma 3: norms around each part, a sliding window in five of six layers.
    Gemma3,
}

impl Kind {
    /// `general.architecture` of a GGUF file of the same model.
    pub fn arch(self) -> &'static str {
        match self {
            Kind::Llama | Kind::Mistral => "llama",
            Kind::Qwen2 => "qwen2",
            Kind::Qwen3 => "qwen3",
            Kind::Gemma3 => "gemma3",
        }
    }

    /// `model_type`.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// The architectures of the model types, each once.
pub(super) fn architectures() -> Vec<&'static str> {
    let mut all: Vec<&str> = KINDS.iter().map(|(_, kind)| kind.arch()).collect();
    all.dedup();
    all
}

/// Model types by `model_type`.
pub(super) const KINDS: &[(&str, Kind)] = &[
    ("llama", Kind::Llama),
    ("mistral", Kind::Mistral),
    ("qwen2", Kind::Qwen2),
    ("qwen3", Kind::Qwen3),
    ("gemma3", Kind::Gemma3),
    ("gemma3_text", Kind::Gemma3),
];
