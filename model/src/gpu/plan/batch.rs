//! Steps as launches for one more token of several sequences.
//!
//! Every matrix is read once for all sequences: by products on the matrix units, with a few rows or
//! a batch's where the target has those kernels, else in the tiles of prompts, or for the fewest by
//! the decode kernels with a column for each sequence. Attention is the decode kernel with a sequence in the
//! grid's third dimension, so that a program takes any number of sequences up to its own, wherever
//! they stand.

use super::PlanError;
use super::lower::Lower;
use super::product::Form;
use crate::gpu::fuse::Step;
use crate::graph::{Graph, Op};
use kjit_engine::Target;
use kjit_kernels::{batch_gemm, small_gemm};

/// Rows that the kernel of chosen experts takes at most; more are grouped by expert, as a prompt's
/// are.
///
/// Each sequence more costs the time of its own experts there: 0.43 ms a token of qwen3-30b-a3b on
/// an H200 (1.86 ms with one, 5.32 with eight), which makes 13.8 ms with 28. Grouped by expert 16
/// sequences take 11.1 ms and 32 take 14.5.
const EXPERT_ROWS: u32 = 28;
/// Rows from which a batch's product takes less time than that of a few rows: 8b Q4_K_M on an H100
/// makes 8,910 tokens/s by either with 40 rows, and 11,087 against 10,222 with 64.
const BATCH_ROWS: u32 = 41;
/// Tokens of one sequence that go through together, with the one at hand, where some are drafted:
/// as many as are multiplied in the time of hardly more than one.
pub(crate) const DRAFTED: u32 = 1 + crate::lookup::MOST as u32;
/// Sequences that are decoded side by side at most.
pub const SEQUENCES: usize = 64;

/// Rows for which there are programs, so that every number of sequences up to `sequences` has one
/// that takes no longer than its own would. The kernel of experts has no idle rows, hence a program
/// for each number there, and for every second one from where that costs 5 % at most.
pub(super) fn sizes(graph: &Graph, target: &Target, sequences: usize) -> Vec<u32> {
    let experts = graph.ops.iter().any(|op| matches!(op, Op::ExpertMatMul(_)));
    let exact = if experts { EXPERT_ROWS } else { 0 };
    let more = few(target).iter().copied().filter(|&n| n > exact);
    let mut sizes: Vec<u32> = (1..=exact).filter(|n| *n <= 8 || n % 2 == 0).chain(more).collect();
    // Those below the first that holds all, and that one.
    let last = sizes.iter().position(|&n| n as usize >= sequences).unwrap_or(sizes.len());
    sizes.truncate(last + 1);
    sizes
}

/// Numbers of rows that are worth a kernel of their own, up to 64: fewer take the next one's time.
fn few(target: &Target) -> &'static [u32] {
    if small_gemm::covers(target) {
        &[1, 8, 16, 24, 32, 40, 48, 56, 64]
    } else {
        &[1, 2, 4, 8, 16, 32, 64]
    }
}

impl Lower<'_> {
    pub(super) fn batch_step(&mut self, step: &Step) -> Result<(), PlanError> {
        let rows = self.program.tokens();
        match step {
            // What takes the least time for so many rows.
            Step::Project { input, segments, finish } => {
                match (small_gemm::covers(&self.target), rows) {
                    (_, 0 | 1) | (false, 2..=8) => self.project(input, segments, finish),
                    // Rows that the matrix units do not take.
                    (true, 2..=8)
                        if !self.weights(segments).0.is_multiple_of(small_gemm::WHOLE) =>
                    {
                        self.project(input, segments, finish)
                    }
                    (true, BATCH_ROWS..) if batch_gemm::covers(&self.target) => {
                        self.product(Form::Turned, input, segments, finish)
                    }
                    (true, _) => self.product(Form::Panels, input, segments, finish),
                    (false, _) => self.product(Form::Tiles, input, segments, finish),
                }
            }
            Step::Experts { input, experts, segments, finish } if rows > EXPERT_ROWS => {
                self.expert_product(input, *experts, segments, finish)
            }
            other => self.decode_step(other),
        }
    }
}
