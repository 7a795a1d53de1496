//! Seeded random data, and weights of any format with realistic scales.

use crate::content::Content;
use crate::shared::{DISTINCT_CHEAP, SharedData};
use half::f16;
use kjit_formats::format::{BlockScale, Encoding, Format, GroupScale, Offset};
use kjit_formats::layout::{Layout, LayoutError};
use kjit_kernels::SpecError;
use std::sync::Arc;

/// SplitMix64 (Steele, Lea & Flood 2014).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
    /// Data that cheap cases share.
    shared: Option<Arc<SharedData>>,
    /// The start of the first matrix in the shared rows, and the number of matrices so far.
    begun: Option<(usize, usize)>,
}

impl Random {
    /// A generator with a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random { state: seed, shared: None, begun: None }
    }

    /// For cheap cases: matrices repeat a few rows, which all cases with `shared` share.
    #[must_use]
    pub fn sharing(self, shared: &Arc<SharedData>) -> Random {
        Random { shared: Some(Arc::clone(shared)), ..self }
    }

    /// The start of the next matrix in the shared rows. All matrices of a case start differently;
    /// otherwise a kernel that reads one instead of the other would pass.
    fn turn(&mut self, distinct: usize) -> usize {
        let (first, before) = self.begun.unwrap_or_else(|| (self.below(distinct), 0));
        self.begun = Some((first, before + 1));
        // The number of rows is prime.
        (first + before * STEP) % distinct.max(1)
    }

    /// A generator of the same kind with a different seed.
    pub(crate) fn again(&self, seed: u64) -> Random {
        Random { state: seed, shared: self.shared.clone(), begun: self.begun }
    }

    /// Data that cheap cases share.
    pub(crate) fn shared(&self) -> Option<Arc<SharedData>> {
        self.shared.clone()
    }

    /// `usual` rows, or the number of distinct rows in a cheap case.
    pub(crate) fn rows(&self, usual: usize) -> usize {
        if self.shared.is_some() { DISTINCT_CHEAP } else { usual }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random integer in `[0, below)`.
    pub fn below(&mut self, below: usize) -> usize {
        (self.bits() >> 11) as usize % below.max(1)
    }

    /// A random number, uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A random number, normal with mean 0 and deviation 1 (Box & Muller 1958). In cheap cases it
    /// is the sum of four uniform numbers, at most 3.5 from the mean.
    pub fn normal(&mut self) -> f64 {
        if self.shared.is_some() {
            let bits = self.bits();
            let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
            return (sum as f64 - 2.0 * 65535.0) * SUM_OF_FOUR;
        }
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Normal f32 values with this deviation.
    pub fn normals(&mut self, n: usize, deviation: f64) -> Vec<f32> {
        (0..n).map(|_| (self.normal() * deviation) as f32).collect()
    }

    /// Activations like those of models: normally distributed, a few fifty times as large.
    pub fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (self.normal() * if self.below(200) == 0 { 50.0 } else { 1.0 }) as f32)
            .collect()
    }
}

/// √3 / 2¹⁶: times this factor, the sum of four uniform 16-bit numbers has deviation 1.
const SUM_OF_FOUR: f64 = 1.732_050_807_568_877_2 / 65536.0;

/// A random matrix: in the file's format, in the device's layout, and as values.
pub struct Matrix {
    /// Bytes in the file's format.
    pub raw: Content,
    /// Row records of the device.
    pub records: Content,
    /// Number of distinct rows; later rows repeat them in order.
    pub distinct: usize,
    rows: Arc<Rows>,
    /// Index of the shared row that is the first one of the matrix; earlier shared rows follow the
    /// last one.
    first: usize,
}

/// Random rows: in the file's format, in the device's layout, and as values.
#[derive(Debug)]
pub(crate) struct Rows {
    raw: Arc<Vec<u8>>,
    records: Arc<Vec<u8>>,
    values: Vec<f32>,
    cols: usize,
}

/// Number of distinct rows of a large matrix; an oracle would take too long for more. It is prime,
/// so a wrong tile of rows has wrong values.
const DISTINCT: usize = 509;
/// Distance between the starts of successive matrices in the shared rows.
const STEP: usize = 23;
/// Up to this number of rows all differ.
const ALL: usize = 2048;
/// Number of threads that convert rows to the device's layout.
const TOGETHER: usize = 4;

impl Rows {
    /// Random codes and group scales. Block scales are such that weights have a deviation of about
    /// 0.02 to 0.1.
    pub(crate) fn random(
        format: &'static Format,
        rows: usize,
        cols: usize,
        random: &mut Random,
    ) -> Result<Rows, SpecError> {
        let layout = Layout::new(format, cols)?;
        let row_bytes = format.row_bytes(cols).unwrap_or(0);
        let mut raw: Vec<u8> = match &format.encoding {
            Encoding::F32 => {
                random.normals(rows * cols, 0.05).iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            Encoding::F16 => random
                .normals(rows * cols, 0.05)
                .iter()
                .flat_map(|&v| f16::from_f32(v).to_le_bytes())
                .collect(),
            Encoding::BF16 => random
                .normals(rows * cols, 0.05)
                .iter()
                .flat_map(|&v| half::bf16::from_f32(v).to_le_bytes())
                .collect(),
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
                    BlockScale::F16(at) => half(
                        block,
                        at,
                        if b.group < b.elems { 0.05 } else { 1.0 } / f64::from(largest),
                        random,
                    ),
                    BlockScale::HalfE8M0(at) => {
                        block[at as usize] = 118 + (random.bits() % 6) as u8
                    }
                    BlockScale::F16Down(..) | BlockScale::SplitF16Down(..) => {
                        b.set_block_scale(block, f16::from_f64((0.5 + random.unit()) * 0.001));
                    }
                    BlockScale::Down(_) => {}
                }
                if let GroupScale::Ue4m3(at) = b.group_scale {
                    block[at as usize..][..b.elems / b.group]
                        .iter_mut()
                        .for_each(|scale| *scale %= 16);
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
        let lay_out =
            &|raw: &[u8], records: &mut [u8], values: &mut [f32]| -> Result<(), SpecError> {
                let rows =
                    raw.chunks_exact(row_bytes).zip(records.chunks_exact_mut(layout.row_bytes));
                for ((raw, record), values) in rows.zip(values.chunks_exact_mut(cols)) {
                    layout.repack_row(raw, record)?;
                    layout.decode_row(record, values)?;
                }
                Ok(())
            };
        if random.shared.is_none() {
            lay_out(&raw, &mut records, &mut values)?;
        } else {
            // Eight threads, because a caller waits for these rows.
            let each = rows.div_ceil(TOGETHER);
            let parts =
                raw.chunks(each * row_bytes).zip(records.chunks_mut(each * layout.row_bytes));
            let parts = parts.zip(values.chunks_mut(each * cols));
            std::thread::scope(|scope| {
                let all: Vec<_> =
                    parts.map(|((r, t), v)| scope.spawn(move || lay_out(r, t, v))).collect();
                let each = all
                    .into_iter()
                    .map(|one| one.join().unwrap_or_else(|why| std::panic::resume_unwind(why)));
                each.collect::<Result<(), SpecError>>()
            })?;
        }
        if values.iter().any(|v| !v.is_finite()) {
            return Err(
                LayoutError::Length { what: "finite values", got: 0, want: values.len() }.into()
            );
        }
        Ok(Rows { raw: Arc::new(raw), records: Arc::new(records), values, cols })
    }
}

impl Matrix {
    /// A matrix of `rows` rows. Rows repeat if an oracle would take too long.
    pub fn random(
        format: &'static Format,
        rows: usize,
        cols: usize,
        random: &mut Random,
    ) -> Result<Matrix, SpecError> {
        let shared = random.shared.clone();
        let repeated = match &shared {
            Some(shared) => shared.rows(format, cols, random)?,
            None => Arc::new(Rows::random(
                format,
                if rows > ALL { DISTINCT } else { rows },
                cols,
                random,
            )?),
        };
        let (row_bytes, record) =
            (format.row_bytes(cols).unwrap_or(0), Layout::new(format, cols)?.row_bytes);
        let distinct = repeated.values.len().checked_div(cols).unwrap_or(0);
        let first = if shared.is_some() { random.turn(distinct) } else { 0 };
        Ok(Matrix {
            raw: Content::turned(Arc::clone(&repeated.raw), first * row_bytes, rows * row_bytes),
            records: Content::turned(Arc::clone(&repeated.records), first * record, rows * record),
            distinct: distinct.min(rows),
            rows: repeated,
            first,
        })
    }

    /// Values of a row.
    pub fn row(&self, row: usize) -> &[f32] {
        let cols = self.rows.cols;
        let at = (self.first + row % self.distinct) % (self.rows.values.len() / cols) * cols;
        &self.rows.values[at..at + cols]
    }

    /// [`Matrix::dot`] of each distinct row.
    pub fn dots(&self, x: &[f64]) -> Vec<f64> {
        (0..self.distinct).map(|row| self.dot(row, x)).collect()
    }

    /// `Σ row[i] · x[i]` in f64: eight sums, which a processor computes in parallel, and the rest.
    pub fn dot(&self, row: usize, x: &[f64]) -> f64 {
        let ((row, last), (x, last_x)) = (self.row(row).as_chunks::<8>(), x.as_chunks::<8>());
        let mut sums = [0.0; 8];
        for (row, x) in row.iter().zip(x) {
            for ((sum, &w), x) in sums.iter_mut().zip(row).zip(x) {
                *sum += f64::from(w) * x;
            }
        }
        let rest: f64 = last.iter().zip(last_x).map(|(&w, x)| f64::from(w) * x).sum();
        sums.iter().sum::<f64>() + rest
    }
}
