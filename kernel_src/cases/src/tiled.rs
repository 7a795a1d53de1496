//! Activations as f16 in tiles, in panels and in turned tiles (MMA operand layout), and the
//! expected results.

use crate::content::Content;
use crate::data::Random;
use crate::expect::Tolerance;
use half::f16;
use kjit_kernels::mma::{
    panel_bytes, panel_index, tiled_bytes, tiled_index, turned_bytes, turned_index,
};
use std::sync::Arc;

/// Weights and their groups' scales are rounded to f16: 2⁻¹¹ each, more if an offset cancels most
/// of a weight (Q2_K, Q4_1).
pub(crate) const PRODUCT: Tolerance =
    Tolerance { norm: 1.2e-3, each: 1e-2, reason: "weights and scales rounded to half precision" };
/// A product of two such results, also rounded to f16.
pub(crate) const GATED: Tolerance = Tolerance {
    norm: 3e-3,
    each: 4e-2,
    reason: "two results of weights rounded to half precision, multiplied",
};

/// Results rounded to f16: 2⁻¹¹ of each; a few are fifty times as large as most.
pub(crate) const ROUNDED: Tolerance =
    Tolerance { norm: 4e-4, each: 6e-2, reason: "results rounded to half precision" };

/// Distinct tokens of a long prompt.
const DISTINCT: usize = 61;

/// Random f16 values as tiles.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// The bytes, with NaN in the rows after the last.
    bytes: Arc<Vec<u8>>,
    /// The distinct rows; later rows repeat them in order.
    pub values: Vec<Vec<f64>>,
}

impl Tiles {
    pub(crate) fn random(rows: usize, cols: usize, random: &mut Random) -> Tiles {
        let mut bytes = vec![0xff; tiled_bytes(rows, cols)];
        let mut all: Vec<Vec<f16>> = vec![];
        // As for the rows of a matrix: many tokens repeat a few distinct rows.
        for _ in 0..if rows > 256 { DISTINCT } else { rows } {
            all.push(random.activations(cols).iter().map(|&v| f16::from_f32(v)).collect());
        }
        for (row, halves) in (0..rows).zip(all.iter().cycle()) {
            for col in 0..cols.next_multiple_of(64) {
                let v = halves.get(col).copied().unwrap_or(f16::ZERO);
                bytes[2 * tiled_index(row, col, cols)..][..2].copy_from_slice(&v.to_le_bytes());
            }
        }
        Tiles {
            bytes: Arc::new(bytes),
            values: all.iter().map(|row| row.iter().map(|v| v.to_f64()).collect()).collect(),
        }
    }

    /// The bytes as a buffer.
    pub fn content(&self) -> Content {
        Content::turned(Arc::clone(&self.bytes), 0, self.bytes.len())
    }
}

/// Random f16 values as tiles; all cheap cases share them.
pub(crate) fn tiled(rows: usize, cols: usize, random: &mut Random) -> Arc<Tiles> {
    match random.shared() {
        Some(shared) => shared.tiles(rows, cols, random),
        None => Arc::new(Tiles::random(rows, cols, random)),
    }
}

/// Expected contents of a tiled buffer: the rows' values, zeros after a row, NaN (not compared) in
/// other rows.
pub(crate) fn want_tiled(rows: &[Option<Vec<f64>>], cols: usize) -> Vec<f64> {
    let mut want = vec![f64::NAN; tiled_bytes(rows.len(), cols) / 2];
    for (row, values) in rows.iter().enumerate() {
        let Some(values) = values else { continue };
        for col in 0..cols.next_multiple_of(64) {
            want[tiled_index(row, col, cols)] = values.get(col).copied().unwrap_or(0.0);
        }
    }
    want
}

/// Expected contents of panels.
pub(crate) fn want_panels(rows: &[Option<Vec<f64>>], cols: usize) -> Vec<f64> {
    let mut want = vec![f64::NAN; panel_bytes(rows.len(), cols) / 2];
    for (row, values) in rows.iter().enumerate() {
        let values = values.iter().flatten().enumerate();
        values.for_each(|(col, &v)| want[panel_index(row, col, cols)] = v);
    }
    want
}

/// Random f16 values as panels, with NaN for missing tokens and after the last column; also the
/// values.
pub(crate) fn panels(rows: usize, cols: usize, random: &mut Random) -> (Vec<u8>, Vec<Vec<f64>>) {
    let mut bytes = vec![0xff; panel_bytes(rows, cols)];
    let mut all = vec![];
    for row in 0..rows {
        let halves: Vec<f16> = random.activations(cols).iter().map(|&v| f16::from_f32(v)).collect();
        for (col, v) in halves.iter().enumerate() {
            bytes[2 * panel_index(row, col, cols)..][..2].copy_from_slice(&v.to_le_bytes());
        }
        all.push(halves.into_iter().map(f16::to_f64).collect());
    }
    (bytes, all)
}

/// Expected contents of a buffer of turned tiles: the rows' values, zeros after a row, NaN (not
/// compared) in other rows.
pub(crate) fn want_turned(rows: &[Option<Vec<f64>>], cols: usize) -> Vec<f64> {
    let mut want = vec![f64::NAN; turned_bytes(rows.len(), cols) / 2];
    for (row, values) in rows.iter().enumerate() {
        let Some(values) = values else { continue };
        for col in 0..cols.next_multiple_of(128) {
            want[turned_index(row, col, cols)] = values.get(col).copied().unwrap_or(0.0);
        }
    }
    want
}

/// Random f16 values as turned tiles, with NaN for missing tokens; also the values.
pub(crate) fn turned(rows: usize, cols: usize, random: &mut Random) -> (Vec<u8>, Vec<Vec<f64>>) {
    let mut bytes = vec![0xff; turned_bytes(rows, cols)];
    let mut all = vec![];
    for row in 0..rows {
        let halves: Vec<f16> = random.activations(cols).iter().map(|&v| f16::from_f32(v)).collect();
        for col in 0..cols.next_multiple_of(128) {
            let v = halves.get(col).copied().unwrap_or(f16::ZERO);
            bytes[2 * turned_index(row, col, cols)..][..2].copy_from_slice(&v.to_le_bytes());
        }
        all.push(halves.into_iter().map(f16::to_f64).collect());
    }
    (bytes, all)
}
