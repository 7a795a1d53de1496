//! Tensor split: the share of a graph that one device computes. Attention heads and rows of
//! feed-forward matrices are divided over the devices, and the partial results are summed.
//!
//! A value is *whole* (equal on all devices), *divided* (each device has a range of it) or a *part*
//! (one summand of a sum over the devices). A matrix with a whole input is divided by rows if the
//! table below names it. A matrix with a divided input is divided by the matching columns, and its
//! result is a part. Operations between matrices need a rule below. An operation without a rule is
//! refused, and the error names it.

use crate::op::{
    Add, Attention, ExpertMatMul, ExpertSum, Glu, KvWrite, MatMul, Norm, Reduce, Rope,
};
use crate::{Graph, Op, StateKind, Value, ValueId, Weight, WeightId};

/// Architectures that tensor split supports. Other architectures have operations without a rule, or
/// are not tested.
const ARCHITECTURES: [&str; 5] = ["llama", "qwen2", "qwen3", "gemma3", "qwen3moe"];

/// Matrices that are divided by rows, by the end of their names in the file. The last two names are
/// the output matrix.
const BY_ROWS: [&str; 9] = [
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_gate_exps.weight",
    "ffn_up_exps.weight",
    "output.weight",
    "token_embd.weight",
];

/// Maximum number of devices that can compute a model together.
pub const RANKS: usize = 8;
/// The reason why a model cannot be divided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The architecture is not in the table.
    #[error("--split tensor does not support architecture '{arch}' (supported: {known})")]
    Architecture {
        /// `general.architecture`.
        arch: String,
        /// The architectures in the table.
        known: String,
    },
    /// The number of devices is not supported.
    #[error("--split tensor needs 2 to {RANKS} devices, not {0}")]
    Devices(usize),
    /// The model computes embeddings, not logits.
    #[error("--split tensor does not support embeddings: use one device")]
    Vectors,
    /// A size is not a multiple of the number of devices.
    #[error("--split tensor cannot divide {what} by {ranks} devices")]
    Indivisible {
        /// The size and the tensor.
        what: String,
        /// The number of devices.
        ranks: usize,
    },
    /// An operation has no rule.
    #[error("--split tensor has no rule for '{name}' ({op}) of a model of architecture '{arch}'")]
    Rule {
        /// The value.
        name: String,
        /// The operation.
        op: &'static str,
        /// `general.architecture`.
        arch: String,
    },
}

/// The distribution of a value over the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Whole,
    Divided,
    Part,
}

/// The share of device `rank` of `ranks`. Every device computes the result of the whole model.
///
/// # Errors
/// The architecture is not supported, or a number of heads or rows is not a multiple of `ranks`.
pub fn shard(graph: &Graph, rank: usize, ranks: usize) -> Result<Graph, ShardError> {
    if !ARCHITECTURES.contains(&graph.arch.as_str()) {
        return Err(ShardError::Architecture {
            arch: graph.arch.clone(),
            known: ARCHITECTURES.join(", "),
        });
    }
    if !(2..=RANKS).contains(&ranks) {
        return Err(ShardError::Devices(ranks));
    }
    if graph.pooling.is_some() {
        return Err(ShardError::Vectors);
    }
    let empty = Graph { ops: vec![], ..graph.clone() };
    let mut all = Sharder {
        whole: graph,
        made: empty,
        kinds: vec![Kind::Whole; graph.values.len()],
        rank,
        ranks,
    };
    for op in &graph.ops {
        all.op(op)?;
    }
    Ok(all.made)
}

/// Like [`shard`], with each device in a separate process.
///
/// # Errors
/// See [`shard`].
pub fn shard_of_rank(graph: &Graph, rank: usize, ranks: usize) -> Result<Graph, ShardError> {
    let mut made = shard(graph, rank, ranks)?;
    for op in &mut made.ops {
        if let Op::Reduce(reduce) = op {
            reduce.gathered = true;
        }
    }
    Ok(made)
}

struct Sharder<'g> {
    whole: &'g Graph,
    made: Graph,
    /// Indexed by value id of the whole graph.
    kinds: Vec<Kind>,
    rank: usize,
    ranks: usize,
}

impl Sharder<'_> {
    fn kind(&self, v: ValueId) -> Kind {
        self.kinds.get(v.0 as usize).copied().unwrap_or(Kind::Whole)
    }

    /// An equal share of `n`.
    fn share(&self, n: usize, what: impl FnOnce() -> String) -> Result<usize, ShardError> {
        match n % self.ranks {
            0 => Ok(n / self.ranks),
            _ => Err(ShardError::Indivisible { what: what(), ranks: self.ranks }),
        }
    }

    fn no_rule(&self, op: &Op) -> ShardError {
        let name = op.writes().first().map_or(String::new(), |v| self.whole.value(*v).name.clone());
        ShardError::Rule { name, op: op.name(), arch: self.whole.arch.clone() }
    }

    /// Marks a value as divided.
    fn divide(&mut self, v: ValueId) -> Result<(), ShardError> {
        let value = self.whole.value(v);
        let width = self
            .share(value.width, || format!("the {} elements of '{}'", value.width, value.name))?;
        if let (Some(kind), Some(value)) =
            (self.kinds.get_mut(v.0 as usize), self.made.values.get_mut(v.0 as usize))
        {
            (*kind, value.width) = (Kind::Divided, width);
        }
        Ok(())
    }

    /// Adds a value to the values of the whole graph.
    fn value(&mut self, like: ValueId, width: usize) -> ValueId {
        let Value { name, slots, dtype, .. } = self.whole.value(like).clone();
        self.made.values.push(Value { name: format!("{name}.part"), slots, width, dtype });
        ValueId(self.made.values.len() as u32 - 1)
    }

    fn weight(&mut self, weight: Weight) -> WeightId {
        let known = self.made.weights.iter().position(|w| *w == weight);
        let at = known.unwrap_or_else(|| {
            self.made.weights.push(weight);
            self.made.weights.len() - 1
        });
        WeightId(at as u32)
    }

    /// This device's rows of a matrix, or elements of a vector.
    fn rows(&mut self, id: WeightId) -> Result<WeightId, ShardError> {
        let w = self.whole.weight(id).clone();
        let vector = w.rows == 1;
        let (n, each) = if vector { (w.cols, 1) } else { (w.rows, w.stride) };
        let take = self.share(n, || format!("the {n} rows of '{}'", w.name))?;
        let first = self.rank * take;
        let name = format!("{}[{first}..{}]", w.name, first + take);
        let at = w.at + first * each;
        Ok(match vector {
            true => self.weight(Weight { name, at, cols: take, stride: take, ..w }),
            false => self.weight(Weight { name, at, rows: take, ..w }),
        })
    }

    /// This device's columns of a matrix, in whole blocks.
    fn columns(&mut self, id: WeightId) -> Result<WeightId, ShardError> {
        let w = self.whole.weight(id).clone();
        let block = w.format.block_elems();
        let what = || format!("the {} columns of '{}' in blocks of {block}", w.cols, w.name);
        let cols = self.share(w.cols / block, what)? * block;
        if cols * self.ranks != w.cols {
            return Err(ShardError::Indivisible { what: what(), ranks: self.ranks });
        }
        let first = self.rank * cols;
        let name = format!("{}[, {first}..{}]", w.name, first + cols);
        Ok(self.weight(Weight { name, at: w.at + first, cols, ..w }))
    }

    fn by_rows(&self, id: WeightId) -> bool {
        let tensor = &self.whole.weight(id).tensor;
        BY_ROWS.iter().any(|end| tensor.ends_with(end))
    }

    fn push_reduce(&mut self, x: ValueId, join: bool, out: ValueId) {
        let (ranks, rank) = (self.ranks, self.rank);
        self.made.ops.push(Op::Reduce(Reduce { x, ranks, rank, join, gathered: false, out }));
    }

    fn op(&mut self, op: &Op) -> Result<(), ShardError> {
        let kinds: Vec<Kind> = op.reads().iter().map(|v| self.kind(*v)).collect();
        let all = |kind: Kind| kinds.iter().all(|k| *k == kind);
        let op = match *op {
            Op::MatMul(MatMul { x, weight, bias, out }) => {
                return self.product(x, weight, bias, out, op);
            }
            Op::ExpertMatMul(m)
                if all(Kind::Whole) && self.by_rows(m.weight) && m.bias.is_none() =>
            {
                self.divide(m.out)?;
                Op::ExpertMatMul(ExpertMatMul { weight: self.rows(m.weight)?, ..m })
            }
            Op::ExpertMatMul(m) if self.kind(m.x) == Kind::Divided && m.bias.is_none() => {
                if let Some(kind) = self.kinds.get_mut(m.out.0 as usize) {
                    *kind = Kind::Part;
                }
                Op::ExpertMatMul(ExpertMatMul { weight: self.columns(m.weight)?, ..m })
            }
            Op::ExpertSum(s) if self.kind(s.x) == Kind::Part => {
                let part = self.value(s.out, self.whole.value(s.out).width);
                self.made.ops.push(Op::ExpertSum(ExpertSum { out: part, ..s }));
                self.push_reduce(part, false, s.out);
                return Ok(());
            }
            Op::Norm(Norm { x, weight, bias, group, .. })
                if all(Kind::Divided) && group < self.whole.value(x).width =>
            {
                let (heads, name) = (self.whole.value(x).width / group, &self.whole.value(x).name);
                self.share(heads, || format!("the {heads} heads of '{name}'"))?;
                // A per-head norm has the weights of one head.
                let heads =
                    [weight, bias].iter().flatten().all(|w| self.whole.weight(*w).elems() == group);
                if !heads {
                    return Err(self.no_rule(op));
                }
                self.divide(op.writes().first().copied().unwrap_or(x))?;
                op.clone()
            }
            Op::Rope(r) if all(Kind::Divided) => {
                self.divide(r.out)?;
                let heads = self.share(r.heads, || {
                    format!("the {} heads of '{}'", r.heads, self.whole.value(r.x).name)
                })?;
                Op::Rope(Rope { heads, ..r })
            }
            Op::KvWrite(KvWrite { state, .. }) if all(Kind::Divided) => {
                let heads = self.whole.kv(state).map_or(0, |kv| kv.heads);
                let share = self.share(heads, || {
                    format!("the {heads} heads of keys of '{}'", self.whole.state(state).name)
                })?;
                if let Some(StateKind::Kv(kv)) =
                    self.made.states.get_mut(state.0 as usize).map(|s| &mut s.kind)
                {
                    kv.heads = share;
                }
                op.clone()
            }
            Op::Attention(a) if all(Kind::Divided) && a.alibi.is_none() => {
                self.divide(a.out)?;
                let heads = self.share(a.heads, || {
                    format!("the {} heads of '{}'", a.heads, self.whole.value(a.out).name)
                })?;
                let sinks = a.sinks.map(|w| self.rows(w)).transpose()?;
                Op::Attention(Attention { heads, sinks, ..a })
            }
            Op::Glu(Glu { out, .. }) | Op::Add(Add { out, .. }) if all(Kind::Divided) => {
                self.divide(out)?;
                op.clone()
            }
            _ if all(Kind::Whole) => op.clone(),
            _ => return Err(self.no_rule(op)),
        };
        self.made.ops.push(op);
        Ok(())
    }

    fn product(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
        out: ValueId,
        op: &Op,
    ) -> Result<(), ShardError> {
        let made = match self.kind(x) {
            Kind::Part => return Err(self.no_rule(op)),
            Kind::Divided => {
                let part = self.value(out, self.whole.value(out).width);
                // Only one device adds the bias.
                let bias = bias.filter(|_| self.rank == 0);
                let weight = self.columns(weight)?;
                self.made.ops.push(Op::MatMul(MatMul { x, weight, bias, out: part }));
                self.push_reduce(part, false, out);
                return Ok(());
            }
            Kind::Whole
                if self.is_head(out)
                    && self.whole.weight(weight).rows.is_multiple_of(self.ranks) =>
            {
                let rows = self.whole.weight(weight).rows / self.ranks;
                let (part, weight) = (self.value(out, rows), self.rows(weight)?);
                let bias = bias.map(|b| self.rows(b)).transpose()?;
                self.made.ops.push(Op::MatMul(MatMul { x, weight, bias, out: part }));
                self.push_reduce(part, true, out);
                return Ok(());
            }
            Kind::Whole if self.by_rows(weight) && !self.is_head(out) => {
                self.divide(out)?;
                MatMul {
                    x,
                    weight: self.rows(weight)?,
                    bias: bias.map(|b| self.rows(b)).transpose()?,
                    out,
                }
            }
            Kind::Whole => MatMul { x, weight, bias, out },
        };
        self.made.ops.push(Op::MatMul(made));
        Ok(())
    }

    /// Whether a value has one element for each token of the vocabulary. Such a value is the result
    /// of the output matrix.
    fn is_head(&self, v: ValueId) -> bool {
        let value = self.whole.value(v);
        value.width == self.whole.value(self.whole.logits).width && !value.name.starts_with("blk.")
    }
}
