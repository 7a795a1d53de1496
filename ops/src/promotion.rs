//! Dtypes by name, and the common dtype of two operands.

use crate::dtype::{DTYPES, DType, Kind};
use crate::error::{Error, Result};

/// The promoted dtype by the array API's table. In addition f16 and bf16 give f32, and a float with
/// an integer or bool stays that float, as in torch. uint64 and a signed integer have no promotion
/// in the standard, because a float would lose digits.
///
/// # Errors
/// [`Error::DType`] with both names.
pub fn promote(op: &'static str, a: DType, b: DType) -> Result<DType> {
    use DType::{BF16, C64, C128, F16, F32, F64, I16, I32, I64, U64};
    if a == b {
        return Ok(a);
    }
    let (wide, narrow) = if a.kind() as u8 >= b.kind() as u8 { (a, b) } else { (b, a) };
    let found =
        match (wide.kind(), narrow.kind()) {
            (Kind::Complex, Kind::Complex) => C128,
            (Kind::Complex, _) if narrow == F64 || wide == C128 => C128,
            (Kind::Complex, _) => C64,
            (Kind::Float, Kind::Float) if wide == F64 || narrow == F64 => F64,
            (Kind::Float, Kind::Float) => {
                debug_assert!([F16, BF16, F32].contains(&wide));
                F32
            }
            (Kind::Float, _) => wide,
            (Kind::Unsigned | Kind::Signed, k) if k == wide.kind() => {
                if wide.size() >= narrow.size() { wide } else { narrow }
            }
            (Kind::Unsigned, Kind::Signed) => match wide.size().max(narrow.size() / 2) {
                _ if wide == U64 => {
                    return Err(Error::dtype(
                        op,
                        format!(
                            "{a} and {b} have no common dtype; convert one of them by astype()"
                        ),
                    ));
                }
                1 => I16,
                2 => I32,
                _ if wide.size() == 4 || narrow == I64 => I64,
                _ => I32,
            },
            (_, Kind::Bool) => wide,
            _ => return Err(Error::dtype(op, format!("{a} and {b} have no common dtype"))),
        };
    // A signed operand that is wide enough is the result.
    if wide.kind() == Kind::Unsigned && narrow.kind() == Kind::Signed && narrow.size() > wide.size()
    {
        return Ok(narrow);
    }
    Ok(found)
}

impl DType {
    /// The dtype with this name.
    ///
    /// # Errors
    /// [`Error::Value`] with the list of names.
    pub fn parse(name: &str) -> Result<DType> {
        DTYPES.into_iter().find(|d| d.name() == name).ok_or_else(|| {
            let names: Vec<&str> = DTYPES.iter().map(|d| d.name()).collect();
            Error::value("dtype", format!("'{name}' is not a dtype; valid: {}", names.join(", ")))
        })
    }
}
