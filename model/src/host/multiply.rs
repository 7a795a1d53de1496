//! All products of one input, split into tasks for the threads.

use super::dot::{DotProduct, Input};
use super::gemm::PanelProduct;
use super::matvec::RowProduct;
use super::pool::Pool;
use super::product::{Matrix, Part};
use super::quantise::{Quantise, Quantised};
use super::share::Shared;
use super::simd::{Isa, LANES};
use kjit_kernels::format::Encoding;

/// Tokens from which decoding a panel of weights pays.
pub(super) const PANEL_TOKENS: usize = 8;

/// Tokens of a task where panels of rows are too few for the threads: by estimate, decoding a panel
/// costs what 32 tokens do.
const TOKENS: usize = 128;

/// One product of a step.
pub struct Product<'a> {
    /// The matrix.
    pub w: Matrix<'a>,
    /// Added to each row's result.
    pub bias: Option<&'a [f32]>,
    /// Where to: `tokens` rows as wide as the matrix has rows.
    pub out: Shared<'a>,
}

/// All products of the same input.
pub fn multiply(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    tokens: usize,
    products: &[Product],
    rounded: Option<&mut Quantised>,
) {
    let panels = tokens >= PANEL_TOKENS;
    let rounded = match (rounded, products.first()) {
        (Some(to), Some(p)) if !panels => {
            if products.iter().any(|p| matches!(p.w.format.encoding, Encoding::Blocks(_))) {
                // SAFETY: the job asks for nothing; rows of block formats are multiples of 32 long.
                unsafe { isa.run(Quantise { x, cols: p.w.cols, to }) };
            }
            Some(&*to)
        }
        _ => None,
    };
    let cols = products.first().map_or(0, |p| p.w.cols);
    let all: usize = products.iter().map(|p| p.w.rows).sum();
    // Few tokens: runs of rows, eight for each thread, so that a thread that was put off its core holds up
    // little.
    let run = if panels { LANES } else { all.div_ceil(8 * pool.threads()).clamp(8, 256) };
    let by_rows: usize = products.iter().map(|p| p.w.rows.div_ceil(run)).sum();
    // Many tokens: panels of rows. Where they are few for the threads (a matrix of 576 rows has 18), the
    // tokens are cut too, not so fine that decoding the same panel again costs more than the threads gain.
    let parts =
        if panels { (4 * pool.threads()).div_ceil(by_rows.max(1)).min(tokens.div_ceil(TOKENS)).max(1) } else { 1 };
    let each = tokens.div_ceil(parts);
    pool.run(by_rows * parts, &|task| {
        let (mut task, first) = (task / parts, task % parts * each);
        let (x, tokens) = match panels {
            // The last part may be short, or none.
            true if first >= tokens => return,
            true => (&x[first * cols..], each.min(tokens - first)),
            false => (x, tokens),
        };
        for p in products {
            let here = p.w.rows.div_ceil(run);
            if task >= here {
                task -= here;
                continue;
            }
            let (w, bias, row) = (p.w, p.bias, task * run);
            let (rows, stride) = (run.min(w.rows - row), w.rows);
            // SAFETY: the result has a row for each token.
            let out = unsafe { p.out.start().add(first * stride) };
            let part = Part { w, row, rows, x, tokens, bias, out, stride };
            // SAFETY: from `out` on there are `tokens` rows as wide as the matrix has rows, and no other task
            // has these of them.
            unsafe {
                match rounded {
                    _ if panels => isa.run(PanelProduct(part)),
                    None => isa.run(RowProduct(part)),
                    Some(rounded) => isa.run(DotProduct(part.with(Input { x, rounded }))),
                }
            }
            return;
        }
    });
}
