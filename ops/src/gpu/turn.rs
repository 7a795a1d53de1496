//! Transposing copies: the contiguous axes of source and result differ. Tiles in shared memory make
//! both reads and writes contiguous.

use super::render::{self, BLOCK, Rendered, Writer};
use crate::program::{Instr, Map, Program};
use std::fmt::Write;

/// Elements of a tile in each direction.
const TILE: usize = 64;
/// From this length of an axis on, tiles are faster.
const LEAST: usize = 16;

/// If a program is such a copy: the axes along which its source and its result are contiguous, as
/// positions in its index space.
fn axes(program: &Program, to: &Map) -> Option<(usize, usize)> {
    let [step] = &program.steps[..] else { return None };
    let Instr::Load(leaf, map) = step.instr else { return None };
    let (map, dtype) = (program.maps.get(map)?, program.leaves.get(leaf)?.dtype);
    let neighbours = |map: &Map| {
        let long = |a: &usize| program.shape.get(*a).is_some_and(|n| *n >= LEAST);
        map.strides.iter().position(|s| *s == 1).filter(long)
    };
    let (a, b) = (neighbours(map)?, neighbours(to)?);
    (a != b && dtype == step.dtype).then_some((a, b))
}

/// The kernel of a copy by tiles; `None` for other programs.
pub(super) fn turn(program: &Program, to: &Map) -> Option<Rendered> {
    let (a, b) = axes(program, to)?;
    let Instr::Load(_, map) = program.steps.first()?.instr else { return None };
    let from = program.maps.get(map)?;
    let size = |axis: usize| program.shape.get(axis).copied().unwrap_or(1);
    let stride = |map: &Map, axis: usize| map.strides.get(axis).copied().unwrap_or(0);
    let mut w = Writer::new(program, render::narrow(program, &[to]));
    let index = w.index();
    let (rows, cols) = (w.size(size(a) as i64), w.size(size(b) as i64));
    let (down, across) = (size(a).div_ceil(TILE), size(b).div_ceil(TILE));
    let (tiles, wide) = (w.size(down as i64), w.size(across as i64));
    let (deep, step) = (w.size(stride(from, b)), w.size(stride(to, a)));
    let (mut source, mut result) = (w.size(from.offset), w.size(to.offset));
    let mut digits = String::new();
    let mut blocks = down.saturating_mul(across);
    for axis in (0..program.shape.len()).rev().filter(|axis| *axis != a && *axis != b) {
        let n = w.size(size(axis) as i64);
        blocks = blocks.saturating_mul(size(axis));
        _ = writeln!(digits, "    const {index} x{axis} = index_rest(rest, {n});");
        for (text, map) in [(&mut source, from), (&mut result, to)] {
            let stride = w.size(stride(map, axis));
            _ = write!(text, " + x{axis} * {stride}");
        }
    }
    // Elements are moved as words of their size.
    let word = match program.dtype().size() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    };
    let each = TILE * TILE / BLOCK as usize;
    let step_of = BLOCK as usize / TILE;
    let kernel = format!(
        "KERNEL turn(Numbers p, {word}* to, const {word}* from) {{\n\
         \x20   LDS_ARRAY({word}, tile, {TILE} * {pitch});\n\
         \x20   const {index} rows = {rows}, cols = {cols};\n\
         \x20   {index} rest = ({index})block_id();\n\
         \x20   const {index} row = index_rest(rest, {tiles}) * {TILE};\n\
         \x20   const {index} col = index_rest(rest, {wide}) * {TILE};\n{digits}\
         \x20   (void)rest;\n\
         \x20   const u32 i = thread_id() % {TILE}, j = thread_id() / {TILE};\n\
         \x20   const {index} source = {source}, result = {result};\n\
         \x20   {word} held[{each}];\n\
         \x20   UNROLL for (u32 u = 0; u < {each}; u++) {{\n\
         \x20       const {index} r = row + i, c = col + j + u * {step_of};\n\
         \x20       held[u] = from[source + (r < rows ? r : rows - 1) +\n\
         \x20                      (c < cols ? c : cols - 1) * {deep}];\n\
         \x20   }}\n\
         \x20   UNROLL for (u32 u = 0; u < {each}; u++)\n\
         \x20       tile[(j + u * {step_of}) * {pitch} + i] = held[u];\n\
         \x20   block_sync();\n\
         \x20   UNROLL for (u32 u = 0; u < {each}; u++) {{\n\
         \x20       const {index} r = row + j + u * {step_of}, c = col + i;\n\
         \x20       if (r < rows && c < cols)\n\
         \x20           to[result + r * {step} + c] = tile[i * {pitch} + j + u * {step_of}];\n\
         \x20   }}\n}}\n",
        pitch = TILE + 1,
    );
    (blocks < 1 << 31).then(|| render::whole(w, &kernel, blocks))
}
