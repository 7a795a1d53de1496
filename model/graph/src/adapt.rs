//! Adds LoRA adapters to a graph. A product `y = W · x` becomes `y = W · x + B · (s ⊙ (A · x))`.
//!
//! A and B hold the pairs of all adapters one after another, each padded with zeros to a common
//! rank. The factors `s` are those of the row's sequence ([`AdapterScale`]). So sequences with
//! different adapters share a step, and the products are ordinary ones.

use crate::op::{AdapterScale, Add, By, Embed, MatMul};
use crate::{Dtype, Graph, GraphAdapter, Op, Value, ValueId, Weight, WeightId};
use kjit_formats::format::{ALL, Encoding, Format};
use kjit_gguf::adapter::{Adapter, AdapterError, EMBEDDING, LowRank, OUTPUT};
use kjit_gguf::{Gguf, NewTensor};
use std::collections::{BTreeMap, BTreeSet};

/// The largest number of adapters of a model.
pub const MOST_ADAPTERS: usize = 256;

/// Elements of all adapters' runs together: a multiple of this, which is a block of the kernels.
const BLOCK: usize = 32;

/// The formats of stacked pairs: F32 and F16.
const PLAIN: [&Format; 2] = plain();

#[expect(clippy::panic, reason = "evaluated at compile time")]
const fn plain() -> [&'static Format; 2] {
    match ALL {
        [f32, f16, ..] => {
            assert!(matches!(f32.encoding, Encoding::F32) && matches!(f16.encoding, Encoding::F16));
            [f32, f16]
        }
        _ => panic!("the table of formats begins with F32 and F16"),
    }
}

/// Adds adapters, each with the scale of sequences that choose none. The graph must have been built
/// from `gguf`, to which the stacked pairs are added.
///
/// # Errors
/// An adapter changes a matrix that the model does not multiply by as a whole, or there is no
/// memory.
pub fn adapt(
    graph: Graph,
    gguf: Gguf,
    adapters: &[(Adapter, f32)],
) -> Result<(Graph, Gguf), AdapterError> {
    let Some((first, _)) = adapters.first() else { return Ok((graph, gguf)) };
    let rank = adapters.iter().map(|(a, _)| a.rank()).max().unwrap_or(1).max(1);
    let whole = |rank: &usize| (rank * adapters.len()).is_multiple_of(BLOCK);
    let each = (rank..rank + BLOCK).find(whole).unwrap_or(rank.next_multiple_of(BLOCK));
    let ops = graph.ops.clone();
    let mut rewrite = Rewrite {
        graph: Graph { ops: vec![], ..graph },
        adapters,
        each,
        used: BTreeSet::new(),
        stacks: BTreeMap::new(),
        tensors: vec![],
    };
    let mut rest = ops.as_slice();
    while let Some((op, after)) = rest.split_first() {
        // Products of one input stay together, because executors share work among them.
        let with = |other: &&Op| match (op, other) {
            (Op::MatMul(a), Op::MatMul(b)) => a.x == b.x,
            _ => false,
        };
        let n = after.iter().take_while(with).count();
        let (run, others) = rest.split_at(n + 1);
        rewrite.run(run);
        rest = others;
    }
    let Rewrite { mut graph, used, tensors, .. } = rewrite;
    for (adapter, _) in adapters {
        if let Some(pair) = adapter.pairs.iter().find(|p| !used.contains(p.tensor.as_str())) {
            let (path, tensor) = (adapter.path.clone(), pair.tensor.clone());
            return Err(AdapterError::NotUsed { path, tensor });
        }
    }
    graph.adapters = adapters
        .iter()
        .map(|(a, scale)| GraphAdapter { name: a.name.clone(), unit: unit(a), scale: *scale })
        .collect();
    let gguf = gguf.with_tensors(&first.path, tensors)?;
    Ok((graph, gguf))
}

/// The factor that all pairs of an adapter share. B of a pair with another factor is multiplied.
fn unit(adapter: &Adapter) -> f32 {
    adapter.pairs.first().map_or(1.0, |p| p.scale)
}

struct Rewrite<'a> {
    /// The new graph.
    graph: Graph,
    adapters: &'a [(Adapter, f32)],
    /// The common rank.
    each: usize,
    /// Tensors of pairs that an operation uses.
    used: BTreeSet<&'a str>,
    /// Format of A, and of B, by the pairs' tensor.
    stacks: BTreeMap<&'a str, [&'static Format; 2]>,
    tensors: Vec<NewTensor>,
}

/// A product with adapters.
struct Adapted {
    /// `A · x`.
    thin: MatMul,
    scale: AdapterScale,
    /// `B · …`.
    wide: MatMul,
    add: Add,
}

impl<'a> Rewrite<'a> {
    /// Rewrites an operation, or several products of one input.
    fn run(&mut self, ops: &[Op]) {
        if let [Op::Embed(embed)] = ops {
            return self.embed(embed);
        }
        let mut products = vec![];
        let mut all = vec![];
        for op in ops {
            match *op {
                Op::MatMul(m) => {
                    let adapted = self.product(m);
                    let base = adapted.as_ref().map_or(m, |a| MatMul { out: a.add.a, ..m });
                    products.push(Op::MatMul(base));
                    all.extend(adapted);
                }
                ref other => products.push(other.clone()),
            }
        }
        // Products of one input are adjacent. Those with B come before those with W: a planner that
        // adds the first summand's product to the other one then leaves W's products together.
        let ops = &mut self.graph.ops;
        ops.extend(all.iter().map(|a| Op::MatMul(a.thin)));
        ops.extend(all.iter().map(|a| Op::AdapterScale(a.scale)));
        ops.extend(all.iter().map(|a| Op::MatMul(a.wide)));
        ops.extend(products);
        ops.extend(all.iter().map(|a| Op::Add(a.add)));
    }

    /// The operations of a product with adapters; `None` if no adapter changes its matrix.
    fn product(&mut self, m: MatMul) -> Option<Adapted> {
        let w = self.graph.weight(m.weight).clone();
        // A model without an output projection multiplies by its embedding table.
        let tensor = if w.tensor == EMBEDDING { OUTPUT } else { w.tensor.as_str() };
        let (tensor, rows) = self.changed(tensor)?;
        if w.experts != 1 || w.is_of_columns() || w.whole != rows * w.cols {
            return None;
        }
        self.used.insert(tensor);
        let [a, b] = self.stack(tensor);
        let width = self.each * self.adapters.len();
        let name = self.graph.value(m.out).name.clone();
        let thin = self.weight(format!("{tensor}.lora_a"), a, (0, width), (width, w.cols));
        let at = w.at / w.cols.max(1);
        let wide = self.weight(format!("{tensor}.lora_b"), b, (at, w.rows), (rows, width));
        let slots = self.graph.value(m.out).slots;
        let [small, scaled] =
            ["lora_a", "lora_scale"].map(|end| self.value(format!("{name}.{end}"), slots, width));
        let [delta, base] =
            ["lora_b", "base"].map(|end| self.value(format!("{name}.{end}"), slots, w.rows));
        Some(Adapted {
            thin: MatMul { x: m.x, weight: thin, bias: None, out: small },
            scale: AdapterScale { x: small, each: self.each, out: scaled },
            wide: MatMul { x: scaled, weight: wide, bias: None, out: delta },
            add: Add { a: base, b: delta, out: m.out },
        })
    }

    /// An embedding, with adapters if its table has any.
    fn embed(&mut self, embed: &Embed) {
        let table = self.graph.weight(embed.table).clone();
        let found = self.changed(&table.tensor).filter(|_| embed.by == By::Token);
        let Some((tensor, rows)) = found.filter(|(t, _)| *t == EMBEDDING && table.is_whole())
        else {
            self.graph.ops.push(Op::Embed(embed.clone()));
            return;
        };
        self.used.insert(tensor);
        let [a, b] = self.stack(tensor);
        let width = self.each * self.adapters.len();
        let name = self.graph.value(embed.out).name.clone();
        let thin = self.weight(format!("{tensor}.lora_a"), a, (0, rows), (rows, width));
        let wide = self.weight(format!("{tensor}.lora_b"), b, (0, table.cols), (table.cols, width));
        let [small, scaled] =
            ["lora_a", "lora_scale"].map(|end| self.value(format!("{name}.{end}"), 1, width));
        let [delta, base] =
            ["lora_b", "base"].map(|end| self.value(format!("{name}.{end}"), 1, table.cols));
        self.graph.ops.extend([
            Op::Embed(Embed { table: thin, by: By::Token, scale: embed.scale, out: small }),
            Op::AdapterScale(AdapterScale { x: small, each: self.each, out: scaled }),
            Op::MatMul(MatMul { x: scaled, weight: wide, bias: None, out: delta }),
            Op::Embed(Embed { out: base, ..embed.clone() }),
            Op::Add(Add { a: base, b: delta, out: embed.out }),
        ]);
    }

    /// The name of a tensor that an adapter changes, and the rows of its matrix.
    fn changed(&self, tensor: &str) -> Option<(&'a str, usize)> {
        let pair = self.adapters.iter().find_map(|(a, _)| a.pair(tensor))?;
        Some((&pair.tensor, pair.rows))
    }

    /// Makes the stacked A and B of a tensor once. Returns their formats.
    fn stack(&mut self, tensor: &'a str) -> [&'static Format; 2] {
        if let Some(made) = self.stacks.get(tensor) {
            return *made;
        }
        let adapters = self.adapters;
        let pairs: Vec<Option<&LowRank>> = adapters.iter().map(|(a, _)| a.pair(tensor)).collect();
        let (each, width) = (self.each, self.each * pairs.len());
        let like = pairs.iter().flatten().next();
        let (embedding, rows, cols) =
            like.map_or((false, 0, 0), |p| (p.is_embedding(), p.rows, p.cols));
        let of_b = pairs.iter().zip(adapters).map(|(p, (adapter, _))| {
            p.map(|p| Columns { values: &p.b, rank: p.rank, by: p.scale / unit(adapter) })
        });
        let b_rows = if embedding { cols } else { rows };
        let b = side_by_side(of_b, b_rows, each);
        let (a, a_dims) = match embedding {
            true => {
                let of_a = pairs.iter();
                let of_a = of_a.map(|p| p.map(|p| Columns { values: &p.a, rank: p.rank, by: 1.0 }));
                (side_by_side(of_a, rows, each), [width, rows])
            }
            false => {
                let mut a = vec![0.0f32; width * cols];
                for (to, p) in a.chunks_exact_mut((each * cols).max(1)).zip(&pairs) {
                    let from = p.map_or(&[][..], |p| p.a.as_slice());
                    to.iter_mut().zip(from).for_each(|(to, v)| *to = *v);
                }
                (a, [cols, width])
            }
        };
        let made = [("lora_a", a, a_dims), ("lora_b", b, [width, b_rows])];
        let formats = made.map(|(end, values, dims)| {
            let (format, bytes) = encode(&values);
            let (name, dims) = (format!("{tensor}.{end}"), dims.map(|d| d as u64).to_vec());
            self.tensors.push(NewTensor { name, dims, ty: format.ggml_id, bytes });
            format
        });
        self.stacks.insert(tensor, formats);
        formats
    }

    /// Adds rows `at..at + take` of a stacked tensor of `(rows, cols)`, or returns the same weight.
    fn weight(
        &mut self,
        tensor: String,
        format: &'static Format,
        (at, take): (usize, usize),
        (rows, cols): (usize, usize),
    ) -> WeightId {
        let name = match take == rows {
            true => tensor.clone(),
            false => format!("{tensor}[{at}..{}]", at + take),
        };
        let known = self.graph.weights.iter().position(|w| w.name == name);
        let id = known.unwrap_or(self.graph.weights.len());
        if known.is_none() {
            self.graph.weights.push(Weight {
                name,
                tensor,
                at: at * cols,
                whole: rows * cols,
                experts: 1,
                rows: take,
                cols,
                stride: cols,
                format,
            });
        }
        WeightId(id as u32)
    }

    fn value(&mut self, name: String, slots: usize, width: usize) -> ValueId {
        self.graph.values.push(Value { name, slots, width, dtype: Dtype::Real });
        ValueId(self.graph.values.len() as u32 - 1)
    }
}

/// A matrix with a column for each rank, and a factor of all its elements.
struct Columns<'a> {
    values: &'a [f32],
    rank: usize,
    by: f32,
}

/// Matrices of `rows` rows side by side, each padded with zeros to `each` columns.
fn side_by_side<'a>(
    all: impl ExactSizeIterator<Item = Option<Columns<'a>>>,
    rows: usize,
    each: usize,
) -> Vec<f32> {
    let width = each * all.len();
    let mut made = vec![0.0f32; rows * width];
    for (k, one) in all.enumerate().filter_map(|(k, one)| Some((k, one?))) {
        let from = one.values.chunks_exact(one.rank.max(1));
        for (to, from) in made.chunks_exact_mut(width.max(1)).zip(from) {
            to.iter_mut().skip(k * each).zip(from).for_each(|(to, v)| *to = v * one.by);
        }
    }
    made
}

/// F16 if it holds every element exactly, otherwise F32.
fn encode(values: &[f32]) -> (&'static Format, Vec<u8>) {
    let exact = |v: &f32| half::f16::from_f32(*v).to_f32() == *v;
    let [f32, f16] = PLAIN;
    match values.iter().all(exact) {
        true => (f16, values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()),
        false => (f32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
    }
}
