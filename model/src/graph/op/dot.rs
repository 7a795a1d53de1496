//! Inner products per head.

use super::{Op, Operation};
use crate::graph::{Builder, Dtype, Graph, ValueId};
use crate::host::Run;

/// `out[h] = Σ_i a[h][i] · b[h][i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// First factor.
    pub a: ValueId,
    /// Second factor.
    pub b: ValueId,
    /// Heads.
    pub heads: usize,
    /// One number per head.
    pub out: ValueId,
}

impl Operation for Dot {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.a, self.b]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "dot"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![v(self.a), v(self.b), format!("heads {}", self.heads)]
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (a, b) = (host.input(self.a), host.input(self.b));
        let each = a.len() / outs[0].len();
        for (out, (a, b)) in outs[0].iter_mut().zip(a.chunks_exact(each).zip(b.chunks_exact(each)))
        {
            *out = a.iter().zip(b).map(|(a, b)| a * b).sum();
        }
    }
}

impl Builder<'_> {
    /// Appends a [`Dot`].
    pub fn dot(&mut self, name: String, a: ValueId, b: ValueId, heads: usize) -> ValueId {
        let out = self.value(name, 1, heads, Dtype::Real);
        self.push(Op::Dot(Dot { a, b, heads, out }), out)
    }
}
