//! Cases and samples of `copy`.

use crate::case::{Case, CaseArg, floats, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::Expect;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::copy_rows::{CopyRowsArgs, CopyRowsSpec};
use kjit_kernels::launch::Launch;
use kjit_kernels::variant::Fixed;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for CopyRowsSpec {
    /// Four rows for any size.
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
        let args = CopyRowsArgs {
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
        into.push(CopyRowsSpec { words: 301 }.case(target, 2, Size::ONE, random)?);
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("rows".to_owned(), CopyRowsSpec { words: 4096 }, Size::ONE)
    }
}
