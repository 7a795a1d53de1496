//! Tensor names in folders and in GGUF files, and the shapes that follow from the sizes in
//! `config.json`. The list is complete: missing and unknown tensors are errors.

use super::config::Config;
use super::kind::Kind;
use std::collections::HashMap;

/// A size of the model.
#[derive(Debug, Clone, Copy)]
enum Size {
    Width,
    Vocab,
    /// All query heads.
    Heads,
    /// All key heads.
    KvHeads,
    /// One head.
    Head,
    /// Width of the feed-forward part.
    Inner,
}

/// The models that have a tensor.
#[derive(Debug, Clone, Copy)]
enum Presence {
    All,
    /// Models with a separate output projection.
    Output,
    /// Models with norms on query and key heads.
    HeadNorms,
    /// Models with norms before each part of a layer.
    PreNorm,
    /// Models with norms before and after each part.
    SandwichNorm,
    /// Models with biases of queries, keys and values.
    QkvBias,
    /// Models with a bias of the attention output.
    OutBias,
    /// Models with biases of the feed-forward part.
    FfnBias,
}

/// A tensor's name in the folder, its name in GGUF, its shape (rows first), and the models that
/// have it.
type Row = (&'static str, &'static str, &'static [Size], Presence);

/// Tensors of the whole model.
const MODEL_TENSORS: &[Row] = &[
    ("embed_tokens.weight", "token_embd.weight", &[Size::Vocab, Size::Width], Presence::All),
    ("norm.weight", "output_norm.weight", &[Size::Width], Presence::All),
    (OUTPUT, "output.weight", &[Size::Vocab, Size::Width], Presence::Output),
];

/// Tensors of each layer.
const LAYER: &[Row] = &[
    ("input_layernorm.weight", "attn_norm.weight", &[Size::Width], Presence::All),
    ("self_attn.q_proj.weight", "attn_q.weight", &[Size::Heads, Size::Width], Presence::All),
    ("self_attn.k_proj.weight", "attn_k.weight", &[Size::KvHeads, Size::Width], Presence::All),
    ("self_attn.v_proj.weight", "attn_v.weight", &[Size::KvHeads, Size::Width], Presence::All),
    ("self_attn.o_proj.weight", "attn_output.weight", &[Size::Width, Size::Heads], Presence::All),
    ("self_attn.q_proj.bias", "attn_q.bias", &[Size::Heads], Presence::QkvBias),
    ("self_attn.k_proj.bias", "attn_k.bias", &[Size::KvHeads], Presence::QkvBias),
    ("self_attn.v_proj.bias", "attn_v.bias", &[Size::KvHeads], Presence::QkvBias),
    ("self_attn.o_proj.bias", "attn_output.bias", &[Size::Width], Presence::OutBias),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", &[Size::Head], Presence::HeadNorms),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", &[Size::Head], Presence::HeadNorms),
    ("post_attention_layernorm.weight", "ffn_norm.weight", &[Size::Width], Presence::PreNorm),
    (
        "post_attention_layernorm.weight",
        "post_attention_norm.weight",
        &[Size::Width],
        Presence::SandwichNorm,
    ),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight", &[Size::Width], Presence::SandwichNorm),
    (
        "post_feedforward_layernorm.weight",
        "post_ffw_norm.weight",
        &[Size::Width],
        Presence::SandwichNorm,
    ),
    ("mlp.gate_proj.weight", "ffn_gate.weight", &[Size::Inner, Size::Width], Presence::All),
    ("mlp.up_proj.weight", "ffn_up.weight", &[Size::Inner, Size::Width], Presence::All),
    ("mlp.down_proj.weight", "ffn_down.weight", &[Size::Width, Size::Inner], Presence::All),
    ("mlp.gate_proj.bias", "ffn_gate.bias", &[Size::Inner], Presence::FfnBias),
    ("mlp.up_proj.bias", "ffn_up.bias", &[Size::Inner], Presence::FfnBias),
    ("mlp.down_proj.bias", "ffn_down.bias", &[Size::Width], Presence::FfnBias),
];

/// The output projection.
const OUTPUT: &str = "lm_head.weight";

/// Prefixes of names: the path of the model within the saved object.
const PREFIXES: &[&str] =
    &["language_model.model.", "model.language_model.", "language_model.", "model."];

/// Prefixes of the other parts of a multimodal model.
const OTHER_PARTS: &[&str] = &["vision_tower.", "multi_modal_projector."];

/// A required tensor.
#[derive(Debug)]
pub struct ExpectedTensor {
    /// Name in the folder, without the prefix.
    pub theirs: String,
    /// Name in a GGUF file.
    pub ours: String,
    /// Shape of the tensor, rows first.
    pub shape: Vec<u64>,
}

/// The meaning of a name in a folder.
#[derive(Debug)]
pub enum Meaning<'a> {
    /// The tensor belongs to the text model.
    Tensor(&'a ExpectedTensor),
    /// The tensor belongs to another part of a multimodal model, named here.
    OtherPart(&'static str),
    /// The tensor is redundant: rotation frequencies, or the output projection of a model that
    /// shares its embedding.
    Redundant,
    /// The tensor is unknown.
    Unknown,
}

/// The name in a GGUF file of a matrix with this name in a folder; `None` if it is unknown. It
/// holds for every type of model that runs from folders.
pub fn matrix(theirs: &str) -> Option<String> {
    let short = PREFIXES.iter().find_map(|place| theirs.strip_prefix(place)).unwrap_or(theirs);
    let find = |rows: &[Row], name: &str| {
        rows.iter().find(|row| row.0 == name && row.2.len() == 2).map(|row| row.1)
    };
    if let Some(ours) = find(MODEL_TENSORS, short) {
        return Some(ours.to_owned());
    }
    let (layer, name) = short.strip_prefix("layers.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    find(LAYER, name).map(|ours| format!("blk.{layer}.{ours}"))
}

/// The tensors of a model.
pub struct Names {
    wanted: Vec<ExpectedTensor>,
    by_name: HashMap<String, usize>,
    tied: bool,
    multimodal: bool,
}

impl Names {
    /// The tensors of a model with this config.
    pub fn new(config: &Config) -> Names {
        let mut wanted = vec![];
        let mut add = |rows: &[Row], before: (&str, &str)| {
            for &(theirs, ours, shape, _) in rows.iter().filter(|row| has(config, row.3)) {
                let shape = shape.iter().map(|size| of(config, *size)).collect();
                wanted.push(ExpectedTensor {
                    theirs: format!("{}{theirs}", before.0),
                    ours: format!("{}{ours}", before.1),
                    shape,
                });
            }
        };
        add(MODEL_TENSORS, ("", ""));
        for i in 0..config.layers {
            add(LAYER, (&format!("layers.{i}."), &format!("blk.{i}.")));
        }
        let by_name = wanted.iter().enumerate().map(|(i, w)| (w.theirs.clone(), i)).collect();
        Names { wanted, by_name, tied: config.tied, multimodal: config.kind == Kind::Gemma3 }
    }

    /// The meaning of a name.
    pub fn find(&self, name: &str) -> Meaning<'_> {
        if self.multimodal {
            let plain = name.strip_prefix("model.").unwrap_or(name);
            if let Some(part) = OTHER_PARTS.iter().find(|part| plain.starts_with(*part)) {
                return Meaning::OtherPart(part.trim_end_matches('.'));
            }
        }
        let short = PREFIXES.iter().find_map(|place| name.strip_prefix(place)).unwrap_or(name);
        match self.by_name.get(short).and_then(|i| self.wanted.get(*i)) {
            Some(wanted) => Meaning::Tensor(wanted),
            None if short.ends_with(".rotary_emb.inv_freq") || (self.tied && short == OUTPUT) => {
                Meaning::Redundant
            }
            None => Meaning::Unknown,
        }
    }

    /// All tensors of the model.
    pub fn wanted(&self) -> &[ExpectedTensor] {
        &self.wanted
    }
}

fn has(config: &Config, which: Presence) -> bool {
    let gemma = config.kind == Kind::Gemma3;
    match which {
        Presence::All => true,
        Presence::Output => !config.tied,
        Presence::HeadNorms => matches!(config.kind, Kind::Qwen3 | Kind::Gemma3),
        Presence::PreNorm => !gemma,
        Presence::SandwichNorm => gemma,
        Presence::QkvBias => config.kind == Kind::Qwen2 || config.attention_bias,
        Presence::OutBias => config.attention_bias,
        Presence::FfnBias => config.ffn_bias,
    }
}

fn of(config: &Config, size: Size) -> u64 {
    let (head, size) = match size {
        Size::Width => (1, config.width),
        Size::Vocab => (1, config.vocab),
        Size::Heads => (config.head, config.heads),
        Size::KvHeads => (config.head, config.kv_heads),
        Size::Head => (1, config.head),
        Size::Inner => (1, config.inner),
    };
    u64::from(head) * u64::from(size)
}
