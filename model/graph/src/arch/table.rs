//! The table of architectures that facts describe, one row each. Facts that a row does not name are
//! equal to llama's facts.

use super::decoder::OUTPUT_BIAS;
use super::facts::*;
use super::hparams::Hparams;
use super::layer::ROPE_FREQS;
use super::{delta, ffn, hybrid, latent};
use crate::Activation::{ClampedSilu, GeluTanh, Relu, ReluSquared, Silu};
use crate::op::{Gating, NormKind};

const GELU: Ffn = Ffn::Gated(GeluTanh);

/// Windows on the layers that the file lists. If it lists none: no windows.
const LISTED: Windows = Windows::IfKey(1);

/// Layer norms, a feed-forward part with GELU and without a gate, NeoX rotation: GPT-NeoX and
/// similar models.
const NEOX: Facts = Facts { norm: NormKind::Layer, ffn: Ffn::Plain(GeluTanh), ..QWEN };

/// [`NEOX`] without rotation.
const GPT: Facts = Facts { rope: None, ..NEOX };

/// Gemma's embedding and gate.
const GEMMA: Facts = Facts { embed_scale: Scale::SqrtWidth, ffn: GELU, ..QWEN };

/// Norms around each part, windows on five of six layers.
const GEMMA3: Facts = Facts {
    norms: AROUND,
    qk_norm: QkNorm::Head,
    windows: Windows::AllBut(6),
    local_rope: LocalRope::Base(10000.0),
    scale: Scale::Of(|h| by_width(h, 62)),
    ..GEMMA
};

/// Norms after the addition of the residual; no rotation, no last norm.
const BERT: Facts = Facts {
    norms: AFTER_SUMS,
    norm_sums: true,
    encoder: true,
    out_norm: "",
    unused: CLASSIFIER,
    ..GPT
};

/// The classifier head of rerankers, which kjit does not compute.
const CLASSIFIER: &[&str] = &["cls."];

/// Granite's four factors.
const GRANITE: Facts = Facts {
    embed_scale: Scale::Key("embedding_scale"),
    residual_scale: Scale::Key("residual_scale"),
    scale: Scale::Key("attention.scale"),
    logit_scale: Scale::Over("logit_scale"),
    ..LLAMA
};

/// Parallel attention and feed-forward, scaled logits.
const COHERE: Facts = Facts {
    norm: NormKind::Layer,
    norms: Norms { ffn: None, ..PRE },
    parallel: Parallel::SameNorm,
    logit_scale: Scale::Key("logit_scale"),
    ..LLAMA
};

/// Latent attention; the multiplier of YaRN's attention factor is stored times 0.1.
const LATENT: Facts = Facts {
    mix: latent::either,
    temper: QueryTemperature::Key("attention.temperature_length"),
    log_multiplier: LogMultiplier::Tenths,
    experts: Some(UNNORMED),
    ..LLAMA
};

/// The factor on scores: 1/√(head size). In the largest model of Gemma 2 and 3, which has `layers`
/// layers: 1/√(width / heads).
fn by_width(h: &Hparams<'_>, layers: usize) -> f32 {
    let heads = h.heads.first().copied().unwrap_or(1).max(1);
    1.0 / (if h.layers == layers { h.width / heads } else { h.head_dim } as f32).sqrt()
}

/// All rows. llama and similar models come first.
pub const TABLE: &[Facts] = &[
    // Touvron et al. 2023, arXiv 2302.13971. Models with the same file layout: Llama 2 and 3,
    // SmolLM2, Mistral, Mixtral. Folders of safetensors may list layers with a window.
    Facts { experts: Some(MIXTURE), windows: LISTED, ..LLAMA },
    Facts {
        arch: "mistral3",
        temper: QueryTemperature::Key("rope.scaling.original_context_length"),
        log_multiplier: LogMultiplier::Unscaled,
        experts: Some(MIXTURE),
        ..LLAMA
    },
    Facts { arch: "xverse", ..LLAMA },
    Facts { arch: "internlm2", ..LLAMA },
    // llama.cpp reads a bias of the attention output but does not add it.
    Facts { arch: "ernie4_5", unused: &["attn_output.bias"], ..LLAMA },
    Facts { arch: "ernie4_5-moe", experts: Some(MIXTURE), unused: &["attn_output.bias"], ..LLAMA },
    Facts { arch: "smollm3", rope_on: RopeOn::AllBut(4), ..LLAMA },
    Facts { arch: "arcee", ffn: Ffn::Plain(ReluSquared), ..LLAMA },
    Facts {
        arch: "glm4",
        norms: AROUND,
        ffn: Ffn::Fused(Silu),
        sections: SectionsKey::IfTwo,
        ..LLAMA
    },
    Facts { arch: "chatglm", ffn: Ffn::Fused(Silu), ..LLAMA },
    Facts {
        arch: "baichuan",
        rope_on: RopeOn::IfLayers(32),
        alibi: Scale::Of(|h| if h.layers == 40 { 8.0 } else { 0.0 }),
        ..LLAMA
    },
    Facts { arch: "deepseek", experts: Some(UNNORMED), ..LLAMA },
    Facts { arch: "bailingmoe", experts: Some(UNNORMED), ..LLAMA },
    // Meta 2025: attention in chunks. Every fourth layer has full attention without rotation.
    Facts {
        arch: "llama4",
        windows: Windows::Chunks(8192, 4),
        rope_on: RopeOn::AllBut(4),
        local_rope: LocalRope::OwnBase,
        temper: QueryTemperature::LayersWithoutRope,
        qk_norm: QkNorm::PlainAfterRope(128),
        experts: Some(Experts { share_input: true, renormalise: false, ..SIGMOID }),
        ..LLAMA
    },
    Facts {
        arch: "arctic",
        ffn_size: FfnSize::Width,
        rest: ffn::dense_and_experts,
        experts: Some(MIXTURE),
        ..LLAMA
    },
    // Granite: factors on embedding, residual, scores and logits.
    Facts {
        arch: "granite",
        rope_on: RopeOn::Unless("rope.scaling.finetuned"),
        experts: Some(MIXTURE),
        ..GRANITE
    },
    Facts { arch: "granitemoe", experts: Some(MIXTURE), ..GRANITE },
    Facts {
        arch: "granite_swa",
        windows: Windows::AllBut(4),
        rope_on: RopeOn::Key("attention.rope_pattern"),
        experts: Some(MIXTURE),
        ..GRANITE
    },
    Facts {
        arch: "granitehybrid",
        rope_on: RopeOn::Unless("rope.scaling.finetuned"),
        mix: hybrid::mamba2,
        experts: Some(MIXTURE),
        ..GRANITE
    },
    Facts {
        arch: "minicpm",
        embed_scale: Scale::Or("embedding_scale", |_| 12.0),
        residual_scale: Scale::Or("residual_scale", |h| 1.4 / (h.layers as f32).sqrt()),
        logit_scale: Scale::OverOr("logit_scale", |h| 256.0 / h.width as f32),
        scale: Scale::Head,
        experts: Some(MIXTURE),
        ..GRANITE
    },
    // Qwen: NeoX rotation.
    Facts { arch: "qwen", ffn_size: FfnSize::HalfKey, ..QWEN },
    // Yang et al. 2024, arXiv 2407.10671: biases on queries, keys and values.
    Facts { arch: "qwen2", windows: LISTED, ..QWEN },
    Facts { arch: "qwen2moe", experts: Some(UNNORMED), ..QWEN },
    // llama.cpp reads the bias of the output but does not add it.
    Facts { arch: "qwen2vl", sections: SectionsKey::Blocks, unused: &[OUTPUT_BIAS], ..QWEN },
    // Yang et al. 2025, arXiv 2505.09388: norms on query and key heads.
    Facts { arch: "qwen3", qk_norm: QkNorm::Head, windows: LISTED, unused: CLASSIFIER, ..QWEN },
    Facts { arch: "qwen3vl", qk_norm: QkNorm::Head, sections: SectionsKey::Interleaved, ..QWEN },
    Facts { arch: "qwen3moe", qk_norm: QkNorm::Head, experts: Some(MIXTURE), ..QWEN },
    Facts {
        arch: "qwen3vlmoe",
        qk_norm: QkNorm::Head,
        sections: SectionsKey::Interleaved,
        experts: Some(MIXTURE),
        ..QWEN
    },
    Facts {
        arch: "grovemoe",
        qk_norm: QkNorm::Head,
        rest: ffn::with_shared_by_groups,
        experts: Some(MIXTURE),
        ..QWEN
    },
    Facts { arch: "dots1", qk_norm: QkNorm::Head, experts: Some(SIGMOID_UNNORMED), ..QWEN },
    Facts { arch: "bailingmoe2", qk_norm: QkNorm::Head, experts: Some(SIGMOID_UNNORMED), ..QWEN },
    Facts { arch: "openelm", qk_norm: QkNorm::Head, ..QWEN },
    Facts { arch: "apertus", qk_norm: QkNorm::Head, ffn: Ffn::Xielu, ..QWEN },
    Facts { arch: "hunyuan-dense", qk_norm: QkNorm::HeadAfterRope, rope_alpha: true, ..QWEN },
    Facts { arch: "hunyuan-moe", qk_norm: QkNorm::HeadAfterRope, experts: Some(MIXTURE), ..QWEN },
    Facts { arch: "minimax-m2", qk_norm: QkNorm::Whole, experts: Some(SIGMOID), ..QWEN },
    Facts { arch: "olmoe", qk_norm: QkNorm::Whole, experts: Some(UNNORMED), ..QWEN },
    Facts { arch: "seed_oss", norms: PRE_POST, ..QWEN },
    Facts {
        arch: "glm4moe",
        norms: PRE_POST,
        qk_norm: QkNorm::HeadIfPresent,
        sections: SectionsKey::IfTwo,
        experts: Some(SIGMOID_UNNORMED),
        ..QWEN
    },
    Facts { arch: "exaone", ..QWEN },
    // llama.cpp reads rotation factors but does not use them.
    Facts { arch: "pangu-embedded", unused: &[ROPE_FREQS, "rope_factors_"], ..QWEN },
    Facts { arch: "bitnet", ..QWEN },
    Facts { arch: "phi3", ffn: Ffn::Fused(Silu), ..QWEN },
    Facts { arch: "phimoe", experts: Some(MIXTURE), ..QWEN },
    // Windows on some layers.
    Facts {
        arch: "olmo2",
        norms: AFTER,
        qk_norm: QkNorm::Whole,
        windows: Windows::IfKey(4),
        local_rope: LocalRope::Plain,
        ..QWEN
    },
    Facts {
        arch: "exaone4",
        norms: AFTER,
        qk_norm: QkNorm::Head,
        windows: Windows::IfLayers(64, 4),
        width: Width::Or(4096),
        rope_on: RopeOn::WindowedIfAny,
        ..QWEN
    },
    Facts {
        arch: "exaone-moe",
        qk_norm: QkNorm::Head,
        windows: Windows::AllBut(4),
        rope_on: RopeOn::Windowed,
        experts: Some(SIGMOID_UNNORMED),
        ..QWEN
    },
    Facts {
        arch: "afmoe",
        norms: AROUND,
        qk_norm: QkNorm::Head,
        windows: Windows::AllBut(4),
        rope_on: RopeOn::AllBut(4),
        local_rope: LocalRope::OwnBase,
        embed_scale: Scale::SqrtWidth,
        experts: Some(SIGMOID_UNNORMED),
        ..QWEN
    },
    Facts {
        arch: "smallthinker",
        windows: Windows::AllButFirst(4),
        width: Width::Is(4096),
        local_rope: LocalRope::OwnBase,
        rope_on: RopeOn::AllButFirst(4),
        rest: ffn::routed_by_input,
        experts: Some(Experts { act: Relu, ..SIGMOID }),
        ..QWEN
    },
    Facts {
        arch: "mimo2",
        windows: Windows::AllBut(1),
        local_rope: LocalRope::Base(10000.0),
        experts: Some(SIGMOID),
        ..QWEN
    },
    // OpenAI 2025, arXiv 2508.10925: attention sinks, windows on every other layer, softmax over
    // the chosen experts.
    Facts {
        arch: "gpt-oss",
        norms: PRE_POST,
        windows: Windows::AllBut(2),
        local_rope: LocalRope::OwnBase,
        experts: Some(Experts {
            gating: Gating::Chosen,
            renormalise: false,
            act: ClampedSilu(7.0),
            share_input: false,
        }),
        ..QWEN
    },
    Facts { arch: "gemma", ..GEMMA },
    // Gemma Team 2024, arXiv 2408.00118; 2025, arXiv 2503.19786. The norm weights in the files
    // already include the model's +1.
    Facts {
        arch: "gemma2",
        norms: AROUND,
        windows: Windows::AllBut(2),
        width: Width::Or(4096),
        local_rope: LocalRope::OwnBase,
        cap: 50.0,
        final_cap: 30.0,
        scale: Scale::Of(|h| by_width(h, 46)),
        ..GEMMA
    },
    Facts { arch: "gemma3", windows: Windows::IfKey(6), ..GEMMA3 },
    Facts {
        arch: "grok",
        norms: Norms {
            after: Some("attn_output_norm"),
            ffn_after: Some("layer_output_norm"),
            ..PRE
        },
        embed_scale: Scale::Or("embedding_scale", |_| 78.383_67),
        scale: Scale::Or("attention.output_scale", |_| 0.088_388_346),
        logit_scale: Scale::Or("logit_scale", |_| 0.577_350_26),
        cap: 30.0,
        yarn_keys: true,
        rest: ffn::with_experts,
        experts: Some(Experts { act: GeluTanh, ..MIXTURE }),
        ffn: GELU,
        ..QWEN
    },
    // Layer norm.
    Facts { arch: "orion", norm: NormKind::Layer, ..QWEN },
    Facts { arch: "olmo", norm: NormKind::Layer, plain_norms: true, ..LLAMA },
    Facts {
        arch: "dbrx",
        norm: NormKind::Layer,
        norms: Norms { ffn: Some("attn_output_norm"), ..PRE },
        experts: Some(MIXTURE),
        ..QWEN
    },
    Facts {
        arch: "stablelm",
        norm: NormKind::Layer,
        parallel: Parallel::IfNoNorm,
        qk_norm: QkNorm::HeadIfPresent,
        ..QWEN
    },
    Facts { arch: "command-r", qk_norm: QkNorm::HeadIfPresent, ..COHERE },
    Facts { arch: "cohere2", windows: Windows::AllBut(4), rope_on: RopeOn::Windowed, ..COHERE },
    Facts { arch: "phi2", norms: Norms { ffn: None, ..PRE }, parallel: Parallel::SameNorm, ..NEOX },
    Facts {
        arch: "falcon",
        norms: Norms { ffn: None, ..PRE },
        parallel: Parallel::SameNorm,
        ..NEOX
    },
    Facts { arch: "gptneox", parallel: Parallel::IfKey, ..NEOX },
    Facts { arch: "starcoder2", ..NEOX },
    Facts { arch: "codeshell", ..NEOX },
    Facts { arch: "jais2", ffn: Ffn::Plain(ReluSquared), ..NEOX },
    Facts { arch: "nemotron", ffn: Ffn::Plain(ReluSquared), ..NEOX },
    Facts { arch: "gpt2", ..GPT },
    Facts { arch: "starcoder", ..GPT },
    // ALiBi slopes instead of rotation.
    Facts { arch: "bloom", alibi: Scale::Is(8.0), ..GPT },
    Facts {
        arch: "mpt",
        act_scales: true,
        qk_norm: QkNorm::WholeIfPresent,
        alibi: Scale::Key("attention.max_alibi_bias"),
        ..GPT
    },
    Facts {
        arch: "jais",
        alibi: Scale::Key("attention.max_alibi_bias"),
        scale: Scale::Of(|h| 1.0 / h.head_dim.max(1) as f32),
        ffn: Ffn::Gated(Silu),
        ..GPT
    },
    // The files may have more biases. llama.cpp adds only the biases of queries, keys and values.
    Facts {
        arch: "refact",
        rope: None,
        alibi: Scale::Is(8.0),
        unused: &["attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"],
        ..LLAMA
    },
    // DeepSeek-AI 2024, arXiv 2405.04434 and 2412.19437: latent attention, experts in groups, dense
    // layers first.
    Facts { arch: "deepseek2", log_multiplier: LogMultiplier::Scores, ..LATENT },
    // DeepSeek-AI 2025: an indexer with small heads chooses the keys that each layer reads.
    Facts { arch: "deepseek32", temper: QueryTemperature::None, ..LATENT },
    Facts { arch: "mistral4", ..LATENT },
    // The file does not contain these factors. They are constants of the model.
    Facts {
        arch: "minicpm3",
        mix: latent::expanded,
        embed_scale: Scale::Is(12.0),
        residual_scale: Scale::Of(|h| 1.4 / (h.layers as f32).sqrt()),
        logit_scale: Scale::Of(|h| 256.0 / h.width as f32),
        ..QWEN
    },
    Facts { arch: "plm", mix: latent::expanded, ffn: Ffn::Plain(ReluSquared), ..LLAMA },
    // Linear attention on most layers.
    Facts {
        arch: "qwen3next",
        norms: PRE_POST,
        mix: delta::grouped,
        qk_norm: QkNorm::Head,
        gated_queries: true,
        experts: Some(MIXTURE),
        ..QWEN
    },
    Facts {
        arch: "qwen35",
        sections: SectionsKey::Interleaved,
        norms: PRE_POST,
        mix: delta::tiled,
        qk_norm: QkNorm::Head,
        gated_queries: true,
        ..QWEN
    },
    Facts {
        arch: "qwen35moe",
        sections: SectionsKey::Interleaved,
        norms: PRE_POST,
        mix: delta::tiled,
        qk_norm: QkNorm::Head,
        gated_queries: true,
        experts: Some(MIXTURE),
        ..QWEN
    },
    Facts {
        arch: "kimi-linear",
        rope: None,
        mix: delta::by_channel,
        experts: Some(SIGMOID),
        ..LLAMA
    },
    // Encoders (Devlin et al. 2018, arXiv 1810.04805, and similar models): all tokens attend to
    // each other.
    Facts { arch: "bert", ..BERT },
    Facts {
        arch: "nomic-bert",
        rope: NEOX.rope,
        ffn: Ffn::Gated(Silu),
        unused: &["ffn_up.bias", "ffn_down.bias", "cls."],
        ..BERT
    },
    Facts {
        arch: "nomic-bert-moe",
        rope: NEOX.rope,
        experts: Some(Experts { act: GeluTanh, ..UNNORMED }),
        ..BERT
    },
    Facts {
        arch: "jina-bert-v2",
        qk_norm: QkNorm::WholeIfPresent,
        alibi: Scale::Is(8.0),
        ffn: Ffn::PlainOrFused(GeluTanh),
        ..BERT
    },
    Facts {
        arch: "modern-bert",
        norm: NormKind::Layer,
        encoder: true,
        windows: Windows::AllButFirst(3),
        local_rope: LocalRope::Base(10000.0),
        ffn: Ffn::Fused(GeluTanh),
        activation_key: true,
        unused: CLASSIFIER,
        ..QWEN
    },
    Facts { arch: "gemma-embedding", encoder: true, unused: &["output.weight"], ..GEMMA3 },
    // States of constant size.
    Facts { arch: "jamba", rope: None, mix: hybrid::mamba1, experts: Some(UNNORMED), ..LLAMA },
    Facts {
        arch: "falcon-h1",
        mix: hybrid::side_by_side,
        unused: &["attn_output.bias", ROPE_FREQS],
        ..QWEN
    },
    Facts {
        arch: "lfm2",
        mix: hybrid::short_conv,
        qk_norm: QkNorm::Head,
        windows: Windows::IfKey(0),
        out_norm: "token_embd_norm",
        ..QWEN
    },
    Facts {
        arch: "lfm2moe",
        mix: hybrid::short_conv,
        qk_norm: QkNorm::Head,
        out_norm: "token_embd_norm",
        experts: Some(SIGMOID),
        ..QWEN
    },
];
