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
use kjit_exec::{
    FIRST_IMAGE_ID, HiddenStates, HiddenStatesSink, HostOps, ImageRows, ImageTable, KvType,
    MaskCallback, OpenOptions, PageCount, Runner, SessionError, StepOutput, Task,
    TokenSpan as Tokens, Want, choose, embeds, follow, uncut_images,
};
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
    /// after the last state write have only rows with requested logits: feed with [`Want::All`] to
    /// record all.
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
    /// have only rows with requested logits: feed with [`Want::All`] to have all.
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

    /// Runs all tasks. After an error the caller rolls the sequences back.
    fn step(&mut self, tasks: &mut [Task<'_>]) -> Result<Vec<StepOutput>, SessionError> {
        if self.graph.pooling.is_some() {
            return Err(SessionError::Encoder { arch: self.graph.arch.clone() });
        }
        for t in tasks.iter() {
            self.mark(t.slot, t.first, t.tokens.len());
        }
        let n_vocab = self.graph.n_vocab();
        let mut logits = vec![];
        for t in tasks.iter() {
            let rows = match t.want {
                Want::Nothing => 0,
                Want::Last | Want::Choose => 1,
                Want::All => t.tokens.len(),
                Want::Drafted(n) => n + 1,
            };
            let mut room = vec![];
            room.try_reserve_exact(rows * n_vocab).map_err(|_| SessionError::Memory {
                what: format!("the logits of {rows} tokens"),
                bytes: 4 * (rows as u64).saturating_mul(n_vocab as u64),
                hint: "feed fewer tokens at once".into(),
            })?;
            logits.push((rows, room));
        }
        let mut fed = vec![0; tasks.len()];
        loop {
            let (mut pass, mut of) = (StepPass::default(), vec![]);
            for (i, t) in tasks.iter().enumerate() {
                let rest = &t.tokens[fed[i]..];
                let now = rest.len().min(self.chunk.saturating_sub(pass.tokens.len()));
                let now = self.piece(rest, now);
                if now > 0 {
                    // The requested rows are the last ones of the task's tokens.
                    let (rows, later) = (logits[i].0, rest.len() - now);
                    pass.add(
                        t.slot,
                        t.first + fed[i],
                        &rest[..now],
                        rows.saturating_sub(later).min(now),
                    );
                    fed[i] += now;
                    of.push(i);
                }
            }
            if pass.parts.is_empty() {
                break;
            }
            self.pass(&pass)?;
            let mut rows =
                self.buffers[self.plan.place[self.graph.logits.0 as usize]].chunks_exact(n_vocab);
            for (part, i) in pass.parts.iter().zip(of) {
                rows.by_ref().take(part.wanted).for_each(|row| logits[i].1.extend_from_slice(row));
            }
        }
        let mut logits: Vec<Vec<f32>> = logits.into_iter().map(|(_, rows)| rows).collect();
        let choosing = tasks.iter_mut().zip(&mut logits).filter(|(t, _)| t.want == Want::Choose);
        let mut tokens = choose(choosing.map(|(t, row)| (t, std::mem::take(row))))?.into_iter();
        let given = tasks.iter_mut().zip(logits).map(|(t, rows)| match t.want {
            Want::Nothing => Ok(StepOutput::Nothing),
            Want::Last | Want::All => Ok(StepOutput::Logits(rows)),
            Want::Choose => Ok(tokens.next().map_or(StepOutput::Nothing, StepOutput::Token)),
            Want::Drafted(n) => {
                let drafts = t.tokens.get(t.tokens.len() - n..).unwrap_or_default();
                follow(t, &rows, n_vocab, drafts).map(StepOutput::Tokens)
            }
        });
        given.collect()
    }

    /// Runs tokens and sends their rows to the next stage.
    fn rows(
        &mut self,
        pieces: &[Tokens<'_>],
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError> {
        for p in pieces {
            // The sequence may have been truncated since the last call, or a step failed in a later
            // stage.
            if self.truncate(p.slot, p.first) != p.first {
                return Err(SessionError::Device(format!(
                    "the previous stage has fewer than {} tokens of the sequence",
                    p.first
                )));
            }
            self.mark(p.slot, p.first, p.tokens.len());
        }
        let mut done = 0;
        let mut pieces = pieces.iter().copied().filter(|p| !p.tokens.is_empty()).peekable();
        while pieces.peek().is_some() {
            let mut pass = StepPass::default();
            while let Some(p) = pieces.peek_mut() {
                let now = p.tokens.len().min(self.chunk.saturating_sub(pass.tokens.len()));
                let now = self.piece(p.tokens, now);
                if now == 0 {
                    break;
                }
                pass.add(p.slot, p.first, &p.tokens[..now], 0);
                (p.first, p.tokens) = (p.first + now, &p.tokens[now..]);
                if p.tokens.is_empty() {
                    pieces.next();
                }
            }
            self.pass(&pass)?;
            let (result, rows) = (self.graph.logits, pass.tokens.len());
            let width = self.graph.value(result).width;
            sink(
                done,
                HiddenStates::Host(
                    &self.buffers[self.plan.place[result.0 as usize]][..rows * width],
                ),
            )?;
            done += rows;
        }
        Ok(())
    }

    /// Makes a checkpoint of recurrent states before several tokens run in one pass, and every 256
    /// tokens.
    fn mark(&mut self, slot: usize, first: usize, tokens: usize) {
        if (tokens > 1 || first.is_multiple_of(256))
            && let Some(Some(state)) = self.states.get_mut(slot)
        {
            state.mark();
        }
    }

    /// Requests the rows of a pass from the previous stage.
    fn fetch_previous_rows(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        let Some(before) = &mut self.before else { return Ok(()) };
        let width = before.graph().value(before.graph().logits).width;
        let (given, elems) = (&mut self.given, pass.tokens.len() * width);
        if given.len() < elems {
            given.try_reserve_exact(elems - given.len()).map_err(|_| SessionError::Memory {
                what: format!("the rows of {} tokens", pass.tokens.len()),
                bytes: 4 * elems as u64,
                hint: memory_hint(pass, width),
            })?;
        }
        given.resize(elems, 0.0);
        let piece = |p: &PassSpan| Tokens {
            slot: p.slot,
            first: p.first,
            tokens: &pass.tokens[p.start..p.start + p.tokens],
        };
        let pieces: Vec<Tokens<'_>> = pass.parts.iter().map(piece).collect();
        before.rows(&pieces, &mut |first, made| match made {
            HiddenStates::Host(rows) => {
                given[first * width..][..rows.len()].copy_from_slice(rows);
                Ok(())
            }
            HiddenStates::Device(stream, rows) => {
                given[first * width..][..rows.len()].copy_from_slice(&stream.read(&rows)?);
                Ok(())
            }
        })
    }

    /// Finds the images that have rows in a pass.
    fn show(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        self.shown.clear();
        let (Some(table), true) = (&self.images, self.before.is_none()) else { return Ok(()) };
        for &id in pass.tokens.iter().filter(|id| **id >= FIRST_IMAGE_ID) {
            if self.shown.last().is_none_or(|image| image.row(id).is_none()) {
                let n_vocab = self.graph.n_vocab();
                self.shown.push(table.find(id).ok_or(SessionError::Token { id, n_vocab })?);
            }
        }
        Ok(())
    }

    /// The number of tokens for a pass that has room for `n` of these: more, if an image would be
    /// cut.
    fn piece(&self, tokens: &[u32], n: usize) -> usize {
        if self.bidirectional { uncut_images(tokens, n) } else { n }
    }

    /// See [`Runner::set_images`].
    fn set_images(&mut self, table: &Arc<ImageTable>) -> Result<(), SessionError> {
        if let Some(before) = &mut self.before {
            before.set_images(table)?;
            self.bidirectional = table.is_bidirectional();
            return Ok(());
        }
        table.check(&self.graph)?;
        self.images = Some(Arc::clone(table));
        self.bidirectional = table.is_bidirectional();
        Ok(())
    }

    /// Runs the graph for one pass. The requested logits are then in their buffer.
    fn pass(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        self.reserve(pass)?;
        self.show(pass)?;
        self.fetch_previous_rows(pass)?;
        for s in 0..self.plan.steps.len() {
            self.run_step(s, pass);
            self.record(s, pass);
        }
        for p in &pass.parts {
            if let Some(Some(state)) = self.states.get_mut(p.slot) {
                state.advance(&pass.tokens[p.start..p.start + p.tokens]);
            }
        }
        Ok(())
    }

    /// Grows every buffer to the size of a pass.
    fn reserve(&mut self, pass: &StepPass) -> Result<(), SessionError> {
        for (v, &place) in self.plan.place.iter().enumerate().filter(|(_, p)| **p != usize::MAX) {
            let value = &self.graph.values[v];
            let rows = pass.rows(self.plan.full[v]);
            let elems = rows * value.slots * value.width;
            let buffer = &mut self.buffers[place];
            if buffer.len() < elems {
                buffer.try_reserve_exact(elems - buffer.len()).map_err(|_| {
                    SessionError::Memory {
                        what: format!("'{}' of {rows} tokens", value.name),
                        bytes: 4 * elems as u64,
                        hint: memory_hint(pass, value.slots * value.width),
                    }
                })?;
                buffer.resize(elems, 0.0);
            }
        }
        Ok(())
    }

    /// Runs one step. During the step, the buffers of its results are taken out of the list: an
    /// operation does not write a value that it reads.
    fn run_step(&mut self, step: usize, pass: &StepPass) {
        let step = &self.plan.steps[step];
        let rows = pass.rows(step.full);
        if rows == 0 {
            return;
        }
        let ops = &self.graph.ops[step.first..step.first + step.count];
        let written: Vec<ValueId> = ops.iter().flat_map(Op::writes).collect();
        let mut outs: Vec<Vec<f32>> = written
            .iter()
            .map(|v| std::mem::take(&mut self.buffers[self.plan.place[v.0 as usize]]))
            .collect();
        let (graph, plan, buffers) = (&self.graph, &self.plan, &self.buffers);
        let width = |v: ValueId| graph.value(v).slots * graph.value(v).width;
        let held = |v: ValueId| {
            &buffers[plan.place[v.0 as usize]][..pass.rows(plan.full[v.0 as usize]) * width(v)]
        };
        // A step for the requested rows may read a value with all rows. If the requested rows are
        // not contiguous, they are gathered first.
        let (parted, begin) = (!step.full, pass.contiguous_start());
        let apart = |v: ValueId| parted && plan.full[v.0 as usize];
        let mut gathered: Vec<(ValueId, Vec<f32>)> = vec![];
        if parted && begin.is_none() {
            for v in ops.iter().flat_map(Op::reads).filter(|v| apart(*v)) {
                if gathered.iter().all(|(g, _)| *g != v) {
                    gathered.push((v, pass.requested_rows(held(v), width(v))));
                }
            }
        }
        let input = |v: ValueId| match (apart(v), begin) {
            (false, _) => held(v),
            (true, Some(begin)) => &held(v)[begin * width(v)..][..rows * width(v)],
            (true, None) => gathered.iter().find(|(g, _)| *g == v).map_or(&[][..], |(_, x)| x),
        };
        let tokens =
            if parted { pass.requested_rows(&pass.tokens, 1) } else { pass.tokens.clone() };
        let mut results: Vec<&mut [f32]> =
            written.iter().zip(&mut outs).map(|(v, out)| &mut out[..rows * width(*v)]).collect();
        let mut states: Vec<Option<&mut State>> =
            self.states.iter_mut().map(Option::as_mut).collect();
        let piece = |p: &PassSpan| {
            let rows = if parted { p.wanted } else { p.tokens };
            let state = states.get_mut(p.slot).filter(|_| rows > 0)?.take()?;
            Some(StepTokens { state, first: p.first + p.tokens - rows, rows })
        };
        let mut run = Run {
            graph,
            weights: &self.weights,
            ropes: &mut self.ropes,
            pool: &mut self.pool,
            isa: self.isa,
            rounded: (!self.precise).then_some(&mut self.rounded),
            reproducible: self.reproducible,
            given: &self.given,
            images: &self.shown,
            bidirectional: self.bidirectional,
            tokens: &tokens,
            rows,
            pieces: pass.parts.iter().filter_map(piece).collect(),
            inputs: &input,
        };
        if let Some(observed) = &mut self.observed {
            observed.add(graph, ops, &input);
        }
        run_together(ops, &mut run, &mut results);
        for (v, out) in written.iter().zip(outs) {
            self.buffers[self.plan.place[v.0 as usize]] = out;
        }
    }

    /// Copies the rows of tapped values.
    fn record(&mut self, step: usize, pass: &StepPass) {
        if self.taps.is_empty() {
            return;
        }
        let step = &self.plan.steps[step];
        for id in
            self.graph.ops[step.first..step.first + step.count].iter().flat_map(|op| op.writes())
        {
            if let Some(tap) = self.taps.get_mut(&id) {
                let rows = pass.rows(self.plan.full[id.0 as usize]);
                tap.data.extend_from_slice(
                    &self.buffers[self.plan.place[id.0 as usize]][..rows * tap.width],
                );
            }
        }
    }
}

impl Runner for HostRunner {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn before(&self) -> Option<&dyn Runner> {
        self.before.as_deref()
    }

    fn add(&mut self, slot: usize) -> Result<(), SessionError> {
        HostRunner::add(self, slot)
    }

    fn adapt(&mut self, slot: usize, factors: &[f32]) -> Result<(), SessionError> {
        HostRunner::adapt(self, slot, factors)
    }

    fn write_tensor(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), SessionError> {
        HostRunner::write_tensor(self, tensor, bytes)
    }

    fn page_format(&self) -> Option<String> {
        let here = |s: &kjit_graph::State| match s.kind {
            StateKind::Kv(_) | StateKind::Latent { .. } => true,
            StateKind::Recurrent { .. } | StateKind::Remote => false,
        };
        let all = self.before.is_none() && self.graph.states.iter().all(here);
        let kinds: Vec<&StateKind> = self.graph.states.iter().map(|s| &s.kind).collect();
        all.then(|| {
            format!(
                "cpu {:?} {} precise={} reproducible={} copies={} {kinds:?}",
                self.kv,
                self.isa.name(),
                self.precise,
                self.reproducible,
                self.weights.laid_out() > 0
            )
        })
    }

    fn read_page(&mut self, slot: usize, at: usize) -> Result<Vec<u8>, SessionError> {
        let (state, page) = (self.states.get_mut(slot), PageCount::POSITIONS);
        let bytes = state.and_then(Option::as_mut).and_then(|state| state.save(at * page, page));
        bytes.ok_or(SessionError::NoTokens)
    }

    fn write_page(
        &mut self,
        slot: usize,
        at: usize,
        tokens: &[u32],
        bytes: &[u8],
    ) -> Result<bool, SessionError> {
        let Some(Some(state)) = self.states.get_mut(slot) else { return Ok(false) };
        Ok(state.position() == at * PageCount::POSITIONS && state.load(tokens, bytes))
    }

    fn remove(&mut self, slot: usize) {
        HostRunner::remove(self, slot);
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError> {
        HostRunner::copy(self, from, to, len)
    }

    fn truncate(&mut self, slot: usize, len: usize, now: usize) -> usize {
        if len < now { HostRunner::truncate(self, slot, len) } else { now }
    }

    fn undo(&mut self, slot: usize, len: usize) -> usize {
        HostRunner::truncate(self, slot, len)
    }

    fn rows(
        &mut self,
        pieces: &[Tokens<'_>],
        sink: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError> {
        HostRunner::rows(self, pieces, sink)
    }

    fn step(
        &mut self,
        tasks: &mut [Task<'_>],
        late: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        if let Some(late) = late {
            late(tasks);
        }
        HostRunner::step(self, tasks)
    }

    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        HostRunner::embed(self, tokens)
    }

    fn set_images(&mut self, table: &Arc<ImageTable>) -> Result<(), SessionError> {
        HostRunner::set_images(self, table)
    }

    fn grows(&self) -> bool {
        self.before.is_none()
    }

    fn checkpoint(&mut self, slot: usize) -> bool {
        HostRunner::checkpoint(self, slot)
    }
}

/// The only sequence of the runner that [`open_ops`] creates. The operations store no state in it.
const SLOT: usize = 0;

/// Prepares the CPU for the operations of a graph that a GPU does not compute.
///
/// # Errors
/// See [`HostRunner::new`].
pub fn open_ops(
    file: Arc<Gguf>,
    graph: Graph,
    options: &OpenOptions,
) -> Result<Box<dyn HostOps>, SessionError> {
    let mut host = HostRunner::new(file, graph, options, Isa::best())?;
    host.add(SLOT)?;
    // A layer of the GPU takes tens of µs, about as long as threads wait before they sleep. Waking
    // them takes longer.
    host.spin_longer();
    Ok(Box::new(host))
}

impl HostOps for HostRunner {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn context(&self) -> usize {
        self.context
    }

    fn run_op(
        &mut self,
        op: usize,
        first: usize,
        tokens: &[u32],
        inputs: &[&[f32]],
    ) -> Result<Vec<Vec<f32>>, SessionError> {
        HostRunner::run_op(self, SLOT, op, first, tokens, inputs)
    }
}
