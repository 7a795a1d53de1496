//! The text form of a graph, one operation per line: `kjit inspect --graph`.

use super::{Dtype, Graph, Op, Value};
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
            write!(
                f,
                "rope {i}: dims {} {:?} base {} scaling {:?}",
                r.dims, r.pairing, r.base, r.scaling
            )?;
            if r.magnitude != 1.0 {
                write!(f, " magnitude {}", r.magnitude)?;
            }
            if let Some(s) = r.sections {
                write!(
                    f,
                    " sections {:?}{}",
                    s.sizes,
                    if s.interleaved { " interleaved" } else { "" }
                )?;
            }
            if let Some(w) = r.factors {
                write!(f, " factors {}", self.weight(w).name)?;
            }
            if let Some((n, w)) = r.long {
                write!(f, " beyond {n} {}", self.weight(w).name)?;
            }
            writeln!(f)?;
        }
        self.states.iter().try_for_each(|s| writeln!(f, "{s}"))?;
        self.ops.iter().try_for_each(|op| writeln!(f, "{}", OpText(self, op)))
    }
}

/// `real[T, 576]`, with the number of slots in the middle if there are several.
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
        let made: Vec<String> = op
            .writes()
            .iter()
            .map(|&v| format!("{}: {}", g.value(v).name, shape(g.value(v))))
            .collect();
        if !made.is_empty() {
            write!(f, "{} = ", made.join(", "))?;
        }
        write!(f, "{}({})", op.name(), op.args(*g).join(", "))
    }
}
