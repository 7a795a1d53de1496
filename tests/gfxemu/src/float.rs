//! Floating-point arithmetic as the instructions define it, on bit patterns.

use half::f16;

/// f32 from bits.
pub fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}
/// f32 to bits.
pub fn b(x: f32) -> u128 {
    u128::from(x.to_bits())
}
/// f16 from bits, as f32.
pub fn h(x: u64) -> f32 {
    f16::from_bits(x as u16).to_f32()
}
/// Converts an f64 to bits of an f16, rounded once.
pub fn bh(x: f64) -> u128 {
    u128::from(f16::from_f64(x).to_bits())
}
/// f64 from bits.
pub fn d(x: u64) -> f64 {
    f64::from_bits(x)
}
/// f64 to bits.
pub fn bd(x: f64) -> u128 {
    u128::from(x.to_bits())
}

/// The larger number; NaN only if both are NaN.
pub fn max(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == b => f32::from_bits(a.to_bits() & b.to_bits()),
        _ => {
            if a > b {
                a
            } else {
                b
            }
        }
    }
}
/// The smaller number; NaN only if both are NaN.
pub fn min(a: f32, b: f32) -> f32 {
    -max(-a, -b)
}
/// The median of three numbers.
pub fn med3(a: f32, b: f32, c: f32) -> f32 {
    if a.is_nan() || b.is_nan() || c.is_nan() {
        return min(min(a, b), c);
    }
    max(min(a, b), min(max(a, b), c))
}

/// Rounds to the nearest integer, ties to even.
pub fn rndne(x: f32) -> f32 {
    x.round_ties_even()
}

/// Truncates to a signed integer, clamped; NaN gives 0.
pub fn to_i32(x: f64) -> u128 {
    u128::from(x as i32 as u32)
}
/// Truncates to an unsigned integer, clamped; NaN gives 0.
pub fn to_u32(x: f64) -> u128 {
    u128::from(x as u32)
}

/// Flushes subnormal numbers to 0.
pub fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

fn exponent(x: f32) -> i32 {
    (x.to_bits() >> 23 & 255) as i32
}

/// v_div_scale_f32: scales a quotient's denominator or numerator (`scaled`) away from overflow; bit
/// 64 is set if the quotient must be scaled back. The case 1 ÷ denominator of the manual applies
/// only to f64.
pub fn div_scale(scaled: u64, denominator: u64, numerator: u64) -> u128 {
    let (s, den, num) = (f(scaled), f(denominator), f(numerator));
    let up = |x: f32| b((f64::from(x) * 2f64.powi(64)) as f32);
    let flag = 1u128 << 64;
    let same_as = |x: f32| s.to_bits() == x.to_bits();
    if num == 0.0 || den == 0.0 {
        b(f32::NAN)
    } else if exponent(num) - exponent(den) >= 96 {
        // The numerator is much larger than the denominator: the result is scaled if `scaled` is
        // the denominator.
        flag | if same_as(den) { up(s) } else { b(s) }
    } else if den.is_subnormal() {
        up(s)
    } else if ((f64::from(num) / f64::from(den)) as f32).is_subnormal() {
        flag | if same_as(num) { up(s) } else { b(s) }
    } else if exponent(num) <= 23 {
        up(s)
    } else {
        b(s)
    }
}

/// v_div_fmas_f32: a fused multiply-add, scaled back if v_div_scale_f32 set the flag.
pub fn div_fmas(x: f32, y: f32, z: f32, scale: bool) -> u128 {
    let r = x.mul_add(y, z);
    if !scale {
        return b(r);
    }
    let by = if exponent(z) > 127 { 64 } else { -64 };
    b((f64::from(r) * 2f64.powi(by)) as f32)
}

/// v_div_fixup_f32: the quotient, corrected for special values.
pub fn div_fixup(quotient: f32, den: f32, num: f32) -> u128 {
    let negative = den.is_sign_negative() != num.is_sign_negative();
    let signed = |x: f32| if negative { -x.abs() } else { x.abs() };
    b(if num.is_nan() {
        num
    } else if den.is_nan() {
        den
    } else if (num == 0.0 && den == 0.0) || (num.is_infinite() && den.is_infinite()) {
        f32::NAN
    } else if den == 0.0 || num.is_infinite() {
        signed(f32::INFINITY)
    } else if den.is_infinite() || num == 0.0 {
        signed(0.0)
    } else if exponent(num) - exponent(den) < -150 {
        signed(f32::from_bits(1))
    } else if exponent(den) == 255 {
        signed(f32::INFINITY)
    } else {
        signed(quotient)
    })
}

/// x · 2ⁿ.
pub fn ldexp(x: f64, n: i32) -> f64 {
    let half = n.clamp(-4000, 4000) / 2;
    x * 2f64.powi(half) * 2f64.powi(n.clamp(-4000, 4000) - half)
}

/// Dot product of four signed bytes, added to `c`.
pub fn dot4_signed(a: u64, b: u64, c: u64) -> u128 {
    let byte = |x: u64, i: u32| i32::from((x >> (8 * i)) as u8 as i8);
    let sum = (0..4).fold(c as u32 as i32, |s, i| s.wrapping_add(byte(a, i) * byte(b, i)));
    u128::from(sum as u32)
}
/// Dot product of four unsigned bytes, added to `c`.
pub fn dot4_unsigned(a: u64, b: u64, c: u64) -> u128 {
    let byte = |x: u64, i: u32| u32::from((x >> (8 * i)) as u8);
    u128::from((0..4).fold(c as u32, |s, i| s.wrapping_add(byte(a, i) * byte(b, i))))
}
/// Dot product of two f16, added to an f32.
pub fn dot2(a: u64, b_: u64, c: u64) -> u128 {
    let product = |i: u32| f64::from(h(a >> i)) * f64::from(h(b_ >> i));
    b((product(0) + product(16) + f64::from(f(c))) as f32)
}

/// v_perm_b32: selects bytes of two u32.
pub fn perm(high: u64, low: u64, selector: u64) -> u128 {
    let both = (high & 0xffff_ffff) << 32 | low & 0xffff_ffff;
    let byte = |i: u64| both >> (8 * i) & 255;
    let sign = |i: u64| if both >> i & 1 == 1 { 255 } else { 0 };
    (0..4).fold(0, |out, i| {
        let x = match selector >> (8 * i) & 255 {
            s @ 0..=7 => byte(s),
            8 => sign(15),
            9 => sign(31),
            10 => sign(47),
            11 => sign(63),
            12 => 0,
            _ => 255,
        };
        out | u128::from(x) << (8 * i)
    })
}
