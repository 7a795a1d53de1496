//! Reads `config.json`: the type and sizes of the model, and metadata under the keys of GGUF.

use super::error::FolderError;
use super::fail::fail;
use super::header::Header;
use super::json::Object;
use super::kind::KINDS;
use super::kind::Kind;
use super::rotation;
use crate::Error;
use serde_json::Value;
use std::path::PathBuf;

/// The type and sizes of a model.
pub struct Config {
    /// The whole file.
    pub file: Object,
    /// The part of the file about the text model: `text_config` of a multimodal model, otherwise
    /// the whole file.
    text: Object,
    /// Type of the model.
    pub kind: Kind,
    /// Number of layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub width: u32,
    /// Number of rows of the embedding.
    pub vocab: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key and value heads.
    pub kv_heads: u32,
    /// Number of elements of a head.
    pub head: u32,
    /// Width of the feed-forward part.
    pub inner: u32,
    /// Whether the output projection shares the embedding's matrix.
    pub tied: bool,
    /// Whether queries, keys, values and the attention output have biases.
    pub attention_bias: bool,
    /// Whether the feed-forward part has biases.
    pub ffn_bias: bool,
}

/// Maximum number of layers. Each layer has its names.
const MAX_LAYERS: u32 = 10_000;

/// Maximum number of heads, and of elements of a head.
const MAX_HEADS: u32 = 1 << 16;

/// Maximum row length.
const MAX_WIDTH: u32 = 1 << 24;

impl Config {
    /// Reads the file; `None` if it does not exist.
    pub fn read(path: PathBuf) -> Result<Option<Config>, Error> {
        let Some(file) = Object::read(path.clone())? else { return Ok(None) };
        if let Some(quantized) = file.inner("quantization_config")? {
            let method = quantized.str("quant_method")?.unwrap_or("no quant_method").to_owned();
            return Err(fail(&path, FolderError::Quantized { method }));
        }
        let named = file.require("model_type", file.str("model_type")?)?;
        let Some(&(_, kind)) = KINDS.iter().find(|(name, _)| *name == named) else {
            let known = KINDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            return Err(fail(&path, FolderError::ModelType { found: named.to_owned(), known }));
        };
        let text = file.inner("text_config")?.filter(|_| kind == Kind::Gemma3);
        let text = text.unwrap_or_else(|| file.clone());
        Config::of(file, text, kind).map(Some)
    }

    fn of(file: Object, text: Object, kind: Kind) -> Result<Config, Error> {
        // transformers has default values for keys that some configs omit.
        let gemma = |value: u32| (kind == Kind::Gemma3).then_some(value);
        let size = |key: &str, default: Option<u32>, most: u32| -> Result<u32, Error> {
            match text.require(key, text.u32(key)?.or(default))? {
                0 => Err(text.bad(key, "must be above 0")),
                size if size > most => Err(text.bad(key, format!("kjit supports at most {most}"))),
                size => Ok(size),
            }
        };
        let width = size("hidden_size", None, MAX_WIDTH)?;
        let heads = size("num_attention_heads", gemma(8), MAX_HEADS)?;
        let kv_heads = match kind {
            Kind::Llama => size("num_key_value_heads", Some(heads), MAX_HEADS)?,
            _ => size("num_key_value_heads", gemma(4), MAX_HEADS)?,
        };
        let head = match (text.u32("head_dim")?, kind) {
            (Some(_), _) => size("head_dim", None, MAX_HEADS)?,
            (None, Kind::Gemma3) => 256,
            (None, Kind::Qwen3) => 128,
            (None, _) if width / heads > MAX_HEADS => {
                return Err(text.bad(
                    "hidden_size",
                    format!("kjit supports at most {MAX_HEADS} elements per head"),
                ));
            }
            (None, _) if width.is_multiple_of(heads) => width / heads,
            (None, _) => {
                return Err(text.bad(
                    "num_attention_heads",
                    "must divide hidden_size, because head_dim is missing",
                ));
            }
        };
        let layers = size("num_hidden_layers", None, MAX_LAYERS)?;
        let tied = text.bool("tie_word_embeddings")?.or(file.bool("tie_word_embeddings")?);
        let bias =
            |key: &str| Ok::<_, Error>(kind != Kind::Qwen2 && text.bool(key)?.unwrap_or(false));
        let config = Config {
            kind,
            layers,
            width,
            // The size is later compared with the number of tokens.
            vocab: size("vocab_size", gemma(262_208), u32::MAX)?,
            heads,
            kv_heads,
            head,
            inner: size("intermediate_size", None, MAX_WIDTH)?,
            tied: tied.unwrap_or(kind == Kind::Gemma3),
            attention_bias: bias("attention_bias")?,
            ffn_bias: kind == Kind::Llama && bias("mlp_bias")?,
            file,
            text,
        };
        config.check()?;
        Ok(config)
    }

    /// Checks settings for which only one value is supported.
    fn check(&self) -> Result<(), Error> {
        let (text, gemma) = (&self.text, self.kind == Kind::Gemma3);
        let key = if text.get("hidden_activation").is_some() {
            "hidden_activation"
        } else {
            "hidden_act"
        };
        let want = if gemma { "gelu_pytorch_tanh" } else { "silu" };
        if text.str(key)?.is_some_and(|act| act != want) {
            return Err(text
                .bad(key, format!("kjit supports only {want} for a {} model", self.kind.name())));
        }
        if text.f64("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
            return Err(text.bad(
                "partial_rotary_factor",
                "must be 1: RoPE covers the whole head in this type of model",
            ));
        }
        if gemma {
            // Only the largest model scales queries by width / heads (arch/table.rs).
            let scalar = if self.layers == 62 { self.width / self.heads } else { self.head };
            if text.f64("query_pre_attn_scalar")?.unwrap_or(256.0) != f64::from(scalar) {
                return Err(text.bad(
                    "query_pre_attn_scalar",
                    format!("expected {scalar} for a model of this size"),
                ));
            }
            if text.bool("use_bidirectional_attention")?.unwrap_or(false) {
                return Err(text
                    .bad("use_bidirectional_attention", "encoders are not supported as a folder"));
            }
        }
        Ok(())
    }

    /// Writes the metadata.
    pub fn write(&self, name: &str, header: &mut Header) -> Result<(), Error> {
        let (text, arch) = (&self.text, self.kind.arch());
        let key = |name: &str| format!("{arch}.{name}");
        header.str("general.architecture", arch);
        header.str("general.name", name);
        for (name, value) in [
            ("block_count", self.layers),
            ("embedding_length", self.width),
            ("feed_forward_length", self.inner),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head),
            ("attention.value_length", self.head),
            ("vocab_size", self.vocab),
        ] {
            header.u32(&key(name), value);
        }
        let context =
            text.u32("max_position_embeddings")?.or((self.kind == Kind::Gemma3).then_some(131_072));
        let context = text.require("max_position_embeddings", context)?;
        header.u32(&key("context_length"), context);
        header.f32(
            &key("attention.layer_norm_rms_epsilon"),
            text.f64("rms_norm_eps")?.unwrap_or(1e-6),
        );
        for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(value) = text.f64(cap)?.filter(|_| self.kind == Kind::Gemma3) {
                header.f32(&key(cap), value);
            }
        }
        if let Some((window, layers)) = self.windows()? {
            header.u32(&key("attention.sliding_window"), window);
            header.bools(&key("attention.sliding_window_pattern"), &layers);
        }
        rotation::write(text, (self.kind, self.head), context, header)
    }

    /// The window, and whether each layer has it.
    fn windows(&self) -> Result<Option<(u32, Vec<bool>)>, Error> {
        let text = &self.text;
        let on = match self.kind {
            Kind::Llama => false,
            Kind::Mistral | Kind::Gemma3 => true,
            Kind::Qwen2 | Kind::Qwen3 => text.bool("use_sliding_window")?.unwrap_or(false),
        };
        // For transformers, a missing key means 4096, and null means no window.
        let window = match text.u32("sliding_window")? {
            None if text.is_null("sliding_window") => 0,
            window => window.unwrap_or(4096),
        };
        if window == 0 && self.kind == Kind::Gemma3 {
            return Err(text.bad("sliding_window", "models of this type need a window"));
        }
        if window == 0 || !on {
            return Ok(None);
        }
        if let Some(list) = text.get("layer_types") {
            let kinds = list.as_array().map(Vec::as_slice).unwrap_or_default();
            let windowed = |kind: &Value| match kind.as_str() {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(text.bad("layer_types", "expected sliding_attention or full_attention")),
            };
            if kinds.len() != self.layers as usize {
                return Err(text.bad(
                    "layer_types",
                    format!("expected one entry for each of the {} layers", self.layers),
                ));
            }
            return Ok(Some((window, kinds.iter().map(windowed).collect::<Result<_, _>>()?)));
        }
        let layers = 0..self.layers;
        Ok(Some(match self.kind {
            Kind::Gemma3 => {
                let period = text
                    .u32("sliding_window_pattern")?
                    .or(text.u32("_sliding_window_pattern")?)
                    .unwrap_or(6);
                (window, layers.map(|i| (i + 1) % period.max(1) != 0).collect())
            }
            Kind::Qwen2 | Kind::Qwen3 => {
                let full = text.u32("max_window_layers")?.unwrap_or(28);
                (window, layers.map(|i| i >= full).collect())
            }
            Kind::Llama | Kind::Mistral => (window, layers.map(|_| true).collect()),
        }))
    }
}
