//! The operations, each split into tasks for the threads.

use super::attention::{Attend, Layer};
use super::dot::{DotProduct, Input};
use super::elementwise::{AddRows, GluRows, NormRows, route};
use super::gemm::PanelProduct;
use super::kv::KvStore;
use super::matvec::RowProduct;
use super::pool::Pool;
use super::product::{Matrix, Part};
use super::quantise::{Quantise, Quantised};
use super::rope::RopeTable;
use super::share::Shared;
use super::simd::{Isa, LANES};
use super::weights::Weights;
use super::{HostExecutor, Span};
use crate::graph::{Graph, Op, ValueId};
use kjit_kernels::format::Encoding;

/// Tokens from which decoding a panel of weights pays.
const PANEL_TOKENS: usize = 8;

/// Elements below which an elementwise operation is not worth waking threads for.
const SERIAL: usize = 8192;

/// What an operation needs of the executor besides its inputs and results.
pub struct Context<'a> {
    pub graph: &'a Graph,
    pub weights: &'a Weights,
    pub caches: &'a mut [(KvStore, KvStore)],
    pub ropes: &'a mut [RopeTable],
    pub pool: &'a mut Pool,
    pub isa: Isa,
    /// The input of a product, rounded; `None` where all is to be f32.
    pub rounded: Option<&'a mut Quantised>,
}

impl HostExecutor {
    /// Runs one step. Its results' buffers are taken out while it runs: no operation writes what it reads.
    pub(super) fn step(&mut self, step: usize, tokens: &[u32], span: Span) {
        let step = &self.plan.steps[step];
        let rows = if step.full { span.tokens } else { span.wanted };
        if rows == 0 {
            return;
        }
        let ops = &self.graph.ops[step.first..step.first + step.count];
        let written: Vec<ValueId> = ops.iter().flat_map(Op::writes).collect();
        let mut outs: Vec<Vec<f32>> =
            written.iter().map(|v| std::mem::take(&mut self.buffers[self.plan.place[v.0 as usize]])).collect();
        let (graph, plan, buffers) = (&self.graph, &self.plan, &self.buffers);
        let width = |v: ValueId| graph.value(v).slots * graph.value(v).width;
        // The last `rows` rows of a value.
        let input = |v: ValueId| {
            let have = if plan.full[v.0 as usize] { span.tokens } else { span.wanted };
            &buffers[plan.place[v.0 as usize]][(have - rows) * width(v)..have * width(v)]
        };
        let mut results: Vec<&mut [f32]> =
            written.iter().zip(&mut outs).map(|(v, out)| &mut out[..rows * width(*v)]).collect();
        let mut context = Context {
            graph,
            weights: &self.weights,
            caches: &mut self.caches,
            ropes: &mut self.ropes,
            pool: &mut self.pool,
            isa: self.isa,
            rounded: (!self.options.precise).then_some(&mut self.rounded),
        };
        let span = RowSpan { first: span.first + span.tokens - rows, rows };
        context.run(ops, &tokens[tokens.len() - rows..], span, &input, &mut results);
        for (v, out) in written.iter().zip(outs) {
            self.buffers[self.plan.place[v.0 as usize]] = out;
        }
    }
}

/// The rows that an operation computes.
#[derive(Clone, Copy)]
pub struct RowSpan {
    /// Position of the first row's token.
    pub first: usize,
    /// Rows.
    pub rows: usize,
}

impl Context<'_> {
    /// Runs operations that share an input (one, or several products). `input` gives the rows of a value, `outs` are those of the results.
    pub fn run<'i>(
        &mut self,
        ops: &[Op],
        tokens: &[u32],
        span: RowSpan,
        input: &dyn Fn(ValueId) -> &'i [f32],
        outs: &mut [&mut [f32]],
    ) {
        let (rows, isa, graph) = (span.rows, self.isa, self.graph);
        let Some(op) = ops.first() else { return };
        match *op {
            Op::Embed { table, scale, .. } => self.embed(table, scale, tokens, outs[0]),
            Op::RmsNorm { x, weight, eps, .. } | Op::LayerNorm { x, weight, eps, .. } => {
                let (bias, centred) = match *op {
                    Op::LayerNorm { bias, .. } => (bias.map(|b| self.weights.vector(b)), true),
                    _ => (None, false),
                };
                let (x, weight) = (input(x), self.weights.vector(weight));
                by_rows(self.pool, rows, outs[0], &|at, out| {
                    let x = &x[at..at + out.len()];
                    // SAFETY: the job asks for nothing.
                    unsafe { isa.run(NormRows { x, weight, bias, eps, centred, out }) }
                });
            }
            Op::MatMul { x, .. } => {
                let products: Vec<Product> = ops
                    .iter()
                    .zip(outs)
                    .filter_map(|(op, out)| match *op {
                        Op::MatMul { weight, bias, .. } => Some(Product {
                            w: self.weights.matrix(graph, weight, 0),
                            bias: bias.map(|b| self.weights.vector(b)),
                            out: Shared::new(out),
                        }),
                        _ => None,
                    })
                    .collect();
                multiply(self.pool, isa, input(x), rows, &products, self.rounded.as_deref_mut());
            }
            Op::Rope { x, heads, rope, .. } => {
                let table = &mut self.ropes[rope.0 as usize];
                table.fill(span.first, rows);
                let x = input(x);
                let width = x.len() / rows;
                let table = &*table;
                by_rows(self.pool, rows, outs[0], &|at, out| {
                    out.copy_from_slice(&x[at..at + out.len()]);
                    for (i, row) in out.chunks_exact_mut(width).enumerate() {
                        table.turn(at / width + i, width / heads, row);
                    }
                });
            }
            Op::KvWrite { k, v, cache } => {
                let (keys, values) = &mut self.caches[cache.0 as usize];
                for (store, x) in [(keys, input(k)), (values, input(v))] {
                    let width = x.len() / rows;
                    for (i, row) in x.chunks_exact(width).enumerate() {
                        store.write(isa, span.first + i, row);
                    }
                }
            }
            Op::Attention { q, cache, heads, scale, soft_cap, .. } => {
                let (keys, values) = &self.caches[cache.0 as usize];
                let cache = graph.cache(cache);
                let layer = Layer {
                    q: input(q),
                    heads,
                    dim: cache.head_dim,
                    first: span.first,
                    keys,
                    values,
                    window: cache.window,
                    scale,
                    soft_cap,
                    out: Shared::new(outs[0]),
                };
                attend(self.pool, isa, layer, cache.heads, rows);
            }
            Op::Glu { gate, up, act, .. } => {
                let (gate, up) = (input(gate), input(up));
                by_rows(self.pool, rows, outs[0], &|at, out| {
                    let (gate, up) = (&gate[at..at + out.len()], &up[at..at + out.len()]);
                    // SAFETY: the job asks for nothing.
                    unsafe { isa.run(GluRows { gate, up, act, out }) }
                });
            }
            Op::Add { a, b, .. } => {
                let (a, b) = (input(a), input(b));
                by_rows(self.pool, rows, outs[0], &|at, out| {
                    // SAFETY: the job asks for nothing.
                    unsafe { isa.run(AddRows(&a[at..at + out.len()], &b[at..at + out.len()], out)) }
                });
            }
            Op::Route { scores, top, renormalise, scale, .. } => {
                let n = graph.value(scores).width;
                if let [experts, shares] = outs {
                    route(input(scores), n, top, renormalise, scale, experts, shares);
                }
            }
            Op::ExpertMatMul { x, experts, weight, .. } => {
                let slots = graph.value(experts).width;
                let shared = graph.value(x).slots == 1;
                self.expert_matmul(input(x), shared, input(experts), slots, weight, outs[0]);
            }
            Op::ExpertSum { x, shares, out } => {
                let (x, shares) = (input(x), input(shares));
                let (width, slots) = (graph.value(out).width, graph.value(x_id(op)).slots);
                by_rows(self.pool, rows, outs[0], &|at, out| {
                    for (i, out) in out.chunks_exact_mut(width).enumerate() {
                        let t = at / width + i;
                        out.fill(0.0);
                        for s in 0..slots {
                            let share = shares[t * slots + s];
                            let x = &x[(t * slots + s) * width..][..width];
                            out.iter_mut().zip(x).for_each(|(o, x)| *o += share * x);
                        }
                    }
                });
            }
        }
    }

    fn embed(&self, table: crate::graph::WeightId, scale: f32, tokens: &[u32], out: &mut [f32]) {
        let w = self.weights.matrix(self.graph, table, 0);
        for (&token, row) in tokens.iter().zip(out.chunks_exact_mut(w.cols)) {
            // Lengths agree: a row of whole blocks, as the graph was checked to have. Tokens were checked by `feed`.
            let decoded = w.format.decode(w.part(token as usize, 0, w.cols), row);
            debug_assert!(decoded.is_ok());
            if scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }

    /// Every (token, slot) with its expert's matrix; those of one expert are gathered and multiplied together.
    fn expert_matmul(
        &mut self,
        x: &[f32],
        shared: bool,
        experts: &[f32],
        slots: usize,
        weight: crate::graph::WeightId,
        out: &mut [f32],
    ) {
        let w = self.graph.weight(weight);
        let (rows, cols) = (w.rows, w.cols);
        let mut uses: Vec<(usize, usize)> = experts.iter().map(|&e| e as usize).zip(0..).collect();
        uses.sort_unstable();
        let (mut gathered, mut results) = (vec![], vec![]);
        for run in uses.chunk_by(|a, b| a.0 == b.0) {
            gathered.clear();
            for &(_, slot) in run {
                let row = if shared { slot / slots } else { slot };
                gathered.extend_from_slice(&x[row * cols..][..cols]);
            }
            results.resize(run.len() * rows, 0.0);
            let w = self.weights.matrix(self.graph, weight, run[0].0);
            let product = Product { w, bias: None, out: Shared::new(&mut results[..run.len() * rows]) };
            multiply(self.pool, self.isa, &gathered, run.len(), &[product], self.rounded.as_deref_mut());
            for (&(_, slot), y) in run.iter().zip(results.chunks_exact(rows)) {
                out[slot * rows..][..rows].copy_from_slice(y);
            }
        }
    }
}

/// The input of an operation with one.
fn x_id(op: &Op) -> ValueId {
    op.reads()[0]
}

/// Cuts `out` into runs of whole rows and calls `f` with each run's start and elements, on all threads if it is worth it.
fn by_rows(pool: &mut Pool, rows: usize, out: &mut [f32], f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if out.len() < SERIAL || rows == 1 {
        return f(0, out);
    }
    let (n, width) = (out.len(), out.len() / rows);
    let run = rows.div_ceil(4 * pool.threads()) * width;
    let out = Shared::new(out);
    pool.run(n.div_ceil(run), &|task| {
        let at = task * run;
        // SAFETY: tasks have different runs.
        f(at, unsafe { out.part(at, run.min(n - at)) });
    });
}

/// One product of a step.
struct Product<'a> {
    w: Matrix<'a>,
    bias: Option<&'a [f32]>,
    out: Shared<'a>,
}

/// All products of the same input.
fn multiply(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    tokens: usize,
    products: &[Product],
    rounded: Option<&mut Quantised>,
) {
    let panels = tokens >= PANEL_TOKENS;
    let rounded = match (rounded, products.first()) {
        (Some(to), Some(p)) if !panels => {
            if products.iter().any(|p| matches!(p.w.format.encoding, Encoding::Blocks(_))) {
                // SAFETY: the job asks for nothing; rows of block formats are multiples of 32 long.
                unsafe { isa.run(Quantise { x, cols: p.w.cols, to }) };
            }
            Some(&*to)
        }
        _ => None,
    };
    let all: usize = products.iter().map(|p| p.w.rows).sum();
    // Few tokens: runs of rows, eight for each thread, so that a thread that was put off its core holds up little.
    let run = if panels { LANES } else { all.div_ceil(8 * pool.threads()).clamp(8, 256) };
    let tasks = products.iter().map(|p| p.w.rows.div_ceil(run)).sum();
    pool.run(tasks, &|task| {
        let mut task = task;
        for p in products {
            let here = p.w.rows.div_ceil(run);
            if task >= here {
                task -= here;
                continue;
            }
            let (w, bias, row) = (p.w, p.bias, task * run);
            let (rows, out, stride) = (run.min(w.rows - row), p.out.start(), w.rows);
            let part = Part { w, row, rows, x, tokens, bias, out, stride };
            // SAFETY: the result has `tokens` rows as wide as the matrix has rows, and no other task has these of them.
            unsafe {
                match rounded {
                    _ if panels => isa.run(PanelProduct(part)),
                    None => isa.run(RowProduct(part)),
                    Some(rounded) => isa.run(DotProduct(part.with(Input { x, rounded }))),
                }
            }
            return;
        }
    });
}

/// Attention of `rows` tokens: tasks are a key head with its query heads and a run of tokens; when there are few of these (decoding),
/// a query head.
fn attend(pool: &mut Pool, isa: Isa, layer: Layer, key_heads: usize, rows: usize) {
    /// Tokens of a task: with three query heads to a key head, 96 rows.
    const TOKENS: usize = 32;
    let group = layer.heads / key_heads;
    let token_runs = rows.div_ceil(TOKENS);
    let apart = key_heads * token_runs < 4 * pool.threads();
    let (per_task, tasks) = match apart {
        true => (1, layer.heads * token_runs),
        false => (group, key_heads * token_runs),
    };
    let head_runs = tasks / token_runs;
    pool.run(tasks, &|task| {
        // Late tokens see most: they go first, so that the last tasks are short.
        let token = (token_runs - 1 - task / head_runs) * TOKENS;
        let head = task % head_runs * per_task;
        let tokens = TOKENS.min(rows - token);
        // SAFETY: tasks have different heads or tokens.
        unsafe { isa.run(Attend { layer, key_head: head / group, head, heads: per_task, token, tokens }) }
    });
}
