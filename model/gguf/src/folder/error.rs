//! Errors of folders: one line each that names the key or tensor.
//! [`gguf::Error`](crate::Error) puts the file before it.

use crate::Shown;

/// The reasons why a file of a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A required file is missing.
    #[error("is not there{hint}")]
    NotThere {
        /// Advice, or empty.
        hint: &'static str,
    },
    /// The folder contains no known model.
    #[error(
        "is a directory, not a model file: name the .gguf file in it, or a folder with \
         config.json, *.safetensors and tokenizer.json"
    )]
    NoModel,
    /// The operating system refused an operation.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted operation, as a verb.
        doing: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file exceeds the limit for reading it into memory.
    #[error("has {bytes} bytes: more than {most} are not read")]
    Large {
        /// Its size.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// The file is not JSON, or has an unexpected structure.
    #[error("cannot be read: {why}")]
    Json {
        /// The error and its place.
        why: String,
    },
    /// A required key is missing.
    #[error("key {} is missing, and kjit does not guess it", Shown(key))]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has an unusable value.
    #[error("key {} is {}: {why}", Shown(key), Shown(value))]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The reason.
        why: String,
    },
    /// The architecture is not supported as a folder.
    #[error(
        "model_type is {}: {known} run as folders; a GGUF file of this model may run",
        Shown(found)
    )]
    ModelType {
        /// The type in the file.
        found: String,
        /// The supported types.
        known: String,
    },
    /// The weights are quantised.
    #[error(
        "quantization_config says {}: a folder's weights are BF16, F16 or F32; use the model's \
         original folder or a GGUF file",
        Shown(method)
    )]
    Quantized {
        /// `quant_method`.
        method: String,
    },
    /// The header is invalid.
    #[error("is no safetensors file, or damaged: {why}")]
    Header {
        /// The reason.
        why: String,
    },
    /// A tensor's bytes are not completely in the file.
    #[error(
        "ends at byte {len}, inside tensor {} (bytes {at} to {end}): truncated, fetch it again",
        Shown(tensor)
    )]
    Truncated {
        /// The tensor.
        tensor: String,
        /// Offset of its start.
        at: u64,
        /// Offset of its end.
        end: u64,
        /// Size of the file.
        len: u64,
    },
    /// A tensor's byte range does not match its type and shape.
    #[error(
        "tensor {} has {found} bytes, where its type and shape take {want}: damaged, fetch \
         it again",
        Shown(tensor)
    )]
    Bytes {
        /// The tensor.
        tensor: String,
        /// Bytes of its range.
        found: u64,
        /// Bytes by its type and shape.
        want: u64,
    },
    /// The type of the weights is not supported.
    #[error("tensor {} is {dtype}: a folder's weights are BF16, F16 or F32", Shown(tensor))]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A shape differs from the sizes in `config.json`.
    #[error("tensor {} has the shape {found:?}, where config.json says {want:?}", Shown(tensor))]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<u64>,
        /// The expected shape.
        want: Vec<u64>,
    },
    /// A required tensor is missing.
    #[error(
        "tensor {} is in none of the folder's files: an incomplete download, or another model \
         than config.json says",
        Shown(tensor)
    )]
    MissingTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor is in two files, or under two names.
    #[error("tensor {} is there twice", Shown(tensor))]
    Twice {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the index lists is missing.
    #[error(
        "tensor {} is not in it, though model.safetensors.index.json says so: fetch it again",
        Shown(tensor)
    )]
    NotInShard {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that nothing uses: the model may be an unknown variant.
    #[error("tensor {} does not belong to a {model_type} model (config.json)", Shown(tensor))]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The model's type.
        model_type: &'static str,
    },
    /// There are several files and no index of the model's files.
    #[error(
        "has several .safetensors files and no model.safetensors.index.json that says which are \
         the model's"
    )]
    Unclear,
    /// A tokenizer that cannot be converted.
    #[error(
        "{what} is {}, which kjit does not know: a GGUF file of this model may run",
        Shown(found)
    )]
    Tokenizer {
        /// The part of the tokenizer.
        what: &'static str,
        /// Its value.
        found: String,
    },
    /// No token ends an answer.
    #[error(
        "says nowhere which token ends an answer: eos_token in tokenizer_config.json, or \
         eos_token_id in config.json or generation_config.json"
    )]
    NoEnd,
    /// The tokens do not match the model.
    #[error("token {} has the id {id}: {why}", Shown(text))]
    Token {
        /// Its text.
        text: String,
        /// Its id.
        id: u64,
        /// The reason.
        why: String,
    },
}
