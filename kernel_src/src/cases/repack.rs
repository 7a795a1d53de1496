//! Cases of the repacking: the device's records must be the host's, byte for byte.

use super::data::Matrix;
use super::{Case, CaseArg, Expect, Random, input};
use crate::format::ALL;
use crate::kernel::SpecError;
use crate::layout::Layout;
use crate::repack::RepackSpec;
use kjit_engine::Target;

pub(super) fn cases(target: &Target, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    for (i, format) in ALL.iter().enumerate() {
        let cols = if format.block_elems() == 1 { 63 + i } else { format.block_elems() * (1 + i % 3) };
        let rows = 7 + 31 * (i % 2);
        let spec = RepackSpec { layout: Layout::new(format, cols)? };
        let blocks = spec.blocks(rows as u64, 1).min(3);
        into.push(case(&spec, target, (rows, blocks), random)?);
    }
    Ok(())
}

/// A case of `rows` rows in so many blocks.
pub(super) fn case(
    spec: &RepackSpec,
    target: &Target,
    (rows, blocks): (usize, u32),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let Layout { format, cols, .. } = spec.layout;
    let matrix = Matrix::random(format, rows, cols, random)?;
    let kernel = spec.kernel(target)?;
    Ok(Case {
        name: format!("repack {format} · {rows} × {cols}, {blocks} blocks"),
        geometry: kernel.launch(blocks),
        kernel,
        args: vec![
            input("raw", matrix.raw),
            CaseArg::Buffer {
                name: "records",
                before: vec![0xff; matrix.records.len()],
                expect: Expect::Bytes(matrix.records),
            },
            CaseArg::U64(rows as u64),
            CaseArg::U32(blocks),
        ],
    })
}
