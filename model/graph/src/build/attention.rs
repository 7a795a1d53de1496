//! Appends attention and the operations that prepare its inputs.

use super::Builder;
use crate::op::{Attention, KvWrite, Mask, Op, Rope, TopKeys};
use crate::rope::RopeId;
use crate::state::StateId;
use crate::value::{Dtype, ValueId};

impl Builder<'_> {
    /// Appends an [`Attention`]: causal, without cap, sinks and slopes. `with` may change these.
    pub fn attention(
        &mut self,
        name: impl Into<String>,
        q: ValueId,
        (state, heads, scale): (StateId, usize, f32),
        with: impl FnOnce(&mut Attention),
    ) -> ValueId {
        let width = heads * self.graph().state(state).value_size();
        let out = self.value(name.into(), 1, width, Dtype::Real);
        let (mask, soft_cap, sinks, alibi, only) = (Mask::Causal, None, None, None, None);
        let mut op = Attention { q, state, heads, scale, soft_cap, mask, sinks, alibi, only, out };
        with(&mut op);
        self.push(Op::Attention(op), out)
    }

    /// Appends a [`KvWrite`].
    pub fn kv_write(&mut self, k: ValueId, v: ValueId, state: StateId) {
        self.push_op(Op::KvWrite(KvWrite { k, v: Some(v), state }));
    }

    /// Appends a [`KvWrite`] of a latent.
    pub fn latent_write(&mut self, row: ValueId, state: StateId) {
        self.push_op(Op::KvWrite(KvWrite { k: row, v: None, state }));
    }

    /// Appends a [`Rope`].
    pub fn rope(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        heads: usize,
        rope: RopeId,
    ) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::Rope(Rope { x, heads, rope, out }), out)
    }

    /// Appends a [`TopKeys`].
    pub fn top_keys(
        &mut self,
        name: String,
        q: ValueId,
        w: ValueId,
        state: StateId,
        top: usize,
    ) -> ValueId {
        let out = self.value(name, 1, top, Dtype::Index);
        self.push(Op::TopKeys(TopKeys { q, w, state, top, out }), out)
    }
}
