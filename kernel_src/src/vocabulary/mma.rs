//! The matrix instructions of `gpu/mma.h` on a target, and the tiles of activations between such
//! kernels.

use kjit_engine::{Constants, Dot, MatrixUnit, Target, Vendor};

/// The family of `gpu/mma.h` for a target at a wave width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Product {
    /// `KJ_MMA`.
    family: i64,
    /// Whether `v_dot2_f32_f16` is used instead of a matrix instruction.
    dot2: bool,
    /// Columns of one product: rows of weights, or keys.
    pub columns: u32,
    /// Depth of one product (`MMA_K`).
    pub depth: u32,
    /// Whether results become inputs without passing through LDS.
    pub stays: bool,
}

impl Product {
    /// The instructions for attention of prompts. Its results stay in registers from tile to tile.
    /// On gfx908 these are AGPRs that are copied to each other, and some compilers copy them
    /// wrongly. There attention uses no matrix instructions unless the compiler was tested
    /// (`agpr_copy_check.rs`: `gfx908:sound-copies`). Attention also uses none if the head is not a
    /// multiple of the depth (heads of 80 with depth 32).
    pub fn of_attention(target: &Target, wave: u32, head_dim: usize) -> Product {
        let product = Product::of(target, wave);
        let whole = head_dim.is_multiple_of(product.depth as usize);
        if whole && !target.arch().has("copies-agprs") {
            product
        } else {
            Product::family(target, 0)
        }
    }

    pub fn of(target: &Target, wave: u32) -> Product {
        let family = match (target.arch().matrix, wave) {
            (MatrixUnit::MmaSync | MatrixUnit::Wgmma, _) => 1,
            (MatrixUnit::Mfma, 64) => 2,
            (MatrixUnit::Wmma, 32) => 3,
            (MatrixUnit::Wmma12, 32) => 4,
            (MatrixUnit::Wmma1250, 32) => 5,
            _ => 0,
        };
        Product::family(target, family)
    }

    fn family(target: &Target, family: i64) -> Product {
        // gfx1250 has the byte dot product but not v_dot2_f32_f16.
        let pairs = target.arch().dot != Dot::None && target.arch().matrix != MatrixUnit::Wmma1250;
        let dot2 = family == 0 && target.vendor() == Vendor::Amd && pairs;
        let depth = match family {
            0 => 4,
            5 => 32,
            _ => 16,
        };
        Product {
            family,
            dot2,
            columns: if family == 0 { 32 } else { 16 },
            depth,
            stays: family == 1,
        }
    }

    pub fn macros(&self) -> Constants {
        Constants::new().set("KJ_MMA", self.family).set("KJ_DOT2", i64::from(self.dot2))
    }
}

/// The macros of `gpu/mma.h` for a target at a wave width.
#[must_use]
pub fn matrix_constants(target: &Target, wave: u32) -> Constants {
    Product::of(target, wave).macros()
}

/// Bytes of `rows × cols` activations in panels (`gpu/mma.h`).
#[must_use]
pub const fn panel_bytes(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(8) * cols.next_multiple_of(128) * 2
}

/// Index of an element in panels: for each 8 rows and 128 columns, four rounds of 32 lanes with
/// eight neighbouring columns each. Lane `4 · row + chunk` has in each round a quarter of the 32
/// columns of its chunk.
#[must_use]
pub const fn panel_index(row: usize, col: usize, cols: usize) -> usize {
    let block = row / 8 * cols.div_ceil(128) + col / 128;
    block * 1024 + col % 32 / 8 * 256 + (row % 8 * 4 + col % 128 / 32) * 8 + col % 8
}

/// Rows (tokens) and columns of a block in a tiled f16 matrix.
pub const TILE: usize = 64;

/// Bytes of `rows × cols` activations in tiles (`gpu/mma.h`): rows are rounded up to 256, the most
/// that a kernel reads together, columns to 64.
#[must_use]
pub const fn tiled_bytes(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(256) * cols.next_multiple_of(TILE) * 2
}

/// Index of an element in a tiled matrix: blocks of 64 × 64, block rows one after the other; in a
/// block, rows of 64 whose chunks of 8 are rotated by the row.
#[must_use]
pub const fn tiled_index(row: usize, col: usize, cols: usize) -> usize {
    let block = row / TILE * cols.div_ceil(TILE) + col / TILE;
    block * TILE * TILE + (((row % TILE) * TILE + row % 8 * 8) ^ (col % TILE))
}

/// Bytes of `rows × cols` activations in turned tiles (`gpu/turned.h`): rows are rounded up to 64,
/// columns to 128.
#[must_use]
pub const fn turned_bytes(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(TILE) * cols.next_multiple_of(128) * 2
}

/// Index of an element in turned tiles: tiles as in [`tiled_index`], two for each 128 columns, in
/// the order in which lanes unpack weights. A span has 32 columns. The quad of a column in its span
/// selects sixteen indices, and its index in the quad selects eight of them.
#[must_use]
pub const fn turned_index(row: usize, col: usize, cols: usize) -> usize {
    let in_steps = cols.next_multiple_of(128);
    let place = col % 32 / 4 * 16 + col % 2 * 8 + col % 128 / 32 * 2 + col % 4 / 2;
    tiled_index(row, col / 128 * 128 + place, in_steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiled_matrix_elements_have_unique_indices() {
        let (rows, cols) = (70, 100);
        for (bytes, index) in [
            (tiled_bytes(rows, cols), tiled_index as fn(usize, usize, usize) -> usize),
            (turned_bytes(rows, cols), turned_index),
        ] {
            let mut taken = vec![false; bytes / 2];
            for row in 0..rows {
                for col in 0..cols {
                    let at = index(row, col, cols);
                    assert!(
                        !std::mem::replace(&mut taken[at], true),
                        "({row}, {col}) shares element {at}"
                    );
                }
            }
        }
    }

    #[test]
    fn tiled_chunks_of_eight_rows_have_distinct_positions() {
        let chunk = |row| tiled_index(row, 24, 64) % 64 / 8;
        let places: std::collections::BTreeSet<_> = (0..8).map(chunk).collect();
        assert_eq!(places.len(), 8);
    }
}
