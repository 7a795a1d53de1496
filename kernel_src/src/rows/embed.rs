//! Rows of the embedding, for token ids on the device: `gpu/embed.h`.

use crate::cases::data::Matrix;
use crate::cases::{Case, CaseArg, Random, SINGLE, Storage, input, output, words};
use crate::matrix::{ONE, Samples, formats};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step;
use crate::vocabulary::step::{Inside, Step};
use crate::vocabulary::variant::{Fixed, no_choice};
use crate::vocabulary::weights;
use kjit_engine::{Constants, Target};
use kjit_formats::format::ALL;
use kjit_formats::layout::Layout;
use std::fmt;

/// `out[r] = scale · table[token of r]`. Rows are the tokens of one sequence from its position on,
/// or one of each sequence, at its position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EmbedSpec {
    /// The table's layout.
    pub layout: Layout,
    /// A row per sequence instead of a row per token of one.
    pub each_own: bool,
}

arguments! {
    /// The arguments.
    EmbedArgs {
        /// Row records of the layout.
        table: Pointer,
        /// u32: the ids of a whole context, slot after slot. Ids are trusted to lie below the
        /// table's rows.
        tokens: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`. Not read for the tokens
        /// of one.
        slots: Pointer,
        /// A u32 per slot: the position of the row's token; of one sequence that of the first.
        position: Pointer,
        /// `rows × cols` f32.
        out: Pointer,
        /// Factor on the rows.
        scale: F32,
        /// Positions of a slot.
        capacity: U32,
    }
}

const NAME: &str = "embed";
const BLOCK: u32 = 128;
/// Rows of the table where it is timed: enough for every compute unit.
const ROWS: usize = 4096;

impl EmbedSpec {
    /// Blocks for a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.layout.units() as u32).div_ceil(BLOCK)
    }

    fn shape(&self) -> Shape {
        let shape = Shape::new().number("COLS", self.layout.cols).flag("EACH_OWN", self.each_own);
        shape.inner("W", weights::records(&self.layout))
    }

    /// A case with a table of `vocab` rows.
    fn of(
        &self,
        target: &Target,
        (rows, vocab): (usize, usize),
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        // Positions of sequences go up to 8, however few rows there are.
        let capacity = (rows + 6).max(9);
        let cols = self.layout.cols;
        let table = Matrix::random(self.layout.format, vocab, cols, random)?;
        let tokens: Vec<u32> = (0..capacity * rows).map(|_| random.below(vocab) as u32).collect();
        let position: Vec<u32> =
            if self.each_own { (0..rows as u32).map(|p| (8 + p) % 9).collect() } else { vec![4] };
        // Another order than the rows'.
        let slots: Vec<u32> =
            (0..rows as u32).map(|r| (r + rows as u32 - 1) % rows as u32).collect();
        let scale = 1.75f32;
        let mut want = vec![];
        for (r, &slot) in slots.iter().enumerate() {
            let slot = slot as usize;
            let at = if self.each_own {
                slot * capacity + position[slot] as usize
            } else {
                position[0] as usize + r
            };
            want.extend(
                table.row(tokens[at] as usize).iter().map(|&v| f64::from(v) * f64::from(scale)),
            );
        }
        let args = EmbedArgs {
            table: input("table", table.records),
            tokens: words("tokens", &tokens),
            slots: if self.each_own { words("slots", &slots) } else { CaseArg::Null },
            position: words("position", &position),
            out: output("out", Storage::F32, want, SINGLE),
            scale: CaseArg::F32(scale),
            capacity: CaseArg::U32(capacity as u32),
        };
        let name =
            format!("embed {} · {cols} cols, each its own {}", self.layout.format, self.each_own);
        Case::of(name, self, target, self.launch(target, 1, Size { tokens: rows, past: 0 })?, args)
    }
}

impl Family for EmbedSpec {
    const NAME: &'static str = NAME;
    type Args<A> = EmbedArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = if self.each_own { ", one a sequence" } else { "" };
        write!(f, "{} × {}{each}", self.layout.format, self.layout.cols)
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, inside: Inside) -> Result<Step, SpecError> {
        step::covered(NAME, &self.layout)?;
        let shares = (self.layout.units() as u32).div_ceil(inside.threads);
        let call = "Meeting::wait(); Embed<S>::step(a, share);";
        Ok(Step { shares: Some(shares), ..Step::of("embed.h", "EmbedArgs", call, self.shape()) })
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens * (self.layout.row_bytes + 4 * self.layout.cols))
    }

    fn case(
        &self,
        target: &Target,
        _: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        self.of(target, (size.tokens, ROWS), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for (i, format) in ALL.iter().enumerate() {
            let cols = if format.block_elems() == 1 { 61 + i } else { 2 * format.block_elems() };
            let spec = EmbedSpec { layout: Layout::new(format, cols)?, each_own: i % 2 == 1 };
            into.push(spec.of(target, (3, 41), random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for format in formats() {
            list.add(
                format!("embed {format}"),
                EmbedSpec { layout: Layout::new(format, 4096)?, each_own: false },
                ONE,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_as_few_rows_as_one() {
        let target = Target::parse("gfx1100").unwrap();
        for each_own in [false, true] {
            let spec = EmbedSpec { layout: Layout::new(&ALL[0], 64).unwrap(), each_own };
            for rows in 1..=5 {
                spec.of(&target, (rows, 41), &mut Random::new(1)).unwrap();
            }
        }
    }
}
