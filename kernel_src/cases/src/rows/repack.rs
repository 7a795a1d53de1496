//! Cases and samples of `repack`.

use crate::case::{Case, CaseArg, FOLLOWS, input};
use crate::cases::Cases;
use crate::content::Content;
use crate::data::{Matrix, Random};
use crate::expect::Expect;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_formats::format::ALL;
use kjit_formats::layout::Layout;
use kjit_kernels::repack::{ROWS, RepackArgs, RepackSpec};
use kjit_kernels::{Size, SpecError};

impl Cases for RepackSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        _: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let rows = random.rows(ROWS);
        of(self, target, rows, self.blocks(rows as u64, units), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for (i, format) in ALL.iter().enumerate() {
            let cols =
                if format.block_elems() == 1 { 63 + i } else { format.block_elems() * (1 + i % 3) };
            let rows = 7 + 31 * (i % 2);
            let spec = RepackSpec { layout: Layout::new(format, cols)? };
            into.push(of(&spec, target, rows, spec.blocks(rows as u64, 1).min(3), random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for format in ALL {
            list.add(
                format!("repack {format}"),
                RepackSpec { layout: Layout::new(format, 4096)? },
                Size::ONE,
            )?;
        }
        Ok(())
    }
}

/// A case of `rows` rows with `blocks` blocks.
fn of(
    spec: &RepackSpec,
    target: &Target,
    rows: usize,
    blocks: u32,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let Layout { format, cols, .. } = spec.layout;
    let matrix = Matrix::random(format, rows, cols, random)?;
    let args = RepackArgs {
        raw: input("raw", matrix.raw),
        records: CaseArg::Buffer {
            name: "records",
            before: Content::filled(0xff, matrix.records.len()),
            expect: Expect::Bytes(matrix.records.to_vec()),
        },
        rows: CaseArg::U64(rows as u64),
        blocks: FOLLOWS,
    };
    let name = format!("repack {format} · {rows} × {cols}, {blocks} blocks");
    Case::of(name, spec, target, spec.launch_blocks(target, blocks)?, args)
}
