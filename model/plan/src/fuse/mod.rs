//! Fuses a graph's operations into [`Step`]s. One launch computes each step. The fusion is
//! independent of the device and does not choose kernels.
//!
//! A llama layer becomes five steps: (norm → Q, K, V), (head norms → RoPE → cache → attention),
//! (output → residual), (norm → gate, up → activation), (down → residual). An operation without a
//! rule becomes a separate step, so every graph can be lowered.

#![expect(
    clippy::indexing_slicing,
    reason = "positions come from iterating over this list of operations; \
        numbers of a file are not used as indices"
)]

mod step;

pub use step::{Attend, Decay, Finish, HeadNorm, Input, Segment, Step};

use kjit_graph::op::{
    Act, Affine, Attention, ExpertMatMul, ExpertSum, Glu, KvWrite, Mask, MatMul, Norm, NormKind,
    Rope,
};
use kjit_graph::{Activation, Graph, Kv, Op, RopeId, ValueId, WeightId};

/// Fuses a graph.
pub fn fuse(graph: &Graph) -> Vec<Step> {
    Fuser::new(graph).run()
}

/// Elements of a head of keys or values in a cache: the larger of the two sizes, rounded up to a
/// multiple of 16. The smaller size is padded with zeros.
pub fn head_size(kv: &Kv) -> usize {
    kv.key.max(kv.value).next_multiple_of(16)
}

struct Fuser<'g> {
    graph: &'g Graph,
    /// Index of the operation that writes each value.
    maker: Vec<Option<usize>>,
    /// Indices of the operations that read each value.
    readers: Vec<Vec<usize>>,
    /// Operations that are part of a step.
    taken: Vec<bool>,
}

impl<'g> Fuser<'g> {
    fn new(graph: &'g Graph) -> Self {
        let mut maker = vec![None; graph.values.len()];
        let mut readers = vec![vec![]; graph.values.len()];
        for (i, op) in graph.ops.iter().enumerate() {
            op.writes().iter().for_each(|v| maker[v.0 as usize] = Some(i));
            op.reads().iter().for_each(|v| readers[v.0 as usize].push(i));
        }
        Fuser { graph, maker, readers, taken: vec![false; graph.ops.len()] }
    }

    fn made_by(&self, v: ValueId) -> Option<&'g Op> {
        self.maker[v.0 as usize].map(|i| &self.graph.ops[i])
    }

    /// The only operation that reads `v`. `None` if several operations read it, if the operation is
    /// already in a step, or if `v` is the result.
    fn only_reader(&self, v: ValueId) -> Option<(usize, &'g Op)> {
        match self.readers[v.0 as usize].as_slice() {
            &[i] if v != self.graph.logits && !self.taken[i] => Some((i, &self.graph.ops[i])),
            _ => None,
        }
    }

    /// Index of the first operation that reads a value.
    fn first_reader(&self, v: ValueId) -> usize {
        self.readers[v.0 as usize].iter().copied().min().unwrap_or(usize::MAX)
    }

    fn run(mut self) -> Vec<Step> {
        // If all readers of a norm compute it themselves, it does not become a step. A step is
        // placed at its last operation, where all its inputs exist.
        let mut steps: Vec<(usize, Step)> = vec![];
        for i in 0..self.graph.ops.len() {
            if self.taken[i] || self.is_prologue(&self.graph.ops[i]) {
                continue;
            }
            let step = self.attend(i).or_else(|| self.latent(i)).or_else(|| self.project(i));
            let step =
                step.or_else(|| self.experts(i)).or_else(|| self.conv(i)).or_else(|| self.decay(i));
            let step = step.or_else(|| self.tail(i));
            let step = step.unwrap_or_else(|| {
                self.taken[i] = true;
                (i, Step::Single(self.graph.ops[i].clone()))
            });
            steps.push(step);
        }
        steps.sort_by_key(|(at, _)| *at);
        steps.into_iter().map(|(_, s)| s).collect()
    }

    /// Whether each reader computes this norm: the norm is over the whole width, and only
    /// projections read it.
    fn is_prologue(&self, op: &Op) -> bool {
        let Some(Rms { x, weight, out, .. }) = self.rms(op) else { return false };
        let readers = &self.readers[out.0 as usize];
        self.graph.weight(weight).cols == self.graph.value(x).width
            && self.graph.value(x).slots == 1
            && !readers.is_empty()
            && out != self.graph.logits
            && readers
                .iter()
                .all(|&r| matches!(self.graph.ops[r], Op::MatMul(_) | Op::ExpertMatMul(_)))
    }

    fn input(&self, x: ValueId) -> Input {
        match self.made_by(x).filter(|op| self.is_prologue(op)).and_then(|op| self.rms(op)) {
            Some(Rms { x, weight, eps, .. }) => Input::Norm { x, weight, eps },
            None => Input::Plain(x),
        }
    }

    /// The projection `i` and the other projections of the same input, as one step.
    fn project(&mut self, i: usize) -> Option<(usize, Step)> {
        let Op::MatMul(MatMul { x, weight, bias, out }) = self.graph.ops[i] else { return None };
        let input = self.input(x);
        self.taken[i] = true;
        let first = Segment { weight, bias, out };
        if let Some((at, residual, sum)) = self.residual(out) {
            let finish = Finish::Add { residual, out: sum };
            return Some((at, Step::Project { input, segments: vec![first], finish }));
        }
        let mut segments = vec![first];
        let mut last = i;
        // They run together at the position of the last one, so an operation before it must not
        // read a result.
        let mut needed = self.first_reader(out);
        for j in self.readers[x.0 as usize].clone() {
            if let Op::MatMul(MatMul { weight, bias, out, .. }) = self.graph.ops[j]
                && !self.taken[j]
                && j < needed
                && self.residual_of(out).is_none()
            {
                self.taken[j] = true;
                segments.push(Segment { weight, bias, out });
                last = j;
                needed = needed.min(self.first_reader(out));
            }
        }
        let finish = self
            .glu(&segments, false)
            .map_or((last, Finish::Store), |(at, finish)| (at.max(last), finish));
        Some((finish.0, Step::Project { input, segments, finish: finish.1 }))
    }

    fn experts(&mut self, i: usize) -> Option<(usize, Step)> {
        let Op::ExpertMatMul(ExpertMatMul { x, experts, weight, bias, out }) = self.graph.ops[i]
        else {
            return None;
        };
        let input = self.input(x);
        self.taken[i] = true;
        let mut segments = vec![Segment { weight, bias, out }];
        let (mut last, mut needed) = (i, self.first_reader(out));
        for j in self.readers[x.0 as usize].clone() {
            if let Op::ExpertMatMul(ExpertMatMul { experts: same, weight, bias: also, out, .. }) =
                self.graph.ops[j]
                && !self.taken[j]
                && j < needed
                && (same, also.is_some()) == (experts, bias.is_some())
            {
                self.taken[j] = true;
                segments.push(Segment { weight, bias: also, out });
                last = j;
                needed = needed.min(self.first_reader(out));
            }
        }
        let finish = self.glu(&segments, true).or_else(|| self.expert_sum(&segments));
        let finish = finish.map_or((last, Finish::Store), |(at, finish)| (at.max(last), finish));
        Some((finish.0, Step::Experts { input, experts, segments, finish: finish.1 }))
    }

    /// The weighted sum that is the only reader of a single segment, with the residual after it.
    fn expert_sum(&mut self, segments: &[Segment]) -> Option<(usize, Finish)> {
        let &[one] = segments else { return None };
        let (i, op) = self.only_reader(one.out)?;
        let &Op::ExpertSum(ExpertSum { shares: Some(shares), out, .. }) = op else { return None };
        self.taken[i] = true;
        let (at, residual, out) =
            self.residual(out).map_or((i, None, out), |(at, r, sum)| (at, Some(r), sum));
        Some((at, Finish::Sum { shares, residual, out }))
    }

    /// The gated unit that is the only reader of two segments, with the gate first. Both have one
    /// format, because one wave computes a row of both. Only experts support clamped SiLU.
    fn glu(&mut self, segments: &[Segment], experts: bool) -> Option<(usize, Finish)> {
        let &[a, b] = segments else { return None };
        let (i, op) = self.only_reader(a.out)?;
        let &Op::Glu(Glu { gate, up, act, out }) = op else { return None };
        match act {
            Activation::Silu | Activation::GeluTanh => {}
            Activation::ClampedSilu(_) if experts => {}
            _ => return None,
        }
        let (wa, wb) = (self.graph.weight(a.weight), self.graph.weight(b.weight));
        let paired = gate == a.out && up == b.out && self.only_reader(b.out)?.0 == i;
        if !paired || wa.format != wb.format || wa.rows != wb.rows {
            return None;
        }
        self.taken[i] = true;
        Some((i, Finish::Glu { act, out }))
    }

    /// The addition that is the only reader of `v`: its index, the other operand, its result.
    fn residual_of(&self, v: ValueId) -> Option<(usize, ValueId, ValueId)> {
        let (i, op) = self.only_reader(v)?;
        let &Op::Add(kjit_graph::op::Add { a, b, out }) = op else { return None };
        let other = if a == v { b } else { a };
        (other != v).then_some((i, other, out))
    }

    fn residual(&mut self, v: ValueId) -> Option<(usize, ValueId, ValueId)> {
        let found = self.residual_of(v)?;
        // The other operand must exist at that time.
        if self.maker[found.1.0 as usize].is_some_and(|m| m > found.0) {
            return None;
        }
        self.taken[found.0] = true;
        Some(found)
    }

    /// Head norms → rotation → cache write → attention, starting from the first of these
    /// operations.
    fn attend(&mut self, i: usize) -> Option<(usize, Step)> {
        let &Op::Attention(Attention {
            q,
            state: cache,
            heads,
            scale,
            soft_cap,
            mask,
            sinks,
            alibi,
            out,
            ..
        }) = self.graph.ops.iter().skip(i).find(|op| matches!(op, Op::Attention(_)))?
        else {
            return None;
        };
        let write = self
            .graph
            .ops
            .iter()
            .position(|op| matches!(op, Op::KvWrite(w) if w.state == cache))?;
        let at = self.maker[out.0 as usize]?;
        // If heads are padded, operations that depend on the head's size are separate steps before.
        let filled = self.graph.kv(cache).is_some_and(|kv| kv.key != head_size(kv));
        let of =
            |v, heads| if filled { PreparedHeads::plain(v) } else { self.prepared_heads(v, heads) };
        let mut prepared_heads = of(q, heads);
        let (mut kv, mut k_norm, mut kept) = (None, None, vec![]);
        // The first attention of a cache also writes it; later ones only read it.
        let first =
            self.graph.ops.iter().position(|op| matches!(op, Op::Attention(a) if a.state == cache));
        if first == Some(at) {
            let Op::KvWrite(KvWrite { k, v: Some(v), .. }) = self.graph.ops[write] else {
                return None;
            };
            let mut keys = of(k, self.graph.kv(cache)?.heads);
            if prepared_heads.rope != keys.rope
                || prepared_heads.norm.map(|n| n.eps) != keys.norm.map(|n| n.eps)
            {
                // Norms and rotations that differ between queries and keys are separate steps
                // before.
                (prepared_heads, keys) = (PreparedHeads::plain(q), PreparedHeads::plain(k));
            }
            (kv, k_norm) = (Some((keys.x, v)), keys.norm);
            kept = [keys.ops, vec![write]].concat();
        }
        let PreparedHeads { x: q, norm: q_norm, rope, ops: q_ops } = prepared_heads;
        let (chunk, around) = match mask {
            Mask::Causal => (None, None),
            Mask::Chunk(n) => (Some(n), None),
            Mask::All => (None, Some(usize::MAX)),
            Mask::Around(n) => (None, Some(n / 2)),
        };
        let chain: Vec<usize> = q_ops.into_iter().chain(kept).chain([at]).collect();
        if !chain.contains(&i) || chain.iter().any(|&c| self.taken[c]) {
            return None;
        }
        chain.iter().for_each(|&c| self.taken[c] = true);
        let form = Attend {
            q,
            kv,
            q_norm,
            k_norm,
            rope,
            cache,
            heads,
            scale,
            soft_cap,
            chunk,
            around,
            alibi,
            sinks,
            out,
        };
        Some((at, Step::Attend(form)))
    }

    /// A latent's cache write and the attention to it.
    fn latent(&mut self, i: usize) -> Option<(usize, Step)> {
        let Op::KvWrite(KvWrite { k: row, v: None, state }) = self.graph.ops[i] else {
            return None;
        };
        let at = self
            .graph
            .ops
            .iter()
            .position(|op| matches!(op, Op::Attention(a) if a.state == state))?;
        let Op::Attention(Attention { q, state: cache, heads, scale, only, out, .. }) =
            self.graph.ops[at]
        else {
            return None;
        };
        self.taken[i] = true;
        self.taken[at] = true;
        Some((at, Step::Latent { q, row, cache, heads, scale, only, out }))
    }

    /// The rotation that computes `v` and the head norm before it, if they exist and `v` is their
    /// only reader.
    fn prepared_heads(&self, v: ValueId, heads: usize) -> PreparedHeads {
        let mut found = PreparedHeads::plain(v);
        let alone = |v: ValueId| self.readers[v.0 as usize].len() == 1;
        if let Some(&Op::Rope(Rope { x, rope, .. })) = self.made_by(v)
            && alone(v)
        {
            found.ops.extend(self.maker[v.0 as usize]);
            (found.x, found.rope) = (x, Some(rope));
        }
        match self.made_by(found.x).and_then(|op| self.rms(op)) {
            Some(Rms { x, weight, eps, out })
                if alone(out)
                    && self.graph.weight(weight).cols * heads == self.graph.value(x).width =>
            {
                found.ops.extend(self.maker[out.0 as usize]);
                (found.x, found.norm) = (x, Some(HeadNorm { weight, eps }));
            }
            _ => {}
        }
        found
    }

    /// A short convolution, with SiLU if that is its only reader.
    fn conv(&mut self, i: usize) -> Option<(usize, Step)> {
        let Op::Conv(conv) = &self.graph.ops[i] else { return None };
        self.taken[i] = true;
        if let Some((at, &Op::Act(Act { act: Activation::Silu, out, .. }))) =
            self.only_reader(conv.out)
        {
            self.taken[at] = true;
            return Some((at, Step::Conv { conv: conv.clone(), silu: true, out }));
        }
        Some((i, Step::Conv { conv: conv.clone(), silu: false, out: conv.out }))
    }

    /// An exponential and the operations before it: offsets, a function, factors.
    fn decay(&mut self, i: usize) -> Option<(usize, Step)> {
        let (mut at, mut op, mut chain) = (i, &self.graph.ops[i], vec![i]);
        let x = *op.reads().first()?;
        let mut d = Decay {
            x,
            offsets: None,
            act: Activation::Identity,
            scale: 1.0,
            factors: None,
            each: 1,
            out: x,
        };
        if let &Op::Affine(Affine { x, scale: 1.0, weight: None, bias: Some(bias), each: 1, out }) =
            op
            && self.graph.weight(bias).elems() == self.graph.value(x).width
        {
            d.offsets = Some(bias);
            (at, op) = self.only_reader(out)?;
            chain.push(at);
        }
        if let &Op::Act(Act {
            act: act @ (Activation::Softplus | Activation::Sigmoid), out, ..
        }) = op
        {
            d.act = act;
            (at, op) = self.only_reader(out)?;
            chain.push(at);
        }
        if let &Op::Affine(Affine { scale, weight, bias: None, each, out, .. }) = op {
            (d.scale, d.factors, d.each) = (scale, weight, each);
            (at, op) = self.only_reader(out)?;
            chain.push(at);
        }
        let &Op::Act(Act { act: Activation::Exp, out, .. }) = op else { return None };
        d.out = out;
        chain.into_iter().for_each(|op| self.taken[op] = true);
        Some((at, Step::Decay(d)))
    }

    /// Norms, expert sums and element-wise operations, with a residual after them.
    fn tail(&mut self, i: usize) -> Option<(usize, Step)> {
        let op = &self.graph.ops[i];
        let width = |v: ValueId| self.graph.value(v).width;
        let mapped = match *op {
            Op::Act(_) | Op::Affine(_) => true,
            // Gated units that projections can finish also have a kernel for two values.
            Op::Glu(Glu { gate, up, act, .. }) => {
                !matches!(act, Activation::Silu | Activation::GeluTanh) || width(gate) != width(up)
            }
            _ => false,
        };
        let summed = matches!(op, Op::ExpertSum(ExpertSum { shares: Some(_), .. }));
        let reduced = matches!(op, Op::Reduce(_));
        if self.rms(op).is_none() && !summed && !mapped && !reduced {
            return None;
        }
        self.taken[i] = true;
        let made = *op.writes().first()?;
        let (at, residual, out) =
            self.residual(made).map_or((i, None, made), |(at, r, sum)| (at, Some(r), sum));
        match (self.rms(op), op) {
            (Some(Rms { x, weight, eps, .. }), _) => {
                Some((at, Step::Norm { x, weight, eps, residual, out }))
            }
            (_, &Op::ExpertSum(ExpertSum { x, shares: Some(shares), .. })) => {
                Some((at, Step::ExpertSum { x, shares, residual, out }))
            }
            (_, &Op::Reduce(reduce)) => Some((at, Step::Reduce { reduce, residual, out })),
            _ => Some((at, Step::Map { op: op.clone(), residual, out })),
        }
    }

    /// An RMS norm with one factor for each element of a group.
    fn rms(&self, op: &Op) -> Option<Rms> {
        match *op {
            Op::Norm(Norm {
                x,
                kind: NormKind::Rms,
                weight: Some(weight),
                bias: None,
                eps,
                out,
                group,
            }) if self.graph.weight(weight).elems() == group => Some(Rms { x, weight, eps, out }),
            _ => None,
        }
    }
}

/// Heads before attention: the input value, the norm and rotation, and the operations that they
/// replace.
struct PreparedHeads {
    x: ValueId,
    norm: Option<HeadNorm>,
    rope: Option<RopeId>,
    ops: Vec<usize>,
}

impl PreparedHeads {
    fn plain(x: ValueId) -> PreparedHeads {
        PreparedHeads { x, norm: None, rope: None, ops: vec![] }
    }
}

/// An RMS norm with one factor for each element of a group.
struct Rms {
    x: ValueId,
    weight: WeightId,
    eps: f32,
    out: ValueId,
}
