//! Quantises rows of f32 weights into blocks of a format.

mod fit;
mod k;
mod lanes;
mod legacy;
mod nonlinear;
mod pack;
mod small;

use half::{bf16, f16};
use kjit_formats::format::{BlockFormat, Encoding, Format};

/// The reasons why rows cannot be quantised.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// There is no quantiser for this format.
    #[error("kjit can read {0} but cannot write it")]
    Format(&'static str),
    /// The length of a row is not a multiple of the block length.
    #[error("rows of {cols} weights are not a whole number of {format} blocks of {block}")]
    Columns {
        /// Name of the format.
        format: &'static str,
        /// Weights of a row.
        cols: usize,
        /// Weights of a block.
        block: usize,
    },
    /// The lengths of weights, importance and output do not match.
    #[error(
        "{weights} weights in rows \
         of {cols} with {importance} numbers of importance do not match an output of {bytes} bytes"
    )]
    Lengths {
        /// Number of weights.
        weights: usize,
        /// Weights of a row.
        cols: usize,
        /// Numbers of importance.
        importance: usize,
        /// Bytes of the output.
        bytes: usize,
    },
    /// A weight is NaN or infinite.
    #[error("weight {column} of row {row} is {value}: the source is damaged")]
    NotFinite {
        /// The row, from 0.
        row: usize,
        /// The column, from 0.
        column: usize,
        /// The weight.
        value: f32,
    },
    /// A weight or scale is too large for the format's 16-bit floats.
    #[error("row {row} has a weight of {value}, which is too large for {format}")]
    TooLarge {
        /// Name of the format.
        format: &'static str,
        /// The row, from 0.
        row: usize,
        /// The weight.
        value: f32,
    },
}

impl RowError {
    /// The error with row numbers counted from `first`.
    pub(crate) fn in_row(self, first: usize) -> RowError {
        match self {
            RowError::NotFinite { row, column, value } => {
                RowError::NotFinite { row: first + row, column, value }
            }
            RowError::TooLarge { format, row, value } => {
                RowError::TooLarge { format, row: first + row, value }
            }
            other => other,
        }
    }
}

/// Whether [`quantize_rows`] can write this format.
pub fn is_writable(format: &Format) -> bool {
    !matches!(format.ggml_id, 16..=19 | 21 | 22 | 29)
}

/// Quantises rows of `cols` weights into `out`. `importance` has a number for each column, which
/// weighs errors. Formats without a search do not use it. The results equal ggml's quantisers
/// (`ggml_quantize_chunk`) bit for bit, compiled without fused multiply-adds.
///
/// # Errors
/// The lengths do not match, the format is not writable, or a weight is not finite or too large.
pub fn quantize_rows(
    format: &Format,
    cols: usize,
    weights: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), RowError> {
    let (name, block) = (format.name, format.block_elems());
    if !is_writable(format) {
        return Err(RowError::Format(name));
    }
    let bytes = match format.row_bytes(cols) {
        Some(bytes) if cols > 0 => bytes,
        _ => return Err(RowError::Columns { format: name, cols, block }),
    };
    let rows = weights.len() / cols;
    if rows * cols != weights.len()
        || rows * bytes != out.len()
        || importance.is_some_and(|w| w.len() != cols)
    {
        let (weights, bytes) = (weights.len(), out.len());
        let importance = importance.map_or(cols, <[f32]>::len);
        return Err(RowError::Lengths { weights, cols, importance, bytes });
    }
    for (row, (x, out)) in weights.chunks_exact(cols).zip(out.chunks_exact_mut(bytes)).enumerate() {
        let largest = check(row, x)?;
        match &format.encoding {
            Encoding::F32 => write(x, out, f32::to_le_bytes),
            Encoding::F16 => write(x, out, |v| f16::from_f32(v).to_le_bytes()),
            Encoding::BF16 => write(x, out, |v| bf16::from_f32(v).to_le_bytes()),
            Encoding::Blocks(blocks) => {
                out.fill(0);
                fastest(format.ggml_id, blocks, x, importance, out);
            }
        }
        // Only such weights can make a 16-bit float overflow. Sums of products of weights overflow
        // only far above the range of every format with such a scale.
        let limited = !matches!(format.ggml_id, 0 | 30 | 39);
        if limited && (largest > 1e9 || largest > 65_504.0 && !is_finite(format, out)) {
            return Err(RowError::TooLarge { format: name, row, value: largest });
        }
    }
    Ok(())
}

/// Checks that all weights are finite and returns the largest magnitude.
fn check(row: usize, x: &[f32]) -> Result<f32, RowError> {
    // The exponent of NaN and infinity is the largest one.
    let largest = x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff));
    if largest < 0x7f80_0000 {
        return Ok(f32::from_bits(largest));
    }
    let column = x.iter().position(|v| !v.is_finite()).unwrap_or(0);
    Err(RowError::NotFinite { row, column, value: x[column] })
}

fn is_finite(format: &Format, row: &[u8]) -> bool {
    let mut back = vec![0.0; row.len() / format.block_bytes() * format.block_elems()];
    format.decode(row, &mut back).is_ok() && back.iter().all(|v| v.is_finite())
}

fn write<const B: usize>(x: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; B]) {
    out.as_chunks_mut::<B>().0.iter_mut().zip(x).for_each(|(out, x)| *out = bytes(*x));
}

/// Quantises a row with the widest vectors of this CPU. The result does not depend on the vector
/// width, because no instruction here fuses two roundings.
fn fastest(id: u32, format: &BlockFormat, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { with_avx2(id, format, x, w, out) };
    }
    row(id, format, x, w, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(id: u32, format: &BlockFormat, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    row(id, format, x, w, out);
}

/// Quantises a row. `out` is zero.
#[inline(always)]
fn row(id: u32, format: &BlockFormat, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    macro_rules! blocks {
        ($block:expr) => {{
            let blocks = x.chunks_exact(format.elems).zip(out.chunks_exact_mut(format.bytes));
            for (i, (x, out)) in blocks.enumerate() {
                let w = w.map(|w| &w[i * format.elems..][..format.elems]);
                $block(format, x, w, out);
            }
        }};
    }
    match id {
        2 => legacy::biased::<8>(format, x, w, out),
        3 => legacy::offset::<15>(format, x, w, out),
        6 => legacy::biased::<16>(format, x, w, out),
        7 => legacy::offset::<31>(format, x, w, out),
        8 => legacy::bytes(format, x, out),
        10 => blocks!(k::q2),
        11 => blocks!(k::q3),
        12 => blocks!(k::q4),
        13 => blocks!(k::q5),
        14 => blocks!(k::q6),
        20 => nonlinear::blocks(format, x, w, out),
        23 => blocks!(nonlinear::super_block),
        34 => blocks!(|_, x, _, out| small::ternary(x, out)),
        35 => blocks!(|format, x, _, out| small::two_bits(format, x, out)),
        39 => blocks!(|format, x, _, out| small::mxfp4(format, x, out)),
        40 => blocks!(|format, x, _, out| small::nvfp4(format, x, out)),
        41 => blocks!(|format, x, _, out| small::sign(format, x, out)),
        42 => blocks!(|format, x, _, out| small::q2(format, x, out)),
        _ => {}
    }
}
