//! What can be wrong with a folder as a model: one line each, naming the key or tensor. The file
//! stands in [`gguf::Error`](crate::Error) before it.

use crate::Shown;

/// Why a file of a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file that a model needs.
    #[error("is not there{hint}")]
    NotThere {
        /// What to do, where that helps.
        hint: &'static str,
    },
    /// A folder without a model that is known.
    #[error(
        "is a directory, not a model file: name the .gguf file in it, or a folder with \
         config.json, *.safetensors and tokenizer.json"
    )]
    NoModel,
    /// The operating system refused.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted operation, as a verb.
        doing: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file beyond what is read into memory.
    #[error("has {bytes} bytes: more than {most} are not read")]
    Large {
        /// Its bytes.
        bytes: u64,
        /// What is read.
        most: u64,
    },
    /// Not JSON, or JSON of another form.
    #[error("cannot be read: {why}")]
    Json {
        /// What is wrong, and where.
        why: String,
    },
    /// A key that must be there.
    #[error("key {} is missing, and kjit does not guess it", Shown(key))]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key with a value that cannot be used.
    #[error("key {} is {}: {why}", Shown(key), Shown(value))]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Why that cannot be used.
        why: String,
    },
    /// An architecture that does not run as a folder.
    #[error(
        "model_type is {}: {known} run as folders; a GGUF file of this model may run",
        Shown(found)
    )]
    ModelType {
        /// The type in the file.
        found: String,
        /// Those that run.
        known: String,
    },
    /// Quantised weights.
    #[error(
        "quantization_config says {}: a folder's weights are BF16, F16 or F32; use the model's \
         original folder or a GGUF file",
        Shown(method)
    )]
    Quantized {
        /// `quant_method`.
        method: String,
    },
    /// A header that is none.
    #[error("is no safetensors file, or damaged: {why}")]
    Header {
        /// What is wrong.
        why: String,
    },
    /// A tensor's bytes are not all in the file.
    #[error(
        "ends at byte {len}, inside tensor {} (bytes {at} to {end}): truncated, fetch it again",
        Shown(tensor)
    )]
    Truncated {
        /// The tensor.
        tensor: String,
        /// Where it begins in the file.
        at: u64,
        /// Where it ends.
        end: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// A tensor's place does not fit its type and shape.
    #[error(
        "tensor {} has {found} bytes, where its type and shape take {want}: damaged, fetch \
         it again",
        Shown(tensor)
    )]
    Bytes {
        /// The tensor.
        tensor: String,
        /// Its bytes by its place.
        found: u64,
        /// Its bytes by its shape.
        want: u64,
    },
    /// A type of weights that is not read.
    #[error("tensor {} is {dtype}: a folder's weights are BF16, F16 or F32", Shown(tensor))]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A shape other than the sizes in `config.json` say.
    #[error("tensor {} has the shape {found:?}, where config.json says {want:?}", Shown(tensor))]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<u64>,
        /// The shape by the sizes.
        want: Vec<u64>,
    },
    /// A tensor that the model needs.
    #[error(
        "tensor {} is in none of the folder's files: an incomplete download, or another model \
         than config.json says",
        Shown(tensor)
    )]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that two files have, or one under two names.
    #[error("tensor {} is there twice", Shown(tensor))]
    Twice {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the index promises.
    #[error(
        "tensor {} is not in it, though model.safetensors.index.json says so: fetch it again",
        Shown(tensor)
    )]
    NotInShard {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that nothing reads: a variant that kjit does not know is not computed as if it were
    /// another.
    #[error("tensor {} is none that a {model_type} model has by its config.json", Shown(tensor))]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The model's type.
        model_type: &'static str,
    },
    /// Several files and nothing that says which are the model.
    #[error(
        "has several .safetensors files and no model.safetensors.index.json that says which are \
         the model's"
    )]
    Unclear,
    /// A tokenizer that cannot be translated.
    #[error(
        "{what} is {}, which kjit does not know: a GGUF file of this model may run",
        Shown(found)
    )]
    Tokenizer {
        /// The part of the tokenizer.
        what: &'static str,
        /// What it is.
        found: String,
    },
    /// Nothing says when an answer is at its end.
    #[error(
        "says nowhere which token ends an answer: eos_token in tokenizer_config.json, or \
         eos_token_id in config.json or generation_config.json"
    )]
    NoEnd,
    /// Tokens that do not fit the model.
    #[error("token {} has the id {id}: {why}", Shown(text))]
    Token {
        /// Its text.
        text: String,
        /// Its id.
        id: u64,
        /// What is wrong with that.
        why: String,
    },
}
