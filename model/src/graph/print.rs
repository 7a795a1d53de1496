//! The graph as text, one operation a line: `kjit inspect --graph`.

use super::{Dtype, Graph, Op, Value, ValueId};
use std::fmt::{self, Display, Formatter};

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {} context {} vocab {}", self.arch, self.context, self.n_vocab())?;
        for w in &self.weights {
            write!(f, "weight {}: {}[", w.name, w.format)?;
            if w.experts > 1 {
                write!(f, "{}, ", w.experts)?;
            }
            writeln!(f, "{}, {}]", w.rows, w.cols)?;
        }
        for (i, r) in self.ropes.iter().enumerate() {
            write!(f, "rope {i}: dims {} {:?} base {} scaling {:?}", r.dims, r.pairing, r.base, r.scaling)?;
            match r.factors {
                Some(w) => writeln!(f, " factors {}", self.weight(w).name)?,
                None => writeln!(f)?,
            }
        }
        for c in &self.caches {
            write!(f, "cache {}: heads {} x {}", c.name, c.heads, c.head_dim)?;
            match c.window {
                Some(w) => writeln!(f, " window {w}")?,
                None => writeln!(f)?,
            }
        }
        self.ops.iter().try_for_each(|op| writeln!(f, "{}", OpText(self, op)))
    }
}

/// `f32[T, 576]`, with the slots between where there are several.
fn shape(v: &Value) -> String {
    let ty = match v.dtype {
        Dtype::Real => "real",
        Dtype::Index => "index",
    };
    match v.slots {
        1 => format!("{ty}[T, {}]", v.width),
        n => format!("{ty}[T, {n}, {}]", v.width),
    }
}

struct OpText<'a>(&'a Graph, &'a Op);

impl Display for OpText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let OpText(g, op) = self;
        let made: Vec<String> =
            op.writes().iter().map(|&v| format!("{}: {}", g.value(v).name, shape(g.value(v)))).collect();
        if !made.is_empty() {
            write!(f, "{} = ", made.join(", "))?;
        }
        let v = |id: &ValueId| g.value(*id).name.as_str();
        let w = |id: &super::WeightId| g.weight(*id).name.as_str();
        match op {
            Op::Embed { table, scale, .. } => write!(f, "embed({}, scale {scale})", w(table)),
            Op::RmsNorm { x, weight, eps, .. } => write!(f, "rms_norm({}, {}, eps {eps})", v(x), w(weight)),
            Op::LayerNorm { x, weight, bias, eps, .. } => {
                write!(f, "layer_norm({}, {}, {}, eps {eps})", v(x), w(weight), bias.as_ref().map_or("no bias", w))
            }
            Op::MatMul { x, weight, bias, .. } => {
                write!(f, "matmul({}, {}", v(x), w(weight))?;
                bias.as_ref().map_or(Ok(()), |b| write!(f, ", bias {}", w(b)))?;
                f.write_str(")")
            }
            Op::Rope { x, heads, rope, .. } => write!(f, "rope({}, heads {heads}, rope {})", v(x), rope.0),
            Op::KvWrite { k, v: value, cache } => {
                write!(f, "kv_write({}, {}, cache {})", v(k), v(value), g.cache(*cache).name)
            }
            Op::Attention { q, cache, heads, scale, soft_cap, .. } => {
                write!(f, "attention({}, cache {}, heads {heads}, scale {scale}", v(q), g.cache(*cache).name)?;
                soft_cap.map_or(Ok(()), |c| write!(f, ", soft cap {c}"))?;
                f.write_str(")")
            }
            Op::Glu { gate, up, act, .. } => write!(f, "glu({}, {}, {act:?})", v(gate), v(up)),
            Op::Add { a, b, .. } => write!(f, "add({}, {})", v(a), v(b)),
            Op::Route { scores, top, renormalise, scale, .. } => {
                write!(f, "route({}, top {top}, renormalise {renormalise}, scale {scale})", v(scores))
            }
            Op::ExpertMatMul { x, experts, weight, .. } => {
                write!(f, "expert_matmul({}, {}, {})", v(x), v(experts), w(weight))
            }
            Op::ExpertSum { x, shares, .. } => write!(f, "expert_sum({}, {})", v(x), v(shares)),
        }
    }
}
