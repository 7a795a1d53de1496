//! Lowers steps for one token or a few tokens: every matrix is read once and multiplied with a few
//! columns of activations.

use super::fuse::{Attend, Finish, Input, Segment, Step};
use super::lower::{Lower, finish_of};
use super::lower_common::NormForm;
use super::{Bind, Control, Dim, ONE, PICK, PlanError, SamplingArg, TOKENS};
use crate::error::unsupported;
use kjit_graph::{Activation, Pairing, Rope, StateId, ValueId, WeightId};
use kjit_kernels::Family;
use kjit_kernels::activations::{Column, Prologue};
use kjit_kernels::adjust::{AdjustArgs, AdjustSpec};
use kjit_kernels::argmax::{ArgmaxArgs, ArgmaxSpec};
use kjit_kernels::attend::{AttendArgs, AttendSpec};
use kjit_kernels::draw::{self, DrawArgs, DrawSpec};
use kjit_kernels::experts::{ExpertFinish, ExpertsArgs, ExpertsSpec};
use kjit_kernels::heads::{HeadsForm, RopeForm, Scores};
use kjit_kernels::kv::KvLayout;
use kjit_kernels::latent::{LatentArgs, LatentSpec};
use kjit_kernels::matvec::{MatvecArgs, MatvecSpec};
use kjit_kernels::norm::NormKind;
use kjit_kernels::quantize::{QuantizeArgs, QuantizeSpec};
use kjit_kernels::segments::MOST;

impl Lower<'_> {
    pub(super) fn decode_step(&mut self, step: &Step) -> Result<(), PlanError> {
        match step {
            Step::Project { input, segments, finish } => self.project(input, segments, finish),
            Step::Experts { input, experts, segments, finish } => {
                self.experts(input, *experts, segments, finish)
            }
            Step::Attend(a) => self.attend(a),
            Step::Latent { .. } => self.latent(step),
            Step::Conv { conv, silu, out } => self.conv(conv, *silu, *out),
            Step::Decay(decay) => self.decay(decay),
            Step::Norm { x, weight, eps, residual, out } => {
                let group = self.graph.weight(*weight).elems();
                let form =
                    NormForm { kind: NormKind::Rms, group, weight: Some(*weight), bias: None };
                self.norm(*x, &form, *eps, *residual, *out)
            }
            Step::Map { op, residual, out } => self.map(op, *residual, *out),
            Step::ExpertSum { x, shares, residual, out } => {
                let (from, top) = (self.value(*x)?, self.graph.value(*x).slots);
                self.expert_sum(from, top, *shares, *residual, *out)
            }
            Step::Reduce { reduce, residual, out } => self.reduce(reduce, *residual, *out),
            Step::Single(op) => self.single(op),
        }
    }

    /// A projection. Segments that cannot share a launch (different layouts of activations, or too
    /// many segments) get separate launches.
    pub(super) fn project(
        &mut self,
        input: &Input,
        segments: &[Segment],
        finish: &Finish,
    ) -> Result<(), PlanError> {
        if *finish != Finish::Store {
            return self.matvec(input, segments, finish);
        }
        let mut rest = segments;
        while let Some(first) = rest.first() {
            let cols = self.graph.weight(first.weight).cols;
            let fits = |n: usize| {
                let formats: Vec<_> =
                    rest.iter().take(n).map(|s| self.graph.weight(s.weight).format).collect();
                Column::shared(&formats, cols).is_ok()
            };
            let n = (1..=rest.len().min(MOST)).rev().find(|&n| fits(n)).unwrap_or(1);
            let (now, later) = rest.split_at(n);
            self.matvec(input, now, finish)?;
            rest = later;
        }
        Ok(())
    }

    fn matvec(
        &mut self,
        input: &Input,
        segments: &[Segment],
        finish: &Finish,
    ) -> Result<(), PlanError> {
        let name = self.name_of(segments, finish);
        let (mut aux, mut eps, prologue) = self.prologue(input);
        let (cols, weights) = self.weights(segments);
        let mut spec = MatvecSpec {
            cols,
            columns: self.program.tokens() as usize,
            prologue,
            quantized: false,
            segments: weights,
            finish: finish_of(&name, finish)?,
            tuning: None,
        };
        let mut x = self.value(input.value())?;
        if self.reproducible || !spec.covered(&self.target) {
            let column = self.spec(&name, spec.column())?;
            (x, aux, eps) = self.quantize(&name, column, prologue, spec.columns, [x, aux], eps)?;
            (spec.prologue, spec.quantized) = (Prologue::None, true);
        }
        let spec = match self.reproducible {
            true => self.in_teams(&name, spec.clone(), MatvecSpec { columns: 1, ..spec })?,
            false => self.tuned(spec),
        };
        let residual = self.residual(finish)?;
        let y = self.results(input, segments, finish);
        let segments = self.weight_args(segments, &y);
        let job = self.job(&name, spec.clone())?;
        let tuning = self.spec(&name, spec.tuning(&self.target))?;
        let most = self.spec(&name, spec.blocks(&self.target, u32::MAX))?;
        let blocks = Dim::Fill { per_unit: tuning.blocks_per_unit, most };
        let (eps, number) = (Bind::F32(eps), Bind::Dim(blocks));
        let args = MatvecArgs { x, aux, residual, segments, eps, blocks: number };
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }

    /// A projection with the chosen experts' matrices.
    pub(super) fn experts(
        &mut self,
        input: &Input,
        experts: ValueId,
        segments: &[Segment],
        finish: &Finish,
    ) -> Result<(), PlanError> {
        if *finish == Finish::Store && segments.len() > 1 {
            return segments
                .iter()
                .try_for_each(|s| self.experts(input, experts, std::slice::from_ref(s), finish));
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
            quantized: false,
            all: false,
            bias: first.bias.is_some(),
            finish: match *finish {
                Finish::Store => ExpertFinish::Store,
                Finish::Glu { act: Activation::ClampedSilu(_), .. } => ExpertFinish::ClampedSilu,
                Finish::Glu { act: Activation::Silu, .. } => ExpertFinish::Silu,
                Finish::Glu { act: Activation::GeluTanh, .. } => ExpertFinish::Gelu,
                Finish::Glu { act, .. } => {
                    return Err(unsupported(
                        &name,
                        format!("no kernel supports the activation {act:?}"),
                    ));
                }
                Finish::Sum { residual, .. } => ExpertFinish::Sum { residual: residual.is_some() },
                Finish::Add { .. } => {
                    return Err(unsupported(&name, "a residual on each expert's rows"));
                }
            },
            tuning: None,
        };
        let mut x = self.value(input.value())?;
        if self.reproducible || !spec.covered(&self.target) {
            let column = self.spec(&name, spec.column())?;
            (x, aux, eps) =
                self.quantize(&name, column, prologue, spec.columns(), [x, aux], eps)?;
            (spec.prologue, spec.quantized) = (Prologue::None, true);
        }
        let spec = self.experts_spread(&name, spec)?;
        let (shares, residual) = match *finish {
            Finish::Sum { shares, residual, .. } => {
                (self.value(shares)?, residual.map_or(Ok(Bind::Null), |r| self.value(r))?)
            }
            _ => (Bind::Null, Bind::Null),
        };
        let chosen = self.value(experts)?;
        let w0 = self.matrix(first.weight);
        let w1 = segments.get(1).map_or(Bind::Null, |s| self.matrix(s.weight));
        let [b0, b1] = [Some(first), segments.get(1)]
            .map(|s| s.and_then(|s| s.bias).map_or(Bind::Null, |bias| self.vector(bias)));
        let limit = if let Finish::Glu { act: Activation::ClampedSilu(limit), .. } = *finish {
            limit
        } else {
            0.0
        };
        let y = match *finish {
            Finish::Sum { residual: Some(r), .. } => {
                self.program.make_over(out, r, &[input.value()])
            }
            _ => self.program.make(out),
        };
        let job = self.job(&name, spec.clone())?;
        let tuning = self.spec(&name, spec.tuning(&self.target))?;
        let most = self.spec(&name, spec.blocks(&self.target, u32::MAX))?;
        let blocks = Dim::Fill { per_unit: tuning.blocks_per_unit, most };
        let [eps, limit] = [eps, limit].map(Bind::F32);
        let (tokens, number) = (Bind::Dim(TOKENS), Bind::Dim(blocks));
        let args = ExpertsArgs {
            x,
            aux,
            chosen,
            shares,
            residual,
            w0,
            w1,
            b0,
            b1,
            y,
            eps,
            limit,
            tokens,
            blocks: number,
        };
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }

    /// The product of each head with its own matrix, or of one input with all of them.
    pub(super) fn head_product(
        &mut self,
        x: ValueId,
        weight: WeightId,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let (w, name, width) =
            (self.graph.weight(weight), &self.graph.value(out).name, self.graph.value(x).width);
        let mut spec = ExpertsSpec {
            format: w.format,
            rows: w.rows,
            cols: w.cols,
            tokens: self.program.tokens() as usize,
            top: w.experts,
            per_slot: width != w.cols,
            prologue: Prologue::None,
            quantized: false,
            all: true,
            bias: false,
            finish: ExpertFinish::Store,
            tuning: None,
        };
        let (mut x, name) = (self.value(x)?, name.clone());
        if self.reproducible || !spec.covered(&self.target) {
            let column = self.spec(&name, spec.column())?;
            (x, _, _) =
                self.quantize(&name, column, Prologue::None, spec.columns(), [x, Bind::Null], 0.0)?;
            spec.quantized = true;
        }
        let spec = self.experts_spread(&name, spec)?;
        let (w0, y) = (self.matrix(weight), self.program.make(out));
        let job = self.job(&name, spec.clone())?;
        let tuning = self.spec(&name, spec.tuning(&self.target))?;
        let most = self.spec(&name, spec.blocks(&self.target, u32::MAX))?;
        let blocks = Dim::Fill { per_unit: tuning.blocks_per_unit, most };
        let (none, zero) = (Bind::Null, Bind::F32(0.0));
        let args = ExpertsArgs {
            x,
            aux: none,
            chosen: none,
            shares: none,
            residual: none,
            w0,
            w1: none,
            b0: none,
            b1: none,
            y,
            eps: zero,
            limit: zero,
            tokens: Bind::Dim(TOKENS),
            blocks: Bind::Dim(blocks),
        };
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }

    /// The norm's weight and epsilon for a projection, and the kernel's prologue.
    fn prologue(&mut self, input: &Input) -> (Bind, f32, Prologue) {
        match *input {
            Input::Plain(_) => (Bind::Null, 0.0, Prologue::None),
            Input::Norm { weight, eps, .. } => (self.vector(weight), eps, Prologue::Norm),
        }
    }

    /// Quantises columns of activations in device memory, once for all blocks, if they are too long
    /// for a block's shared memory. Returns the arguments that replace `x`, `aux` and `eps`.
    fn quantize(
        &mut self,
        name: &str,
        column: Column,
        prologue: Prologue,
        columns: usize,
        [x, aux]: [Bind; 2],
        eps: f32,
    ) -> Result<(Bind, Bind, f32), PlanError> {
        let job = self.job(name, QuantizeSpec { column, prologue })?;
        let out = self.program.scratch(format!("{name}.x"), (column.bytes() * columns) as u64);
        let grid = [Dim::Is(columns as u32), ONE, ONE];
        self.run(
            format!("{name}.quantize"),
            &job,
            grid,
            QuantizeArgs { x, aux, out, eps: Bind::F32(eps) },
        );
        Ok((out, Bind::Null, 0.0))
    }

    /// The last three launches: adjust the logits (biases, mask, penalties); choose greedily; draw.
    pub(super) fn choices(&mut self) -> Result<(), PlanError> {
        let (logits, vocab) = (self.value(self.graph.logits)?, self.graph.n_vocab());
        // Tokens that are chosen after drafts are not stored in the id ring, because it contains
        // the drafts.
        let (tokens, position, capacity) = match self.drafted {
            false => (Control::Tokens, Control::Position, self.context + 1),
            true => (Control::Picks, Control::Turns, PICK as u32),
        };
        let (tokens, position) = (Bind::Control(tokens), Bind::Control(position));
        let capacity = Bind::U32(capacity);
        let adjust = AdjustSpec { vocab };
        let most = adjust.blocks(u32::MAX);
        let blocks = Dim::Fill { per_unit: 1, most };
        let job = self.job("adjust", adjust)?;
        let (slots, lists) = (self.slots(), Bind::Control(Control::Adjustments));
        let args = AdjustArgs { logits, slots, lists, blocks: Bind::Dim(blocks) };
        self.run("adjust".to_string(), &job, [blocks, TOKENS, ONE], args);
        let largest = self.tuned(ArgmaxSpec { vocab, tuning: None });
        let job = self.job("greedy", largest.clone())?;
        let most = largest.blocks(u32::MAX);
        let blocks = Dim::Fill { per_unit: 1, most };
        let rows = u64::from(self.program.tokens());
        let part = self.program.scratch("greedy.part", 8 * u64::from(most) * rows);
        let counters = self.program.counters("greedy.counters", 4 * rows);
        let slots = self.slots();
        let number = Bind::Dim(blocks);
        let args = ArgmaxArgs {
            logits,
            part,
            counters,
            slots,
            tokens,
            position,
            capacity,
            blocks: number,
        };
        self.run("greedy".to_string(), &job, [blocks, TOKENS, ONE], args);
        let drawn = self.tuned(DrawSpec { vocab, tuning: None });
        let job = self.job("draw", drawn.clone())?;
        let most = drawn.blocks(u32::MAX, 1);
        let blocks = Dim::Spread { per_unit: 1, over: 1, most };
        let args = DrawArgs {
            logits,
            seeds: Bind::Control(Control::Seed),
            options: if self.batch { Bind::Control(Control::Options) } else { Bind::Null },
            slots,
            tokens,
            position,
            work: self.program.counters("draw.work", draw::WORK as u64 * rows),
            said: self.program.scratch("draw.said", draw::SAID as u64 * rows),
            capacity,
            top_k: Bind::Chosen(SamplingArg::TopK),
            inverse: Bind::Chosen(SamplingArg::Inverse),
            top_p: Bind::Chosen(SamplingArg::TopP),
            min_p: Bind::Chosen(SamplingArg::MinP),
            blocks: Bind::Dim(blocks),
        };
        self.run("draw".to_string(), &job, [blocks, TOKENS, ONE], args);
        if most > 1 {
            self.program.last_is_cooperative();
        }
        Ok(())
    }

    /// Prepares heads, writes the cache, computes attention and sums the slices, in one launch.
    pub(super) fn attend(&mut self, a: &Attend) -> Result<(), PlanError> {
        let name = self.graph.value(a.out).name.clone();
        let (mut form, norms, eps) = self.heads(a)?;
        if self.apart && a.kv.is_some() {
            // A row reads keys of earlier rows. Other blocks would write these keys at the same
            // time, so an earlier launch writes them.
            self.heads_of_rows(a)?;
            form.kept_before = true;
        }
        // Tunings were measured without pages and also apply with pages.
        let mut spec = self.tuned(AttendSpec { form, scores: self.scores(a), tuning: None });
        spec.form.paged = self.paged;
        let sequences = self.program.tokens();
        let job = self.job(&name, spec.clone())?;
        let tuning = self.spec(&name, spec.tuning(&self.target))?;
        let (splits, most) = self.slices(tuning.blocks_per_unit(), spec.groups());
        let part =
            self.program.scratch(format!("{name}.part"), spec.part_bytes(most, sequences) as u64);
        let counters =
            self.program.counters("attend.counters", 4 * spec.counters(sequences) as u64);
        let (q, kv) = self.ready(a)?;
        let [k, v] = if form.kept_before { [Bind::Null; 2] } else { kv };
        let sinks = a.sinks.map_or(Bind::Null, |w| self.vector(w));
        let size = self.value_size(a);
        let whole = size == form.kv.head_dim;
        let bytes = 4 * u64::from(sequences) * (a.heads * form.kv.head_dim) as u64;
        let out = if whole {
            self.program.make(a.out)
        } else {
            self.program.scratch(format!("{name}.whole"), bytes)
        };
        let [q_norm, k_norm] = norms;
        let args = AttendArgs {
            q,
            k,
            v,
            q_norm,
            k_norm,
            sinks,
            angles: a.rope.map_or(Bind::Null, Bind::Rope),
            slots: self.slots(),
            position: self.places(),
            keys: Bind::Keys(a.cache),
            values: Bind::Values(a.cache),
            part,
            counters,
            out,
            scale: Bind::F32(a.scale),
            eps: Bind::F32(eps),
            capacity: self.capacity(),
            splits: Bind::Dim(splits),
            sequence_bytes: Bind::U64(match self.own_slots() && !self.paged {
                true => self.slot_bytes(&name, a.cache)?,
                false => 0,
            }),
            table: self.table(),
        };
        self.run(name, &job, [splits, Dim::Is(spec.groups()), TOKENS], args);
        if whole { Ok(()) } else { self.cut(out, [form.kv.head_dim, size], a.out) }
    }

    /// Writes a latent and computes attention to latents, in one launch.
    pub(super) fn latent(&mut self, step: &Step) -> Result<(), PlanError> {
        let &Step::Latent { q, row, cache, heads, scale, only, out } = step else { return Ok(()) };
        let (name, kv) = (self.graph.value(out).name.clone(), self.kv(cache));
        let (rank, chosen) =
            (self.graph.state(cache).value_size(), only.map(|v| self.graph.value(v).width));
        if self.apart {
            // A row reads earlier rows from the cache, and the new row from its input.
            self.keep(format!("{name}.keep"), row, cache)?;
        }
        let spec = LatentSpec {
            heads,
            kv,
            rank,
            one: !self.batch && !self.apart,
            paged: self.paged,
            chosen,
        };
        let (job, sequences) = (self.job(&name, spec.clone())?, self.program.tokens());
        let (splits, most) = self.slices(LatentSpec::BLOCKS_PER_UNIT, spec.groups());
        let args = LatentArgs {
            q: self.value(q)?,
            row: self.value(row)?,
            slots: self.slots(),
            position: self.places(),
            rows: Bind::Keys(cache),
            part: self
                .program
                .scratch(format!("{name}.part"), spec.part_bytes(most, sequences) as u64),
            counters: self.program.counters("latent.counters", 4 * spec.counters(sequences) as u64),
            out: self.program.make(out),
            scale: Bind::F32(scale),
            capacity: self.capacity(),
            splits: Bind::Dim(splits),
            sequence_bytes: self.sequence_bytes(&name, cache)?,
            table: self.listed(only)?,
        };
        self.run(name, &job, [splits, Dim::Is(spec.groups()), TOKENS], args);
        Ok(())
    }

    /// The lists of visible positions if attention is sparse. Otherwise the page tables, if there
    /// are any.
    pub(super) fn listed(&self, only: Option<ValueId>) -> Result<Bind, PlanError> {
        only.map_or(Ok(self.table()), |v| self.value(v))
    }

    /// Bytes from one slot's rows to those of the next slot, if rows belong to several slots.
    pub(super) fn sequence_bytes(&self, name: &str, cache: StateId) -> Result<Bind, PlanError> {
        Ok(Bind::U64(if self.own_slots() && !self.paged {
            self.slot_bytes(name, cache)?
        } else {
            0
        }))
    }

    /// The slot of each row; null for one sequence.
    pub(super) fn slots(&self) -> Bind {
        if self.own_slots() { Bind::Control(Control::Slots) } else { Bind::Null }
    }

    /// Whether each row has its own slot.
    fn own_slots(&self) -> bool {
        self.batch && !self.drafted
    }

    /// The position of the first token, of each slot, or of each row.
    pub(super) fn position(&self) -> Bind {
        Bind::Control(if self.drafted { Control::Places } else { Control::Position })
    }

    /// The position of each row with separate attention.
    fn places(&self) -> Bind {
        if self.apart && !self.drafted { Bind::Control(Control::Each) } else { self.position() }
    }

    /// Number of positions of a slot. With pages it locates a slot's table. Rows of one sequence
    /// with separate attention share one table.
    fn capacity(&self) -> Bind {
        Bind::U32(if self.paged && self.apart { 0 } else { self.context })
    }

    /// The number of context slices and its maximum, for `groups` groups of a token's heads. It is
    /// large enough to fill the device.
    fn slices(&self, per_unit: u32, groups: u32) -> (Dim, u32) {
        if self.reproducible {
            // The number of slices determines the content of each slice and the order of sums.
            let slices = self.slices_always(groups);
            return (Dim::Is(slices), slices);
        }
        // Many tokens fill the device with one slice each.
        let most = (SPLITS / self.program.tokens()).max(1);
        (Dim::Spread { per_unit, over: groups, most }, most)
    }

    /// The page tables; null without pages.
    pub(super) fn table(&self) -> Bind {
        if self.paged { Bind::Control(Control::Pages) } else { Bind::Null }
    }

    /// Bytes from one slot's keys or values to those of the next slot.
    fn slot_bytes(&self, name: &str, cache: StateId) -> Result<u64, PlanError> {
        let bytes = self.kv(cache).bytes(self.context as usize);
        bytes
            .map(|b| b as u64)
            .ok_or_else(|| unsupported(name, "its cache is too large to address"))
    }

    /// The layout of a layer's heads, their norms' weights, and the norms' epsilon.
    pub(super) fn heads(&mut self, a: &Attend) -> Result<(HeadsForm, [Bind; 2], f32), PlanError> {
        let name = &self.graph.value(a.out).name;
        let (norms, eps) = match (a.q_norm, a.k_norm) {
            (None, None) => ([Bind::Null; 2], 0.0),
            (Some(q), None) if a.kv.is_none() => ([self.vector(q.weight), Bind::Null], q.eps),
            (Some(q), Some(k)) if q.eps == k.eps => {
                ([self.vector(q.weight), self.vector(k.weight)], q.eps)
            }
            _ => {
                return Err(unsupported(
                    name,
                    "different norms of queries and keys are not supported",
                ));
            }
        };
        let rope =
            a.rope.map_or(RopeForm { dims: 0, halves: false }, |r| rope_form(self.graph.rope(r)));
        let (heads, kv, qk_norm, kept_before) =
            (a.heads, self.kv(a.cache), a.q_norm.is_some(), a.kv.is_none());
        Ok((HeadsForm { heads, kv, qk_norm, rope, kept_before, paged: false }, norms, eps))
    }

    /// The score options of a layer with causal attention.
    pub(super) fn scores(&self, a: &Attend) -> Scores {
        let window = self.graph.state(a.cache).window();
        let &Attend { chunk, soft_cap, alibi, sinks, .. } = a;
        Scores { window, chunk, soft_cap, alibi, sinks: sinks.is_some(), around: None }
    }

    /// Elements of a head of the result.
    pub(super) fn value_size(&self, a: &Attend) -> usize {
        self.graph.value(a.out).width / a.heads.max(1)
    }

    /// Queries, keys and values, padded to the cache's head size. Keys and values are null if
    /// another layer has cached them.
    pub(super) fn ready(&mut self, a: &Attend) -> Result<(Bind, [Bind; 2]), PlanError> {
        let (name, KvLayout { heads, head_dim, .. }) =
            (self.graph.value(a.out).name.clone(), self.kv(a.cache));
        let of = |lower: &mut Self, what, v: ValueId, heads: usize| {
            let (x, size) = (lower.value(v)?, lower.graph.value(v).width / heads.max(1));
            lower.filled(&format!("{name}.{what}"), x, heads, [size, head_dim])
        };
        let q = of(self, "q_filled", a.q, a.heads)?;
        let Some((k, v)) = a.kv else { return Ok((q, [Bind::Null; 2])) };
        Ok((q, [of(self, "k_filled", k, heads)?, of(self, "v_filled", v, heads)?]))
    }
}

/// A rotation in the kernels' format.
pub(super) fn rope_form(rope: &Rope) -> RopeForm {
    RopeForm { dims: rope.dims, halves: rope.pairing == Pairing::Halves }
}

/// Maximum number of context slices over all sequences. It limits working memory on any device.
const SPLITS: u32 = 256;
