//! A single exact value of any dtype.

use crate::dtype::{DType, Kind};
use crate::error::{Error, Result};

/// A value in the types of a host language.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each is its own name")]
pub enum Scalar {
    Bool(bool),
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

impl Scalar {
    /// The default dtype of a tensor of it.
    #[must_use]
    pub fn default_dtype(self) -> DType {
        match self {
            Scalar::Bool(_) => DType::Bool,
            Scalar::Int(_) => DType::I64,
            Scalar::Float(_) => DType::F32,
            Scalar::Complex(..) => DType::C64,
        }
    }

    /// Its dtype as an operand of a tensor with dtype `other`: that dtype, unless the scalar's kind
    /// is higher.
    ///
    /// # Errors
    /// [`Error::Value`] for an integer outside the dtype's range; [`Error::DType`] for a kind that
    /// the tensor's dtype does not accept (such as an int for a bool tensor).
    pub fn beside(self, op: &'static str, other: DType) -> Result<DType> {
        let refuse = |what: &str| {
            Err(Error::dtype(
                op,
                format!("a Python {what} cannot be combined with a tensor of {other}"),
            ))
        };
        match (self, other.kind()) {
            (Scalar::Bool(_), Kind::Bool) => Ok(other),
            (Scalar::Bool(_), _) => Ok(other),
            (Scalar::Int(_), Kind::Bool) => refuse("int"),
            (Scalar::Int(v), Kind::Signed | Kind::Unsigned) => {
                let (low, high) = other.range();
                if v < low || v > high {
                    return Err(Error::value(op, format!("{v} is out of range for {other}")));
                }
                Ok(other)
            }
            (Scalar::Int(_), _) => Ok(other),
            (Scalar::Float(_), Kind::Float | Kind::Complex) => Ok(other),
            (Scalar::Float(_), _) => refuse("float"),
            (Scalar::Complex(..), Kind::Float) => Ok(other.complex()),
            (Scalar::Complex(..), Kind::Complex) => Ok(other),
            (Scalar::Complex(..), _) => refuse("complex"),
        }
    }

    /// Real and imaginary part.
    #[must_use]
    pub fn parts(self) -> (Scalar, Scalar) {
        match self {
            Scalar::Complex(re, im) => (Scalar::Float(re), Scalar::Float(im)),
            real => (real, Scalar::Float(0.0)),
        }
    }

    /// The value as f64.
    #[must_use]
    pub fn float(self) -> f64 {
        match self {
            Scalar::Bool(v) => f64::from(u8::from(v)),
            Scalar::Int(v) => v as f64,
            Scalar::Float(v) | Scalar::Complex(v, _) => v,
        }
    }

    /// The value as an integer: floats are truncated and clamped to i128.
    #[must_use]
    pub fn int(self) -> i128 {
        match self {
            Scalar::Bool(v) => i128::from(v),
            Scalar::Int(v) => v,
            Scalar::Float(v) | Scalar::Complex(v, _) => v as i128,
        }
    }

    /// Whether it is nonzero; NaN counts as nonzero.
    #[must_use]
    pub fn truth(self) -> bool {
        match self {
            Scalar::Bool(v) => v,
            Scalar::Int(v) => v != 0,
            Scalar::Float(v) => v != 0.0,
            Scalar::Complex(re, im) => re != 0.0 || im != 0.0,
        }
    }

    /// The bytes of an element: floats are rounded, integers keep their low bits.
    #[must_use]
    pub fn to_bytes(self, dtype: DType) -> Vec<u8> {
        match dtype {
            DType::F16 => half::f16::from_f64(self.float()).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f64(self.float()).to_le_bytes().to_vec(),
            DType::C64 | DType::C128 => {
                let (re, im) = self.parts();
                [re.to_bytes(dtype.part()), im.to_bytes(dtype.part())].concat()
            }
            _ => self.bits(dtype).to_le_bytes().into_iter().take(dtype.size()).collect(),
        }
    }

    /// The bits in a register of a real dtype, in the low bytes.
    #[must_use]
    pub(crate) fn bits(self, dtype: DType) -> u64 {
        match dtype {
            DType::Bool => u64::from(self.truth()),
            DType::I8 | DType::U8 => self.int() as u8 as u64,
            DType::I16 | DType::U16 => self.int() as u16 as u64,
            DType::I32 | DType::U32 => self.int() as u32 as u64,
            DType::I64 | DType::U64 => self.int() as u64,
            DType::F16 => u64::from(half::f16::from_f64(self.float()).to_f32().to_bits()),
            DType::BF16 => u64::from(half::bf16::from_f64(self.float()).to_f32().to_bits()),
            DType::F32 | DType::C64 => u64::from((self.float() as f32).to_bits()),
            DType::F64 | DType::C128 => self.float().to_bits(),
        }
    }
}

macro_rules! scalar_from {
    ($($kind:ident: $($t:ty),*);*) => {$($(
        impl From<$t> for Scalar {
            fn from(v: $t) -> Scalar { Scalar::$kind(v.into()) }
        }
    )*)*};
}
scalar_from!(Bool: bool; Int: i8, i16, i32, i64, u8, u16, u32, u64; Float: f32, f64);
