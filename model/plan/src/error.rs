//! Errors of plans.

use kjit_exec::SessionError;

/// The reason why a model cannot be planned for a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A shape of an operation that no kernel supports.
    #[error("{what} cannot run on a GPU yet: {why}; use --device cpu")]
    Unsupported {
        /// The value or weight.
        what: String,
        /// The missing feature.
        why: String,
    },
    /// The context exceeds the kernels' counters.
    #[error("a context of {0} tokens is too large for the GPU kernels: \
        use -c {max} or less", max = u32::MAX)]
    Context(usize),
    /// A weight without a device layout.
    #[error("tensor '{name}': {source}")]
    Layout {
        /// The tensor.
        name: String,
        /// The cause.
        source: kjit_kernels::layout::LayoutError,
    },
}

/// The error for a step without a kernel.
pub(super) fn unsupported(what: &str, why: impl ToString) -> PlanError {
    PlanError::Unsupported { what: format!("'{what}'"), why: why.to_string() }
}

impl From<PlanError> for SessionError {
    fn from(error: PlanError) -> SessionError {
        SessionError::Device(error.to_string())
    }
}
