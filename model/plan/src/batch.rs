//! Lowers steps for one token of each of several sequences.
//!
//! Every matrix is read once for all sequences, with matrix-unit products: products for few rows or
//! for a batch if the target has these kernels, otherwise prompt tiles. For very few sequences the
//! decode kernels are used, with one column for each. Attention is the decode kernel with a
//! sequence in the grid's third dimension. So a program computes any number of sequences up to its
//! size, in any slots.

use super::PlanError;
use super::fuse::{Segment, Step};
use super::lower::Lower;
use super::product::Form;
use kjit_engine::Target;
use kjit_graph::{Graph, Op};
use kjit_kernels::batch_gemm::BatchGemmSpec;
use kjit_kernels::layout::Layout;
use kjit_kernels::{Family, batch_gemm, segments, small_gemm};

/// Maximum number of rows for the decode kernel of experts. With more rows, rows are grouped by
/// expert, as in a prompt.
///
/// In the decode kernel, each further sequence takes the time of its own experts. A token of Qwen3
/// 30B-A3B on an H200 takes 1.86 ms for one sequence and 5.32 ms for eight: 0.43 ms for each
/// further sequence, so 13.8 ms for 28. Grouped by expert, 16 sequences take 11.1 ms, and 32 take
/// 14.5 ms.
const EXPERT_ROWS: u32 = 28;
/// From this number of rows on, a product for a batch is faster than a product for few rows. 8b
/// Q4_K_M on an H100: with 40 rows both reach 8,910 tokens/s; with 64 rows 11,087 and 10,222
/// tokens/s.
const BATCH_ROWS: u32 = 41;
/// Maximum number of weights for which the product for few rows is also faster with 64 rows. On an
/// H100, 4096 × 4096 of Q4_K takes 13.1 µs, and 14.7 µs with the product for a batch. SmolLM2,
/// whose products except the last are smaller, reached 48.9k tokens/s with 64 rows with the latter.
const SMALL: usize = 4096 * 4096;
/// Tokens of one sequence in a step with drafts, including the current one. They take hardly more
/// time than one token.
pub const DRAFTED: u32 = 1 + kjit_exec::DRAFTS as u32;
/// Maximum number of concurrent sequences.
pub const SEQUENCES: usize = 256;
/// Maximum number of rows of a product for few rows (`small_gemm`). It is also the maximum number
/// of sequences of a reproducible model, because all its programs use that product.
pub const FEW_ROWS: usize = 64;
const FEW: u32 = FEW_ROWS as u32;

/// Program sizes in rows for up to `sequences` sequences. No other size would be faster. The
/// experts kernel has no idle rows, so a model with experts has a program for each number up to 8,
/// and for every second number above, which is at most 5 % slower.
pub(super) fn sizes(graph: &Graph, target: &Target, sequences: usize) -> Vec<u32> {
    let experts = graph.ops.iter().any(|op| matches!(op, Op::ExpertMatMul(_)));
    let exact = if experts { EXPERT_ROWS } else { 0 };
    let more = efficient_row_counts(target).iter().copied().filter(|&n| n > exact);
    let mut sizes: Vec<u32> = (1..=exact).filter(|n| *n <= 8 || n % 2 == 0).chain(more).collect();
    // All sizes up to the first size that fits all sequences.
    let last = sizes.iter().position(|&n| n as usize >= sequences).unwrap_or(sizes.len());
    sizes.truncate(last + 1);
    sizes
}

/// Numbers of rows for which a separate kernel is faster. Other numbers take the time of the next
/// number in the list. The products of a batch have widths in steps of 8 up to 64, then of 32;
/// prompt tiles have steps of 64.
fn efficient_row_counts(target: &Target) -> &'static [u32] {
    if batch_gemm::covers(target) {
        &[1, 8, 16, 24, 32, 40, 48, 56, 64, 96, 128, 160, 192, 224, 256]
    } else if small_gemm::covers(target) {
        &[1, 8, 16, 24, 32, 40, 48, 56, 64, 128, 192, 256]
    } else {
        &[1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    }
}

impl Lower<'_> {
    /// Whether these weights use the product for a batch. The target must have it, its shared
    /// memory must be large enough (256 rows of f32 weights are too large), and up to 64 rows there
    /// must be more weights than [`SMALL`].
    fn batch_fits(&self, segments: &[Segment], rows: u32) -> bool {
        let (cols, weights) = self.weights(segments);
        let all: usize = weights.iter().map(|s| s.rows * cols).sum();
        batch_gemm::covers(&self.target)
            && (rows > FEW || all > SMALL)
            && weights.iter().all(|s| self.batch_has(s, cols, rows))
    }

    /// Whether a prompt's product with these weights is that for a batch: they have codes of 4 to
    /// 6 bits. On an H100 a prompt of 2048 tokens of 8b Q8_0 took 59 ms without it and 70 with it.
    /// F16 weights need no unpacking. Codebooks have not been compared.
    fn prompt_fits(&self, segments: &[Segment], rows: u32) -> bool {
        let (cols, weights) = self.weights(segments);
        batch_gemm::covers(&self.target)
            && weights.iter().all(|s| {
                let layout = Layout::new(s.format, cols);
                layout.is_ok_and(|l| l.codes[2].is_some() && l.vectors.is_none())
                    && self.batch_has(s, cols, rows)
            })
    }

    /// Whether the product for a batch has room for these weights.
    fn batch_has(&self, s: &segments::Segment, cols: usize, rows: u32) -> bool {
        let spec = BatchGemmSpec::new(s.format, s.rows, cols, rows as usize);
        spec.tuning(&self.target).and_then(|t| spec.block(&self.target, &t)).is_ok()
    }

    /// The fastest layout of a projection for the rows of this program; `None`: the kernel of
    /// decoding. Reproducible programs have another choice.
    pub(super) fn form_of(&self, segments: &[Segment]) -> Option<Form> {
        let rows = self.program.tokens();
        if !self.batch {
            let turned = rows >= BATCH_ROWS && self.prompt_fits(segments, rows);
            return Some(if turned { Form::Turned } else { Form::Tiles });
        }
        match (small_gemm::covers(&self.target), rows) {
            (_, 0 | 1) | (false, 2..=8) => None,
            // The matrix units do not support the length of these rows.
            (true, 2..=8) if !self.weights(segments).0.is_multiple_of(small_gemm::WHOLE) => None,
            (true, BATCH_ROWS..) if self.batch_fits(segments, rows) => Some(Form::Turned),
            (true, ..=FEW) => Some(Form::Panels),
            _ => Some(Form::Tiles),
        }
    }

    pub(super) fn batch_step(&mut self, step: &Step) -> Result<(), PlanError> {
        let rows = self.program.tokens();
        match step {
            Step::Project { input, segments, finish } => {
                match self.made_in(input).or_else(|| self.form_of(segments)) {
                    Some(form) => self.product(form, input, segments, finish),
                    None => self.project(input, segments, finish),
                }
            }
            Step::Experts { input, experts, segments, finish } if rows > EXPERT_ROWS => {
                self.expert_product(input, *experts, segments, finish)
            }
            other => self.decode_step(other),
        }
    }
}
