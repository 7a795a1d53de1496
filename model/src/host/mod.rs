//! Runs a graph on the CPU: the everyday device without a GPU, and the oracle that every other device is held against.
//!
//! [`HostExecutor`] takes the graph as it stands, operation by operation, weights straight from the mapped file. Any value can be
//! tapped by name ([`HostExecutor::tap`]), and any operation run by itself on given inputs ([`HostExecutor::run_op`]).
//!
//! One precision runs through: activations and sums are f32 in both modes, and prompts go through f32 products. What
//! [`ExecOptions::precise`] adds is that keys and values stay in f32 and that decoding, too, multiplies in f32; by default decoding
//! rounds activations to 16 bits per block of 32.

#![expect(
    clippy::indexing_slicing,
    reason = "inner loops over shapes that the plan checked once against the weights' bytes and the scratch it sized"
)]

mod attention;
mod cpu;
mod dot;
mod elementwise;
mod gemm;
mod kv;
mod limit;
mod matvec;
mod ops;
mod plan;
mod pool;
mod product;
mod quantise;
mod rope;
mod scratch;
mod share;
mod simd;
#[cfg(test)]
mod testing;
mod unpack;
mod weights;

pub use cpu::{Cpu, default_threads, peak_memory};
pub use limit::read_bandwidth;
pub use simd::Isa;

use crate::exec::{ExecError, ExecOptions, Executor, KvType, Want};
use crate::gguf::Gguf;
use crate::graph::{Graph, ValueId};
use kv::KvStore;
use ops::{Context, RowSpan};
use plan::Plan;
use pool::Pool;
use quantise::Quantised;
use rope::RopeTable;
use std::collections::HashMap;
use std::sync::Arc;
use weights::Weights;

/// A sequence in a model, on the CPU.
pub struct HostExecutor {
    graph: Graph,
    plan: Plan,
    options: ExecOptions,
    isa: Isa,
    pool: Pool,
    weights: Weights,
    /// Keys and values of each cache.
    caches: Vec<(KvStore, KvStore)>,
    ropes: Vec<RopeTable>,
    /// The input of a product, rounded.
    rounded: Quantised,
    /// The plan's buffers, with room for as many rows as were needed so far.
    buffers: Vec<Vec<f32>>,
    len: usize,
    taps: HashMap<ValueId, Tap>,
}

/// Rows of a value that were seen while feeding.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tap {
    /// Elements of a row: slots times width.
    pub width: usize,
    /// Rows, in the order of the tokens.
    pub data: Vec<f32>,
}

/// Tokens that one operation works on.
#[derive(Clone, Copy)]
struct Span {
    /// Position of the first token of this piece.
    first: usize,
    /// Tokens of this piece.
    tokens: usize,
    /// Rows, the piece's last ones, whose logits are wanted.
    wanted: usize,
}

impl HostExecutor {
    /// Sets a model up; nothing is computed yet. The graph must have been built from this file.
    ///
    /// # Errors
    /// The graph does not fit the file, or memory for the caches is refused.
    pub fn new(file: Arc<Gguf>, graph: Graph, options: ExecOptions) -> Result<HostExecutor, ExecError> {
        HostExecutor::with_isa(file, graph, options, Isa::best())
    }

    /// As [`HostExecutor::new`], with an instruction set of [`Isa::available`].
    ///
    /// # Errors
    /// As [`HostExecutor::new`].
    pub fn with_isa(file: Arc<Gguf>, graph: Graph, options: ExecOptions, isa: Isa) -> Result<HostExecutor, ExecError> {
        let weights = Weights::new(file, &graph)?;
        let kv = if options.precise { KvType::F32 } else { options.kv };
        let caches = graph
            .caches
            .iter()
            .map(|c| {
                let new = |what: &str| {
                    KvStore::new(&format!("{what} of {}", c.name), kv, c.heads, c.head_dim, options.context)
                };
                Ok((new("keys")?, new("values")?))
            })
            .collect::<Result<_, ExecError>>()?;
        let ropes = graph.ropes.iter().map(|r| RopeTable::new(r, r.factors.map(|f| weights.vector(f)))).collect();
        let plan = Plan::new(&graph, false);
        Ok(HostExecutor {
            buffers: vec![vec![]; plan.buffers.len()],
            pool: Pool::new(options.threads),
            plan,
            isa,
            weights,
            caches,
            ropes,
            rounded: Quantised::default(),
            len: 0,
            taps: HashMap::new(),
            graph,
            options,
        })
    }

    /// The graph that is run.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes mapped for keys and values; the system gives them as they are first used.
    pub fn kv_bytes(&self) -> usize {
        self.caches.iter().map(|(k, v)| k.bytes() + v.bytes()).sum()
    }

    /// Records the rows of a value from now on; `false` if the graph has no value of that name. Of values behind the last
    /// cache write, only the rows whose logits are wanted are computed: feed with [`Want::All`] to see all.
    pub fn tap(&mut self, name: &str) -> bool {
        let Some(id) = self.graph.find(name) else { return false };
        let v = self.graph.value(id);
        self.taps.insert(id, Tap { width: v.slots * v.width, data: vec![] });
        true
    }

    /// What was recorded of a value since [`HostExecutor::tap`], if it was tapped.
    pub fn tapped(&self, name: &str) -> Option<&Tap> {
        self.taps.get(&self.graph.find(name)?)
    }

    /// Runs one operation by itself, for comparing devices: `inputs` are the rows of what [`Op::reads`] names, for `tokens` at positions from
    /// `first` on (their ids matter to an embedding alone), and the results those of what [`Op::writes`] names. A cache write writes the
    /// executor's cache, and attention reads it; nothing else here is changed.
    ///
    /// # Errors
    /// No such operation, inputs of another number or size, positions past the context, or ids outside the vocabulary.
    ///
    /// [`Op::reads`]: crate::graph::Op::reads
    /// [`Op::writes`]: crate::graph::Op::writes
    pub fn run_op(
        &mut self,
        op: usize,
        first: usize,
        tokens: &[u32],
        inputs: &[&[f32]],
    ) -> Result<Vec<Vec<f32>>, ExecError> {
        let (rows, n_vocab) = (tokens.len(), self.n_vocab());
        let Some(op) = self.graph.ops.get(op) else {
            return Err(ExecError::Device(format!("the graph has {} operations, none {op}", self.graph.ops.len())));
        };
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= n_vocab) {
            return Err(ExecError::Token { id, n_vocab });
        }
        let end = first.saturating_add(rows);
        if end > self.options.context {
            return Err(ExecError::Context { tokens: end, context: self.options.context });
        }
        let width = |v: ValueId| self.graph.value(v).slots * self.graph.value(v).width;
        let reads = op.reads();
        if reads.len() != inputs.len() || reads.iter().zip(inputs).any(|(v, x)| x.len() != rows * width(*v)) {
            let want: Vec<usize> = reads.iter().map(|v| rows * width(*v)).collect();
            let got: Vec<usize> = inputs.iter().map(|x| x.len()).collect();
            return Err(ExecError::Device(format!("{op:?} reads values of {want:?} elements, not of {got:?}")));
        }
        let mut outs: Vec<Vec<f32>> = op.writes().iter().map(|v| vec![0.0; rows * width(*v)]).collect();
        if rows > 0 {
            let mut results: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
            let input = |v: ValueId| reads.iter().zip(inputs).find(|(r, _)| **r == v).map_or(&[][..], |(_, x)| x);
            let mut context = Context {
                graph: &self.graph,
                weights: &self.weights,
                caches: &mut self.caches,
                ropes: &mut self.ropes,
                pool: &mut self.pool,
                isa: self.isa,
                rounded: (!self.options.precise).then_some(&mut self.rounded),
            };
            context.run(std::slice::from_ref(op), tokens, RowSpan { first, rows }, &input, &mut results);
        }
        Ok(outs)
    }

    /// Room for a piece in every buffer.
    fn reserve(&mut self, span: Span) -> Result<(), ExecError> {
        for (v, &place) in self.plan.place.iter().enumerate().filter(|(_, p)| **p != usize::MAX) {
            let value = &self.graph.values[v];
            let rows = if self.plan.full[v] { span.tokens } else { span.wanted };
            let elems = rows * value.slots * value.width;
            let buffer = &mut self.buffers[place];
            if buffer.len() < elems {
                buffer.try_reserve_exact(elems - buffer.len()).map_err(|_| ExecError::Memory {
                    what: format!("'{}' of {rows} tokens", value.name),
                    bytes: 4 * elems as u64,
                    hint: "give a smaller -b".into(),
                })?;
                buffer.resize(elems, 0.0);
            }
        }
        Ok(())
    }

    /// Runs the graph for one piece; the wanted logits are in their buffer then.
    fn piece(&mut self, tokens: &[u32], span: Span) -> Result<(), ExecError> {
        self.reserve(span)?;
        for s in 0..self.plan.steps.len() {
            self.step(s, tokens, span);
            self.record(s, span);
        }
        Ok(())
    }

    /// Copies what is tapped of a step's results.
    fn record(&mut self, step: usize, span: Span) {
        if self.taps.is_empty() {
            return;
        }
        let step = &self.plan.steps[step];
        for id in self.graph.ops[step.first..step.first + step.count].iter().flat_map(|op| op.writes()) {
            if let Some(tap) = self.taps.get_mut(&id) {
                let rows = if self.plan.full[id.0 as usize] { span.tokens } else { span.wanted };
                tap.data.extend_from_slice(&self.buffers[self.plan.place[id.0 as usize]][..rows * tap.width]);
            }
        }
    }
}

impl Executor for HostExecutor {
    fn len(&self) -> usize {
        self.len
    }

    fn context(&self) -> usize {
        self.options.context
    }

    fn n_vocab(&self) -> usize {
        self.graph.n_vocab()
    }

    fn piece(&self) -> usize {
        self.options.batch
    }

    fn feed(&mut self, tokens: &[u32], want: Want) -> Result<Vec<f32>, ExecError> {
        let n_vocab = self.n_vocab();
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= n_vocab) {
            return Err(ExecError::Token { id, n_vocab });
        }
        let end = self.len.saturating_add(tokens.len());
        if end > self.options.context {
            return Err(ExecError::Context { tokens: end, context: self.options.context });
        }
        let rows = match want {
            Want::Nothing => 0,
            Want::Last => 1.min(tokens.len()),
            Want::All => tokens.len(),
        };
        let mut logits = vec![];
        logits.try_reserve_exact(rows * n_vocab).map_err(|_| ExecError::Memory {
            what: format!("the logits of {rows} tokens"),
            bytes: 4 * (rows as u64).saturating_mul(n_vocab as u64),
            hint: "feed fewer tokens at once".into(),
        })?;
        let mut first = self.len;
        for piece in tokens.chunks(self.options.batch.max(1)) {
            let wanted = match want {
                Want::All => piece.len(),
                Want::Last if first + piece.len() == end => 1,
                _ => 0,
            };
            let span = Span { first, tokens: piece.len(), wanted };
            self.piece(piece, span)?;
            let buffer = &self.buffers[self.plan.place[self.graph.logits.0 as usize]];
            logits.extend_from_slice(&buffer[..wanted * n_vocab]);
            first += piece.len();
        }
        self.len = end;
        Ok(logits)
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
