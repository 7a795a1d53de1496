//! The facts of an architecture, as data. A row of the table lists only the differences from llama.

use super::hparams::Hparams;
use super::layer::Layer;
use super::{attention, ffn};
use crate::op::{Gating, NormKind};
use crate::{Activation, Builder, GraphError, Pairing, ValueId};

/// A part of a layer: a function of its input that returns the part's addition to the residual
/// stream.
pub type Block = fn(&Layer<'_, '_>, &mut Builder<'_>, ValueId) -> Result<ValueId, GraphError>;

/// Facts that hold for every file of an architecture. Facts that are in the keys and tensors of a
/// file (sizes, biases, fused projections, shared experts, sinks) are not repeated here.
#[derive(Clone, Copy)]
pub struct Facts {
    /// `general.architecture`.
    pub arch: &'static str,
    /// Norm of the layers and the head: RMS norm or layer norm.
    pub norm: NormKind,
    /// The epsilon may be in the key of RMS norm or of layer norm.
    pub either_epsilon: bool,
    /// Norms have no weights.
    pub plain_norms: bool,
    /// The norms of a layer.
    pub norms: Norms,
    /// The norms after attention and feed-forward apply to the sum with the residual (post-norm).
    pub norm_sums: bool,
    /// The model is an encoder: all tokens attend to each other, and the result is one pooled
    /// vector.
    pub encoder: bool,
    /// Whether attention and feed-forward read the same residual stream.
    pub parallel: Parallel,
    /// How RoPE pairs the elements of a head. `None`: no rotation.
    pub rope: Option<Pairing>,
    /// The layers with rotation.
    pub rope_on: RopeOn,
    /// The rotation of layers with a sliding window.
    pub local_rope: LocalRope,
    /// Whether and how `rope.dimension_sections` is read (multimodal positions).
    pub sections: SectionsKey,
    /// The meaning of `rope.scaling.yarn_log_multiplier`.
    pub log_multiplier: LogMultiplier,
    /// The base is enlarged by `rope.scaling.alpha`.
    pub rope_alpha: bool,
    /// The keys of the file enable YaRN. The default of β is 8.
    pub yarn_keys: bool,
    /// The layers with a sliding window.
    pub windows: Windows,
    /// The width of the window.
    pub width: Width,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// The query tensor has a gate after each head.
    pub gated_queries: bool,
    /// Factor on scores.
    pub scale: Scale,
    /// Soft cap on scores if no key gives one; 0: none.
    pub cap: f32,
    /// Soft cap on logits if no key gives one; 0: none.
    pub final_cap: f32,
    /// Largest slope of ALiBi.
    pub alibi: Scale,
    /// Factor on the embedding.
    pub embed_scale: Scale,
    /// Factor on the addition of each part of a layer.
    pub residual_scale: Scale,
    /// Factor on the logits.
    pub logit_scale: Scale,
    /// Factor on queries that grows with the position.
    pub temper: QueryTemperature,
    /// Kind of the dense feed-forward part.
    pub ffn: Ffn,
    /// The key `hidden_activation` names the activation if gate and up are in one tensor.
    pub activation_key: bool,
    /// Layers may have divisors of the activated values: `ffn.act.scales` (AWQ, arXiv 2306.00978).
    pub act_scales: bool,
    /// Width of the dense feed-forward part.
    pub ffn_size: FfnSize,
    /// The experts of layers that have a router tensor.
    pub experts: Option<Experts>,
    /// Attention or a recurrent state: the part that mixes tokens.
    pub mix: Block,
    /// Feed-forward: the part that computes each token separately.
    pub rest: Block,
    /// The tensor of the last norm. Empty: no such norm.
    pub out_norm: &'static str,
    /// Substrings of the names of tensors that the forward pass does not use.
    pub unused: &'static [&'static str],
}

/// The facts of llama.
pub const LLAMA: Facts = Facts {
    arch: "llama",
    norm: NormKind::Rms,
    either_epsilon: false,
    plain_norms: false,
    norms: PRE,
    norm_sums: false,
    encoder: false,
    parallel: Parallel::No,
    rope: Some(Pairing::Neighbours),
    rope_on: RopeOn::All,
    local_rope: LocalRope::Same,
    sections: SectionsKey::Unread,
    log_multiplier: LogMultiplier::Unread,
    rope_alpha: false,
    yarn_keys: false,
    windows: Windows::None,
    width: Width::Key,
    qk_norm: QkNorm::None,
    gated_queries: false,
    scale: Scale::Head,
    cap: 0.0,
    final_cap: 0.0,
    alibi: Scale::One,
    embed_scale: Scale::One,
    residual_scale: Scale::One,
    logit_scale: Scale::One,
    temper: QueryTemperature::None,
    ffn: Ffn::Gated(Activation::Silu),
    activation_key: false,
    act_scales: false,
    ffn_size: FfnSize::Key,
    experts: None,
    mix: attention::heads,
    rest: ffn::feed_forward,
    out_norm: "output_norm",
    unused: &[],
};

/// llama with NeoX pairing of the rotation: element i with element i + n/2.
pub const QWEN: Facts = Facts { rope: Some(Pairing::Halves), ..LLAMA };

/// Names of a layer's norms. `None`: the layer does not have this norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Norms {
    /// Norm before attention.
    pub before: Option<&'static str>,
    /// Norm after attention, before the residual is added.
    pub after: Option<&'static str>,
    /// Norm before the feed-forward part.
    pub ffn: Option<&'static str>,
    /// Norm after the feed-forward part, before the residual is added.
    pub ffn_after: Option<&'static str>,
}

/// Norms before attention and before the feed-forward part.
pub const PRE: Norms =
    Norms { before: Some("attn_norm"), after: None, ffn: Some("ffn_norm"), ffn_after: None };
/// Like `PRE`, but with a different name of the second norm.
pub const PRE_POST: Norms = Norms { ffn: Some("post_attention_norm"), ..PRE };
/// Norms after attention and after the feed-forward part.
pub const AFTER: Norms = Norms {
    before: None,
    after: Some("post_attention_norm"),
    ffn: None,
    ffn_after: Some("post_ffw_norm"),
};
/// Norms before and after attention and the feed-forward part.
pub const AROUND: Norms =
    Norms { after: Some("post_attention_norm"), ffn_after: Some("post_ffw_norm"), ..PRE };

/// Norms after the addition of the residual, as in BERT.
pub const AFTER_SUMS: Norms = Norms {
    before: None,
    after: Some("attn_output_norm"),
    ffn: None,
    ffn_after: Some("layer_output_norm"),
};

/// Whether attention and feed-forward read the same input and are added together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// No: the feed-forward part reads the result of attention.
    No,
    /// Yes: both read the result of the norm before attention.
    SameNorm,
    /// Yes, each through its own norm, if `use_parallel_residual` is true or absent.
    IfKey,
    /// [`Parallel::SameNorm`] if the layer has no second norm.
    IfNoNorm,
}

/// The layers with rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeOn {
    /// All layers.
    All,
    /// Layers with a sliding window.
    Windowed,
    /// Layers with a window. All layers if no layer has a window.
    WindowedIfAny,
    /// All layers except the last of every n.
    AllBut(usize),
    /// All layers except the first of every n, if some layers have a window and the model has more
    /// than n layers.
    AllButFirst(usize),
    /// The layers that the list in this key names.
    Key(&'static str),
    /// All layers, unless this key is `false`.
    Unless(&'static str),
    /// All layers if the model has this number of layers, no layer otherwise.
    IfLayers(usize),
}

/// The rotation of layers with a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LocalRope {
    /// As in the other layers.
    Same,
    /// As in the other layers, but `rope.freq_base_swa` is the base if the file has it.
    OwnBase,
    /// As in the other layers, but without scaling and without its factor.
    Plain,
    /// Without scaling. The base is `rope.freq_base_swa`; this number is the default.
    Base(f32),
}

/// Whether `rope.dimension_sections` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectionsKey {
    /// The key is not read.
    Unread,
    /// The positions of a section follow each other.
    Blocks,
    /// As `Blocks`, if the first two sections have pairs.
    IfTwo,
    /// The positions of the sections alternate.
    Interleaved,
}

/// The meaning of `rope.scaling.yarn_log_multiplier`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMultiplier {
    /// The key is not read.
    Unread,
    /// The part of the attention factor that is not applied to the rotations.
    Unscaled,
    /// As `Unscaled`, but times 0.1.
    Tenths,
    /// As `Tenths`, but no factor is applied to the rotations.
    Scores,
}

/// The width of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// The value of the key, which is required.
    Key,
    /// The value of the key, or this default.
    Or(usize),
    /// This number. The key is ignored.
    Is(usize),
}

/// The layers with a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// No layers.
    None,
    /// All layers except the last of every n (0: all layers). The key
    /// `attention.sliding_window_pattern` overrides n.
    AllBut(usize),
    /// As `AllBut`, if the window's key exists.
    IfKey(usize),
    /// As `AllBut(second)`, if the model has `first` layers.
    IfLayers(usize, usize),
    /// All layers except the first of every n, if the window's key exists.
    AllButFirst(usize),
    /// Attention in chunks of `first` positions, on all layers except the last of every `second`.
    Chunks(usize, usize),
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// No norms.
    None,
    /// A norm of each head, before the rotation.
    Head,
    /// As `Head`, if the file has weights for it.
    HeadIfPresent,
    /// One norm over all heads.
    Whole,
    /// As `Whole`, if the file has weights for it.
    WholeIfPresent,
    /// A norm of each head, after the rotation.
    HeadAfterRope,
    /// As `HeadAfterRope`, without weights, unless the model has this number of experts.
    PlainAfterRope(usize),
}

/// A factor, or the key or formula that gives it.
#[derive(Clone, Copy)]
pub enum Scale {
    /// The factor is 1.
    One,
    /// 1/√(head size), for scores only.
    Head,
    /// This constant.
    Is(f32),
    /// √(width of the residual stream).
    SqrtWidth,
    /// The value of a key. If it is absent or 0, the default of the field.
    Key(&'static str),
    /// 1 / the value of a key.
    Over(&'static str),
    /// The value of a key, or this function of the sizes.
    Or(&'static str, fn(&Hparams<'_>) -> f32),
    /// 1 / the value of a key, or this function of the sizes.
    OverOr(&'static str, fn(&Hparams<'_>) -> f32),
    /// A function of the sizes.
    Of(fn(&Hparams<'_>) -> f32),
}

/// The dense feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ffn {
    /// `down(act(gate x) · up x)`.
    Gated(Activation),
    /// `Gated`, with gate and up in one tensor, the gate first.
    Fused(Activation),
    /// `down(act(up x))`.
    Plain(Activation),
    /// `Gated`, `Fused` or `Plain`. The tensors of the layer decide.
    PlainOrFused(Activation),
    /// `Plain` with xIELU. The file has its parameters, one set per layer.
    Xielu,
}

/// The width of the dense feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FfnSize {
    /// `feed_forward_length` of the file.
    Key,
    /// Half of `feed_forward_length`.
    HalfKey,
    /// Equal to the width of the residual stream.
    Width,
}

/// A factor on queries that grows with the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueryTemperature {
    /// No factor.
    None,
    /// It grows by `attention.temperature_scale`, with one step per n positions. The key named here
    /// gives n.
    Key(&'static str),
    /// It grows by 0.1, with one step per 8192 positions (the defaults of the keys), only in layers
    /// without rotation.
    LayersWithoutRope,
}

/// The routing of experts and their activation. Keys of the file take precedence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// The function on router scores. `expert_gating_func` takes precedence.
    pub gating: Gating,
    /// The weights of the chosen experts sum to one. `expert_weights_norm` takes precedence.
    pub renormalise: bool,
    /// The activation of an expert, gated or not.
    pub act: Activation,
    /// The weights scale the experts' inputs instead of their results.
    pub share_input: bool,
}

/// Softmax over all experts, weights that sum to one, SiLU gates.
pub const MIXTURE: Experts = Experts {
    gating: Gating::Softmax,
    renormalise: true,
    act: Activation::Silu,
    share_input: false,
};
/// [`MIXTURE`] without renormalised weights.
pub const UNNORMED: Experts = Experts { renormalise: false, ..MIXTURE };
/// Sigmoid gating, weights that sum to one.
pub const SIGMOID: Experts = Experts { gating: Gating::Sigmoid, ..MIXTURE };
/// Sigmoid gating without renormalised weights.
pub const SIGMOID_UNNORMED: Experts = Experts { renormalise: false, ..SIGMOID };
