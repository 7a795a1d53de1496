//! Attention over a state.

use super::operation::{Lookup, Operation, maybe};
use crate::state::StateId;
use crate::value::ValueId;
use crate::weight::WeightId;

/// The positions that a token attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Positions up to the position of the token, limited by the window of the state.
    Causal,
    /// Positions up to the position of the token, within its chunk of this number of positions.
    Chunk(usize),
    /// All positions, including later ones. For encoders, which process all tokens in one pass.
    All,
    /// Positions at most half this number away, on both sides.
    Around(usize),
}

/// Attention (Vaswani et al. 2017, arXiv 1706.03762) of a token's queries over a state: `out =
/// softmax(cap(scale · q·k) − slope · distance) · v`. Adjacent query heads share a key head
/// (Ainslie et al. 2023, arXiv 2305.13245).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Queries, `heads · key size` wide.
    pub q: ValueId,
    /// Keys and values, or a latent. The window of the state applies.
    pub state: StateId,
    /// Number of query heads.
    pub heads: usize,
    /// Factor on `q·k`.
    pub scale: f32,
    /// Soft cap on scores, `cap · tanh(s / cap)`, if the model has one.
    pub soft_cap: Option<f32>,
    /// The attention mask.
    pub mask: Mask,
    /// One extra score per head that is part of the softmax but has no value: an attention sink
    /// (gpt-oss, arXiv 2508.10925).
    pub sinks: Option<WeightId>,
    /// ALiBi (Press et al. 2021, arXiv 2108.12409): the largest exponent. The slopes of the heads
    /// are computed from it.
    pub alibi: Option<f32>,
    /// A list of positions. Attention reads only these positions, within the mask. `None`: no list.
    pub only: Option<ValueId>,
    /// The result, `heads · value size` wide.
    pub out: ValueId,
}

impl Attention {
    /// The slope of each head: `2^(−max i / n)` for the heads `i = 1 … n`. n is the largest power
    /// of two that is at most the number of heads. The other heads get the odd terms of the series
    /// with twice the density.
    pub fn slopes(&self) -> Option<Vec<f32>> {
        let max = self.alibi?;
        let n = 1usize << self.heads.max(1).ilog2();
        let (m0, m1) = (2f32.powf(-max / n as f32), 2f32.powf(-max / 2.0 / n as f32));
        let slope =
            |h: usize| if h < n { m0.powi(h as i32 + 1) } else { m1.powi(2 * (h - n) as i32 + 1) };
        Some((0..self.heads).map(slope).collect())
    }
}

impl Operation for Attention {
    fn reads(&self) -> Vec<ValueId> {
        std::iter::once(self.q).chain(self.only).collect()
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.sinks.into_iter().collect()
    }

    fn states(&self) -> Vec<StateId> {
        vec![self.state]
    }

    fn name(&self) -> &'static str {
        "attention"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args = vec![
            graph.value(self.q).name.clone(),
            format!("cache {}", graph.state(self.state).name),
            format!("heads {}", self.heads),
            format!("scale {}", self.scale),
        ];
        args.extend(self.soft_cap.map(|c| format!("soft cap {c}")));
        match self.mask {
            Mask::Causal => {}
            Mask::Chunk(n) => args.push(format!("chunks of {n}")),
            Mask::All => args.push("all positions".into()),
            Mask::Around(n) => args.push(format!("around {n}")),
        }
        args.extend(maybe("sinks", graph, self.sinks));
        args.extend(self.alibi.map(|m| format!("alibi {m}")));
        args.extend(self.only.map(|v| format!("only {}", graph.value(v).name)));
        args
    }
}
