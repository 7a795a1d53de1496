//! Steps as launches for one more token of several sequences.
//!
//! Every matrix is read once for all sequences: by products whose weights go from memory straight to the matrix units, where the target has
//! them, else by the decode kernels with a column for each sequence, or the prompt's tiles. Attention is the decode kernel with a sequence in the grid's third dimension, so that a program takes any number
//! of sequences up to its own, wherever they stand.

use super::decode::Attend;
use super::lower::{Lower, unsupported};
use super::prompt::Prompt;
use super::{Bind, Control, Dim, PlanError};
use crate::gpu::fuse::{Finish, Input, Segment, Step};
use crate::graph::{Activation, CacheId, Graph, Op, ValueId};
use kjit_engine::Target;
use kjit_kernels::activations::Prologue;
use kjit_kernels::matvec;
use kjit_kernels::product::{Few, few, few_sizes, strip_bytes};
use kjit_kernels::strips::StripsSpec;
use kjit_kernels::tiles::TilesSpec;

/// Rows that the kernel of chosen experts takes at most; more are grouped by expert, as a prompt's are.
///
/// Each sequence more costs the time of its own experts there: 0.43 ms a token of qwen3-30b-a3b on an H200 (1.86 ms with one, 5.32 with
/// eight), which makes 13.8 ms with 28. Grouped by expert 16 sequences take 11.1 ms and 32 take 14.5.
const EXPERT_ROWS: u32 = 28;
/// Weights that one product takes at most.
const SEGMENTS: usize = 3;
/// One for each sequence.
const TOKENS: Dim = Dim::Tokens { per: 1, each: 1 };
/// Sequences that are decoded side by side at most.
pub const SEQUENCES: usize = 64;

/// Rows for which there are programs, so that every number of sequences up to `sequences` has one that takes no longer than its own would.
/// The kernel of experts has no idle rows, hence a program for each number there, and for every second one from where that costs 5 % at most.
pub(super) fn sizes(graph: &Graph, target: &Target, sequences: usize) -> Vec<u32> {
    let experts = graph.ops.iter().any(|op| matches!(op, Op::ExpertMatMul { .. }));
    let exact = if experts { EXPERT_ROWS } else { 0 };
    let more = few_sizes(target).iter().copied().filter(|&n| n > exact);
    let mut sizes: Vec<u32> = (1..=exact).filter(|n| *n <= 8 || n % 2 == 0).chain(more).collect();
    // Those below the first that holds all, and that one.
    let last = sizes.iter().position(|&n| n as usize >= sequences).unwrap_or(sizes.len());
    sizes.truncate(last + 1);
    sizes
}

impl Lower<'_> {
    pub(super) fn batch_step(&mut self, step: &Step, rest: &[Step], state: &mut Prompt) -> Result<(), PlanError> {
        let rows = self.program.tokens();
        match step {
            Step::Project { input, segments, finish } => match few(&self.target, rows as usize) {
                Few::Columns => self.project(input, segments, finish),
                Few::Strips => self.strips(input, segments, finish, rest, state),
                Few::Tiles => self.product(input, segments, finish, rest, state),
            },
            Step::Experts { input, experts, segments, finish } if rows > EXPERT_ROWS => {
                self.expert_product(input, *experts, segments, finish, state)
            }
            &Step::Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out } => {
                self.attend(&Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out })
            }
            other => self.step(other),
        }
    }

    /// A projection of all rows, with weights straight from memory to the matrix units.
    fn strips(
        &mut self,
        input: &Input,
        segments: &[Segment],
        finish: &Finish,
        rest: &[Step],
        state: &mut Prompt,
    ) -> Result<(), PlanError> {
        let named = finish.out().or(segments.first().map(|s| s.out));
        let name = named.map_or(String::new(), |v| self.graph.value(v).name.clone());
        let x = self.strips_of(&name, input, state)?;
        for part in segments.chunks(if *finish == Finish::Store { SEGMENTS } else { segments.len().max(1) }) {
            // A gated unit's result goes into the next product only: it stays in strips.
            let stays = matches!(finish, Finish::Glu { out, .. } if self.only_products_read(*out, rest));
            let weights = part.iter().map(|s| {
                let w = self.graph.weight(s.weight);
                matvec::Segment { format: w.format, rows: w.rows, bias: s.bias.is_some() }
            });
            let spec = self.tuned(StripsSpec {
                cols: part.first().map_or(0, |s| self.graph.weight(s.weight).cols),
                tokens: self.program.tokens() as usize,
                segments: weights.collect(),
                finish: match finish {
                    Finish::Store => matvec::Finish::Store,
                    Finish::Add { .. } => matvec::Finish::Add,
                    Finish::Glu { act: Activation::Silu, .. } => matvec::Finish::Silu,
                    Finish::Glu { act: Activation::GeluTanh, .. } => matvec::Finish::Gelu,
                    Finish::Sum { .. } => return Err(unsupported(&name, "a weighted sum without experts")),
                },
                strips: stays,
                tuning: None,
            });
            let residual = match *finish {
                Finish::Add { residual, .. } => self.value(residual)?,
                _ => Bind::Null,
            };
            let y: Vec<Bind> = match *finish {
                Finish::Store => part.iter().map(|s| self.program.make(s.out)).collect(),
                Finish::Add { residual, out } => vec![self.program.make_over(out, residual, &[input.value()])],
                Finish::Glu { out, .. } if stays => vec![self.make_strips(out, state)],
                Finish::Glu { out, .. } | Finish::Sum { out, .. } => vec![self.program.make(out)],
            };
            let job = self.job(&name, spec.clone())?;
            let [tiles, splits, _] = self.spec(&name, spec.geometry(&self.target))?.grid;
            let (bytes, counters) =
                (self.spec(&name, spec.part_bytes(&self.target))?, self.spec(&name, spec.counters(&self.target))?);
            let mut args = vec![x, residual];
            for i in 0..SEGMENTS {
                let segment = part.get(i);
                let weight = segment.map_or(Bind::Null, |s| self.matrix(s.weight));
                let bias = segment.and_then(|s| s.bias).map_or(Bind::Null, |b| self.vector(b));
                args.extend([weight, bias, y.get(i).copied().unwrap_or(Bind::Null)]);
            }
            if splits > 1 {
                args.push(self.program.scratch(format!("{name}.parts"), bytes as u64));
                args.push(self.program.counters("strips.counters", 4 * counters as u64));
            } else {
                args.extend([Bind::Null, Bind::Null]);
            }
            args.extend([Bind::Dim(TOKENS), Bind::U32(splits)]);
            self.run(name.clone(), &job, [Dim::Is(tiles), Dim::Is(splits), Dim::Is(1)], args);
        }
        Ok(())
    }

    /// The input of products, in strips.
    fn strips_of(&mut self, name: &str, input: &Input, state: &mut Prompt) -> Result<Bind, PlanError> {
        let (norm, eps) = match *input {
            Input::Plain(_) => (None, 0.0),
            Input::Norm { weight, eps, .. } => (Some(weight), eps),
        };
        let key = (input.value(), norm);
        if let Some(&bind) = state.tiles.get(&key) {
            return Ok(bind);
        }
        let (x, cols) = (self.value(input.value())?, self.graph.value(input.value()).width);
        let prologue = if norm.is_some() { Prologue::Norm } else { Prologue::None };
        let job = self.job(name, TilesSpec { cols, prologue, gather: false, strips: true })?;
        let aux = norm.map_or(Bind::Null, |w| self.vector(w));
        let y = self.program.scratch(format!("{name}.strips"), self.strips_room(cols));
        let args = vec![x, aux, y, Bind::Null, Bind::F32(eps)];
        self.run(format!("{name}.strips"), &job, [TOKENS, Dim::Is(1), Dim::Is(1)], args);
        state.tiles.insert(key, y);
        Ok(y)
    }

    /// A value that lives in strips only.
    fn make_strips(&mut self, out: ValueId, state: &mut Prompt) -> Bind {
        let value = self.graph.value(out);
        let bytes = self.strips_room(value.slots * value.width);
        let bind = self.program.make_tiled(out, bytes);
        state.tiles.insert((out, None), bind);
        bind
    }

    /// Bytes of the strips of rows of this length: products read those of whole blocks.
    fn strips_room(&self, cols: usize) -> u64 {
        strip_bytes(self.program.tokens() as usize, cols) as u64
    }

    /// The slot of each row; of one sequence, null.
    pub(super) fn slots(&self) -> Bind {
        if self.batch { Bind::Control(Control::Slots) } else { Bind::Null }
    }

    /// Bytes from one slot's keys, or values, to the next one's.
    pub(super) fn slot_bytes(&self, name: &str, cache: CacheId) -> Result<u64, PlanError> {
        let bytes = self.kv(cache).bytes(self.context as usize);
        bytes.map(|b| b as u64).ok_or_else(|| unsupported(name, "its cache cannot be addressed"))
    }
}
