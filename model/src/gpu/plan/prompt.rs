//! Steps as launches for many tokens: every matrix meets all of them at once, on the matrix units.
//!
//! Activations go into products as halves in tiles. Attention and gated units leave them so; what else a product reads is made into
//! tiles by a launch of its own, once for all products that read it. Experts: tokens are grouped by expert on the device, and each
//! group is padded to whole tiles.

use super::decode::Attend;
use super::lower::{Lower, unsupported};
use super::{Bind, BufferId, Control, Dim, GemmPart, GemmUse, PlanError};
use crate::gpu::fuse::{Finish, Input, Segment, Step};
use crate::graph::{Activation, ValueId, WeightId};
use kjit_kernels::activations::Prologue;
use kjit_kernels::attend::RopeKvSpec;
use kjit_kernels::flash::FlashSpec;
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::matvec;
use kjit_kernels::moe::{MoeSpec, MoeStep};
use kjit_kernels::product::tiled_bytes;
use kjit_kernels::spec::MoeKernel;
use kjit_kernels::tiles::TilesSpec;
use std::collections::HashMap;

/// One for each token.
const TOKENS: Dim = Dim::Tokens { per: 1, each: 1 };
const ONE: Dim = Dim::Is(1);
/// Weights that one product takes at most.
const SEGMENTS: usize = 3;
/// Compute units that the parts of products are sized for. Launches cut their work for no more.
pub const UNITS: u32 = 256;

/// What the lowering of a prompt remembers from step to step.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    /// Inputs that are in tiles, or in strips: the value, and the norm on the way.
    pub tiles: HashMap<(ValueId, Option<WeightId>), Bind>,
    /// Tokens grouped, by the value that has their experts.
    groups: HashMap<ValueId, Group>,
}

/// Tokens grouped by expert.
#[derive(Debug, Clone, Copy)]
struct Group {
    spec: MoeSpec,
    /// A product whose launch has as many tiles as there are.
    product: u32,
    tile_expert: Bind,
    source: Bind,
    place: Bind,
}

impl Lower<'_> {
    pub(super) fn prompt_step(&mut self, step: &Step, rest: &[Step], state: &mut Prompt) -> Result<(), PlanError> {
        match step {
            Step::Project { input, segments, finish } => self.product(input, segments, finish, rest, state),
            Step::Experts { input, experts, segments, finish } => {
                self.expert_product(input, *experts, segments, finish, state)
            }
            &Step::Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out } => {
                self.flash(&Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out }, rest, state)
            }
            other => self.step(other),
        }
    }

    /// A projection of all tokens.
    pub(super) fn product(
        &mut self,
        input: &Input,
        segments: &[Segment],
        finish: &Finish,
        rest: &[Step],
        state: &mut Prompt,
    ) -> Result<(), PlanError> {
        let named = finish.out().or(segments.first().map(|s| s.out));
        let name = named.map_or(String::new(), |v| self.graph.value(v).name.clone());
        let x = self.tiles(&name, input, None, state)?;
        for part in segments.chunks(if *finish == Finish::Store { SEGMENTS } else { segments.len().max(1) }) {
            let weights = part.iter().map(|s| {
                let w = self.graph.weight(s.weight);
                matvec::Segment { format: w.format, rows: w.rows, bias: s.bias.is_some() }
            });
            // A gated unit's result goes into the next product only: it stays in tiles.
            let tiled = matches!(finish, Finish::Glu { out, .. } if self.only_products_read(*out, rest));
            let spec = GemmSpec {
                cols: part.first().map_or(0, |s| self.graph.weight(s.weight).cols),
                segments: weights.collect(),
                finish: match finish {
                    Finish::Store => matvec::Finish::Store,
                    Finish::Add { .. } => matvec::Finish::Add,
                    Finish::Glu { act: Activation::Silu, .. } => matvec::Finish::Silu,
                    Finish::Glu { act: Activation::GeluTanh, .. } => matvec::Finish::Gelu,
                    Finish::Sum { .. } => return Err(unsupported(&name, "a weighted sum without experts")),
                },
                tiled,
                experts: 1,
                tokens: self.program.tokens() as usize,
                tuning: None,
            };
            let spec = self.tuned(spec);
            let residual = match *finish {
                Finish::Add { residual, .. } => self.value(residual)?,
                _ => Bind::Null,
            };
            let y: Vec<Bind> = match *finish {
                Finish::Store => part.iter().map(|s| self.program.make(s.out)).collect(),
                Finish::Add { residual, out } => vec![self.program.make_over(out, residual, &[input.value()])],
                Finish::Glu { out, .. } if tiled => vec![self.make_tiled(out, state)],
                Finish::Glu { out, .. } | Finish::Sum { out, .. } => vec![self.program.make(out)],
            };
            self.gemm(&name, spec, None, x, residual, part, &y, Bind::Null)?;
        }
        Ok(())
    }

    /// A value that lives in tiles only.
    fn make_tiled(&mut self, out: ValueId, state: &mut Prompt) -> Bind {
        let value = self.graph.value(out);
        let bytes = tiled_bytes(self.program.tokens() as usize, value.slots * value.width) as u64;
        let bind = self.program.make_tiled(out, bytes);
        state.tiles.insert((out, None), bind);
        bind
    }

    /// Whether all that reads a value later are products, of the value as it is.
    pub(super) fn only_products_read(&self, v: ValueId, rest: &[Step]) -> bool {
        rest.iter().filter(|s| s.reads().contains(&v)).all(|s| {
            matches!(s, Step::Project { input: Input::Plain(x), finish, .. }
                if *x == v && !matches!(finish, Finish::Add { residual, .. } if *residual == v))
        })
    }

    /// The input of products, in tiles.
    fn tiles(
        &mut self,
        name: &str,
        input: &Input,
        group: Option<&Group>,
        state: &mut Prompt,
    ) -> Result<Bind, PlanError> {
        let (norm, eps) = match *input {
            Input::Plain(_) => (None, 0.0),
            Input::Norm { weight, eps, .. } => (Some(weight), eps),
        };
        let key = (input.value(), norm);
        if group.is_none()
            && let Some(&bind) = state.tiles.get(&key)
        {
            return Ok(bind);
        }
        let (x, cols) = (self.value(input.value())?, self.graph.value(input.value()).width);
        let prologue = if norm.is_some() { Prologue::Norm } else { Prologue::None };
        let spec = TilesSpec { cols, prologue, gather: group.is_some(), strips: false };
        let job = self.job(name, spec)?;
        let aux = norm.map_or(Bind::Null, |w| self.vector(w));
        let (rows, grid, source) = match group {
            None => (self.program.tokens() as usize, TOKENS, Bind::Null),
            Some(g) => {
                let each = g.spec.tile as u32;
                (
                    g.spec.rows(self.program.tokens() as usize),
                    Dim::Gemm { product: g.product, part: GemmPart::TokenTiles, each },
                    g.source,
                )
            }
        };
        let y = self.program.scratch(format!("{name}.tiles"), tiled_bytes(rows, cols) as u64);
        self.run(format!("{name}.tiles"), &job, [grid, ONE, ONE], vec![x, aux, y, source, Bind::F32(eps)]);
        if group.is_none() {
            state.tiles.insert(key, y);
        }
        Ok(y)
    }

    /// The launch of a product.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one launch")]
    fn gemm(
        &mut self,
        name: &str,
        spec: GemmSpec,
        group: Option<MoeSpec>,
        x: Bind,
        residual: Bind,
        segments: &[Segment],
        y: &[Bind],
        tile_expert: Bind,
    ) -> Result<(), PlanError> {
        let job = self.job(name, spec.clone())?;
        let product = self.product_use(name, GemmUse { spec, group })?;
        let (parts, counters) = self.parts(name, product)?;
        let mut args = vec![x, residual];
        for i in 0..SEGMENTS {
            let segment = segments.get(i);
            let weight = segment.map_or(Bind::Null, |s| self.matrix(s.weight));
            let bias = segment.and_then(|s| s.bias).map_or(Bind::Null, |b| self.vector(b));
            args.extend([weight, bias, y.get(i).copied().unwrap_or(Bind::Null)]);
        }
        let rows = match group {
            None => TOKENS,
            Some(g) => Dim::Gemm { product, part: GemmPart::TokenTiles, each: g.tile as u32 },
        };
        let dim = |part| Dim::Gemm { product, part, each: 1 };
        args.extend([parts, counters, tile_expert, Bind::Dim(rows)]);
        let sizes = [GemmPart::Splits, GemmPart::TokenTiles, GemmPart::Tiles, GemmPart::Blocks];
        args.extend(sizes.map(|p| Bind::Dim(dim(p))));
        self.run(name.to_string(), &job, [dim(GemmPart::GridX), dim(GemmPart::GridY), dim(GemmPart::GridZ)], args);
        Ok(())
    }

    /// The place of a product among those whose launches are worked out once for a number of tokens.
    fn product_use(&mut self, name: &str, one: GemmUse) -> Result<u32, PlanError> {
        if let Some(at) = self.products.iter().position(|u| u.0 == one) {
            return Ok(at as u32);
        }
        // What its parts take at most, whatever number of tokens and units.
        let (mut bytes, mut counters) = (0, 0);
        let step = self.spec(name, one.spec.tuning(&self.target))?.tokens().max(1);
        for tokens in (step..=self.program.tokens().next_multiple_of(step)).step_by(step as usize) {
            let launch = one.launch(&self.target, tokens.min(self.program.tokens()), UNITS);
            let launch = self.spec(name, launch)?;
            bytes = bytes.max(launch.parts_bytes);
            counters = counters.max(launch.counters);
        }
        self.products.push((one, bytes as u64, counters as u64));
        Ok(self.products.len() as u32 - 1)
    }

    fn parts(&mut self, name: &str, product: u32) -> Result<(Bind, Bind), PlanError> {
        match self.products.get(product as usize) {
            Some(&(_, bytes, counters)) if bytes > 0 => {
                let parts = self.program.scratch(format!("{name}.parts"), bytes);
                Ok((parts, self.program.counters("gemm.counters", 4 * counters)))
            }
            _ => Ok((Bind::Null, Bind::Null)),
        }
    }

    /// Heads made ready, keys and values kept, and attention over all tokens.
    fn flash(&mut self, a: &Attend, rest: &[Step], state: &mut Prompt) -> Result<(), PlanError> {
        let name = self.graph.value(a.out).name.clone();
        if !self.only_products_read(a.out, rest) {
            return Err(unsupported(&name, "for prompts it goes into products only"));
        }
        let (form, norms, eps) = self.heads(a)?;
        let tokens = self.program.tokens();
        let (ready, capacity) = (RopeKvSpec { form, half: false }, Bind::U32(self.context));
        let job = self.job(&name, ready.clone())?;
        let grid = self.spec(&name, ready.geometry(&self.target, 1))?.grid;
        let [q, k, v] = [self.value(a.q)?, self.value(a.k)?, self.value(a.v)?];
        let bytes = 4 * u64::from(tokens) * self.graph.value(a.q).width as u64;
        let turned = self.program.scratch(format!("{name}.q"), bytes);
        let (position, keys, values) = (Bind::Control(Control::Position), Bind::Keys(a.cache), Bind::Values(a.cache));
        let [q_norm, k_norm] = norms;
        let rope = Bind::Rope(a.rope);
        self.run(
            format!("{name}.heads"),
            &job,
            [TOKENS, Dim::Is(grid[1]), ONE],
            vec![q, k, v, q_norm, k_norm, rope, position, keys, values, turned, Bind::F32(eps), capacity],
        );
        let spec = FlashSpec {
            heads: a.heads,
            kv: form.kv,
            scale: a.scale,
            window: self.graph.cache(a.cache).window,
            soft_cap: a.soft_cap,
            tuning: None,
        };
        let spec = self.tuned(spec);
        let job = self.job(&name, spec)?;
        let each = self.spec(&name, spec.tuning(&self.target))?.tokens();
        let [_, heads, parts] = self.spec(&name, spec.geometry(&self.target, 1))?.grid;
        let y = self.make_tiled(a.out, state);
        let grid = [Dim::Tokens { per: each, each: 1 }, Dim::Is(heads), Dim::Is(parts)];
        self.run(name, &job, grid, vec![turned, keys, values, y, position, Bind::Dim(TOKENS), capacity]);
        Ok(())
    }

    /// A product through the matrices of chosen experts.
    pub(super) fn expert_product(
        &mut self,
        input: &Input,
        experts: ValueId,
        segments: &[Segment],
        finish: &Finish,
        state: &mut Prompt,
    ) -> Result<(), PlanError> {
        let Some(first) = segments.first() else { return Ok(()) };
        let (w, out) = (self.graph.weight(first.weight), finish.out().unwrap_or(first.out));
        let name = self.graph.value(out).name.clone();
        let (gate, sum) = match *finish {
            Finish::Glu { act: Activation::Silu, .. } => (matvec::Finish::Silu, None),
            Finish::Glu { act: Activation::GeluTanh, .. } => (matvec::Finish::Gelu, None),
            Finish::Sum { shares, residual, out } => (matvec::Finish::Store, Some((shares, residual, out))),
            _ => return Err(unsupported(&name, "for prompts, experts end in a gated unit or a weighted sum")),
        };
        let (tokens, top) = (self.program.tokens() as usize, self.graph.value(experts).width);
        let spec = GemmSpec {
            cols: w.cols,
            segments: segments
                .iter()
                .map(|s| {
                    let w = self.graph.weight(s.weight);
                    matvec::Segment { format: w.format, rows: w.rows, bias: false }
                })
                .collect(),
            finish: gate,
            tiled: sum.is_none(),
            experts: w.experts,
            tokens: (tokens * top).div_ceil(w.experts).max(1),
            tuning: None,
        };
        let spec = self.tuned(spec);
        let tile = self.spec(&name, spec.tuning(&self.target))?.tokens() as usize;
        let group = match state.groups.get(&experts) {
            Some(&g) if g.spec.tile == tile => g,
            Some(_) => return Err(unsupported(&name, "its tiles differ from those of the product before")),
            None => {
                let moe = MoeSpec { experts: w.experts, top, tile, cols: self.graph.value(first.out).width };
                let product = self.product_use(&name, GemmUse { spec: spec.clone(), group: Some(moe) })?;
                let g = self.group(&name, experts, moe, product)?;
                state.groups.insert(experts, g);
                g
            }
        };
        let rows = group.spec.rows(tokens);
        let moe = MoeSpec { cols: w.rows, ..group.spec };
        match sum {
            None => {
                let x = self.tiles(&name, input, Some(&group), state)?;
                let y = self.program.make_tiled(out, tiled_bytes(rows, w.rows) as u64);
                self.gemm(&name, spec, Some(group.spec), x, Bind::Null, segments, &[y], group.tile_expert)
            }
            Some((shares, residual, sum)) => {
                // The gated unit's rows, in the order of the groups.
                let x = self.value(input.value())?;
                let y = self.program.scratch(format!("{name}.rows"), 4 * (rows * w.rows) as u64);
                self.gemm(&name, spec, Some(group.spec), x, Bind::Null, segments, &[y], group.tile_expert)?;
                let job = self.job(&name, MoeKernel { spec: moe, step: MoeStep::Sum })?;
                let shares = self.value(shares)?;
                let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
                let to = match residual {
                    Some(r) => self.program.make_over(sum, r, &[input.value()]),
                    None => self.program.make(sum),
                };
                self.run(format!("{name}.sum"), &job, [TOKENS, ONE, ONE], vec![y, group.place, shares, added, to]);
                Ok(())
            }
        }
    }

    /// Tokens grouped by expert: two launches.
    fn group(&mut self, name: &str, experts: ValueId, moe: MoeSpec, product: u32) -> Result<Group, PlanError> {
        let tokens = self.program.tokens() as usize;
        let chosen = self.value(experts)?;
        let pairs = Bind::Dim(Dim::Tokens { per: 1, each: moe.top as u32 });
        let words = |n: usize| 4 * n as u64;
        let counts = self.program.scratch(format!("{name}.counts"), words(moe.experts));
        let tile_expert = self.program.scratch(format!("{name}.tile_expert"), words(moe.tiles(tokens)));
        let source = self.program.scratch(format!("{name}.source"), words(moe.rows(tokens)));
        let place = self.program.scratch(format!("{name}.place"), words(tokens * moe.top));
        let blocks = [Dim::Is(moe.experts as u32), ONE, ONE];
        let job = self.job(name, MoeKernel { spec: moe, step: MoeStep::Count })?;
        self.run(format!("{name}.count"), &job, blocks, vec![chosen, counts, pairs]);
        let job = self.job(name, MoeKernel { spec: moe, step: MoeStep::Place })?;
        let tiles = Bind::Dim(Dim::Gemm { product, part: GemmPart::TokenTiles, each: 1 });
        let args = vec![chosen, counts, tile_expert, source, place, pairs, tiles];
        self.run(format!("{name}.place"), &job, blocks, args);
        Ok(Group { spec: moe, product, tile_expert, source, place })
    }

    /// The buffer of a value.
    pub(super) fn buffer_of(&self, v: ValueId) -> Result<BufferId, PlanError> {
        match self.value(v)? {
            Bind::Buffer(id) => Ok(id),
            _ => Err(unsupported(&self.graph.value(v).name, "it has no buffer")),
        }
    }
}
