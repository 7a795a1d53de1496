//! What can go wrong with an operation: one line that names what does not fit, and with what.

use crate::dtype::DType;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation cannot be done.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes that do not fit each other or the operation.
    #[error("{op}: {why}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Both shapes, and which sizes clash.
        why: String,
    },
    /// Dtypes that do not fit each other or the operation.
    #[error("{op}: {why}")]
    DType {
        /// The operation.
        op: &'static str,
        /// Both dtypes, and what the operation takes.
        why: String,
    },
    /// Operands on two devices.
    #[error("{op}: one operand is on {a}, the other on {b}; to_device() moves one")]
    Devices {
        /// The operation.
        op: &'static str,
        /// Device of the first operand.
        a: String,
        /// Device of the other.
        b: String,
    },
    /// An axis that is not there.
    #[error("{op}: axis {axis} is out of bounds for {rank} dimensions")]
    Axis {
        /// The operation.
        op: &'static str,
        /// The axis as given.
        axis: i64,
        /// How many there are.
        rank: usize,
    },
    /// An index outside of its axis.
    #[error("{op}: index {index} is out of bounds for axis {axis} with size {size}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The index as given.
        index: i64,
        /// The axis.
        axis: usize,
        /// Its size.
        size: usize,
    },
    /// An argument's value that the operation does not take.
    #[error("{op}: {why}")]
    Value {
        /// The operation.
        op: &'static str,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// Not there on this device yet.
    #[error(
        "{op} is not there on {device} yet: to_device(\"cpu\") computes it on the CPU \
         (docs/operations.md lists what is absent)"
    )]
    Absent {
        /// The operation.
        op: &'static str,
        /// The device.
        device: String,
    },
    /// No memory on the host.
    #[error("cpu: no memory for {bytes} bytes")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A rule of this crate was broken inside; please report it.
    #[error("{0} (an error inside kjit-ops)")]
    Inside(&'static str),
    /// What the engine said: no device, no compiler, out of memory, a fault.
    #[error(transparent)]
    Engine(#[from] kjit_engine::Error),
}

impl Error {
    pub(crate) fn shape(op: &'static str, why: impl Into<String>) -> Error {
        Error::Shape { op, why: why.into() }
    }

    pub(crate) fn value(op: &'static str, why: impl Into<String>) -> Error {
        Error::Value { op, why: why.into() }
    }

    pub(crate) fn dtype(op: &'static str, why: impl Into<String>) -> Error {
        Error::DType { op, why: why.into() }
    }

    /// An operation that does not take a dtype, and what it takes.
    pub(crate) fn takes(op: &'static str, takes: &str, got: DType) -> Error {
        Error::DType { op, why: format!("takes {takes}, got {got}") }
    }
}
