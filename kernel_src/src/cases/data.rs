//! Seeded random data, and weights of any format with sensible scales.

use super::Content;
use crate::format::{BlockScale, Encoding, Format, GroupScale, Offset};
use crate::kernel::SpecError;
use crate::layout::{Layout, LayoutError};
use half::f16;

/// SplitMix64 (Steele, Lea & Flood 2014).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
    /// Rows of a matrix that differ, where they are not [`FEW`].
    rows: Option<usize>,
}

impl Random {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random { state: seed, rows: None }
    }

    /// The same for cases that are to cost little: matrices repeat a few rows.
    #[must_use]
    pub const fn few(self) -> Random {
        Random { rows: Some(PROOF), ..self }
    }

    /// So many rows, or those that differ in a case that is to cost little.
    pub(crate) fn rows(&self, usual: usize) -> usize {
        self.rows.unwrap_or(usual)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `[0, below)`.
    pub fn below(&mut self, below: usize) -> usize {
        (self.bits() >> 11) as usize % below.max(1)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal, mean 0, deviation 1 (Box & Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Normal f32 values of this deviation.
    pub fn normals(&mut self, n: usize, deviation: f64) -> Vec<f32> {
        (0..n).map(|_| (self.normal() * deviation) as f32).collect()
    }

    /// Activations as models have them: normal, a few of them fifty times as large.
    pub fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.normal() * if self.below(200) == 0 { 50.0 } else { 1.0 }) as f32).collect()
    }
}

/// A random matrix: as in a file, as on a device, and its values.
pub struct Matrix {
    /// The file's bytes.
    pub raw: Content,
    /// Row records.
    pub records: Content,
    /// Values of the distinct rows, row by row.
    pub values: Vec<f32>,
    /// Rows that differ; those behind them repeat them in turn.
    pub distinct: usize,
}

/// A matrix of a real model has more rows than an oracle has time for: it repeats this many. A prime, so that
/// no tile of rows falls on its own values when it is read in another's place.
const DISTINCT: usize = 509;
/// Up to so many, all rows differ.
const FEW: usize = 2048;
/// Rows that differ in a case that is to cost little. A prime, too.
const PROOF: usize = 61;

impl Matrix {
    /// Random codes and group scales, block scales such that weights have a deviation of about 0.02 to 0.1.
    pub fn random(format: &'static Format, rows: usize, cols: usize, random: &mut Random) -> Result<Matrix, SpecError> {
        let distinct = random.rows.unwrap_or(if rows > FEW { DISTINCT } else { rows });
        let (all, rows) = (rows, rows.min(distinct));
        let layout = Layout::new(format, cols)?;
        let row_bytes = format.row_bytes(cols).unwrap_or(0);
        let mut raw: Vec<u8> = match &format.encoding {
            Encoding::F32 => random.normals(rows * cols, 0.05).iter().flat_map(|v| v.to_le_bytes()).collect(),
            Encoding::F16 => {
                random.normals(rows * cols, 0.05).iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()
            }
            Encoding::BF16 => {
                random.normals(rows * cols, 0.05).iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect()
            }
            Encoding::Blocks(_) => (0..rows * row_bytes).map(|_| random.bits() as u8).collect(),
        };
        if let Encoding::Blocks(b) = &format.encoding {
            let largest = 16 << (b.planes.iter().map(|p| p.bits).sum::<u8>());
            for block in raw.chunks_exact_mut(b.bytes) {
                let half = |block: &mut [u8], at: u16, factor: f64, random: &mut Random| {
                    let v = f16::from_f64((0.5 + random.unit()) * factor).to_le_bytes();
                    block[at as usize..at as usize + 2].copy_from_slice(&v);
                };
                match b.scale {
                    BlockScale::F16(at) => {
                        half(block, at, if b.group < b.elems { 0.05 } else { 1.0 } / f64::from(largest), random)
                    }
                    BlockScale::HalfE8M0(at) => block[at as usize] = 118 + (random.bits() % 6) as u8,
                    BlockScale::F16Down(..) | BlockScale::SplitF16Down(..) => {
                        b.set_block_scale(block, f16::from_f64((0.5 + random.unit()) * 0.001));
                    }
                    BlockScale::Down(_) => {}
                }
                if let GroupScale::Ue4m3(at) = b.group_scale {
                    block[at as usize..][..b.elems / b.group].iter_mut().for_each(|scale| *scale %= 16);
                }
                match b.offset {
                    Offset::Plus(at) => half(block, at, -0.03, random),
                    Offset::MinusScaled(at) => half(block, at, 0.001, random),
                    Offset::None => {}
                }
            }
        }
        let mut records = vec![0; layout.bytes(rows, 1)?];
        let mut values = vec![0.0; rows * cols];
        for ((raw, record), values) in raw
            .chunks_exact(row_bytes)
            .zip(records.chunks_exact_mut(layout.row_bytes))
            .zip(values.chunks_exact_mut(cols))
        {
            layout.repack_row(raw, record)?;
            layout.decode_row(record, values)?;
        }
        if values.iter().any(|v| !v.is_finite()) {
            return Err(LayoutError::Length { what: "finite values", got: 0, want: values.len() }.into());
        }
        let raw = Content::repeated(raw, all * row_bytes);
        let records = Content::repeated(records, all * layout.row_bytes);
        Ok(Matrix { raw, records, values, distinct: rows })
    }

    /// [`Matrix::dot`] of each distinct row.
    pub fn dots(&self, x: &[f64]) -> Vec<f64> {
        (0..self.distinct).map(|row| self.dot(row, x)).collect()
    }

    /// `Σ row[i] · x[i]` in f64.
    pub fn dot(&self, row: usize, x: &[f64]) -> f64 {
        self.values[row % self.distinct * x.len()..][..x.len()].iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()
    }
}
