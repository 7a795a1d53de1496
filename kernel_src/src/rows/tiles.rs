//! Rows of f32 made into the tiles, panels or turned tiles of halves that products take:
//! `gpu/tiles.h`.

use crate::cases::oracle::{EPS, aux, prologues};
use crate::cases::tiled::{ROUNDED, want_panels, want_tiled, want_turned};
use crate::cases::{Case, CaseArg, Random, Storage, floats, optional, output, words};
use crate::matrix::{CHUNK, PROMPT, Samples};
use crate::vocabulary::activations::{First, Prologue};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::mma::Product;
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::Target;
use std::fmt;

/// How halves lie that a product of many rows takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// [`tiled_index`](crate::mma::tiled_index): for [`GemmSpec`](crate::gemm::GemmSpec).
    Tiles,
    /// [`panel_index`](crate::mma::panel_index): for
    /// [`SmallGemmSpec`](crate::small_gemm::SmallGemmSpec).
    Panels,
    /// [`turned_index`](crate::mma::turned_index): for
    /// [`BatchGemmSpec`](crate::batch_gemm::BatchGemmSpec).
    Turned,
}

impl Form {
    /// In texts.
    const fn word(self) -> &'static str {
        match self {
            Form::Tiles => "",
            Form::Panels => ", panels",
            Form::Turned => ", turned",
        }
    }
}

/// Rows as halves in tiles, a block a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TilesSpec {
    /// Length of a row.
    pub cols: usize,
    /// What happens to the values.
    pub prologue: Prologue,
    /// Rows are picked by `source`.
    pub gather: bool,
    /// How the halves lie.
    pub form: Form,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments.
    TilesArgs {
        /// Rows of `cols` f32.
        x: Pointer,
        /// The norm's weight (`cols` f32) or the other factor of a gated unit (as `x`); else null.
        aux: Pointer,
        /// [`tiled_bytes`](crate::mma::tiled_bytes), [`panel_bytes`](crate::mma::panel_bytes) or
        /// [`turned_bytes`](crate::mma::turned_bytes).
        y: Pointer,
        /// A u32 for each row of `y`: the row of `x`, or `u32::MAX`: the row stays as it is. Null
        /// without `gather`.
        source: Pointer,
        /// The norm's epsilon.
        eps: F32,
    }
}

const NAME: &str = "tiles";

impl TilesSpec {
    /// A case with `rows` rows of values, of which `source` picks.
    fn of(
        &self,
        target: &Target,
        rows: usize,
        source: &[u32],
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let TilesSpec { cols, prologue: kind, gather, form, .. } = *self;
        let x = random.activations(rows * cols);
        let aux = aux(kind, rows, cols, random);
        let made = prologues(kind, cols, &x, &aux);
        let want: Vec<Option<Vec<f64>>> = match gather {
            true => source.iter().map(|&s| made.get(s as usize).cloned()).collect(),
            false => made.iter().cloned().map(Some).collect(),
        };
        let y = match form {
            Form::Tiles => want_tiled(&want, cols),
            Form::Panels => want_panels(&want, cols),
            Form::Turned => want_turned(&want, cols),
        };
        let args = TilesArgs {
            x: floats("x", &x),
            aux: optional("aux", &aux),
            y: output("y", Storage::F16, y, ROUNDED),
            source: if gather { words("source", source) } else { CaseArg::Null },
            eps: CaseArg::F32(EPS),
        };
        let (gathered, form) = (if gather { ", gathered" } else { "" }, form.word());
        let name = format!("tiles {rows} × {cols}, {kind:?}{gathered}{form}");
        let launch = self.launch(target, 1, Size { tokens: want.len(), past: 0 })?;
        Case::of(name, self, target, launch, args)
    }
}

impl Family for TilesSpec {
    const NAME: &'static str = NAME;
    type Args<A> = TilesArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gather, form) = (if self.gather { ", gathered" } else { "" }, self.form.word());
        write!(f, "{}{}{gather}{form}", self.cols, First(self.prologue, false))
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        require(self.cols > 0 && self.cols <= 1 << 16, NAME, || {
            format!("rows of {}, it takes 1 to 65536", self.cols)
        })?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        // A thread keeps its part of the row in registers: eight elements up to rows of 2048, 64 at
        // most.
        let threads = match self.cols {
            0..=2048 => 256,
            2049..=8192 => 512,
            _ => 1024,
        };
        Ok(Block::of(wave, threads))
    }

    fn render(&self, target: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("COLS", self.cols)
            .choice("PROLOGUE", &self.prologue)
            .flag("GATHER", self.gather)
            .flag("OUT_PANELS", self.form == Form::Panels)
            .flag("OUT_TURNED", self.form == Form::Turned);
        Ok(of_shape(
            NAME,
            &shape,
            Product::of(target, block.wave).macros(),
            block.wave,
            block.threads,
        ))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let inputs = if matches!(self.prologue, Prologue::Silu | Prologue::Gelu) { 2 } else { 1 };
        Work::moves((4 * inputs + 2) * size.tokens * self.cols)
    }

    fn timed_at(&self, _: usize) -> Size {
        CHUNK
    }

    fn case(
        &self,
        target: &Target,
        _: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let source: Vec<u32> =
            if self.gather { (0..size.tokens as u32).rev().collect() } else { vec![] };
        self.of(target, size.tokens, &source, random)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let tuning = Some(Wave { wave });
        for (cols, rows, prologue, gather, form) in [
            (96, 5, Prologue::None, false, Form::Tiles),
            (2500, 3, Prologue::Norm, false, Form::Tiles),
            (576, 9, Prologue::Norm, true, Form::Tiles),
            (1000, 3, Prologue::Silu, false, Form::Tiles),
            (161, 3, Prologue::Gelu, false, Form::Tiles),
            (96, 5, Prologue::None, false, Form::Panels),
            (1056, 11, Prologue::Norm, false, Form::Panels),
            (96, 5, Prologue::None, false, Form::Turned),
            (1056, 70, Prologue::Norm, false, Form::Turned),
        ] {
            let source: Vec<u32> = if gather { vec![4, u32::MAX, 0, 8, 4] } else { vec![] };
            into.push(
                TilesSpec { cols, prologue, gather, form, tuning }
                    .of(target, rows, &source, random)?,
            );
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = Size { tokens: PROMPT, past: 0 };
        for (cols, prologue, gather) in [
            (4096, Prologue::None, false),
            (4096, Prologue::Norm, false),
            (14336, Prologue::Silu, false),
            (14336, Prologue::Gelu, false),
            (2048, Prologue::Norm, true),
        ] {
            let spec = TilesSpec { cols, prologue, gather, form: Form::Tiles, tuning: None };
            let gathered = if gather { " gathered" } else { "" };
            list.add(format!("tiles {cols} {prologue:?}{gathered}"), spec, size)?;
        }
        for wave in list.other_waves() {
            let (prologue, tuning) = (Prologue::Norm, Some(Wave { wave }));
            let spec = TilesSpec { cols: 4096, prologue, gather: false, form: Form::Tiles, tuning };
            list.add(format!("tiles 4096 Norm @ wave {wave}"), spec, size)?;
        }
        Ok(())
    }
}
