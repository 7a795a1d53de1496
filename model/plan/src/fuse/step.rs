//! What one launch does together, as data.

use kjit_graph::op::{Conv, Reduce};
use kjit_graph::{Activation, Op, RopeId, StateId, ValueId, WeightId};

/// Where a projection's input comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Input {
    /// A value as it is.
    Plain(ValueId),
    /// RMS norm of a value over its whole width.
    Norm {
        /// What is normed.
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

/// One matrix of a projection, and the value its rows go to (before the [`Finish`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// The matrix.
    pub weight: WeightId,
    /// Added to the rows.
    pub bias: Option<WeightId>,
    /// Where the rows go.
    pub out: ValueId,
}

/// What happens to a projection's rows before they are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finish {
    /// Nothing.
    Store,
    /// `out = residual + rows`; one segment.
    Add {
        /// Added.
        residual: ValueId,
        /// The sum; it may take the residual's place in memory.
        out: ValueId,
    },
    /// `out = act(rows of the first segment) · rows of the second`.
    Glu {
        /// Which activation.
        act: Activation,
        /// The product.
        out: ValueId,
    },
    /// Of experts, one segment: `out = residual + Σ over slots of shares · rows`.
    Sum {
        /// Factor per slot.
        shares: ValueId,
        /// Added; it may give its place in memory to the sum.
        residual: Option<ValueId>,
        /// The sum.
        out: ValueId,
    },
}

/// Normed heads: factors and epsilon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorm {
    /// Factors, a head long.
    pub weight: WeightId,
    /// Epsilon.
    pub eps: f32,
}

/// Attention with all that comes before it, from the projected heads on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attend {
    /// Queries as projected.
    pub q: ValueId,
    /// Keys and values as projected; `None`: another layer has kept them.
    pub kv: Option<(ValueId, ValueId)>,
    /// Norm of query heads.
    pub q_norm: Option<HeadNorm>,
    /// Norm of key heads.
    pub k_norm: Option<HeadNorm>,
    /// Rotation of both; `None`: they do not turn, or have turned.
    pub rope: Option<RopeId>,
    /// Keys and values kept.
    pub cache: StateId,
    /// Query heads.
    pub heads: usize,
    /// Factor on scores.
    pub scale: f32,
    /// Cap on scores.
    pub soft_cap: Option<f32>,
    /// Only positions of the own stretch of so many are seen.
    pub chunk: Option<usize>,
    /// Later positions are seen, too: so many away on both sides.
    pub around: Option<usize>,
    /// The largest exponent of the slopes' series.
    pub alibi: Option<f32>,
    /// A score for each head that has no value.
    pub sinks: Option<WeightId>,
    /// Result.
    pub out: ValueId,
}

/// What stays of a state, from what a model projects: `out = e^(scale · factors · act(x +
/// offsets))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decay {
    /// As projected.
    pub x: ValueId,
    /// One for each element.
    pub offsets: Option<WeightId>,
    /// The function.
    pub act: Activation,
    /// One factor for all.
    pub scale: f32,
    /// Factors, which repeat.
    pub factors: Option<WeightId>,
    /// Neighbours that share one.
    pub each: usize,
    /// Result.
    pub out: ValueId,
}

/// One launch's work (for a single token; a prompt may take more launches for a step).
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// One or more matrices times one input.
    Project {
        /// The input.
        input: Input,
        /// The matrices.
        segments: Vec<Segment>,
        /// The end.
        finish: Finish,
    },
    /// The same through chosen experts' matrices.
    Experts {
        /// The input; one slot or one for each expert.
        input: Input,
        /// Which experts.
        experts: ValueId,
        /// The stacked matrices; all with a bias, or none.
        segments: Vec<Segment>,
        /// `Store`, `Glu` or `Sum`.
        finish: Finish,
    },
    /// Head norms, rotation, cache write and attention.
    Attend(Attend),
    /// A latent kept, and attention to latents.
    Latent {
        /// Queries, ready.
        q: ValueId,
        /// The new row.
        row: ValueId,
        /// Rows kept.
        cache: StateId,
        /// Query heads.
        heads: usize,
        /// Factor on scores.
        scale: f32,
        /// Positions that are seen; `None`: all.
        only: Option<ValueId>,
        /// Result.
        out: ValueId,
    },
    /// A short convolution, then possibly silu.
    Conv {
        /// The convolution.
        conv: Conv,
        /// The silu of it.
        silu: bool,
        /// Result.
        out: ValueId,
    },
    /// What stays of a state.
    Decay(Decay),
    /// RMS norm, then possibly a sum.
    Norm {
        /// Input.
        x: ValueId,
        /// Factors; narrower than `x` where each group is normed.
        weight: WeightId,
        /// Epsilon.
        eps: f32,
        /// Added after the norm.
        residual: Option<ValueId>,
        /// Result.
        out: ValueId,
    },
    /// Weighted sum over slots, then possibly a residual.
    ExpertSum {
        /// A slot per expert.
        x: ValueId,
        /// Weights.
        shares: ValueId,
        /// Added.
        residual: Option<ValueId>,
        /// Result.
        out: ValueId,
    },
    /// An operation that makes rows element by element, then possibly a sum.
    Map {
        /// The operation.
        op: Op,
        /// Added.
        residual: Option<ValueId>,
        /// Result.
        out: ValueId,
    },
    /// Parts of several devices put together, then possibly a sum.
    Reduce {
        /// Which, and how.
        reduce: Reduce,
        /// Added.
        residual: Option<ValueId>,
        /// Result.
        out: ValueId,
    },
    /// An operation by itself.
    Single(Op),
}

impl Step {
    /// The values it reads from memory.
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

    /// The values it leaves in memory.
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
    /// The value that the rows end in, where it is not their own.
    pub fn out(&self) -> Option<ValueId> {
        match *self {
            Finish::Store => None,
            Finish::Add { out, .. } | Finish::Glu { out, .. } | Finish::Sum { out, .. } => {
                Some(out)
            }
        }
    }

    /// The values that it reads besides the rows.
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
