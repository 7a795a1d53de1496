//! Errors of ranks.

use crate::variable::SECRET;

/// The reason why this process cannot be a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// No launcher set its variables.
    #[error(
        "--split ranks needs a launcher that sets the rank of each process: \
         RANK and WORLD_SIZE, or the variables of Open MPI, PMI, Slurm or a Kubernetes job"
    )]
    None,
    /// A variable is missing.
    #[error("--split ranks: {launcher} sets {has} but not {variable}: set {variable}{why}")]
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
        "--split ranks: {SECRET} {why}: set it to the same long random string for all ranks \
         (export {SECRET}=$(openssl rand -hex 32), before srun; mpirun -x {SECRET})"
    )]
    Secret {
        /// The cause.
        why: String,
    },
    /// The handshake failed.
    #[error("--split ranks: {0}")]
    Meeting(String),
}
