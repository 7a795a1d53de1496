//! Steps as launches for one token, or a few: every matrix is read once, its rows against the few columns of activations.

use super::lower::{Lower, finish_of, unsupported};
use super::{Bind, Chosen, Control, Dim, ONE, PlanError, TOKENS};
use crate::gpu::fuse::{Attend, Finish, Input, Segment, Step};
use crate::graph::{Activation, CacheId, Pairing, ValueId};
use kjit_kernels::activations::{Column, Prologue};
use kjit_kernels::attend::{AttendSpec, HeadsForm, RopeForm};
use kjit_kernels::experts::{ExpertFinish, ExpertsSpec};
use kjit_kernels::matvec::MatvecSpec;
use kjit_kernels::prepare::PrepareSpec;
use kjit_kernels::sample::{Choice, SampleSpec};
use kjit_kernels::segments::MOST;

impl Lower<'_> {
    pub(super) fn decode_step(&mut self, step: &Step) -> Result<(), PlanError> {
        match step {
            Step::Embed { table, scale, out } => self.embed(*table, *scale, *out),
            Step::Project { input, segments, finish } => self.project(input, segments, finish),
            Step::Experts { input, experts, segments, finish } => self.experts(input, *experts, segments, finish),
            Step::Attend(a) => self.attend(a),
            Step::Norm { x, weight, eps, residual, out } => self.norm(*x, *weight, None, *eps, *residual, *out),
            Step::ExpertSum { x, shares, residual, out } => {
                let (from, top) = (self.value(*x)?, self.graph.value(*x).slots);
                self.expert_sum(from, top, *shares, *residual, *out)
            }
            Step::Single(op) => self.single(op),
        }
    }

    /// A projection. Segments that cannot share a launch (the form of their activations differs, or there are too many) get their own.
    pub(super) fn project(&mut self, input: &Input, segments: &[Segment], finish: &Finish) -> Result<(), PlanError> {
        if *finish != Finish::Store {
            return self.matvec(input, segments, finish);
        }
        let mut rest = segments;
        while let Some(first) = rest.first() {
            let cols = self.graph.weight(first.weight).cols;
            let fits = |n: usize| {
                let formats: Vec<_> = rest.iter().take(n).map(|s| self.graph.weight(s.weight).format).collect();
                Column::shared(&formats, cols).is_ok()
            };
            let n = (1..=rest.len().min(MOST)).rev().find(|&n| fits(n)).unwrap_or(1);
            let (now, later) = rest.split_at(n);
            self.matvec(input, now, finish)?;
            rest = later;
        }
        Ok(())
    }

    fn matvec(&mut self, input: &Input, segments: &[Segment], finish: &Finish) -> Result<(), PlanError> {
        let name = self.name_of(segments, finish);
        let (mut aux, mut eps, prologue) = self.prologue(input);
        let (cols, weights) = self.weights(segments);
        let mut spec = MatvecSpec {
            cols,
            columns: self.program.tokens() as usize,
            prologue,
            prepared: false,
            segments: weights,
            finish: finish_of(&name, finish)?,
            tuning: None,
        };
        let mut x = self.value(input.value())?;
        if !spec.fits(&self.target) {
            let column = self.spec(&name, spec.column())?;
            (x, aux, eps) = self.prepare(&name, column, prologue, spec.columns, [x, aux], eps)?;
            (spec.prologue, spec.prepared) = (Prologue::None, true);
        }
        let spec = self.tuned(spec);
        let mut args = vec![x, aux, self.residual(finish)?];
        let y = self.results(input, segments, finish);
        args.extend(self.weight_args(segments, &y));
        let job = self.job(&name, spec.clone())?;
        let tuning = self.spec(&name, spec.tuning(&self.target))?;
        let most = self.spec(&name, spec.blocks(&self.target, u32::MAX))?;
        let blocks = Dim::Fill { per_unit: tuning.blocks_per_unit, most };
        args.extend([Bind::F32(eps), Bind::Dim(blocks)]);
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }

    /// The same through chosen experts' matrices.
    pub(super) fn experts(
        &mut self,
        input: &Input,
        experts: ValueId,
        segments: &[Segment],
        finish: &Finish,
    ) -> Result<(), PlanError> {
        if *finish == Finish::Store && segments.len() > 1 {
            return segments.iter().try_for_each(|s| self.experts(input, experts, std::slice::from_ref(s), finish));
        }
        let Some(first) = segments.first() else { return Ok(()) };
        let (w, out) = (self.graph.weight(first.weight), finish.out().unwrap_or(first.out));
        let name = self.graph.value(out).name.clone();
        let (mut aux, mut eps, prologue) = self.prologue(input);
        let mut spec = ExpertsSpec {
            format: w.format,
            rows: w.rows,
            cols: w.cols,
            tokens: self.program.tokens() as usize,
            top: self.graph.value(experts).width,
            per_slot: self.graph.value(input.value()).slots > 1,
            prologue,
            prepared: false,
            finish: match *finish {
                Finish::Store => ExpertFinish::Store,
                Finish::Glu { act: Activation::Silu, .. } => ExpertFinish::Silu,
                Finish::Glu { act: Activation::GeluTanh, .. } => ExpertFinish::Gelu,
                Finish::Sum { residual, .. } => ExpertFinish::Sum { residual: residual.is_some() },
                Finish::Add { .. } => return Err(unsupported(&name, "a residual on each expert's rows")),
            },
            tuning: None,
        };
        let mut x = self.value(input.value())?;
        if spec.kernel(&self.target).is_err() {
            let column = self.spec(&name, spec.column())?;
            (x, aux, eps) = self.prepare(&name, column, prologue, spec.columns(), [x, aux], eps)?;
            (spec.prologue, spec.prepared) = (Prologue::None, true);
        }
        let spec = self.tuned(spec);
        let (shares, added) = match *finish {
            Finish::Sum { shares, residual, .. } => {
                (self.value(shares)?, residual.map_or(Ok(Bind::Null), |r| self.value(r))?)
            }
            _ => (Bind::Null, Bind::Null),
        };
        let chosen = self.value(experts)?;
        let w0 = self.matrix(first.weight);
        let w1 = segments.get(1).map_or(Bind::Null, |s| self.matrix(s.weight));
        let y = match *finish {
            Finish::Sum { residual: Some(r), .. } => self.program.make_over(out, r, &[input.value()]),
            _ => self.program.make(out),
        };
        let job = self.job(&name, spec.clone())?;
        let tuning = self.spec(&name, spec.tuning(&self.target))?;
        let most = self.spec(&name, spec.blocks(&self.target, u32::MAX))?;
        let blocks = Dim::Fill { per_unit: tuning.blocks_per_unit, most };
        let args = vec![x, aux, chosen, shares, added, w0, w1, y, Bind::F32(eps), Bind::Dim(blocks)];
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }

    /// The weight of a norm on the way to a projection, its epsilon, and what the kernel does first.
    fn prologue(&mut self, input: &Input) -> (Bind, f32, Prologue) {
        match *input {
            Input::Plain(_) => (Bind::Null, 0.0, Prologue::None),
            Input::Norm { weight, eps, .. } => (self.vector(weight), eps, Prologue::Norm),
        }
    }

    /// Columns of activations made ready in memory of the device, once for all blocks, where they are too long for a block's own. Gives the
    /// arguments that take the place of `x`, `aux` and `eps`.
    fn prepare(
        &mut self,
        name: &str,
        column: Column,
        prologue: Prologue,
        columns: usize,
        [x, aux]: [Bind; 2],
        eps: f32,
    ) -> Result<(Bind, Bind, f32), PlanError> {
        let spec = PrepareSpec { column, prologue };
        let job = self.job(name, spec.clone())?;
        let ready = self.program.scratch(format!("{name}.x"), (column.bytes() * columns) as u64);
        let grid = [Dim::Is(columns as u32), ONE, ONE];
        self.run(format!("{name}.prepare"), &job, grid, vec![x, aux, ready, Bind::F32(eps)]);
        Ok((ready, Bind::Null, 0.0))
    }

    /// The two ways to choose a token from the logits, as the last two launches: the likeliest, and at random.
    pub(super) fn choices(&mut self) -> Result<(), PlanError> {
        let (logits, vocab) = (self.value(self.graph.logits)?, self.graph.n_vocab());
        let capacity = Bind::U32(self.context + 1);
        let (tokens, position) = (Bind::Control(Control::Tokens), Bind::Control(Control::Position));
        let largest = SampleSpec { vocab, choice: Choice::Largest };
        let job = self.job("greedy", largest.clone())?;
        let most = largest.blocks(u32::MAX);
        let blocks = Dim::Fill { per_unit: 1, most };
        let rows = u64::from(self.program.tokens());
        let part = self.program.scratch("greedy.part", 8 * u64::from(most) * rows);
        let counters = self.program.counters("greedy.counters", 4 * rows);
        let slots = self.slots();
        let args = vec![logits, part, counters, slots, tokens, position, capacity, Bind::Dim(blocks)];
        self.run("greedy".to_string(), &job, [blocks, TOKENS, ONE], args);
        let job = self.job("draw", SampleSpec { vocab, choice: Choice::Drawn })?;
        let options = [Chosen::TopK, Chosen::Temperature, Chosen::TopP, Chosen::MinP].map(Bind::Chosen);
        let own = if self.batch { Bind::Control(Control::Options) } else { Bind::Null };
        let mut args = vec![logits, Bind::Control(Control::Fractions), own, slots, tokens, position, capacity];
        args.extend(options);
        self.run("draw".to_string(), &job, [TOKENS, ONE, ONE], args);
        Ok(())
    }

    /// Heads made ready, keys and values kept, attention and the sum of its slices: one launch.
    pub(super) fn attend(&mut self, a: &Attend) -> Result<(), PlanError> {
        let name = self.graph.value(a.out).name.clone();
        let (form, norms, eps) = self.heads(a)?;
        let cache = self.graph.cache(a.cache);
        let spec = self.tuned(AttendSpec { form, window: cache.window, soft_cap: a.soft_cap, tuning: None });
        let sequences = self.program.tokens();
        let job = self.job(&name, spec.clone())?;
        let tuning = self.spec(&name, spec.tuning(&self.target))?;
        let shape = self.spec(&name, spec.geometry(&self.target, 1, sequences))?;
        let most = (SPLITS / sequences).max(1);
        let splits = Dim::Spread { per_unit: tuning.blocks_per_unit(), over: shape.grid[1], most };
        let part = self.program.scratch(format!("{name}.part"), spec.part_bytes(most, sequences) as u64);
        let counters = self.program.counters("attend.counters", 4 * spec.counters(sequences) as u64);
        let [q, k, v] = [self.value(a.q)?, self.value(a.k)?, self.value(a.v)?];
        let out = self.program.make(a.out);
        let args = vec![
            q,
            k,
            v,
            norms[0],
            norms[1],
            Bind::Rope(a.rope),
            self.slots(),
            Bind::Control(Control::Position),
            Bind::Keys(a.cache),
            Bind::Values(a.cache),
            part,
            counters,
            out,
            Bind::F32(a.scale),
            Bind::F32(eps),
            Bind::U32(self.context),
            Bind::Dim(splits),
            Bind::U64(if self.batch { self.slot_bytes(&name, a.cache)? } else { 0 }),
        ];
        self.run(name, &job, [splits, Dim::Is(shape.grid[1]), TOKENS], args);
        Ok(())
    }

    /// The slot of each row; of one sequence, null.
    pub(super) fn slots(&self) -> Bind {
        if self.batch { Bind::Control(Control::Slots) } else { Bind::Null }
    }

    /// Bytes from one slot's keys, or values, to the next one's.
    fn slot_bytes(&self, name: &str, cache: CacheId) -> Result<u64, PlanError> {
        let bytes = self.kv(cache).bytes(self.context as usize);
        bytes.map(|b| b as u64).ok_or_else(|| unsupported(name, "its cache cannot be addressed"))
    }

    /// The form of a layer's heads, the weights of their norms, and the norms' epsilon.
    pub(super) fn heads(&mut self, a: &Attend) -> Result<(HeadsForm, [Bind; 2], f32), PlanError> {
        let name = &self.graph.value(a.out).name;
        let rope = self.graph.rope(a.rope);
        let (norms, eps) = match (a.q_norm, a.k_norm) {
            (None, None) => ([Bind::Null; 2], 0.0),
            (Some(q), Some(k)) if q.eps == k.eps => ([self.vector(q.weight), self.vector(k.weight)], q.eps),
            _ => return Err(unsupported(name, "queries and keys are normed differently")),
        };
        let form = HeadsForm {
            heads: a.heads,
            kv: self.kv(a.cache),
            qk_norm: a.q_norm.is_some(),
            rope: RopeForm { dims: rope.dims, halves: rope.pairing == Pairing::Halves },
        };
        Ok((form, norms, eps))
    }
}

/// Slices of the context at most, over all sequences: with fewer, working memory is small whatever the device.
const SPLITS: u32 = 256;
