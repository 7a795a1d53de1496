//! The typed arguments of a launch, checked against the code object's list.

use crate::code_object::{ArgInfo, ArgKind, KernelInfo};
use crate::driver::{DeviceBuffer, Memory};
use crate::error::{Error, Result};
use std::sync::Arc;

/// An argument of a launch. [`args!`](crate::args) converts arguments with `From`: device buffers
/// become their address, numbers are passed by value, other data as [`Arg::Bytes`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Arg<'a> {
    /// A device address inside a buffer. The launch (and a captured graph) keeps the buffer alive.
    Buffer {
        /// The address passed to the kernel.
        address: u64,
        /// The allocation that contains it.
        memory: &'a Arc<Memory>,
    },
    /// A number.
    Scalar {
        /// Rust type of the number, for messages.
        kind: &'static str,
        /// Bytes of the number, little-endian; only the first `len` are used.
        bytes: [u8; 8],
        /// Size of the number in bytes: 1, 2, 4 or 8.
        len: u8,
    },
    /// A struct by value, in C++ layout.
    Bytes(&'a [u8]),
    /// The null pointer, for an optional buffer that is absent.
    Null,
}

impl<'a, T> From<&'a DeviceBuffer<T>> for Arg<'a> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        Arg::Buffer { address: buffer.address(), memory: buffer.shared() }
    }
}

impl<'a, T> From<Option<&'a DeviceBuffer<T>>> for Arg<'a> {
    /// `None` becomes the null pointer.
    fn from(buffer: Option<&'a DeviceBuffer<T>>) -> Self {
        buffer.map_or(Arg::Null, Arg::from)
    }
}

impl<'a> Arg<'a> {
    /// The allocation of a buffer.
    pub(crate) fn memory(&self) -> Option<&'a Arc<Memory>> {
        match self {
            Arg::Buffer { memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// Number of bytes from the address of a buffer to the end of its allocation; 0 for other
    /// arguments.
    #[must_use]
    pub fn room(&self) -> u64 {
        match self {
            Arg::Buffer { address, memory } => memory.behind(*address),
            _ => 0,
        }
    }

    /// The value of a non-negative integer.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Arg::Scalar { kind, bytes, .. } if kind.starts_with('u') => {
                Some(u64::from_le_bytes(*bytes))
            }
            Arg::Scalar { kind, bytes, len } if kind.starts_with('i') => {
                // The unused bits above the sign bit of the number.
                let unused = 64 - 8 * u32::from((*len).clamp(1, 8));
                u64::try_from(i64::from_le_bytes(*bytes) << unused >> unused).ok()
            }
            _ => None,
        }
    }

    /// Size of the argument in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Arg::Buffer { .. } | Arg::Null => 8,
            Arg::Scalar { len, .. } => usize::from(*len),
            Arg::Bytes(b) => b.len(),
        }
    }

    fn what(&self) -> String {
        match self {
            Arg::Buffer { .. } => "a buffer".to_owned(),
            Arg::Null => "a null buffer".to_owned(),
            Arg::Scalar { kind, .. } => format!("{kind} ({} bytes)", self.size()),
            Arg::Bytes(b) => format!("{} bytes", b.len()),
        }
    }
}

macro_rules! arg_from_scalar {
    ($($t:ty),*) => {$(
        impl From<$t> for Arg<'_> {
            fn from(v: $t) -> Self {
                const LEN: usize = size_of::<$t>();
                let mut bytes = [0u8; 8];
                for (to, from) in bytes.iter_mut().zip(v.to_le_bytes()) {
                    *to = from;
                }
                Arg::Scalar { kind: stringify!($t), bytes, len: LEN as u8 }
            }
        }
    )*};
}
arg_from_scalar!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Converts values to an array of launch arguments: `args![&x, &y, 2.0f32, n]`.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$($crate::Arg::from($arg)),*] };
}

/// Maximum bytes of arguments on any device (NVIDIA from sm_70 on with driver 12.1: 32,764).
const MOST_BYTES: u64 = 32 << 10;

/// Writes the arguments in the layout that the code object declares, or names the first argument
/// that does not match.
///
/// # Errors
/// [`Error::Launch`] if the number of arguments or a size is wrong, or if a number is passed
/// instead of a pointer or the reverse. The last check needs a code object of AMD; a cubin has
/// sizes only.
pub(crate) fn pack(kernel: &KernelInfo, args: &[Arg<'_>], into: &mut Vec<u8>) -> Result<()> {
    let fail = |why: String| Error::Launch { kernel: kernel.name.clone(), why };
    if args.len() != kernel.args.len() {
        return Err(fail(format!(
            "{} arguments given, but the code object has {}",
            args.len(),
            kernel.args.len()
        )));
    }
    into.clear();
    let total =
        kernel.args.iter().map(|a| u64::from(a.offset) + u64::from(a.size)).max().unwrap_or(0);
    if total > MOST_BYTES {
        return Err(fail(format!(
            "the code object has {total} bytes of arguments, but devices support at most {MOST_BYTES}"
        )));
    }
    into.resize(total as usize, 0);
    for (i, (arg, info)) in args.iter().zip(&kernel.args).enumerate() {
        let ArgInfo { size, kind, offset } = *info;
        let is_pointer = matches!(arg, Arg::Buffer { .. } | Arg::Null);
        let clash = match kind {
            Some(ArgKind::Buffer) => !is_pointer,
            Some(ArgKind::Value) => is_pointer,
            None => false,
        };
        if clash || arg.size() as u64 != u64::from(size) {
            let takes = match kind {
                Some(ArgKind::Buffer) => "a buffer".to_owned(),
                _ => format!("{size} bytes"),
            };
            return Err(fail(format!(
                "argument {i} is {}, but the code object expects {takes}",
                arg.what()
            )));
        }
        let start = offset as usize;
        let slot = into
            .get_mut(start..start + size as usize)
            .ok_or_else(|| fail(format!("argument {i} is outside the argument block")))?;
        match arg {
            Arg::Buffer { address, .. } => slot.copy_from_slice(&address.to_le_bytes()),
            Arg::Null => slot.fill(0),
            Arg::Scalar { bytes, len, .. } => {
                slot.copy_from_slice(bytes.get(..usize::from(*len)).unwrap_or_default())
            }
            Arg::Bytes(bytes) => slot.copy_from_slice(bytes),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> KernelInfo {
        let arg = |offset, size, kind| ArgInfo { offset, size, kind };
        KernelInfo {
            name: "saxpy".into(),
            args: vec![
                arg(0, 8, Some(ArgKind::Buffer)),
                arg(8, 4, None),
                arg(16, 8, Some(ArgKind::Value)),
            ],
            ..KernelInfo::default()
        }
    }

    #[test]
    fn arguments_are_placed_at_code_object_offsets() {
        let mut bytes = vec![9; 3];
        pack(&kernel(), &args![Arg::Null, 1.5f32, 7u64], &mut bytes).unwrap();
        assert_eq!(bytes.len(), 24);
        assert_eq!(bytes[8..12], 1.5f32.to_le_bytes());
        assert_eq!(bytes[12..16], [0; 4]);
        assert_eq!(bytes[16..24], 7u64.to_le_bytes());
    }

    #[test]
    fn wrong_argument_count_size_or_kind_is_named() {
        let mut bytes = Vec::new();
        for (args, word) in [
            (vec![Arg::Null], "1 arguments given, but the code object has 3"),
            (
                args![Arg::Null, 1u64, 7u64].to_vec(),
                "argument 1 is u64 (8 bytes), but the code object expects 4 bytes",
            ),
            (
                args![3u64, 1u32, 7u64].to_vec(),
                "argument 0 is u64 (8 bytes), but the code object expects a buffer",
            ),
            (args![Arg::Null, 1u32, Arg::Null].to_vec(), "argument 2 is a null buffer"),
        ] {
            let error = pack(&kernel(), &args, &mut bytes).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
