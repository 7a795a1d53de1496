//! In what an architecture differs from llama, as data. A row of the table reads like its
//! description: only what is not llama's stands there.

use super::hparams::Hparams;
use super::layer::Layer;
use super::{attention, ffn};
use crate::op::{Gating, NormKind};
use crate::{Activation, Builder, GraphError, Pairing, ValueId};

/// A part of a layer: from its input to what it adds to the residual stream.
pub type Block = fn(&Layer<'_, '_>, &mut Builder<'_>, ValueId) -> Result<ValueId, GraphError>;

/// What is true of every file of an architecture. What a file says by its own keys and tensors
/// (sizes, biases, fused projections, shared experts, sinks) is not repeated here.
#[derive(Clone, Copy)]
pub struct Facts {
    /// `general.architecture`.
    pub arch: &'static str,
    /// Of the layers and the head: RMS, or with the mean taken off.
    pub norm: NormKind,
    /// Norms' epsilon may stand under the other key.
    pub either_epsilon: bool,
    /// Norms have no factors.
    pub plain_norms: bool,
    /// Which norms a layer has.
    pub norms: Norms,
    /// The norms after each part are behind the residual, too.
    pub norm_sums: bool,
    /// All tokens see each other, and the result is one vector.
    pub encoder: bool,
    /// Whether the two parts of a layer read the same residual stream.
    pub parallel: Parallel,
    /// How heads turn; `None`: they do not.
    pub rope: Option<Pairing>,
    /// Which layers turn them.
    pub rope_on: RopeOn,
    /// The rotation of layers with a window.
    pub local_rope: LocalRope,
    /// Whether a key says how pairs share the positions of texts with pictures.
    pub sections: SectionsKey,
    /// What YaRN's logarithmic multiplier is.
    pub log_multiplier: LogMultiplier,
    /// `rope.scaling.alpha` makes the base larger.
    pub rope_alpha: bool,
    /// The file's own numbers say whether it is YaRN, and its β is 8 where it is not said.
    pub yarn_keys: bool,
    /// Which layers see a window only.
    pub windows: Windows,
    /// How wide it is.
    pub width: Width,
    /// Norms of queries and keys.
    pub qk_norm: QkNorm,
    /// The query's tensor has a gate behind each head.
    pub gated_queries: bool,
    /// Factor on scores.
    pub scale: Scale,
    /// Soft cap on scores where no key says another; 0: none.
    pub cap: f32,
    /// Soft cap on logits where no key says another; 0: none.
    pub final_cap: f32,
    /// Largest slope of ALiBi.
    pub alibi: Scale,
    /// Factor on the embedding.
    pub embed_scale: Scale,
    /// Factor on what each part of a layer adds.
    pub residual_scale: Scale,
    /// Factor on the logits.
    pub logit_scale: Scale,
    /// What grows with the position.
    pub temper: Temper,
    /// The dense feed-forward part.
    pub ffn: Ffn,
    /// `hidden_activation` says which function a fused one has.
    pub activation_key: bool,
    /// How wide it is.
    pub ffn_size: FfnSize,
    /// Experts, where a layer's tensors have them.
    pub experts: Option<Experts>,
    /// What mixes tokens.
    pub mix: Block,
    /// What works on each token.
    pub rest: Block,
    /// The tensor of the last norm; empty: there is none.
    pub out_norm: &'static str,
    /// Tensors that files may have and the forward pass does not use: parts of their names.
    pub unused: &'static [&'static str],
}

/// llama's.
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
    temper: Temper::None,
    ffn: Ffn::Gated(Activation::Silu),
    activation_key: false,
    ffn_size: FfnSize::Key,
    experts: None,
    mix: attention::heads,
    rest: ffn::feed_forward,
    out_norm: "output_norm",
    unused: &[],
};

/// The same with heads that turn by halves.
pub const QWEN: Facts = Facts { rope: Some(Pairing::Halves), ..LLAMA };

/// Names of a layer's norms; `None`: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Norms {
    /// Before attention.
    pub before: Option<&'static str>,
    /// After attention, before the residual.
    pub after: Option<&'static str>,
    /// Before the feed-forward part.
    pub ffn: Option<&'static str>,
    /// After the feed-forward part, before the residual.
    pub ffn_after: Option<&'static str>,
}

/// Before each part.
pub const PRE: Norms =
    Norms { before: Some("attn_norm"), after: None, ffn: Some("ffn_norm"), ffn_after: None };
/// Before each part, the second under another name.
pub const PRE_POST: Norms = Norms { ffn: Some("post_attention_norm"), ..PRE };
/// After each part.
pub const AFTER: Norms = Norms {
    before: None,
    after: Some("post_attention_norm"),
    ffn: None,
    ffn_after: Some("post_ffw_norm"),
};
/// Before and after each part.
pub const AROUND: Norms =
    Norms { after: Some("post_attention_norm"), ffn_after: Some("post_ffw_norm"), ..PRE };

/// Behind each part and its residual, as BERT has them.
pub const BEHIND: Norms = Norms {
    before: None,
    after: Some("attn_output_norm"),
    ffn: None,
    ffn_after: Some("layer_output_norm"),
};

/// Whether attention and feed-forward part are added side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallel {
    /// One after the other.
    No,
    /// Both from the norm before attention.
    SameNorm,
    /// Both from the same stream, each through its own norm, where `use_parallel_residual` says so
    /// (the default).
    IfKey,
    /// [`Parallel::SameNorm`] where the layer has no norm for the second.
    IfNoNorm,
}

/// Which layers turn heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeOn {
    /// All.
    All,
    /// Those with a window.
    Windowed,
    /// Those with a window, if any layer has one; else all.
    WindowedIfAny,
    /// All but the last of each so many.
    AllBut(usize),
    /// All but the first of each so many, if some layers have a window and there are more layers
    /// than that.
    AllButFirst(usize),
    /// Those that a key's list says.
    Key(&'static str),
    /// All, unless a key says `false`.
    Unless(&'static str),
    /// All where there are so many layers, else none.
    IfLayers(usize),
}

/// The rotation of layers with a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LocalRope {
    /// That of the others.
    Same,
    /// That of the others with `rope.freq_base_swa` as its base, where it is there.
    OwnBase,
    /// That of the others, without stretching and its factor.
    Plain,
    /// Never stretched, of `rope.freq_base_swa` or this base.
    Base(f32),
}

/// Whether `rope.dimension_sections` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectionsKey {
    /// No.
    Unread,
    /// Positions one behind the other.
    Blocks,
    /// The same, if the first two have pairs.
    IfTwo,
    /// Positions in turn.
    Interleaved,
}

/// What `rope.scaling.yarn_log_multiplier` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMultiplier {
    /// It is not read.
    Unread,
    /// What part of the sharpening is taken off rotations.
    AsItIs,
    /// The same, in tenths; scores have it instead.
    Tenths,
    /// In tenths; scores have it, and rotations nothing.
    Scores,
}

/// How wide a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// As the key says, which must be there.
    Key,
    /// As the key says, else this.
    Or(usize),
    /// This, whatever the key says.
    Is(usize),
}

/// Which layers see a window only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// None.
    None,
    /// All layers but the last of each so many (0: all), unless `attention.sliding_window_pattern`
    /// says otherwise.
    AllBut(usize),
    /// The same where the key is there.
    IfKey(usize),
    /// The same where there are so many layers.
    IfLayers(usize, usize),
    /// Where the key is there, all layers but the first of each so many.
    AllButFirst(usize),
    /// Positions in chunks of so many, all layers but the last of each so many.
    Chunks(usize, usize),
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Of each head, before it turns.
    Head,
    /// Of each head, where the file has factors for it.
    IfThere,
    /// Of all heads as one.
    Whole,
    /// Of all heads as one, where the file has factors for it.
    WholeIfThere,
    /// Of each head, after it has turned.
    HeadTurned,
    /// Of each head that has turned, without factors, unless there are so many experts.
    PlainTurned(usize),
}

/// A factor.
#[derive(Clone, Copy)]
pub enum Scale {
    /// 1.
    One,
    /// 1/√head size; scores only.
    Head,
    /// This.
    Is(f32),
    /// √width.
    SqrtWidth,
    /// The number under a key; absent or 0, the default of its place.
    Key(&'static str),
    /// One over the number under a key.
    Over(&'static str),
    /// The number under a key, else this of the sizes.
    Or(&'static str, fn(&Hparams<'_>) -> f32),
    /// One over the number under a key, else this of the sizes.
    OverOr(&'static str, fn(&Hparams<'_>) -> f32),
    /// Something of the sizes.
    Of(fn(&Hparams<'_>) -> f32),
}

/// The dense feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ffn {
    /// `down(act(gate x) · up x)`.
    Gated(Activation),
    /// The same, gate and up in one tensor, the gate first.
    Fused(Activation),
    /// `down(act(up x))`.
    Plain(Activation),
    /// Any of the three, as the layer's tensors are.
    PlainOrFused(Activation),
    /// The same with xIELU, whose numbers stand in the file, one for each layer.
    Xielu,
}

/// How wide the dense feed-forward part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FfnSize {
    /// `feed_forward_length`.
    Key,
    /// Half of it.
    HalfKey,
    /// As the residual stream.
    Width,
}

/// A factor on queries that grows with the position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Temper {
    /// None.
    None,
    /// By `attention.temperature_scale`, a step for each so many positions as stand under this key.
    Key(&'static str),
    /// By 0.1 for each 8192 positions, in layers that do not turn.
    Unturned,
}

/// How experts are chosen and what they are, unless keys say otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// What scores become; `expert_gating_func` goes before.
    pub gating: Gating,
    /// Shares sum to one; `expert_weights_norm` goes before.
    pub renormalise: bool,
    /// Of the gated unit, or of an ungated one.
    pub act: Activation,
    /// Shares go on the experts' inputs, not on their results.
    pub share_input: bool,
}

/// Softmax over all, shares that sum to one, silu gates.
pub const MIXTURE: Experts = Experts {
    gating: Gating::Softmax,
    renormalise: true,
    act: Activation::Silu,
    share_input: false,
};
/// The same, each share as it is.
pub const UNNORMED: Experts = Experts { renormalise: false, ..MIXTURE };
/// Sigmoid gating, shares that sum to one.
pub const SIGMOID: Experts = Experts { gating: Gating::Sigmoid, ..MIXTURE };
/// Sigmoid gating, each share as it is.
pub const SIGMOID_UNNORMED: Experts = Experts { renormalise: false, ..SIGMOID };
