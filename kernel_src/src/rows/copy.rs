//! Copies of rows: `gpu/rows.h`.

use crate::cases::{Case, CaseArg, Expect, Random, floats, words};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// `out[r] = x[which[r]]`, rows of 32-bit words. All widths have one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowsSpec {
    /// Words of a row.
    pub words: usize,
}

arguments! {
    /// The arguments.
    RowsArgs {
        /// Rows of words.
        x: Pointer,
        /// A u32 for each row of `out`.
        which: Pointer,
        /// Rows of words.
        out: Pointer,
        /// Words of a row.
        words: U32,
    }
}

const NAME: &str = "rows";
const BLOCK: u32 = 256;

impl RowsSpec {
    /// Blocks for a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.words as u32).div_ceil(BLOCK)
    }
}

impl Family for RowsSpec {
    const NAME: &'static str = NAME;
    type Args<A> = RowsArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {} words", self.words)
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &Shape::new(), Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(8 * size.tokens * self.words)
    }

    /// Four rows, whatever the size.
    fn case(
        &self,
        target: &Target,
        _: u32,
        _: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let which = [6u32, 0, 6, 3];
        let x = random.normals(7 * self.words, 1.0);
        let want: Vec<u8> = which
            .iter()
            .flat_map(|&r| &x[r as usize * self.words..][..self.words])
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let grid = self.grid(target, &Fixed, 1, Size { tokens: which.len(), past: 0 })?;
        let name = format!("rows · {} of {}", which.len(), self.words);
        let out = CaseArg::Buffer {
            name: "out",
            before: vec![0xff; want.len()].into(),
            expect: Expect::Bytes(want),
        };
        let words_of_row = CaseArg::U32(self.words as u32);
        let args = RowsArgs {
            x: floats("x", &x),
            which: words("which", &which),
            out,
            words: words_of_row,
        };
        Case::of(name, self, target, Launch::of(self.block(target, &Fixed)?, grid), args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        into.push(RowsSpec { words: 301 }.case(target, 2, ONE, random)?);
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("rows".to_owned(), RowsSpec { words: 4096 }, ONE)
    }
}
