//! Dtypes, their kinds, and type promotion.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is its own name")]
pub enum DType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
    /// Pairs of f32. A node stores real or imaginary parts, a [`Tensor`](crate::Tensor) the pair.
    C64,
    /// Pairs of f64.
    C128,
}

/// The kinds of the array API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is its own name")]
pub enum Kind {
    Bool,
    Signed,
    Unsigned,
    Float,
    Complex,
}

/// Every dtype, in the order of the enum.
pub const DTYPES: [DType; 15] = [
    DType::Bool,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::C64,
    DType::C128,
];

impl DType {
    /// Its name in the array API: `float32`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::C64 => "complex64",
            DType::C128 => "complex128",
        }
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            DType::Bool => Kind::Bool,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Kind::Signed,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Kind::Unsigned,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Kind::Float,
            DType::C64 | DType::C128 => Kind::Complex,
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// Whether it is real floating-point or complex.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), Kind::Float | Kind::Complex)
    }

    /// Whether it is complex.
    #[must_use]
    pub const fn is_complex(self) -> bool {
        matches!(self.kind(), Kind::Complex)
    }

    /// Whether it is a signed or unsigned integer.
    #[must_use]
    pub const fn is_int(self) -> bool {
        matches!(self.kind(), Kind::Signed | Kind::Unsigned)
    }

    /// The dtype of a complex dtype's real and imaginary parts; a real dtype itself.
    #[must_use]
    pub const fn part(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }

    /// The complex dtype whose real parts can store this real dtype.
    #[must_use]
    pub const fn complex(self) -> DType {
        match self {
            DType::F64 | DType::C128 => DType::C128,
            _ => DType::C64,
        }
    }

    /// The dtype of an interpreter register: f16 and bf16 are computed in f32 and rounded after
    /// each operation.
    #[must_use]
    pub(crate) const fn computed(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }

    /// The least and the greatest value of an integer dtype.
    #[must_use]
    pub const fn range(self) -> (i128, i128) {
        match self {
            DType::I8 => (i8::MIN as i128, i8::MAX as i128),
            DType::I16 => (i16::MIN as i128, i16::MAX as i128),
            DType::I32 => (i32::MIN as i128, i32::MAX as i128),
            DType::I64 => (i64::MIN as i128, i64::MAX as i128),
            DType::U8 => (0, u8::MAX as i128),
            DType::U16 => (0, u16::MAX as i128),
            DType::U32 => (0, u32::MAX as i128),
            DType::U64 => (0, u64::MAX as i128),
            _ => (0, 1),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promotion::promote;

    #[test]
    fn integers_promote_to_smallest_common_type() {
        for a in DTYPES.into_iter().filter(|d| d.is_int()) {
            for b in DTYPES.into_iter().filter(|d| d.is_int()) {
                let (low, high) = (a.range().0.min(b.range().0), a.range().1.max(b.range().1));
                let want = DTYPES
                    .into_iter()
                    .filter(|d| d.is_int() && d.range().0 <= low && d.range().1 >= high)
                    .min_by_key(|d| (d.size(), d.kind() != Kind::Unsigned));
                let got = promote("test", a, b).ok();
                // The smallest sufficient dtype is signed if either is.
                let signed = a.kind() == Kind::Signed || b.kind() == Kind::Signed;
                let want = want.filter(|d| !signed || d.kind() == Kind::Signed);
                assert_eq!(got, want, "{a} {b}");
            }
        }
    }

    #[test]
    fn promotion_is_commutative() {
        for a in DTYPES {
            for b in DTYPES {
                assert_eq!(promote("t", a, b).ok(), promote("t", b, a).ok(), "{a} {b}");
            }
        }
        assert_eq!(promote("t", DType::F16, DType::BF16).unwrap(), DType::F32);
        assert_eq!(promote("t", DType::I64, DType::F16).unwrap(), DType::F16);
        assert_eq!(promote("t", DType::C64, DType::F64).unwrap(), DType::C128);
    }
}
