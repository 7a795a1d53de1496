//! Casts between register dtypes: floats to integers are truncated and clamped (NaN gives 0),
//! integers to narrower ones keep their low bits.

use super::typed::typed;
use crate::dtype::DType;
use bytemuck::{Pod, cast_slice, cast_slice_mut};

pub(super) trait To<T> {
    fn to(self) -> T;
}

macro_rules! casts {
    ($from:ident; $($to:ident)*) => {$(
        impl To<$to> for $from {
            #[inline(always)]
            fn to(self) -> $to { self as $to }
        }
    )*};
}
macro_rules! all_casts {
    ($($from:ident)*) => {$( casts!($from; i8 i16 i32 i64 u8 u16 u32 u64 f32 f64); )*};
}
all_casts!(i8 i16 i32 i64 u8 u16 u32 u64 f32 f64);

fn each<S: Pod, T: Pod>(x: &[u64], to: &mut [u64], n: usize, f: impl Fn(S) -> T) {
    let x = cast_slice::<u64, S>(x).get(..n).unwrap_or_default();
    cast_slice_mut::<u64, T>(to).iter_mut().zip(x).for_each(|(o, &x)| *o = f(x));
}

/// Casts registers. The caller rounds f16 and bf16 results.
pub(super) fn cast(from: DType, into: DType, x: &[u64], to: &mut [u64], n: usize) {
    match (from, into) {
        (_, DType::Bool) => typed!(from, S => each(x, to, n, |v: S| u8::from(v != (0 as S)))),
        // Rounds once; a cast through f32 would round twice.
        (DType::F64, DType::F16) => each(x, to, n, |v: f64| half::f16::from_f64(v).to_f32()),
        (DType::F64, DType::BF16) => each(x, to, n, |v: f64| half::bf16::from_f64(v).to_f32()),
        _ => typed!(from, S => typed!(into, T => each(x, to, n, <S as To<T>>::to))),
    }
}
