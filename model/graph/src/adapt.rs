//! Adds LoRA adapters to a graph. A product `y = W · x` becomes `y = W · x + B · (s ⊙ (A · x))`.
//!
//! A and B contain the pairs of all adapters one after another, each padded with zeros to a common
//! rank. The factors `s` belong to the sequence of the row ([`AdapterScale`]). So sequences with
//! different adapters share a step, and the products are ordinary products.

use crate::op::{AdapterScale, Add, By, Embed, MatMul};
use crate::{Dtype, Graph, GraphAdapter, Op, Value, ValueId, Weight, WeightId};
use kjit_formats::format::{ALL, Encoding, Format};
use kjit_gguf::adapter::{Adapter, AdapterError, EMBEDDING, LowRank, OUTPUT};
use kjit_gguf::{Gguf, NewTensor};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The largest number of adapters of a model.
pub const MAX_ADAPTERS: usize = 256;

/// Number of elements in the runs of all adapters is a multiple of this: the block length of the
/// kernels.
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

/// Adds adapters, each with the scale of sequences that choose no adapter. The graph must have been
/// built from `gguf`. The stacked pairs are added to `gguf`.
///
/// # Errors
/// An adapter changes a matrix that the model does not use as a whole in a product, or there is not
/// enough memory.
pub fn adapt(
    graph: Graph,
    gguf: Gguf,
    adapters: &[(Adapter, f32)],
) -> Result<(Graph, Gguf), AdapterError> {
    let Some((first, _)) = adapters.first() else { return Ok((graph, gguf)) };
    let rank = adapters.iter().map(|(a, _)| a.rank()).max().unwrap_or(1).max(1);
    let (graph, used, tensors) =
        rewritten(graph, adapters, common_rank(rank, adapters.len()), None);
    for (adapter, _) in adapters {
        if let Some(pair) = adapter.pairs.iter().find(|p| !used.contains(p.tensor.as_str())) {
            let (path, tensor) = (adapter.path.clone(), pair.tensor.clone());
            return Err(AdapterError::NotUsed { path, tensor });
        }
    }
    let gguf = gguf.with_tensors(&first.path, tensors)?;
    Ok((graph, gguf))
}

/// The common rank of `count` adapters of at most this rank: together they have whole blocks.
fn common_rank(rank: usize, count: usize) -> usize {
    let whole = |rank: &usize| (rank * count).is_multiple_of(BLOCK);
    (rank..rank + BLOCK).find(whole).unwrap_or(rank.next_multiple_of(BLOCK))
}

/// A graph with adapters, the tensors of pairs that its operations use, and the stacked pairs.
fn rewritten<'a>(
    graph: Graph,
    adapters: &'a [(Adapter, f32)],
    each: usize,
    format: Option<&'static Format>,
) -> (Graph, BTreeSet<&'a str>, Vec<NewTensor>) {
    let ops = graph.ops.clone();
    let mut rewrite = Rewrite {
        graph: Graph { ops: vec![], ..graph },
        adapters,
        each,
        format,
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
    graph.adapters = adapters
        .iter()
        .map(|(a, scale)| GraphAdapter { name: a.name.clone(), unit: unit(a), scale: *scale })
        .collect();
    (graph, used, tensors)
}

/// Adds `slots` places for adapters of at most this rank that are loaded later, all empty: the
/// stacked pairs are zeros in F32. Every matrix that the model multiplies by as a whole gets them,
/// except the output projection. [`Graph::adapter_slots`] describes the places.
///
/// # Errors
/// There is no memory.
pub fn with_adapter_slots(
    graph: Graph,
    gguf: Gguf,
    slots: usize,
    rank: usize,
) -> Result<(Graph, Gguf), AdapterError> {
    let places = AdapterSlots::of(&graph, slots, rank);
    let Some(path) = gguf.paths().next().map(Path::to_owned) else { return Ok((graph, gguf)) };
    let empty = |(tensor, (rows, cols)): (&String, &(usize, usize))| LowRank {
        tensor: tensor.clone(),
        rows: *rows,
        cols: *cols,
        rank: places.rank,
        scale: 1.0,
        a: vec![],
        b: vec![],
    };
    let pairs = places.matrices.iter().map(empty).collect();
    let adapters = vec![(Adapter { path: path.clone(), name: String::new(), pairs }, 0.0); slots];
    let [f32, _] = PLAIN;
    let (mut graph, _, tensors) = rewritten(graph, &adapters, places.rank, Some(f32));
    graph.adapter_slots = Some(places);
    let gguf = gguf.with_tensors(&path, tensors)?;
    Ok((graph, gguf))
}

/// Places for adapters that are loaded later. [`Graph::adapters`] has one entry for each.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSlots {
    /// The largest rank of an adapter.
    pub rank: usize,
    /// Matrices that adapters may change: `(rows, cols)` by the name of the tensor.
    pub matrices: BTreeMap<String, (usize, usize)>,
}

impl AdapterSlots {
    /// The places of a graph without adapters.
    pub fn of(graph: &Graph, slots: usize, rank: usize) -> AdapterSlots {
        let rank = common_rank(rank.max(1), slots.max(1));
        let mut matrices = BTreeMap::new();
        for op in &graph.ops {
            let Op::MatMul(m) = op else { continue };
            let w = graph.weight(m.weight);
            let rows = w.whole.checked_div(w.cols).unwrap_or(0);
            let whole = w.experts == 1 && !w.is_of_columns() && w.whole == rows * w.cols;
            if whole && w.tensor != EMBEDDING && w.tensor != OUTPUT {
                matrices.insert(w.tensor.clone(), (rows, w.cols));
            }
        }
        AdapterSlots { rank, matrices }
    }

    /// Checks whether the places can hold an adapter.
    ///
    /// # Errors
    /// Its rank is too large, or it changes another matrix.
    pub fn check(&self, adapter: &Adapter) -> Result<(), AdapterError> {
        let path = || adapter.path.clone();
        if let Some(pair) = adapter.pairs.iter().find(|p| p.rank > self.rank) {
            let (tensor, rank, most) = (pair.tensor.clone(), pair.rank, self.rank);
            return Err(AdapterError::RankOfSlots { path: path(), tensor, rank, most });
        }
        let fits = |p: &&LowRank| self.matrices.get(&p.tensor) == Some(&(p.rows, p.cols));
        match adapter.pairs.iter().find(|p| !fits(p)) {
            Some(pair) => {
                let tensor = pair.tensor.clone();
                Err(AdapterError::NotInSlots { path: path(), tensor })
            }
            None => Ok(()),
        }
    }

    /// The stacked pairs of a matrix with these adapters in the places, as little-endian F32: the
    /// names of the tensors with their bytes. Empty if adapters do not change the matrix.
    pub fn stacked(&self, tensor: &str, held: &[Option<&Adapter>]) -> Vec<(String, Vec<u8>)> {
        let Some(&(rows, cols)) = self.matrices.get(tensor) else { return vec![] };
        let pairs: Vec<_> = held.iter().map(|a| Some((a.as_ref()?.pair(tensor)?, (*a)?))).collect();
        let mut a = vec![0.0f32; self.rank * pairs.len() * cols];
        for (to, one) in a.chunks_exact_mut((self.rank * cols).max(1)).zip(&pairs) {
            let from = one.map_or(&[][..], |(p, _)| p.a.as_slice());
            to.iter_mut().zip(from).for_each(|(to, v)| *to = *v);
        }
        let of_b = pairs.iter().map(|one| {
            one.map(|(p, a)| Columns { values: &p.b, rank: p.rank, by: p.scale / unit(a) })
        });
        let b = side_by_side(of_b, rows, self.rank);
        let bytes = |all: Vec<f32>| all.iter().flat_map(|v| v.to_le_bytes()).collect();
        vec![(format!("{tensor}.lora_a"), bytes(a)), (format!("{tensor}.lora_b"), bytes(b))]
    }
}

/// The factor that the pairs of an adapter share; it is not 0. B of a pair with a different factor
/// is multiplied.
pub fn unit(adapter: &Adapter) -> f32 {
    adapter.pairs.iter().map(|p| p.scale).find(|scale| *scale != 0.0).unwrap_or(1.0)
}

struct Rewrite<'a> {
    /// The new graph.
    graph: Graph,
    adapters: &'a [(Adapter, f32)],
    /// The common rank.
    each: usize,
    /// The format of the stacked pairs. `None`: the smaller one that holds them exactly.
    format: Option<&'static Format>,
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
        // Products of one input are adjacent. The products with B come before the products with W.
        // A planner that adds the product of the first summand to the other summand then keeps the
        // products with W together.
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
        let (tensor, rows) = self.adapted_tensor(tensor)?;
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
        let found = self.adapted_tensor(&table.tensor).filter(|_| embed.by == By::Token);
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
    fn adapted_tensor(&self, tensor: &str) -> Option<(&'a str, usize)> {
        let pair = self.adapters.iter().find_map(|(a, _)| a.pair(tensor))?;
        Some((&pair.tensor, pair.rows))
    }

    /// Creates the stacked A and B of a tensor once. Returns their formats.
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
            let (format, bytes) = encode(&values, self.format);
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
                inverted: false,
            });
        }
        WeightId(id as u32)
    }

    fn value(&mut self, name: String, slots: usize, width: usize) -> ValueId {
        self.graph.values.push(Value { name, slots, width, dtype: Dtype::Real });
        ValueId(self.graph.values.len() as u32 - 1)
    }
}

/// A matrix with one column for each rank, and a factor for all its elements.
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

/// In this format, which is F32 or F16. `None`: F16 if it holds every element exactly, or F32.
fn encode(values: &[f32], format: Option<&'static Format>) -> (&'static Format, Vec<u8>) {
    let exact = |v: &f32| half::f16::from_f32(*v).to_f32() == *v;
    let [f32, f16] = PLAIN;
    match format.map_or_else(|| values.iter().all(exact), |format| format == f16) {
        true => (f16, values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()),
        false => (f32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
    }
}
