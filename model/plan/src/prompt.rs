//! Lowers steps for many tokens of one sequence: projections and attention on the matrix units. For
//! experts, the device groups tokens by expert, and pads each group to whole tiles.

use super::fuse::{Attend, Finish, Input, Segment, Step};
use super::lower::Lower;
use super::product::{Form, Operands};
use super::{Bind, Dim, GemmPart, GemmUse, ONE, PlanError, TOKENS};
use crate::error::unsupported;
use crate::group::Group;
use kjit_graph::op::Glu;
use kjit_graph::{Activation, Op, ValueId};
use kjit_kernels::Family;
use kjit_kernels::copy_rows::{CopyRowsArgs, CopyRowsSpec};
use kjit_kernels::flash::{FlashArgs, FlashSpec};
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::heads::Scores;
use kjit_kernels::latent_flash::{LatentFlashArgs, LatentFlashSpec};
use kjit_kernels::moe::{
    MoeCountArgs, MoeCountSpec, MoeGroupArgs, MoeGroupSpec, MoeSpec, MoeSumArgs, MoeSumSpec,
};
use kjit_kernels::rope_kv::{RopeKvArgs, RopeKvSpec};
use kjit_kernels::segments;

impl Lower<'_> {
    pub(super) fn prompt_step(&mut self, step: &Step) -> Result<(), PlanError> {
        match step {
            Step::Project { input, segments, finish } => {
                // Attention writes tiles.
                let form = self.made_in(input).or_else(|| self.form_of(segments));
                self.product(form.unwrap_or(Form::Tiles), input, segments, finish)
            }
            Step::Experts { input, experts, segments, finish } => {
                self.expert_product(input, *experts, segments, finish)
            }
            Step::Attend(a) => self.flash(a),
            Step::Latent { .. } => self.latents(step),
            other => self.decode_step(other),
        }
    }

    /// Prepares heads, writes the cache, and computes attention for all tokens.
    fn flash(&mut self, a: &Attend) -> Result<(), PlanError> {
        let name = self.graph.value(a.out).name.clone();
        let (form, ..) = self.heads(a)?;
        let tokens = self.program.tokens();
        let capacity = Bind::U32(self.context);
        // Tunings were measured without pages and also apply with pages.
        let (paged, table) = (self.paged, self.table());
        let sinks = a.sinks.map_or(Bind::Null, |w| self.vector(w));
        let (size, width) = (self.value_size(a), a.heads * form.kv.head_dim);
        let rotated = self.heads_of_rows(a)?;
        let (position, keys, values) =
            (self.position(), Bind::Keys(a.cache), Bind::Values(a.cache));
        let (kv, scale) = (form.kv, a.scale);
        let scores = match (a.around, self.scores(a)) {
            // The distance is the only limit then.
            (Some(_), scores) => Scores { around: a.around, window: None, chunk: None, ..scores },
            (None, scores) => scores,
        };
        let spec =
            self.tuned(FlashSpec { heads: a.heads, kv, scale, scores, paged: false, tuning: None });
        let spec = FlashSpec { paged, ..spec };
        let job = self.job(&name, spec)?;
        let each = self.spec(&name, spec.tuning(&self.target))?.tokens();
        let [heads, parts] = self.spec(&name, spec.blocks(&self.target))?;
        // The result has the layout of products. If other kernels read it, a launch converts it to
        // rows.
        let direct = size == form.kv.head_dim && self.only_products_read(a.out);
        let y = match direct {
            true => self.make_as(a.out, Form::Tiles),
            false => {
                let bytes = Form::Tiles.bytes(tokens as usize, width);
                self.program.scratch(format!("{name}.tiles"), bytes)
            }
        };
        let grid = [Dim::Tokens { per: each, each: 1 }, Dim::Is(heads), Dim::Is(parts)];
        let args = FlashArgs {
            q: rotated,
            sinks,
            keys,
            values,
            y,
            position,
            tokens: Bind::Dim(TOKENS),
            capacity,
            table,
        };
        self.run(name, &job, grid, args);
        match direct {
            true => Ok(()),
            false if size == form.kv.head_dim => self.rows_of_tiles(y, a.out),
            false => {
                let rows = self.scratch_of_tiles(
                    &format!("{}.whole", self.graph.value(a.out).name),
                    y,
                    width,
                )?;
                self.cut(rows, [form.kv.head_dim, size], a.out)
            }
        }
    }

    /// Prepares the heads of the tokens of one sequence and writes the cache. Returns the buffer of
    /// the queries.
    pub(super) fn heads_of_rows(&mut self, a: &Attend) -> Result<Bind, PlanError> {
        let name = self.graph.value(a.out).name.clone();
        let (form, [q_norm, k_norm], eps) = self.heads(a)?;
        // Tunings were measured without pages and also apply with pages.
        let (paged, table) = (self.paged, self.table());
        let mut heads = self.tuned(RopeKvSpec { form, half: false, tuning: None });
        heads.form.paged = paged;
        let job = self.job(&name, heads.clone())?;
        let (q, [k, v]) = self.ready(a)?;
        let bytes = 4 * u64::from(self.program.tokens()) * (a.heads * form.kv.head_dim) as u64;
        let rotated = self.program.scratch(format!("{name}.q"), bytes);
        let (keys, values, capacity) =
            (Bind::Keys(a.cache), Bind::Values(a.cache), Bind::U32(self.context));
        let (angles, eps, position) =
            (a.rope.map_or(Bind::Null, Bind::Rope), Bind::F32(eps), self.position());
        let args = RopeKvArgs {
            q,
            k,
            v,
            q_norm,
            k_norm,
            angles,
            position,
            keys,
            values,
            rotated,
            eps,
            capacity,
            table,
        };
        self.run(format!("{name}.heads"), &job, [TOKENS, Dim::Is(heads.blocks()), ONE], args);
        Ok(rotated)
    }

    /// Writes latents and computes attention to them for all tokens. Without matrix units, this is
    /// as for one token.
    fn latents(&mut self, step: &Step) -> Result<(), PlanError> {
        let &Step::Latent { q, row, cache, heads, scale, only, out } = step else { return Ok(()) };
        let (name, kv) = (self.graph.value(out).name.clone(), self.kv(cache));
        let (rank, chosen) =
            (self.graph.state(cache).value_size(), only.map(|v| self.graph.value(v).width));
        // Tunings were measured without pages and also apply with pages.
        let spec =
            self.tuned(LatentFlashSpec { heads, kv, rank, paged: false, chosen, tuning: None });
        let spec = LatentFlashSpec { paged: self.paged, ..spec };
        let Ok([per, each]) = spec.blocks(&self.target) else { return self.latent(step) };
        self.keep(format!("{name}.keep"), row, cache)?;
        let job = self.job(&name, spec)?;
        let (position, tokens, capacity) =
            (self.position(), Bind::Dim(TOKENS), Bind::U32(self.context));
        let (q, rows, scale, table) =
            (self.value(q)?, Bind::Keys(cache), Bind::F32(scale), self.listed(only)?);
        let out = self.program.make(out);
        let args = LatentFlashArgs { q, rows, position, out, scale, tokens, capacity, table };
        self.run(name, &job, [Dim::Tokens { per, each }, ONE, ONE], args);
        Ok(())
    }

    /// A product with the chosen experts' matrices.
    pub(super) fn expert_product(
        &mut self,
        input: &Input,
        experts: ValueId,
        segments: &[Segment],
        finish: &Finish,
    ) -> Result<(), PlanError> {
        if *finish == Finish::Store && segments.len() > 1 {
            let mut each = segments.chunks(1);
            return each.try_for_each(|s| self.expert_product(input, experts, s, finish));
        }
        let Some(first) = segments.first() else { return Ok(()) };
        // The product in tiles supports neither a bias nor other gated units. These are separate
        // launches after it.
        let bounded = matches!(finish, Finish::Glu { act: Activation::ClampedSilu(_), .. });
        if *finish != Finish::Store && (bounded || first.bias.is_some()) {
            self.expert_product(input, experts, segments, &Finish::Store)?;
            return match (*finish, segments) {
                (Finish::Glu { act, out }, &[gate, up]) => {
                    self.map(&Op::Glu(Glu { gate: gate.out, up: up.out, act, out }), None, out)
                }
                (Finish::Sum { shares, residual, out }, &[one]) => {
                    let top = self.graph.value(experts).width;
                    self.expert_sum(self.value(one.out)?, top, shares, residual, out)
                }
                _ => Err(unsupported(
                    &self.name_of(segments, finish),
                    "no kernel supports this operation after experts",
                )),
            };
        }
        let (w, out) = (self.graph.weight(first.weight), finish.out().unwrap_or(first.out));
        let name = self.graph.value(out).name.clone();
        let (gate, sum) = match *finish {
            Finish::Glu { act: Activation::Silu, .. } => (segments::Finish::Silu, None),
            Finish::Glu { act: Activation::GeluTanh, .. } => (segments::Finish::Gelu, None),
            Finish::Sum { shares, residual, out } => {
                (segments::Finish::Store, Some((shares, residual, out)))
            }
            Finish::Store => (segments::Finish::Store, None),
            _ => return Err(unsupported(&name, "no kernel supports this operation after experts")),
        };
        let (tokens, top) = (self.program.tokens() as usize, self.graph.value(experts).width);
        let (cols, weights) = self.weights(&plain(segments));
        let spec = self.tuned(GemmSpec {
            cols,
            segments: weights,
            finish: gate,
            tiled: gate.gated(),
            experts: w.experts,
            tokens: (tokens * top).div_ceil(w.experts).max(1),
            tuning: None,
        });
        let tile = self.spec(&name, spec.tuning(&self.target))?.tokens() as usize;
        // The result of a gated unit is in the order of the groups. Other inputs have a row for
        // each token or slot.
        let grouped = self.program.is_tiled(input.value());
        let slots = !grouped && self.graph.value(input.value()).slots > 1;
        let group = match self.groups.get(&(experts, slots)) {
            Some(&g) if g.spec.tile == tile => g,
            Some(_) => {
                return Err(unsupported(
                    &name,
                    "its tiles differ from the tiles of the previous product",
                ));
            }
            None if grouped => return Err(unsupported(&name, "its rows do not belong to a group")),
            None => {
                let moe = MoeSpec {
                    experts: w.experts,
                    top,
                    tile,
                    cols: self.graph.value(first.out).width,
                };
                let product = self.product_use(
                    &name,
                    GemmUse { spec: spec.clone(), group: Some(moe), whole: false },
                )?;
                let g = self.group(&name, experts, slots, moe, product)?;
                self.groups.insert((experts, slots), g);
                g
            }
        };
        let rows = group.spec.rows(tokens);
        let moe = MoeSpec { cols: w.rows, ..group.spec };
        let x = match self.program.bind_of(input.value()).filter(|_| grouped) {
            Some(x) => x,
            None => self.activations(&name, input, Form::Tiles, Some(&group))?,
        };
        if gate.gated() {
            let bytes = Form::Tiles.bytes(rows, w.rows);
            let y = self.program.make_tiled(out, bytes, Form::Tiles.made());
            return self.tiles(
                &name,
                spec,
                Some(&group),
                &Operands { x, residual: Bind::Null, segments, y: &[y] },
            );
        }
        let y = self.program.scratch(format!("{name}.rows"), 4 * (rows * w.rows) as u64);
        self.tiles(
            &name,
            spec,
            Some(&group),
            &Operands { x, residual: Bind::Null, segments: &plain(segments), y: &[y] },
        )?;
        match sum {
            None => {
                let spec = CopyRowsSpec { words: w.rows };
                let job = self.job(&name, spec.clone())?;
                let to = self.program.make(out);
                let args = CopyRowsArgs {
                    x: y,
                    which: group.row,
                    out: to,
                    words: Bind::U32(w.rows as u32),
                };
                let pairs = Dim::Tokens { per: 1, each: top as u32 };
                self.run(format!("{name}.back"), &job, [Dim::Is(spec.blocks()), pairs, ONE], args);
                match first.bias {
                    Some(bias) => self.add_chosen(bias, experts, out),
                    None => Ok(()),
                }
            }
            Some((shares, residual, sum)) => {
                let job = self.job(&name, self.tuned(MoeSumSpec::from(moe)))?;
                let shares = self.value(shares)?;
                let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
                let out = match residual {
                    Some(r) => self.program.make_over(sum, r, &[input.value()]),
                    None => self.program.make(sum),
                };
                let args = MoeSumArgs { y, row_of: group.row, shares, residual: added, out };
                self.run(format!("{name}.sum"), &job, [TOKENS, ONE, ONE], args);
                Ok(())
            }
        }
    }

    /// Groups tokens, or slots of tokens, by expert in two launches.
    fn group(
        &mut self,
        name: &str,
        experts: ValueId,
        slots: bool,
        moe: MoeSpec,
        product: u32,
    ) -> Result<Group, PlanError> {
        let tokens = self.program.tokens() as usize;
        let chosen = self.value(experts)?;
        let pairs = Bind::Dim(Dim::Tokens { per: 1, each: moe.top as u32 });
        let words = |n: usize| 4 * n as u64;
        let counts = self.program.scratch(format!("{name}.counts"), words(moe.experts));
        let tile_expert =
            self.program.scratch(format!("{name}.tile_expert"), words(moe.tiles(tokens)));
        let source = self.program.scratch(format!("{name}.source"), words(moe.rows(tokens)));
        let row = self.program.scratch(format!("{name}.row"), words(tokens * moe.top));
        let blocks = [Dim::Is(moe.experts as u32), ONE, ONE];
        // A slot is treated as a token with one expert.
        let of = if slots { MoeSpec { top: 1, ..moe } } else { moe };
        let job = self.job(name, self.tuned(MoeCountSpec::from(of)))?;
        self.run(
            format!("{name}.count"),
            &job,
            blocks,
            MoeCountArgs { experts: chosen, counts, pairs },
        );
        let job = self.job(name, self.tuned(MoeGroupSpec::from(of)))?;
        let tiles = Bind::Dim(Dim::Gemm { product, part: GemmPart::TokenTiles, each: 1 });
        let args = MoeGroupArgs {
            experts: chosen,
            counts,
            tile_expert,
            source,
            row_of: row,
            pairs,
            max_tiles: tiles,
        };
        self.run(format!("{name}.group"), &job, blocks, args);
        Ok(Group { spec: moe, product, tile_expert, source, row })
    }
}

/// Segments without biases. The biases are added after the product.
fn plain(segments: &[Segment]) -> Vec<Segment> {
    segments.iter().map(|s| Segment { bias: None, ..*s }).collect()
}
