//! Steps as launches for any number of rows, each of whose results are the same bits whatever comes
//! with it: `OpenOptions::reproducible`.
//!
//! One lowering makes all programs: a token's, a batch's, a prompt's, that of drafts. A row's sums
//! follow from its shape alone:
//!
//! - Products are those of a few rows (`small_gemm.h`) with one number of waves, and of blocks,
//!   over the columns for a shape of weights, at any number of rows; where a target has not that
//!   kernel, tiles with all columns in one block. Rows that neither takes, and chosen experts, are
//!   the products of one column (`dots.h`), whose teams are those of a single row, behind a launch
//!   that quantises a row by itself.
//! - Attention is that of one token, for each row: of a prompt, too, whose keys and values are kept
//!   before. Its slices are always as many, so what a slice has follows from the token's position
//!   alone.
//! - All else goes row by row, and states from token to token.
//!
//! What was measured has no say (`Lower::tuned`), since it may know one number of rows and not
//! another.

use super::PlanError;
use super::fuse::Step;
use super::lower::{Lower, unsupported};
use super::product::Form;
use kjit_graph::{Graph, Op};
use kjit_kernels::Family;
use kjit_kernels::experts::ExpertsSpec;
use kjit_kernels::gemm::GemmSpec;
use kjit_kernels::matvec::MatvecTuning;
use kjit_kernels::small_gemm;

/// Blocks of a token's attention that fill a device: the multiprocessors of an H100.
const BLOCKS: u32 = 128;

/// What cannot be so, by name.
pub(super) fn check(graph: &Graph) -> Result<(), PlanError> {
    let no =
        |what: &str| Err(unsupported("--reproducible", format!("{what} is not reproducible yet")));
    for op in &graph.ops {
        match op {
            Op::Elsewhere(_) | Op::Placed(_) => return no("a part that the CPU computes"),
            Op::Reduce(_) => return no("a model whose layers several devices compute together"),
            Op::Given(_) => return no("a model whose layers are on several devices"),
            _ => {}
        }
    }
    match (graph.pooling, graph.hands_on) {
        (Some(_), _) => no("a vector of a text"),
        (_, true) => no("a model whose layers are on several devices"),
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
                            "rows that are no multiple of {}, of more than 8 tokens",
                            small_gemm::WHOLE
                        );
                        Err(unsupported(&name, why))
                    }
                }
            }
            other => self.decode_step(other),
        }
    }

    /// The tiles of waves for its tokens: all of them multiply by the same instruction, in the
    /// order of the columns.
    pub(super) fn of_waves(&self, spec: GemmSpec) -> GemmSpec {
        let tuning = GemmSpec::waves(spec.tokens, &self.target, self.target.default_wave());
        GemmSpec { tuning: Some(tuning), ..spec }
    }

    /// A product of columns with the teams of one of them, `alone`.
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

    /// How experts' products are spread: as measured, or as those of one token.
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

    /// Slices of the context for so many groups of a token's heads.
    pub(super) fn slices_always(&self, groups: u32) -> u32 {
        (BLOCKS / groups.max(1)).clamp(1, BLOCKS / 2)
    }
}
