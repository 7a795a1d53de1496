//! Arithmetic of one element in each register dtype. Integers wrap, and division by zero gives 0,
//! as in NumPy; floats follow IEEE 754 and the array API's special cases.

use bytemuck::Pod;

pub(crate) trait Elem: Pod + PartialOrd + Send + Sync {
    const ZERO: Self;
    const ONE: Self;
    /// The least value.
    const LEAST: Self;
    /// The greatest value.
    const MOST: Self;
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn div(self, o: Self) -> Self;
    fn floor_div(self, o: Self) -> Self;
    fn rem(self, o: Self) -> Self;
    fn pow(self, o: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    /// The lesser; NaN if either is NaN.
    fn min(self, o: Self) -> Self;
    /// The greater; NaN if either is NaN.
    fn max(self, o: Self) -> Self;
    fn is_nan(self) -> bool;
}

macro_rules! ints {
    ($($t:ident $unsigned:ident $bits:literal),*) => {$(
        impl Elem for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;
            const LEAST: $t = $t::MIN;
            const MOST: $t = $t::MAX;
            #[inline(always)]
            fn add(self, o: $t) -> $t { self.wrapping_add(o) }
            #[inline(always)]
            fn sub(self, o: $t) -> $t { self.wrapping_sub(o) }
            #[inline(always)]
            fn mul(self, o: $t) -> $t { self.wrapping_mul(o) }
            #[inline(always)]
            fn div(self, o: $t) -> $t { if o == 0 { 0 } else { self.wrapping_div(o) } }
            #[inline(always)]
            fn floor_div(self, o: $t) -> $t {
                if o == 0 { return 0; }
                let (q, r) = (self.wrapping_div(o), self.wrapping_rem(o));
                #[allow(unused_comparisons, reason = "of signed types")]
                let down = r != 0 && ((r < 0) != (o < 0));
                q.wrapping_sub($t::from(down as u8 as $t))
            }
            #[inline(always)]
            fn rem(self, o: $t) -> $t {
                if o == 0 { return 0; }
                let r = self.wrapping_rem(o);
                #[allow(unused_comparisons, reason = "of signed types")]
                let other = r != 0 && ((r < 0) != (o < 0));
                if other { r.wrapping_add(o) } else { r }
            }
            #[inline(always)]
            fn pow(self, o: $t) -> $t {
                #[allow(unused_comparisons, reason = "of signed types")]
                if o < 0 {
                    // 1 / self^-o, truncated: nonzero only for 1 and -1.
                    return match self {
                        1 => 1,
                        v if v.wrapping_add(1) == 0 => {
                            if o & 1 == 0 { 1 } else { v }
                        }
                        _ => 0,
                    };
                }
                let (mut base, mut left, mut out) = (self, o as u64, 1 as $t);
                while left > 0 {
                    if left & 1 == 1 { out = out.wrapping_mul(base); }
                    base = base.wrapping_mul(base);
                    left >>= 1;
                }
                out
            }
            #[inline(always)]
            fn neg(self) -> $t { (0 as $t).wrapping_sub(self) }
            #[inline(always)]
            fn abs(self) -> $t {
                #[allow(unused_comparisons, reason = "of signed types")]
                if self < 0 { Elem::neg(self) } else { self }
            }
            #[inline(always)]
            fn sign(self) -> $t {
                #[allow(unused_comparisons, reason = "of signed types")]
                let below = self < 0;
                if below { Elem::neg(1) } else { (self != 0) as u8 as $t }
            }
            #[inline(always)]
            fn min(self, o: $t) -> $t { Ord::min(self, o) }
            #[inline(always)]
            fn max(self, o: $t) -> $t { Ord::max(self, o) }
            #[inline(always)]
            fn is_nan(self) -> bool { false }
        }

        impl Bits for $t {
            #[inline(always)]
            fn and(self, o: $t) -> $t { self & o }
            #[inline(always)]
            fn or(self, o: $t) -> $t { self | o }
            #[inline(always)]
            fn xor(self, o: $t) -> $t { self ^ o }
            #[inline(always)]
            fn not(self) -> $t { !self }
            #[inline(always)]
            fn shl(self, o: $t) -> $t {
                if (o as $unsigned) < $bits { self << (o as u32) } else { 0 }
            }
            #[inline(always)]
            fn shr(self, o: $t) -> $t {
                if (o as $unsigned) < $bits {
                    self >> (o as u32)
                } else {
                    // All bits of the result are the sign.
                    self >> ($bits - 1) >> 1
                }
            }
        }
    )*};
}

pub(crate) trait Bits: Elem {
    fn and(self, o: Self) -> Self;
    fn or(self, o: Self) -> Self;
    fn xor(self, o: Self) -> Self;
    fn not(self) -> Self;
    /// If the count is negative, or at least the width, all bits are shifted out.
    fn shl(self, o: Self) -> Self;
    fn shr(self, o: Self) -> Self;
}

ints!(
    i8 u8 8, i16 u16 16, i32 u32 32, i64 u64 64,
    u8 u8 8, u16 u16 16, u32 u32 32, u64 u64 64
);

pub(crate) trait Real: Elem {
    fn unary(op: crate::element::UnOp) -> fn(Self) -> Self;
    fn sqrt(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    fn round(self) -> Self;
    fn atan2(self, o: Self) -> Self;
    fn hypot(self, o: Self) -> Self;
    fn copy_sign(self, o: Self) -> Self;
    fn next_after(self, o: Self) -> Self;
    fn log_add_exp(self, o: Self) -> Self;
    fn is_inf(self) -> bool;
    fn sign_bit(self) -> bool;
}

macro_rules! floats {
    ($($t:ident $bits:ident $erf:path),*) => {$(
        impl Elem for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const LEAST: $t = $t::NEG_INFINITY;
            const MOST: $t = $t::INFINITY;
            #[inline(always)]
            fn add(self, o: $t) -> $t { self + o }
            #[inline(always)]
            fn sub(self, o: $t) -> $t { self - o }
            #[inline(always)]
            fn mul(self, o: $t) -> $t { self * o }
            #[inline(always)]
            fn div(self, o: $t) -> $t { self / o }
            #[inline(always)]
            fn floor_div(self, o: $t) -> $t {
                // The array API defines a finite number divided by an infinity as 0 with the
                // quotient's sign.
                if o == 0.0 || self.is_infinite() || o.is_infinite() { return self / o; }
                let rest = self % o;
                let mut whole = (self - rest) / o;
                if rest != 0.0 && (rest < 0.0) != (o < 0.0) { whole -= 1.0; }
                if whole == 0.0 { return (0.0 as $t).copysign(self / o); }
                let down = whole.floor();
                if whole - down > 0.5 { down + 1.0 } else { down }
            }
            #[inline(always)]
            fn rem(self, o: $t) -> $t {
                let rest = self % o;
                if rest == 0.0 { return rest.copysign(o); }
                if (rest < 0.0) != (o < 0.0) { rest + o } else { rest }
            }
            #[inline(always)]
            fn pow(self, o: $t) -> $t { self.powf(o) }
            #[inline(always)]
            fn neg(self) -> $t { -self }
            #[inline(always)]
            fn abs(self) -> $t { $t::abs(self) }
            #[inline(always)]
            fn sign(self) -> $t {
                if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { self + 0.0 }
            }
            #[inline(always)]
            fn min(self, o: $t) -> $t {
                if self < o || self.is_nan() { self } else if self == o {
                    if self.is_sign_negative() { self } else { o }
                } else { o }
            }
            #[inline(always)]
            fn max(self, o: $t) -> $t {
                if self > o || self.is_nan() { self } else if self == o {
                    if self.is_sign_negative() { o } else { self }
                } else { o }
            }
            #[inline(always)]
            fn is_nan(self) -> bool { $t::is_nan(self) }
        }

        impl Real for $t {
            fn unary(op: crate::element::UnOp) -> fn($t) -> $t {
                use crate::element::UnOp;
                match op {
                    UnOp::Exp => $t::exp,
                    UnOp::Expm1 => $t::exp_m1,
                    UnOp::Log => $t::ln,
                    UnOp::Log1p => $t::ln_1p,
                    UnOp::Log2 => $t::log2,
                    UnOp::Log10 => $t::log10,
                    UnOp::Sin => $t::sin,
                    UnOp::Cos => $t::cos,
                    UnOp::Tan => $t::tan,
                    UnOp::Asin => $t::asin,
                    UnOp::Acos => $t::acos,
                    UnOp::Atan => $t::atan,
                    UnOp::Sinh => $t::sinh,
                    UnOp::Cosh => $t::cosh,
                    UnOp::Tanh => $t::tanh,
                    UnOp::Asinh => asinh::$t,
                    UnOp::Acosh => acosh::$t,
                    UnOp::Atanh => atanh::$t,
                    UnOp::Erf => $erf,
                    _ => |x| x,
                }
            }
            #[inline(always)]
            fn sqrt(self) -> $t { $t::sqrt(self) }
            #[inline(always)]
            fn floor(self) -> $t { $t::floor(self) }
            #[inline(always)]
            fn ceil(self) -> $t { $t::ceil(self) }
            #[inline(always)]
            fn trunc(self) -> $t { $t::trunc(self) }
            #[inline(always)]
            fn round(self) -> $t { self.round_ties_even() }
            fn atan2(self, o: $t) -> $t { $t::atan2(self, o) }
            fn hypot(self, o: $t) -> $t { $t::hypot(self, o) }
            #[inline(always)]
            fn copy_sign(self, o: $t) -> $t { self.copysign(o) }
            fn next_after(self, o: $t) -> $t {
                if self.is_nan() || o.is_nan() { return self + o; }
                if self == o { return o; }
                if self == 0.0 { return $t::from_bits(1).copysign(o); }
                let bits = self.to_bits();
                let away = (self < o) == (self > 0.0);
                $t::from_bits(if away { bits + 1 } else { bits - 1 })
            }
            fn log_add_exp(self, o: $t) -> $t {
                if self == o { return self + std::f64::consts::LN_2 as $t; }
                let d = self - o;
                if d > 0.0 { self + (-d).exp().ln_1p() }
                else if d <= 0.0 { o + d.exp().ln_1p() }
                else { d }
            }
            #[inline(always)]
            fn is_inf(self) -> bool { self.is_infinite() }
            #[inline(always)]
            fn sign_bit(self) -> bool { self.is_sign_negative() }
        }
    )*};
}

floats!(f32 u32 libm::erff, f64 u64 libm::erf);

// std's functions lose the sign of -0 (atanh, and asinh in older versions) and digits of small
// arguments; these follow libm.
mod asinh {
    pub(super) fn f32(x: f32) -> f32 {
        libm::asinh(f64::from(x)) as f32
    }
    pub(super) fn f64(x: f64) -> f64 {
        libm::asinh(x)
    }
}
mod acosh {
    pub(super) fn f32(x: f32) -> f32 {
        libm::acosh(f64::from(x)) as f32
    }
    pub(super) fn f64(x: f64) -> f64 {
        libm::acosh(x)
    }
}
mod atanh {
    pub(super) fn f32(x: f32) -> f32 {
        libm::atanh(f64::from(x)) as f32
    }
    pub(super) fn f64(x: f64) -> f64 {
        libm::atanh(x)
    }
}
