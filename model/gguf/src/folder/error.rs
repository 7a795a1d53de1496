//! Errors of folders. Each error is one line that names the key or tensor.
//! [`gguf::Error`](crate::Error) puts the path of the file before it.

use crate::QuotedText;

/// The reasons why a file of a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A required file is missing.
    #[error("does not exist{hint}")]
    NotThere {
        /// Advice to the user; may be empty.
        hint: &'static str,
    },
    /// The folder contains no known model.
    #[error(
        "is a directory, not a model file: use the path of a .gguf file, \
         or of a folder with config.json, *.safetensors and tokenizer.json"
    )]
    NoModel,
    /// The operating system refused an operation.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The attempted operation, as a verb.
        doing: &'static str,
        /// Reason given by the system.
        source: std::io::Error,
    },
    /// The file exceeds the limit for reading it into memory.
    #[error("has {bytes} bytes, more than the limit of {most}")]
    Large {
        /// Size of the file in bytes.
        bytes: u64,
        /// The limit in bytes.
        most: u64,
    },
    /// The file is not JSON, or has an unexpected structure.
    #[error("cannot be read: {why}")]
    Json {
        /// The error, and where it is in the file.
        why: String,
    },
    /// A required key is missing.
    #[error("key {} is missing, and kjit does not guess it", QuotedText(key))]
    MissingKey {
        /// Name of the key.
        key: String,
    },
    /// A key has an unusable value.
    #[error("key {} is {}: {why}", QuotedText(key), QuotedText(value))]
    Value {
        /// Name of the key.
        key: String,
        /// Value of the key.
        value: String,
        /// Why the value cannot be used.
        why: String,
    },
    /// The architecture is not supported as a folder.
    #[error(
        "model_type is {}, which is not supported as a folder (supported: \
         {known}): try a GGUF file of this model",
        QuotedText(found)
    )]
    ModelType {
        /// The architecture in the file.
        found: String,
        /// The supported architectures.
        known: String,
    },
    /// The weights are quantised.
    #[error(
        "quantization_config has {}, but a folder's weights must be BF16, F16 or F32: \
         use the model's original folder or a GGUF file",
        QuotedText(method)
    )]
    Quantized {
        /// Value of `quant_method`.
        method: String,
    },
    /// The header is invalid.
    #[error("is not a safetensors file, or is damaged: {why}")]
    Header {
        /// Why the header is invalid.
        why: String,
    },
    /// A tensor's bytes are not completely in the file.
    #[error(
        "ends at byte {len}, inside tensor {} (bytes {at} to {end}): truncated, download it again",
        QuotedText(tensor)
    )]
    Truncated {
        /// Name of the tensor.
        tensor: String,
        /// Offset of the tensor's first byte.
        at: u64,
        /// Offset of the tensor's end.
        end: u64,
        /// Size of the file.
        len: u64,
    },
    /// A tensor's byte range does not match its type and shape.
    #[error(
        "tensor {} has {found} bytes, but its type and shape need {want}: \
         damaged, download it again",
        QuotedText(tensor)
    )]
    Bytes {
        /// Name of the tensor.
        tensor: String,
        /// Size of the range in bytes.
        found: u64,
        /// Expected size in bytes by type and shape.
        want: u64,
    },
    /// The type of the weights is not supported.
    #[error(
        "tensor {} is {dtype}: a folder's weights must be BF16, F16 or F32",
        QuotedText(tensor)
    )]
    Dtype {
        /// Name of the tensor.
        tensor: String,
        /// Type of the tensor.
        dtype: String,
    },
    /// A shape differs from the sizes in `config.json`.
    #[error(
        "tensor {} has the shape {found:?}, but config.json requires {want:?}",
        QuotedText(tensor)
    )]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// Shape in the file.
        found: Vec<u64>,
        /// The expected shape.
        want: Vec<u64>,
    },
    /// A required tensor is missing.
    #[error(
        "tensor {} is in none of the folder's files: \
         the download is incomplete, or config.json belongs to a different model",
        QuotedText(tensor)
    )]
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor is in two files, or under two names.
    #[error("tensor {} occurs twice", QuotedText(tensor))]
    Twice {
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor that the index lists is missing.
    #[error(
        "tensor {} is missing, although model.safetensors.index.json lists it: download it again",
        QuotedText(tensor)
    )]
    NotInShard {
        /// Name of the tensor.
        tensor: String,
    },
    /// A tensor that the model does not use: the model may be an unknown variant.
    #[error("tensor {} does not belong to a {model_type} model (config.json)", QuotedText(tensor))]
    UnknownTensor {
        /// Name of the tensor.
        tensor: String,
        /// Type of the model.
        model_type: &'static str,
    },
    /// There are several files, but no index that lists the files of the model.
    #[error(
        "has several .safetensors files \
         and no model.safetensors.index.json that lists the model's files"
    )]
    Unclear,
    /// The tokenizer cannot be converted.
    #[error(
        "{what} is {}, which kjit does not support: try a GGUF file of this model",
        QuotedText(found)
    )]
    Tokenizer {
        /// The part of the tokenizer.
        what: &'static str,
        /// Value of that part.
        found: String,
    },
    /// The tokenizer has no token that ends an answer.
    #[error(
        "does not name the token that ends an answer: set eos_token in tokenizer_config.json, \
         or eos_token_id in config.json or generation_config.json"
    )]
    NoEnd,
    /// The tokens do not match the model.
    #[error("token {} has the id {id}: {why}", QuotedText(text))]
    Token {
        /// Text of the token.
        text: String,
        /// Id of the token.
        id: u64,
        /// Why they do not match.
        why: String,
    },
}
