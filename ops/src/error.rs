//! Errors of operations: one line that names what does not fit.

use crate::dtype::DType;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an operation.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes that do not match each other or the operation.
    #[error("{op}: {why}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Both shapes, and which sizes clash.
        why: String,
    },
    /// Dtypes that do not match each other or the operation.
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
    /// An axis out of range.
    #[error("{op}: axis {axis} is out of bounds for {rank} dimensions")]
    Axis {
        /// The operation.
        op: &'static str,
        /// The axis as given.
        axis: i64,
        /// Number of axes.
        rank: usize,
    },
    /// An index out of range.
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
    /// An argument's value that the operation does not accept.
    #[error("{op}: {why}")]
    Value {
        /// The operation.
        op: &'static str,
        /// The problem, and the accepted values.
        why: String,
    },
    /// Not implemented on this device.
    #[error(
        "{op} is not implemented on {device}: use to_device(\"cpu\") (docs/operations.md lists missing operations)"
    )]
    Absent {
        /// The operation.
        op: &'static str,
        /// The device.
        device: String,
    },
    /// Out of host memory.
    #[error("cpu: no memory for {bytes} bytes")]
    Memory {
        /// The requested bytes.
        bytes: usize,
    },
    /// Out of memory of a GPU, after the pool's free blocks were freed.
    #[error(
        "{device}: cannot allocate {bytes} bytes: {free} of {total} are free, tensors of this process use {in_use}; delete tensors, compute in smaller parts, or use float16"
    )]
    DeviceMemory {
        /// The device.
        device: String,
        /// The requested bytes.
        bytes: u64,
        /// Free bytes of the device.
        free: u64,
        /// Bytes of the device's memory.
        total: u64,
        /// Bytes of this process's tensors.
        in_use: u64,
    },
    /// An internal invariant was violated; please report it.
    #[error("{0} (an error inside kjit-ops)")]
    Inside(&'static str),
    /// An error of the engine: no device, no compiler, out of memory, a fault.
    #[error(transparent)]
    Engine(#[from] kjit_engine::Error),
}

impl Error {
    /// Whether memory of the host or of a device was refused.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        let of_device = matches!(self, Error::Engine(kjit_engine::Error::OutOfMemory { .. }));
        of_device || matches!(self, Error::Memory { .. } | Error::DeviceMemory { .. })
    }

    /// Whether the device is lost, so that nothing more runs on it.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Error::Engine(kjit_engine::Error::DeviceLost { .. }))
    }

    pub(crate) fn shape(op: &'static str, why: impl Into<String>) -> Error {
        Error::Shape { op, why: why.into() }
    }

    pub(crate) fn value(op: &'static str, why: impl Into<String>) -> Error {
        Error::Value { op, why: why.into() }
    }

    pub(crate) fn dtype(op: &'static str, why: impl Into<String>) -> Error {
        Error::DType { op, why: why.into() }
    }

    /// The error of an operation that does not take a dtype, with the dtypes that it takes.
    pub(crate) fn takes(op: &'static str, takes: &str, got: DType) -> Error {
        Error::DType { op, why: format!("takes {takes}, got {got}") }
    }
}
