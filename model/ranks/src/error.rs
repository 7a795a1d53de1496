//! Errors of ranks.

use crate::variable::SECRET;

/// The reason why this process cannot be a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// No launcher has set its variables.
    #[error(
        "--split ranks is for several processes of one launcher, and none says which this one is: \
         not RANK and WORLD_SIZE, \
         nor Open MPI, PMI, Slurm or a Kubernetes job by their own variables"
    )]
    None,
    /// A variable is missing.
    #[error("--split ranks: {launcher} gives {has}, but not {variable}: set it{why}")]
    Missing {
        /// The launcher.
        launcher: &'static str,
        /// The variable that is set.
        has: &'static str,
        /// The missing variable.
        variable: &'static str,
        /// Purpose of the missing variable.
        why: &'static str,
    },
    /// A variable has an invalid value.
    #[error("--split ranks: {variable}={value} {why}")]
    Value {
        /// The variable.
        variable: &'static str,
        /// The value.
        value: String,
        /// Why the value is invalid.
        why: String,
    },
    /// The secret is missing or too short.
    #[error(
        "--split ranks: {SECRET} {why}: give all ranks the same long random text in it (export \
         {SECRET}=$(openssl rand -hex 32), before srun; mpirun -x {SECRET})"
    )]
    Secret {
        /// The cause.
        why: String,
    },
    /// The handshake failed.
    #[error("--split ranks: {0}")]
    Meeting(String),
}
