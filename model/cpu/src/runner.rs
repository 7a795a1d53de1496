//! Runs the sequences of a session on the CPU.
//!
//! A step is processed in passes of up to a chunk of tokens, of one or several sequences. The rows
//! of all sequences are concatenated and share every matrix product, so each matrix is read once.
//! Rotation, states and attention work per sequence.

mod pass;
mod step;
mod traits;

pub use traits::open_ops;

use super::op::run_together;
use super::plan::Plan;
use super::pool::Pool;
use super::quantise::Quantised;
use super::rope::RopeTable;
use super::run::{Run, StepTokens};
use super::simd::Isa;
use super::squares::{InputSquares, Observed};
use super::state::State;
use super::weights::Weights;
use kjit_exec::{ImageRows, ImageTable, KvType, OpenOptions, Runner, SessionError, embeds};
use kjit_gguf::Gguf;
use kjit_graph::{Graph, Rope, ValueId};
use pass::StepPass;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The CPU's runner.
pub struct HostRunner {
    graph: Graph,
    plan: Plan,
    context: usize,
    chunk: usize,
    kv: KvType,
    precise: bool,
    reproducible: bool,
    isa: Isa,
    pool: Pool,
    weights: Weights,
    /// The states by slot.
    states: Vec<Option<State>>,
    /// Unused states: one at the start, or one of a removed sequence.
    spare: Vec<State>,
    ropes: Vec<RopeTable>,
    /// The rounded input of a product.
    rounded: Quantised,
    /// The buffers of the plan. They grow to the largest number of rows so far.
    buffers: Vec<Vec<f32>>,
    taps: HashMap<ValueId, ValueTap>,
    /// Sums of squares of the inputs of products, if they were requested.
    observed: Option<Observed>,
    /// The previous stage, on another device, and the rows that it computed for the current pass.
    before: Option<Box<dyn Runner>>,
    given: Vec<f32>,
    /// The rows of images, and the images of the current pass.
    images: Option<Arc<ImageTable>>,
    shown: Vec<Arc<ImageRows>>,
    /// Whether the rows of an image attend to each other. A pass then has whole images.
    bidirectional: bool,
}

/// Recorded rows of a tapped value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ValueTap {
    /// Elements of a row: slots times width.
    pub width: usize,
    /// Rows in the order of the tokens.
    pub data: Vec<f32>,
}

impl HostRunner {
    /// Prepares a model; nothing is computed yet.
    pub fn new(
        file: Arc<Gguf>,
        graph: Graph,
        options: &OpenOptions,
        isa: Isa,
    ) -> Result<HostRunner, SessionError> {
        let mut weights = Weights::new(file, &graph)?;
        let mut pool = Pool::new(options.threads);
        // Positions after a learned table's last row do not exist.
        let context = options.context_of(&graph);
        let context = graph.positions.map_or(context, |n| n.min(context));
        let kv = options.kv_stored();
        // The first state is allocated here, so that lack of memory is reported when the model is
        // opened.
        let spare = vec![State::new(&graph, kv, context)?];
        // Interleaved copies come last, since a model can run without them.
        if !options.precise && isa.has_words() {
            // The copies add up in a different order. So `reproducible` must not depend on whether
            // they fit in memory.
            if !weights.lay_out(&graph, &mut pool) && options.reproducible {
                return Err(SessionError::Memory {
                    what: "the copies of the matrices that reproducible scores need".to_owned(),
                    bytes: graph.weights.iter().map(|w| w.bytes() as u64).sum(),
                    hint: "close other programs, or set KJIT_LAID_OUT=off at every start".into(),
                });
            }
        }
        let factors = |r: &Rope| r.factors_for(context).map(|f| weights.vector(f));
        let ropes = graph.ropes.iter().map(|r| RopeTable::new(r, factors(r))).collect();
        let plan = Plan::new(&graph, false);
        Ok(HostRunner {
            buffers: vec![vec![]; plan.buffers.len()],
            pool,
            plan,
            context,
            chunk: options.chunk_on_cpu(),
            kv,
            precise: options.precise,
            reproducible: options.reproducible,
            isa,
            weights,
            states: vec![],
            spare,
            ropes,
            rounded: Quantised::default(),
            taps: HashMap::new(),
            observed: None,
            before: None,
            given: vec![],
            images: None,
            bidirectional: false,
            shown: vec![],
            graph,
        })
    }

    /// Sets the previous stages. This runner reads their rows.
    #[must_use]
    pub fn behind(mut self, before: Option<Box<dyn Runner>>) -> HostRunner {
        self.before = before;
        self
    }

    /// The graph that is run.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Context length of each sequence, in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes mapped for the states of all sequences. The system allocates them at first use.
    pub fn kv_bytes(&self) -> usize {
        self.states.iter().flatten().chain(&self.spare).map(State::bytes).sum()
    }

    /// Bytes of interleaved copies of matrices.
    pub fn laid_out_bytes(&self) -> usize {
        self.weights.laid_out()
    }

    /// Sets the storage type of keys and values for sequences that are added from now on, also if
    /// products are precise. It is used to compare devices, which store f16: some models amplify
    /// this rounding a thousand times, which would hide errors of the device.
    pub fn store_kv(&mut self, kv: KvType) {
        self.kv = kv;
        self.spare.clear();
    }

    /// Starts recording the rows of a value; `false` if the graph has no value of this name. Values
    /// after the last state write have only rows with requested logits: feed with
    /// [`Want::All`](kjit_exec::Want::All) to record all.
    pub fn tap(&mut self, name: &str) -> bool {
        let Some(id) = self.graph.find(name) else { return false };
        let v = self.graph.value(id);
        self.taps.insert(id, ValueTap { width: v.slots * v.width, data: vec![] });
        true
    }

    /// The rows recorded since [`HostRunner::tap`], if the value is tapped.
    pub fn tapped(&self, name: &str) -> Option<&ValueTap> {
        self.taps.get(&self.graph.find(name)?)
    }

    /// Starts to sum the squares of the inputs of all products. Products after the last state write
    /// have only rows with requested logits: feed with
    /// [`Want::All`](kjit_exec::Want::All) to have all.
    pub fn observe_inputs(&mut self) {
        self.observed = Some(Observed::default());
    }

    /// The sums since [`HostRunner::observe_inputs`], by the names of the tensors that inputs were
    /// multiplied by. They are empty without that call.
    pub fn input_squares(&self) -> impl Iterator<Item = (&str, &InputSquares)> {
        static NONE: BTreeMap<String, InputSquares> = BTreeMap::new();
        let sums = self.observed.as_ref().map_or(&NONE, |observed| &observed.0);
        sums.iter().map(|(name, squares)| (name.as_str(), squares))
    }

    /// Allocates the state of a slot's sequence.
    fn add(&mut self, slot: usize) -> Result<(), SessionError> {
        let state = match self.spare.pop() {
            Some(mut state) => {
                state.set_factors(&self.graph.adapter_factors());
                state
            }
            None => State::new(&self.graph, self.kv, self.context)?,
        };
        if let Some(before) = &mut self.before {
            before.add(slot)?;
        }
        if self.states.len() <= slot {
            self.states.resize_with(slot + 1, || None);
        }
        self.states[slot] = Some(state);
        Ok(())
    }

    /// Replaces the elements of a tensor of stacked adapters.
    fn write_tensor(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), SessionError> {
        if let Some(before) = &mut self.before {
            before.write_tensor(tensor, bytes)?;
        }
        self.weights.replace(&self.graph, tensor, bytes)
    }

    /// Sets the factor of each adapter of a sequence.
    fn adapt(&mut self, slot: usize, factors: &[f32]) -> Result<(), SessionError> {
        if let Some(before) = &mut self.before {
            before.adapt(slot, factors)?;
        }
        if let Some(Some(state)) = self.states.get_mut(slot) {
            state.set_factors(factors);
        }
        Ok(())
    }

    /// Removes a slot's sequence.
    fn remove(&mut self, slot: usize) {
        if let Some(before) = &mut self.before {
            before.remove(slot);
        }
        if let Some(mut state) = self.states.get_mut(slot).and_then(Option::take) {
            state.truncate(0);
            // One state stays allocated for reuse. The memory of the others is freed.
            if self.spare.is_empty() {
                self.spare.push(state);
            }
        }
    }

    /// Copies the first `len` tokens of another slot to this one. Returns the number of tokens that
    /// it has then.
    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError> {
        if let Some(before) = &mut self.before {
            // The previous stage copies as many tokens as it can. Missing rows are computed again
            // on request.
            before.copy(from, to, len)?;
        }
        let Some(mut state) = self.states.get_mut(to).and_then(Option::take) else { return Ok(0) };
        if let Some(Some(source)) = self.states.get(from) {
            state.copy(source, len);
        }
        self.states[to] = Some(state);
        Ok(self.truncate(to, len))
    }

    /// Creates a checkpoint of a slot's states, which lasts as long as the sequence. Returns
    /// `false` if the sequence has no states to save.
    fn checkpoint(&mut self, slot: usize) -> bool {
        self.states.get_mut(slot).and_then(Option::as_mut).is_some_and(State::keep)
    }

    /// Removes a slot's tokens from position `len` on. Returns the number of remaining tokens.
    fn truncate(&mut self, slot: usize, len: usize) -> usize {
        let Some(Some(state)) = self.states.get_mut(slot) else { return 0 };
        state.truncate(len);
        // A recurrent state was reset to its last checkpoint. The tokens after the checkpoint are
        // run again.
        loop {
            let Some(Some(state)) = self.states.get(slot) else { return 0 };
            let (first, again) = (state.position(), state.replay());
            let again: Vec<u32> = again.to_vec();
            let n = self.piece(&again, again.len().min(self.chunk));
            let now = again.get(..n).unwrap_or_default();
            if now.is_empty() {
                return state.len();
            }
            let mut pass = StepPass::default();
            pass.add(slot, first, now, 0);
            if self.pass(&pass).is_err() {
                break;
            }
        }
        // The memory does not suffice to run them again. The sequence becomes empty, which is also
        // valid.
        let Some(Some(state)) = self.states.get_mut(slot) else { return 0 };
        state.truncate(0);
        0
    }

    /// Computes the vector of a text with an encoder.
    ///
    /// # Errors
    /// The model is a decoder, ids are outside the vocabulary, or there are too many tokens or
    /// none.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        let (pooling, n) = (embeds(&self.graph, tokens, self.context)?, tokens.len());
        // The temporary slot comes after all others.
        let slot = self.states.len();
        self.add(slot)?;
        let mut pass = StepPass::default();
        pass.add(slot, 0, tokens, n);
        let done = self.pass(&pass);
        self.remove(slot);
        self.states.truncate(slot);
        done?;
        let result = self.graph.logits;
        let width = self.graph.value(result).width;
        Ok(pooling.of(&self.buffers[self.plan.place[result.0 as usize]][..n * width], width))
    }

    /// Threads wait longer before they sleep, because another device works between the operations.
    fn spin_longer(&self) {
        self.pool.spin_longer();
    }

    /// Runs a single operation, to compare devices. `inputs` are the rows of the values in
    /// [`Op::reads`], for `tokens` at positions from `first` on in a slot's sequence. The token ids
    /// matter only for embeddings. Returns the rows of the values in [`Op::writes`]. Operations on
    /// states use the states of the sequence. Nothing else changes.
    ///
    /// # Errors
    /// The operation or sequence is unknown, the inputs have a wrong number or size, positions
    /// exceed the context, or ids are outside the vocabulary.
    ///
    /// [`Op::reads`]: kjit_graph::Op::reads
    /// [`Op::writes`]: kjit_graph::Op::writes
    pub fn run_op(
        &mut self,
        slot: usize,
        op: usize,
        first: usize,
        tokens: &[u32],
        inputs: &[&[f32]],
    ) -> Result<Vec<Vec<f32>>, SessionError> {
        let (rows, n_vocab) = (tokens.len(), self.graph.n_vocab());
        let Some(op) = self.graph.ops.get(op) else {
            let ops = self.graph.ops.len();
            return Err(SessionError::Device(format!(
                "operation {op} does not exist: the graph has {ops} operations"
            )));
        };
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= n_vocab) {
            return Err(SessionError::Token { id, n_vocab });
        }
        let end = first.saturating_add(rows);
        if end > self.context {
            return Err(SessionError::Context { tokens: end, context: self.context });
        }
        let width = |v: ValueId| self.graph.value(v).slots * self.graph.value(v).width;
        let reads = op.reads();
        if reads.len() != inputs.len()
            || reads.iter().zip(inputs).any(|(v, x)| x.len() != rows * width(*v))
        {
            let want: Vec<usize> = reads.iter().map(|v| rows * width(*v)).collect();
            let got: Vec<usize> = inputs.iter().map(|x| x.len()).collect();
            return Err(SessionError::Device(format!(
                "{op:?} expects inputs of {want:?} elements, got {got:?}"
            )));
        }
        let state =
            self.states.get_mut(slot).and_then(Option::as_mut).ok_or(SessionError::NoSequence)?;
        let mut outs: Vec<Vec<f32>> =
            op.writes().iter().map(|v| vec![0.0; rows * width(*v)]).collect();
        if rows > 0 {
            let mut results: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
            let input = |v: ValueId| {
                reads.iter().zip(inputs).find(|(r, _)| **r == v).map_or(&[][..], |(_, x)| x)
            };
            let mut run = Run {
                graph: &self.graph,
                weights: &self.weights,
                ropes: &mut self.ropes,
                pool: &mut self.pool,
                isa: self.isa,
                rounded: (!self.precise).then_some(&mut self.rounded),
                reproducible: self.reproducible,
                given: &[],
                images: &[],
                bidirectional: false,
                tokens,
                rows,
                pieces: vec![StepTokens { state, first, rows }],
                inputs: &input,
            };
            run_together(std::slice::from_ref(op), &mut run, &mut results);
        }
        Ok(outs)
    }
}
