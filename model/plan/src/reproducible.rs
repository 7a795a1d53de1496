//! Lowers steps for any number of rows so that a row's results are bit for bit equal in every
//! batch: `OpenOptions::reproducible`.
//!
//! One lowering creates all programs: decoding, batches, prompts and drafts. The order of a row's
//! sums depends only on the shape of the operation:
//!
//! - Products are the products for few rows (`small_gemm.h`). Their numbers of waves and of blocks
//!   over the columns depend only on the shape of the weights. On targets without that kernel they
//!   are tiles with all columns in one block. Rows that neither kernel supports, and chosen
//!   experts, use the one-column products (`dots.h`) with the teams of a single row, after a launch
//!   that quantises each row separately.
//! - Attention is computed separately for each row as for one token, also in prompts, after their
//!   keys and values were written. The number of slices is constant, so the content of a slice
//!   depends only on the token's position.
//! - All other steps are computed row by row, and states token by token.
//!
//! Measured tunings are not used (`Lower::tuned`), because a tuning may exist for one number of
//! rows but not for another.

use super::PlanError;
use super::fuse::Step;
use super::lower::Lower;
use super::product::Form;
use crate::error::unsupported;
use kjit_graph::{Graph, Op};
use kjit_kernels::Family;
use kjit_kernels::experts::ExpertsSpec;
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::matvec::MatvecTuning;
use kjit_kernels::small_gemm;

/// Number of blocks of a token's attention that fill a device: the multiprocessors of an H100.
const BLOCKS: u32 = 128;

/// The error for a feature that is not reproducible.
pub(super) fn check(graph: &Graph) -> Result<(), PlanError> {
    let no =
        |what: &str| Err(unsupported("--reproducible", format!("it is not supported for {what}")));
    for op in &graph.ops {
        match op {
            Op::Offload(_) | Op::Placed(_) => return no("parts that the CPU computes"),
            Op::Reduce(_) => return no("a model with tensor split"),
            Op::InputRows(_) => return no("a model with layers on several devices"),
            _ => {}
        }
    }
    match (graph.pooling, graph.feeds_next_stage) {
        (Some(_), _) => no("embeddings"),
        (_, true) => no("a model with layers on several devices"),
        _ => Ok(()),
    }
}

impl Lower<'_> {
    pub(super) fn reproducible_step(&mut self, step: &Step) -> Result<(), PlanError> {
        let (panels, rows) = (small_gemm::covers(&self.target), self.program.tokens());
        match step {
            Step::Project { input, segments, finish } => {
                let whole = self.weights(segments).0.is_multiple_of(small_gemm::WHOLE);
                match (panels, whole) {
                    (true, true) => self.product(Form::Panels, input, segments, finish),
                    (false, true) => self.product(Form::Tiles, input, segments, finish),
                    (_, false) if rows <= 8 => self.project(input, segments, finish),
                    (_, false) => {
                        let name = self.name_of(segments, finish);
                        let why = format!(
                            "rows whose length is not a multiple of {}, for more than 8 tokens",
                            small_gemm::WHOLE
                        );
                        Err(unsupported(&name, why))
                    }
                }
            }
            other => self.decode_step(other),
        }
    }

    /// Tiles of one wave each. The same instruction multiplies every row, in the order of columns.
    pub(super) fn of_waves(&self, spec: GemmSpec) -> GemmSpec {
        let tuning = GemmSpec::waves(spec.tokens, &self.target, self.target.default_wave());
        GemmSpec { tuning: Some(tuning), ..spec }
    }

    /// A product of several columns with the teams of the one-column product `alone`.
    pub(super) fn in_teams<F: Family<Tuning = MatvecTuning>>(
        &self,
        name: &str,
        spec: F,
        alone: F,
    ) -> Result<F, PlanError> {
        let [alone, all] =
            [alone.usual(&self.target), spec.usual(&self.target)].map(|t| self.spec(name, t));
        let MatvecTuning { wave, team, .. } = alone?;
        let all = all?;
        Ok(spec.with(Some(MatvecTuning { wave, team, block: all.block.max(team), ..all })))
    }

    /// The tuning of experts' products: the measured one, or that of a single token.
    pub(super) fn experts_spread(
        &self,
        name: &str,
        spec: ExpertsSpec,
    ) -> Result<ExpertsSpec, PlanError> {
        match self.reproducible {
            true => self.in_teams(name, spec.clone(), ExpertsSpec { tokens: 1, ..spec }),
            false => Ok(self.tuned(spec)),
        }
    }

    /// Context slices for `groups` groups of a token's heads.
    pub(super) fn slices_always(&self, groups: u32) -> u32 {
        (BLOCKS / groups.max(1)).clamp(1, BLOCKS / 2)
    }
}
