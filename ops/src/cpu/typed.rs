//! An expression for each type of elements.

/// Expands `$body` with `$T` as the Rust type of a register of this dtype.
macro_rules! typed {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::Bool | DType::U8 => {
                type $T = u8;
                $body
            }
            DType::I8 => {
                type $T = i8;
                $body
            }
            DType::I16 => {
                type $T = i16;
                $body
            }
            DType::I32 => {
                type $T = i32;
                $body
            }
            DType::I64 => {
                type $T = i64;
                $body
            }
            DType::U16 => {
                type $T = u16;
                $body
            }
            DType::U32 => {
                type $T = u32;
                $body
            }
            DType::U64 => {
                type $T = u64;
                $body
            }
            DType::F16 | DType::BF16 | DType::F32 | DType::C64 => {
                type $T = f32;
                $body
            }
            DType::F64 | DType::C128 => {
                type $T = f64;
                $body
            }
        }
    };
}
pub(crate) use typed;
