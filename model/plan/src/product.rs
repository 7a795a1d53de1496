//! Lowers projections of many rows to matrix-unit products. They read every matrix once for all
//! rows.
//!
//! Products need f16 activations in one of three layouts. Attention and gated units write these
//! layouts. For any other input, a launch converts it, once for all products that read it.

use super::fuse::{Finish, Input, Segment, Step};
use super::lower::{Lower, finish_of};
use super::{Bind, Dim, GemmPart, GemmUse, ONE, PlanError, TOKENS};
use crate::dim::UNITS;
use crate::group::Group;
use kjit_graph::ValueId;
use kjit_kernels::Family;
use kjit_kernels::activations::Prologue;
use kjit_kernels::batch_gemm::{BatchGemmArgs, BatchGemmSpec};
use kjit_kernels::gemm::{GemmArgs, GemmSpec};
use kjit_kernels::mma::{panel_bytes, tiled_bytes, turned_bytes};
use kjit_kernels::segments::MOST;
use kjit_kernels::small_gemm::{SmallGemmArgs, SmallGemmSpec, WHOLE};
use kjit_kernels::tiles::{self, TilesArgs, TilesSpec};

/// The layout of activations. It determines the kernel of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// The layout of [`GemmSpec`], for any number of rows.
    Tiles,
    /// The layout of [`SmallGemmSpec`], for few rows: weights are loaded from memory directly to
    /// the matrix units.
    Panels,
    /// The layout of [`BatchGemmSpec`], for rows of a batch or of a prompt: weights are unpacked
    /// into registers.
    Turned,
}

impl Form {
    const fn word(self) -> &'static str {
        match self {
            Form::Tiles => "tiles",
            Form::Panels => "panels",
            Form::Turned => "turned",
        }
    }

    /// Whether the product of this layout supports rows of this length. Otherwise another kernel
    /// reads f32. (Prompts have only tiles, so a prompt plan needs that product.)
    const fn takes(self, cols: usize) -> bool {
        match self {
            Form::Tiles => true,
            Form::Panels | Form::Turned => cols.is_multiple_of(WHOLE),
        }
    }

    /// Bytes of `rows` rows. Kernels read whole blocks.
    pub const fn bytes(self, rows: usize, cols: usize) -> u64 {
        match self {
            Form::Tiles => tiled_bytes(rows, cols) as u64,
            Form::Panels => panel_bytes(rows, cols) as u64,
            Form::Turned => turned_bytes(rows, cols) as u64,
        }
    }

    /// The layout for the kernel that writes it.
    pub const fn made(self) -> tiles::TileLayout {
        match self {
            Form::Tiles => tiles::TileLayout::Tiles,
            Form::Panels => tiles::TileLayout::Panels,
            Form::Turned => tiles::TileLayout::Turned,
        }
    }
}

/// The operands of a product's launch.
pub(super) struct Operands<'a> {
    pub x: Bind,
    pub residual: Bind,
    pub segments: &'a [Segment],
    pub y: &'a [Bind],
}

impl Lower<'_> {
    /// A projection of all rows.
    pub(super) fn product(
        &mut self,
        form: Form,
        input: &Input,
        segments: &[Segment],
        finish: &Finish,
    ) -> Result<(), PlanError> {
        let name = self.name_of(segments, finish);
        let x = self.activations(&name, input, form, None)?;
        let end = finish_of(&name, finish)?;
        for segments in
            segments.chunks(if *finish == Finish::Store { MOST } else { segments.len().max(1) })
        {
            let (cols, weights) = self.weights(segments);
            let residual = self.residual(finish)?;
            // Only the next product reads the result of a gated unit, so the result is written in
            // the layout of that product.
            let (y, stays) = match *finish {
                Finish::Glu { out, .. }
                    if self.takes(form, self.graph.value(out).width)
                        && self.only_products_read(out)
                        && self.readers_take(out, form) =>
                {
                    (vec![self.make_as(out, form)], true)
                }
                _ => (self.results(input, segments, finish), false),
            };
            let operands = Operands { x, residual, segments, y: &y };
            let tokens = self.program.tokens() as usize;
            match form {
                Form::Tiles => {
                    let (tiled, experts, tuning) = (stays, 1, None);
                    let spec = GemmSpec {
                        cols,
                        segments: weights,
                        finish: end,
                        tiled,
                        experts,
                        tokens,
                        tuning,
                    };
                    let spec =
                        if self.reproducible { self.of_waves(spec) } else { self.tuned(spec) };
                    self.tiles(&name, spec, None, &operands)?;
                }
                Form::Panels => {
                    let (panels, fixed, tuning) = (stays, self.reproducible, None);
                    let spec = SmallGemmSpec {
                        cols,
                        tokens,
                        segments: weights,
                        finish: end,
                        panels,
                        fixed,
                        tuning,
                    };
                    let spec = self.tuned(spec);
                    self.panels(&name, &spec, &operands)?;
                }
                Form::Turned => {
                    let (turned, segments, tuning) = (stays, weights, None);
                    let finish = end;
                    let spec = BatchGemmSpec { cols, tokens, segments, finish, turned, tuning };
                    let spec = self.tuned(spec);
                    self.turned(&name, &spec, &operands)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the product of this layout can read rows of this length. Prompt plans always have
    /// it, except reproducible plans, which use one-token products for other lengths.
    fn takes(&self, form: Form, cols: usize) -> bool {
        form.takes(cols) && (!self.reproducible || cols.is_multiple_of(WHOLE))
    }

    /// A buffer in the products' layout for a value that only products read.
    pub(super) fn make_as(&mut self, out: ValueId, form: Form) -> Bind {
        let value = self.graph.value(out);
        let bytes = form.bytes(self.program.tokens() as usize, value.slots * value.width);
        let bind = self.program.make_tiled(out, bytes, form.made());
        self.in_form.insert((out, None, form), bind);
        bind
    }

    /// The layout of a projection's input if it exists in one only.
    pub(super) fn made_in(&self, input: &Input) -> Option<Form> {
        let Input::Plain(v) = *input else { return None };
        let all = [Form::Tiles, Form::Panels, Form::Turned];
        let made = |f: &Form| self.in_form.contains_key(&(v, None, *f));
        all.into_iter().find(|f| self.program.is_tiled(v) && made(f))
    }

    /// Whether all later projections of a value that exists in this layout only are multiplied in
    /// this layout.
    fn readers_take(&self, v: ValueId, form: Form) -> bool {
        self.reproducible
            || self.later.iter().filter(|s| s.reads().contains(&v)).all(|s| {
                matches!(s, Step::Project { segments, .. }
                if self.form_of(segments) == Some(form))
            })
    }

    /// Whether only products, without a norm, read a value later.
    pub(super) fn only_products_read(&self, v: ValueId) -> bool {
        v != self.graph.logits
            && self.later.iter().filter(|s| s.reads().contains(&v)).all(|s| {
                matches!(s, Step::Project { input: Input::Plain(x), finish, .. }
                if *x == v && !matches!(finish, Finish::Add { residual, .. } if *residual == v))
            })
    }

    /// The input of products in their layout; with a group, the rows of its tiles.
    pub(super) fn activations(
        &mut self,
        name: &str,
        input: &Input,
        form: Form,
        group: Option<&Group>,
    ) -> Result<Bind, PlanError> {
        let (norm, eps) = match *input {
            Input::Plain(_) => (None, 0.0),
            Input::Norm { weight, eps, .. } => (Some(weight), eps),
        };
        let key = (input.value(), norm, form);
        if group.is_none()
            && let Some(&bind) = self.in_form.get(&key)
        {
            return Ok(bind);
        }
        let (x, cols) = (self.value(input.value())?, self.graph.value(input.value()).width);
        let prologue = if norm.is_some() { Prologue::Norm } else { Prologue::None };
        let (gather, form_of) = (group.is_some(), form.made());
        let spec = self.tuned(TilesSpec { cols, prologue, gather, form: form_of, tuning: None });
        let job = self.job(name, spec)?;
        let aux = norm.map_or(Bind::Null, |w| self.vector(w));
        let tokens = self.program.tokens() as usize;
        let (rows, grid, source) = match group {
            None => (tokens, TOKENS, Bind::Null),
            Some(g) => {
                let each = g.spec.tile as u32;
                let rows = Dim::Gemm { product: g.product, part: GemmPart::TokenTiles, each };
                (g.spec.rows(tokens), rows, g.source)
            }
        };
        let label = format!("{name}.{}", form.word());
        let y = self.program.scratch(&label, form.bytes(rows, cols));
        self.run(
            label,
            &job,
            [grid, ONE, ONE],
            TilesArgs { x, aux, y, source, eps: Bind::F32(eps) },
        );
        if group.is_none() {
            self.in_form.insert(key, y);
        }
        Ok(y)
    }

    /// Launches a product in tiles; with a group, each tile uses its expert's matrices.
    pub(super) fn tiles(
        &mut self,
        name: &str,
        spec: GemmSpec,
        group: Option<&Group>,
        operands: &Operands,
    ) -> Result<(), PlanError> {
        let job = self.job(name, spec.clone())?;
        let product = self.product_use(
            name,
            GemmUse { spec, group: group.map(|g| g.spec), whole: self.reproducible },
        )?;
        let (parts, counters) = match self.products.get(product as usize) {
            Some(&(_, bytes, counters)) if bytes > 0 => {
                self.shared_sums(name, "gemm.counters", bytes, counters)
            }
            _ => (Bind::Null, Bind::Null),
        };
        let (rows, tile_expert) = match group {
            None => (TOKENS, Bind::Null),
            Some(g) => (
                Dim::Gemm { product, part: GemmPart::TokenTiles, each: g.spec.tile as u32 },
                g.tile_expert,
            ),
        };
        let dim = |part| Dim::Gemm { product, part, each: 1 };
        let args = GemmArgs {
            x: operands.x,
            residual: operands.residual,
            segments: self.weight_args(operands.segments, operands.y),
            parts,
            counters,
            tile_expert,
            tokens: Bind::Dim(rows),
            splits: Bind::Dim(dim(GemmPart::Splits)),
            token_tiles: Bind::Dim(dim(GemmPart::TokenTiles)),
            tiles: Bind::Dim(dim(GemmPart::Tiles)),
            blocks: Bind::Dim(dim(GemmPart::Blocks)),
        };
        self.run(
            name.to_string(),
            &job,
            [dim(GemmPart::GridX), dim(GemmPart::GridY), dim(GemmPart::GridZ)],
            args,
        );
        Ok(())
    }

    /// Launches a product in panels.
    fn panels(
        &mut self,
        name: &str,
        spec: &SmallGemmSpec,
        operands: &Operands,
    ) -> Result<(), PlanError> {
        let job = self.job(name, spec.clone())?;
        let [tiles, splits] = self.spec(name, spec.blocks(&self.target))?;
        let (parts, counters) = match splits {
            0 | 1 => (Bind::Null, Bind::Null),
            _ => {
                let bytes = self.spec(name, spec.part_bytes(&self.target))? as u64;
                let counters = self.spec(name, spec.counters(&self.target))? as u64;
                self.shared_sums(name, "small_gemm.counters", bytes, counters)
            }
        };
        let args = SmallGemmArgs {
            x: operands.x,
            residual: operands.residual,
            segments: self.weight_args(operands.segments, operands.y),
            parts,
            counters,
            tokens: Bind::Dim(TOKENS),
            splits: Bind::U32(splits),
        };
        self.run(name.to_string(), &job, [Dim::Is(tiles), Dim::Is(splits), ONE], args);
        Ok(())
    }

    /// Launches a product with activations in MMA operand tiles.
    fn turned(
        &mut self,
        name: &str,
        spec: &BatchGemmSpec,
        operands: &Operands,
    ) -> Result<(), PlanError> {
        let job = self.job(name, spec.clone())?;
        let blocks = self.spec(name, spec.blocks(&self.target))?;
        let bytes = self.spec(name, spec.part_bytes(&self.target))? as u64;
        let count = self.spec(name, spec.counters(&self.target))? as u64;
        let (parts, counters) = self.shared_sums(name, "batch_gemm.counters", bytes, count);
        let args = BatchGemmArgs {
            x: operands.x,
            residual: operands.residual,
            segments: self.weight_args(operands.segments, operands.y),
            parts,
            counters,
            tokens: Bind::Dim(TOKENS),
            blocks: Bind::U32(blocks),
        };
        self.run(name.to_string(), &job, [Dim::Is(blocks), ONE, ONE], args);
        Ok(())
    }

    /// Memory for blocks that compute a result together: partial results, and a counter for each
    /// result.
    fn shared_sums(&mut self, name: &str, counters: &str, bytes: u64, count: u64) -> (Bind, Bind) {
        let parts = self.program.scratch(format!("{name}.parts"), bytes);
        (parts, self.program.counters(counters, 4 * count))
    }

    /// Index of a product whose launch is computed once for each number of tokens.
    pub(super) fn product_use(&mut self, name: &str, one: GemmUse) -> Result<u32, PlanError> {
        if let Some(at) = self.products.iter().position(|u| u.0 == one) {
            return Ok(at as u32);
        }
        // Maximum memory for any number of tokens and units.
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
}
