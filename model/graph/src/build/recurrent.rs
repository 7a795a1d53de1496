//! Appends operations with recurrent states.

use super::Builder;
use crate::op::{Conv, LinearAttention, LinearInputs, Op, Scan, ScanInputs, Shift};
use crate::value::ValueId;
use crate::weight::WeightId;

impl Builder<'_> {
    /// Appends a [`Conv`] with its state.
    pub fn conv(
        &mut self,
        name: &str,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> ValueId {
        let (width, taps) = (self.graph().value(x).width, self.graph().weight(weight).cols);
        let state = self.recurrent(name.to_string(), (taps - 1) * width);
        let out = self.like(name.to_string(), x);
        self.push(Op::Conv(Conv { x, weight, bias, state, out }), out)
    }

    /// Appends a [`LinearAttention`] with its state.
    pub fn linear_attention(&mut self, name: &str, inputs: LinearInputs, heads: usize) -> ValueId {
        let LinearInputs { q, k, v, w, correction, bonus } = inputs;
        let elems = self.graph().value(k).width / heads * self.graph().value(v).width;
        let state = self.recurrent(name.to_string(), elems);
        let out = self.like(name.to_string(), v);
        self.push(
            Op::LinearAttention(LinearAttention {
                q,
                k,
                v,
                w,
                correction,
                bonus,
                heads,
                state,
                out,
            }),
            out,
        )
    }

    /// Appends a [`Scan`] with `n` state numbers per channel.
    pub fn scan(
        &mut self,
        name: &str,
        inputs: ScanInputs,
        (a, d): (WeightId, WeightId),
        n: usize,
    ) -> ValueId {
        let ScanInputs { x, dt, b, c } = inputs;
        let width = self.graph().value(x).width;
        let state = self.recurrent(name.to_string(), width * n);
        let out = self.like(name.to_string(), x);
        self.push(Op::Scan(Scan { x, dt, b, c, a, d, state, out }), out)
    }

    /// Appends a [`Shift`] with its state.
    pub fn shift(&mut self, name: &str, x: ValueId) -> ValueId {
        let width = self.graph().value(x).width;
        let state = self.recurrent(name.to_string(), width);
        let out = self.like(name.to_string(), x);
        self.push(Op::Shift(Shift { x, state, out }), out)
    }
}
