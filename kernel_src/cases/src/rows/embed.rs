//! Cases and samples of `embed`.

use crate::case::{Case, CaseArg, input, words};
use crate::cases::Cases;
use crate::data::{Matrix, Random};
use crate::expect::{Expect, SINGLE, Storage};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_formats::format::ALL;
use kjit_formats::layout::Layout;
use kjit_kernels::embed::{EmbedArgs, EmbedSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for EmbedSpec {
    fn case(
        &self,
        target: &Target,
        _: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        of(self, target, (size.tokens, ROWS), random)
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
            into.push(of(&spec, target, (3, 41), random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for format in ALL {
            list.add(
                format!("embed {format}"),
                EmbedSpec { layout: Layout::new(format, 4096)?, each_own: false },
                Size::ONE,
            )?;
        }
        Ok(())
    }
}

/// A case with a table of `vocab` rows.
fn of(
    spec: &EmbedSpec,
    target: &Target,
    (rows, vocab): (usize, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    // Positions of sequences go up to 8 for any number of rows.
    let capacity = (rows + 6).max(9);
    let cols = spec.layout.cols;
    let table = Matrix::random(spec.layout.format, vocab, cols, random)?;
    let mut tokens: Vec<u32> = (0..capacity * rows).map(|_| random.below(vocab) as u32).collect();
    let position: Vec<u32> =
        if spec.each_own { (0..rows as u32).map(|p| (8 + p) % 9).collect() } else { vec![4] };
    // A permutation of the rows.
    let slots: Vec<u32> = (0..rows as u32).map(|r| (r + rows as u32 - 1) % rows as u32).collect();
    let scale = 1.75f32;
    let (mut want, mut before) = (vec![], vec![0xff; rows * cols * 4]);
    for (r, &slot) in slots.iter().enumerate() {
        let slot = slot as usize;
        let at = if spec.each_own {
            slot * capacity + position[slot] as usize
        } else {
            position[0] as usize + r
        };
        // The second row is no token's: it keeps the values that are there.
        if r == 1 {
            tokens[at] = (1 << 31) + random.below(vocab) as u32;
            let kept = random.normals(cols, 1.0);
            let bytes = kept.iter().flat_map(|x| x.to_le_bytes());
            before.splice(4 * r * cols..4 * (r + 1) * cols, bytes);
            want.extend(kept.into_iter().map(f64::from));
            continue;
        }
        want.extend(
            table.row(tokens[at] as usize).iter().map(|&v| f64::from(v) * f64::from(scale)),
        );
    }
    let args = EmbedArgs {
        table: input("table", table.records),
        tokens: words("tokens", &tokens),
        slots: if spec.each_own { words("slots", &slots) } else { CaseArg::Null },
        position: words("position", &position),
        out: CaseArg::Buffer {
            name: "out",
            before: before.into(),
            expect: Expect::Real { storage: Storage::F32, want, tolerance: SINGLE },
        },
        scale: CaseArg::F32(scale),
        capacity: CaseArg::U32(capacity as u32),
    };
    let name =
        format!("embed {} · {cols} cols, each its own {}", spec.layout.format, spec.each_own);
    Case::of(name, spec, target, spec.launch(target, 1, Size { tokens: rows, past: 0 })?, args)
}

/// Rows of the table for timing: enough for every compute unit.
const ROWS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embed_case_accepts_few_rows() {
        let target = Target::parse("gfx1100").unwrap();
        for each_own in [false, true] {
            let spec = EmbedSpec { layout: Layout::new(&ALL[0], 64).unwrap(), each_own };
            for rows in 1..=5 {
                of(&spec, &target, (rows, 41), &mut Random::new(1)).unwrap();
            }
        }
    }
}
