//! Repetition of heads.

use super::{Op, Operation};
use crate::{Builder, Dtype, Graph, ValueId};

/// Repeats each of `heads` parts of a row `times` times: the copies of a part next to each other,
/// or, if `tiled`, the whole row repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// Input.
    pub x: ValueId,
    /// Parts of a row.
    pub heads: usize,
    /// Copies of each part.
    pub times: usize,
    /// Repeat the whole row.
    pub tiled: bool,
    /// The result, `times` as wide.
    pub out: ValueId,
}

impl Operation for Repeat {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        if self.tiled { "tile" } else { "repeat" }
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let x = graph.value(self.x).name.clone();
        vec![x, format!("heads {}", self.heads), format!("times {}", self.times)]
    }
}

impl Builder<'_> {
    /// Appends a [`Repeat`], unless `times` is 1.
    pub fn repeat(
        &mut self,
        name: String,
        x: ValueId,
        heads: usize,
        times: usize,
        tiled: bool,
    ) -> ValueId {
        if times == 1 {
            return x;
        }
        let width = self.graph().value(x).width * times;
        let out = self.value(name, 1, width, Dtype::Real);
        self.push(Op::Repeat(Repeat { x, heads, times, tiled, out }), out)
    }
}
