//! The work of one launch, as data.

use kjit_graph::op::{Conv, Reduce};
use kjit_graph::{Activation, Op, RopeId, StateId, ValueId, WeightId};

/// A projection's input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Input {
    /// A value.
    Plain(ValueId),
    /// The RMS norm of a value over its whole width.
    Norm {
        /// The norm's input.
        x: ValueId,
        /// Factors.
        weight: WeightId,
        /// Epsilon.
        eps: f32,
    },
}

impl Input {
    /// The value that is read.
    pub fn value(&self) -> ValueId {
        match *self {
            Input::Plain(x) | Input::Norm { x, .. } => x,
        }
    }
}

/// One matrix of a projection, and the value of its rows (before the [`Finish`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// The matrix.
    pub weight: WeightId,
    /// The bias.
    pub bias: Option<WeightId>,
    /// The rows.
    pub out: ValueId,
}

/// The operation on a projection's rows before they are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finish {
    /// No operation.
    Store,
    /// `out = residual + rows`; one segment.
    Add {
        /// The other summand.
        residual: ValueId,
        /// The sum; it may use the residual's memory.
        out: ValueId,
    },
    /// `out = act(rows of the first segment) · rows of the second segment`.
    Glu {
        /// The activation.
        act: Activation,
        /// The product.
        out: ValueId,
    },
    /// For one segment of experts: `out = residual + Σ over slots of shares · rows`.
    Sum {
        /// One factor for each slot.
        shares: ValueId,
        /// The residual; the sum may use its memory.
        residual: Option<ValueId>,
        /// The sum.
        out: ValueId,
    },
}

/// The norm of heads: factors and epsilon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm {
    /// One factor for each element of a head.
    pub weight: WeightId,
    /// Epsilon.
    pub eps: f32,
}

/// Attention with the operations before it, from the projected heads on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attend {
    /// Projected queries.
    pub q: ValueId,
    /// Projected keys and values; `None` if another layer has cached them.
    pub kv: Option<(ValueId, ValueId)>,
    /// Norm of query heads.
    pub q_norm: Option<HeadNorm>,
    /// Norm of key heads.
    pub k_norm: Option<HeadNorm>,
    /// Rotation of queries and keys. `None` if there is none, or if it is an earlier step.
    pub rope: Option<RopeId>,
    /// The cache of keys and values.
    pub cache: StateId,
    /// Query heads.
    pub heads: usize,
    /// Factor of scores.
    pub scale: f32,
    /// Soft cap of scores.
    pub soft_cap: Option<f32>,
    /// Chunked attention: only positions of the same chunk of this size are visible.
    pub chunk: Option<usize>,
    /// Bidirectional attention: positions up to this distance are visible on both sides.
    pub around: Option<usize>,
    /// The largest exponent of the ALiBi slopes.
    pub alibi: Option<f32>,
    /// A score for each head without a value (attention sink).
    pub sinks: Option<WeightId>,
    /// The result.
    pub out: ValueId,
}

/// The decay of a recurrent state: `out = e^(scale · factors · act(x + offsets))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decay {
    /// The projected input.
    pub x: ValueId,
    /// One offset for each element.
    pub offsets: Option<WeightId>,
    /// The function.
    pub act: Activation,
    /// One factor for all elements.
    pub scale: f32,
    /// Factors, repeated.
    pub factors: Option<WeightId>,
    /// The number of neighbouring elements that share a factor.
    pub each: usize,
    /// The result.
    pub out: ValueId,
}

/// The work of one launch for a single token; a prompt may need more launches for a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// One or more matrices times one input.
    Project {
        /// The input.
        input: Input,
        /// The matrices.
        segments: Vec<Segment>,
        /// The operation on the rows.
        finish: Finish,
    },
    /// As `Project`, with the chosen experts' matrices.
    Experts {
        /// The input, with one slot or one for each expert.
        input: Input,
        /// The chosen experts.
        experts: ValueId,
        /// The stacked matrices. Either all have a bias or none has one.
        segments: Vec<Segment>,
        /// `Store`, `Glu` or `AllReduceLaunch`.
        finish: Finish,
    },
    /// Head norms, rotation, cache write and attention.
    Attend(Attend),
    /// A latent's cache write, and attention to latents.
    Latent {
        /// Queries, with norm and rotation applied.
        q: ValueId,
        /// The new latent.
        row: ValueId,
        /// The cache of latents.
        cache: StateId,
        /// Query heads.
        heads: usize,
        /// Factor of scores.
        scale: f32,
        /// Visible positions; `None` for all.
        only: Option<ValueId>,
        /// The result.
        out: ValueId,
    },
    /// A short convolution, then optionally SiLU.
    Conv {
        /// The convolution.
        conv: Conv,
        /// Whether SiLU follows.
        silu: bool,
        /// The result.
        out: ValueId,
    },
    /// The decay of a recurrent state.
    Decay(Decay),
    /// RMS norm, then optionally a residual.
    Norm {
        /// The input.
        x: ValueId,
        /// Factors; shorter than `x` if groups are normed.
        weight: WeightId,
        /// Epsilon.
        eps: f32,
        /// The residual, added after the norm.
        residual: Option<ValueId>,
        /// The result.
        out: ValueId,
    },
    /// Weighted sum over slots, then optionally a residual.
    ExpertSum {
        /// One slot for each expert.
        x: ValueId,
        /// The weights.
        shares: ValueId,
        /// The residual.
        residual: Option<ValueId>,
        /// The result.
        out: ValueId,
    },
    /// An element-wise operation, then optionally a residual.
    Map {
        /// The operation.
        op: Op,
        /// The residual.
        residual: Option<ValueId>,
        /// The result.
        out: ValueId,
    },
    /// A reduction over devices, then optionally a residual.
    Reduce {
        /// The reduction.
        reduce: Reduce,
        /// The residual.
        residual: Option<ValueId>,
        /// The result.
        out: ValueId,
    },
    /// A single operation.
    Single(Op),
}

impl Step {
    /// The values that the step reads from memory.
    pub fn reads(&self) -> Vec<ValueId> {
        match self {
            Step::Project { input, finish, .. } => {
                std::iter::once(input.value()).chain(finish.reads()).collect()
            }
            Step::Experts { input, experts, finish, .. } => {
                [input.value(), *experts].into_iter().chain(finish.reads()).collect()
            }
            Step::Attend(a) => {
                std::iter::once(a.q).chain(a.kv.into_iter().flat_map(|(k, v)| [k, v])).collect()
            }
            Step::Latent { q, row, only, .. } => [*q, *row].into_iter().chain(*only).collect(),
            Step::Conv { conv: Conv { x, .. }, .. } | Step::Decay(Decay { x, .. }) => vec![*x],
            Step::Norm { x, residual, .. } => std::iter::once(*x).chain(*residual).collect(),
            Step::ExpertSum { x, shares, residual, .. } => {
                [*x, *shares].into_iter().chain(*residual).collect()
            }
            Step::Map { op, residual, .. } => op.reads().into_iter().chain(*residual).collect(),
            Step::Reduce { reduce, residual, .. } => {
                std::iter::once(reduce.x).chain(*residual).collect()
            }
            Step::Single(op) => op.reads(),
        }
    }

    /// The values that the step writes to memory.
    pub fn writes(&self) -> Vec<ValueId> {
        match self {
            Step::Project { segments, finish, .. } | Step::Experts { segments, finish, .. } => {
                match finish.out() {
                    None => segments.iter().map(|s| s.out).collect(),
                    Some(out) => vec![out],
                }
            }
            Step::Attend(a) => vec![a.out],
            Step::Conv { out, .. } | Step::Decay(Decay { out, .. }) => vec![*out],
            Step::Reduce { out, .. } => vec![*out],
            Step::Norm { out, .. }
            | Step::Map { out, .. }
            | Step::ExpertSum { out, .. }
            | Step::Latent { out, .. } => {
                vec![*out]
            }
            Step::Single(op) => op.writes(),
        }
    }
}

impl Finish {
    /// The result, unless it is the result of a segment.
    pub fn out(&self) -> Option<ValueId> {
        match *self {
            Finish::Store => None,
            Finish::Add { out, .. } | Finish::Glu { out, .. } | Finish::Sum { out, .. } => {
                Some(out)
            }
        }
    }

    /// The values that are read in addition to the rows.
    fn reads(&self) -> Vec<ValueId> {
        match *self {
            Finish::Add { residual, .. } => vec![residual],
            Finish::Sum { shares, residual, .. } => {
                std::iter::once(shares).chain(residual).collect()
            }
            Finish::Store | Finish::Glu { .. } => vec![],
        }
    }
}
