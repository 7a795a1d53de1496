//! Steps as launches for one more token of several sequences.
//!
//! Products of few rows are the decode kernels with a column for each, those of more the prompt's tiles; either way a matrix is read once
//! for all sequences. Attention is the decode kernel with a sequence in the grid's third dimension, so that a program takes any number
//! of sequences up to its own, wherever they stand.

use super::decode::Attend;
use super::lower::{Lower, unsupported};
use super::prompt::Prompt;
use super::{Bind, Control, PlanError};
use crate::gpu::fuse::Step;
use crate::graph::{CacheId, Graph, Op};
use kjit_engine::Target;
use kjit_kernels::product::{columns_at_once, token_tiles};

/// Rows that the kernel of chosen experts takes at most; more are grouped by expert, as a prompt's are.
const EXPERT_ROWS: u32 = 8;
/// Sequences that are decoded side by side at most.
pub const SEQUENCES: usize = 64;

/// Rows for which there are programs, so that every number of sequences up to `sequences` has one that is not much larger: doubling as
/// long as a row is a column of its own, then the sizes of tiles. The kernel of experts has no idle rows, hence a program for each
/// number there.
pub(super) fn sizes(graph: &Graph, target: &Target, sequences: usize) -> Vec<u32> {
    let experts = graph.ops.iter().any(|op| matches!(op, Op::ExpertMatMul { .. }));
    let columns = if experts { EXPERT_ROWS } else { columns_at_once(target) as u32 };
    let few = (1..=columns).filter(|n| experts || n.is_power_of_two());
    let mut sizes: Vec<u32> = few.chain(token_tiles(target).iter().copied().filter(|&n| n > columns)).collect();
    // Those below the first that holds all, and that one.
    let last = sizes.iter().position(|&n| n as usize >= sequences).unwrap_or(sizes.len());
    sizes.truncate(last + 1);
    sizes
}

impl Lower<'_> {
    pub(super) fn batch_step(&mut self, step: &Step, rest: &[Step], state: &mut Prompt) -> Result<(), PlanError> {
        let rows = self.program.tokens();
        match step {
            Step::Project { input, segments, finish } if rows as usize > columns_at_once(&self.target) => {
                self.product(input, segments, finish, rest, state)
            }
            Step::Experts { input, experts, segments, finish } if rows > EXPERT_ROWS => {
                self.expert_product(input, *experts, segments, finish, state)
            }
            &Step::Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out } => {
                self.attend(&Attend { q, k, v, q_norm, k_norm, rope, cache, heads, scale, soft_cap, out })
            }
            other => self.step(other),
        }
    }

    /// The slot of each row; of one sequence, null.
    pub(super) fn slots(&self) -> Bind {
        if self.batch { Bind::Control(Control::Slots) } else { Bind::Null }
    }

    /// Bytes from one slot's keys, or values, to the next one's.
    pub(super) fn slot_bytes(&self, name: &str, cache: CacheId) -> Result<u64, PlanError> {
        let bytes = self.kv(cache).bytes(self.context as usize);
        bytes.map(|b| b as u64).ok_or_else(|| unsupported(name, "its cache cannot be addressed"))
    }
}
