// math.h: functions in f64 that a compiler without a library does not have: exp, logarithms,
// trigonometric and hyperbolic functions, erf, powers. For functions that math32.h lacks, f32, f16
// and bf16 are computed here and rounded once, which is exact except in rare half-way cases. f64 is
// within 4 units in the last place, pow within a relative error of 2^-43. Trigonometric functions
// need |x| below 2^40. All compilers use this source, so results are equal everywhere.
#pragma once
#include "kjit.h"
// A product and a sum are never contracted to one rounding, so results equal the CPU's and do not
// depend on fusion.
#if !defined(KJ_NVIDIA) && defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

typedef long long i64;
typedef double f64;

#if defined(KJ_NVIDIA)
STEP f64 m_fma(f64 a, f64 b, f64 c) { return fma(a, b, c); }
STEP f64 m_sqrt(f64 x) { return sqrt(x); }
STEP f64 m_floor(f64 x) { return floor(x); }
STEP f64 m_ceil(f64 x) { return ceil(x); }
STEP f64 m_trunc(f64 x) { return trunc(x); }
STEP f64 m_round(f64 x) { return rint(x); }
STEP f64 m_add(f64 a, f64 b) { return __dadd_rn(a, b); }
STEP f64 m_mul(f64 a, f64 b) { return __dmul_rn(a, b); }
STEP float m_add(float a, float b) { return __fadd_rn(a, b); }
STEP float m_mul(float a, float b) { return __fmul_rn(a, b); }
STEP u64 m_bits(f64 x) { return (u64)__double_as_longlong(x); }
STEP f64 m_from(u64 b) { return __longlong_as_double((i64)b); }
#else
STEP f64 m_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#if defined(KJ_SIMULATED) && defined(__x86_64__)  // no C library, so no errno
STEP f64 m_sqrt(f64 x) { f64 r; asm("sqrtsd %1, %0" : "=x"(r) : "x"(x)); return r; }
#else
STEP f64 m_sqrt(f64 x) { return __builtin_sqrt(x); }
#endif
STEP f64 m_floor(f64 x) { return __builtin_floor(x); }
STEP f64 m_ceil(f64 x) { return __builtin_ceil(x); }
STEP f64 m_trunc(f64 x) { return __builtin_trunc(x); }
STEP f64 m_round(f64 x) { return __builtin_rint(x); }
#if defined(KJ_AMD)
STEP f64 m_add(f64 a, f64 b) { return a + b; }
STEP f64 m_mul(f64 a, f64 b) { return a * b; }
STEP float m_add(float a, float b) { return a + b; }
STEP float m_mul(float a, float b) { return a * b; }
#else  // this compiler has no such pragma: a product is stored before a sum
STEP f64 m_add(f64 a, f64 b) { return a + b; }
STEP f64 m_mul(f64 a, f64 b) { f64 v = a * b; asm("" : "+x"(v)); return v; }
STEP float m_add(float a, float b) { return a + b; }
STEP float m_mul(float a, float b) { float v = a * b; asm("" : "+x"(v)); return v; }
#endif
STEP u64 m_bits(f64 x) { return __builtin_bit_cast(u64, x); }
STEP f64 m_from(u64 b) { return __builtin_bit_cast(f64, b); }
#endif

#define M_SIGN 0x8000000000000000ull
STEP bool m_signed(f64 x) { return (m_bits(x) & M_SIGN) != 0; }
STEP f64 m_abs(f64 x) { return m_from(m_bits(x) & ~M_SIGN); }
STEP f64 m_copysign(f64 x, f64 s) { return m_from((m_bits(x) & ~M_SIGN) | (m_bits(s) & M_SIGN)); }
STEP f64 m_inf() { return m_from(0x7ff0000000000000ull); }
STEP f64 m_nan() { return m_from(0x7ff8000000000000ull); }
STEP bool m_isnan(f64 x) { return x != x; }
STEP bool m_isinf(f64 x) { return m_abs(x) == m_inf(); }
STEP f64 m_two(i32 n) { return m_from((u64)(n + 1023) << 52); }  // 2^n; the result must be normal

// The exact remainder of a division: subtracts y times powers of 2.
STEP f64 m_fmod(f64 x, f64 y) {
    f64 a = m_abs(x), b = m_abs(y);
    if (m_isnan(x) || m_isnan(y) || b == 0.0 || a == m_inf()) return m_nan();
    if (b == m_inf()) return x;
    while (a >= b) {
        i32 d = (i32)(m_bits(a) >> 52) - (i32)(m_bits(b) >> 52);
        f64 t = b * m_two(d / 2) * m_two(d - d / 2);
        if (t > a) t *= 0.5;
        a -= t < b ? b : t;
    }
    return m_copysign(a, x);
}

#define M_LN2 0.6931471805599453
#define M_LN2_HIGH 0.693147180369123816490
#define M_LN2_LOW 1.90821492927058770002e-10
#define M_PI 3.141592653589793

// e^x − 1 = x / 1! + x^2 / 2! + …, for |x| below 0.36.
STEP f64 m_expm1_near(f64 x) {
    f64 p = 1.0 / 87178291200.0;
    p = m_fma(p, x, 1.0 / 6227020800.0);
    p = m_fma(p, x, 1.0 / 479001600.0);
    p = m_fma(p, x, 1.0 / 39916800.0);
    p = m_fma(p, x, 1.0 / 3628800.0);
    p = m_fma(p, x, 1.0 / 362880.0);
    p = m_fma(p, x, 1.0 / 40320.0);
    p = m_fma(p, x, 1.0 / 5040.0);
    p = m_fma(p, x, 1.0 / 720.0);
    p = m_fma(p, x, 1.0 / 120.0);
    p = m_fma(p, x, 1.0 / 24.0);
    p = m_fma(p, x, 1.0 / 6.0);
    p = m_fma(p, x, 0.5);
    return m_fma(p * x, x, x);
}
STEP f64 m_exp(f64 x) {
    if (m_isnan(x)) return x;
    if (x > 709.8) return m_inf();
    if (x < -745.2) return 0.0;
    f64 n = m_round(x * 1.4426950408889634);
    f64 r = m_fma(-n, M_LN2_LOW, m_fma(-n, M_LN2_HIGH, x));
    i32 k = (i32)n, half = k / 2;
    // Two factors, because 2^k may be subnormal or overflow.
    return (1.0 + m_expm1_near(r)) * m_two(half) * m_two(k - half);
}
STEP f64 m_expm1(f64 x) {
    if (m_abs(x) < 0.35) return x == 0.0 ? x : m_expm1_near(x);
    return m_exp(x) - 1.0;
}
// Sets the exponent of x, and returns log of its mantissa, in [-log(2) / 2, log(2) / 2].
STEP f64 m_log_parts(f64 x, f64& exponent) {
    i32 e = 0;
    if (x < 2.2250738585072014e-308) { x *= 18014398509481984.0; e = -54; }
    u64 b = m_bits(x);
    e += (i32)(b >> 52) - 1023;
    f64 m = m_from((b & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) { m *= 0.5; e += 1; }
    exponent = (f64)e;
    f64 f = (m - 1.0) / (m + 1.0), s = f * f;
    f64 p = 1.0 / 23.0;
    p = m_fma(p, s, 1.0 / 21.0);
    p = m_fma(p, s, 1.0 / 19.0);
    p = m_fma(p, s, 1.0 / 17.0);
    p = m_fma(p, s, 1.0 / 15.0);
    p = m_fma(p, s, 1.0 / 13.0);
    p = m_fma(p, s, 1.0 / 11.0);
    p = m_fma(p, s, 1.0 / 9.0);
    p = m_fma(p, s, 1.0 / 7.0);
    p = m_fma(p, s, 1.0 / 5.0);
    p = m_fma(p, s, 1.0 / 3.0);
    return m_fma(p * s, 2.0 * f, 2.0 * f);
}
STEP bool m_log_special(f64 x, f64& out) {
    if (m_isnan(x) || x == m_inf()) { out = x; return true; }
    if (x == 0.0) { out = -m_inf(); return true; }
    if (x < 0.0) { out = m_nan(); return true; }
    return false;
}
STEP f64 m_log(f64 x) {
    f64 e, out;
    if (m_log_special(x, out)) return out;
    f64 l = m_log_parts(x, e);
    return m_fma(e, M_LN2_HIGH, m_fma(e, M_LN2_LOW, l));
}
STEP f64 m_log2(f64 x) {
    f64 e, out;
    if (m_log_special(x, out)) return out;
    f64 l = m_log_parts(x, e);
    return m_fma(l, 1.4426950408889634, e);
}
STEP f64 m_log10(f64 x) { return m_log(x) * 0.4342944819032518; }
STEP f64 m_log1p(f64 x) {
    f64 u = 1.0 + x;
    if (u == 1.0) return x;
    f64 l = m_log(u);
    return u <= 0.0 || m_isinf(u) || m_isnan(u) ? l : l - ((u - 1.0) - x) / u;
}
STEP f64 m_sin_near(f64 x) {
    f64 s = x * x, p = 1.0 / 355687428096000.0;
    p = m_fma(p, s, -1.0 / 1307674368000.0);
    p = m_fma(p, s, 1.0 / 6227020800.0);
    p = m_fma(p, s, -1.0 / 39916800.0);
    p = m_fma(p, s, 1.0 / 362880.0);
    p = m_fma(p, s, -1.0 / 5040.0);
    p = m_fma(p, s, 1.0 / 120.0);
    p = m_fma(p, s, -1.0 / 6.0);
    return m_fma(p * s, x, x);
}
STEP f64 m_cos_near(f64 x) {
    f64 s = x * x, p = 1.0 / 20922789888000.0;
    p = m_fma(p, s, -1.0 / 87178291200.0);
    p = m_fma(p, s, 1.0 / 479001600.0);
    p = m_fma(p, s, -1.0 / 3628800.0);
    p = m_fma(p, s, 1.0 / 40320.0);
    p = m_fma(p, s, -1.0 / 720.0);
    p = m_fma(p, s, 1.0 / 24.0);
    p = m_fma(p, s, -0.5);
    return m_fma(p, s, 1.0);
}
// sin (turn 0) or cos (turn 1). x is reduced by multiples of π/2.
STEP f64 m_circle(f64 x, u32 turn) {
    if (m_isnan(x) || m_isinf(x)) return m_nan();
    if (turn == 0 && x == 0.0) return x;
    f64 n = m_round(x * 0.6366197723675814);
    f64 r = m_fma(-n, 1.5707963267948966, x);
    r = m_fma(-n, 6.123233995736766e-17, r);
    r = m_fma(-n, -1.4973849048591833e-33, r);
    u32 q = (u32)(i64)n + turn;
    f64 v = (q & 1) ? m_cos_near(r) : m_sin_near(r);
    return (q & 2) ? -v : v;
}
STEP f64 m_sin(f64 x) { return m_circle(x, 0); }
STEP f64 m_cos(f64 x) { return m_circle(x, 1); }
STEP f64 m_tan(f64 x) { return x == 0.0 ? x : m_sin(x) / m_cos(x); }
STEP f64 m_atan(f64 x) {
    if (m_isnan(x) || x == 0.0) return x;
    f64 a = m_abs(x), base = 0.0, sign = 1.0;
    if (a > 1.0) { a = 1.0 / a; base = M_PI / 2; sign = -1.0; }
    f64 low = 0.0;
    if (a > 0.41421356237309503) { a = (a - 1.0) / (a + 1.0); low = M_PI / 4; }
    f64 s = a * a, p = 0.0;
    for (i32 k = 20; k >= 0; k--) p = m_fma(-p, s, 1.0 / (2 * k + 1));
    return m_copysign(m_fma(sign, low + p * a, base), x);
}
STEP f64 m_atan2(f64 y, f64 x) {
    if (m_isnan(x) || m_isnan(y)) return m_nan();
    f64 ax = m_abs(x), ay = m_abs(y), a = 0.0;
    if (ax == ay) a = ax == 0.0 ? 0.0 : M_PI / 4;
    else if (ax > ay) a = m_atan(ay / ax);
    else a = M_PI / 2 - m_atan(ax / ay);
    return m_copysign(m_signed(x) ? M_PI - a : a, y);
}
STEP f64 m_asin(f64 x) { return x == 0.0 ? x : m_atan2(x, m_sqrt((1.0 - x) * (1.0 + x))); }
STEP f64 m_acos(f64 x) { return m_atan2(m_sqrt((1.0 - x) * (1.0 + x)), x); }
STEP f64 m_sinh(f64 x) {
    f64 a = m_abs(x);
    if (a > 700.0) { f64 h = m_exp(a * 0.5); return m_copysign(0.5 * h * h, x); }
    f64 e = m_expm1(a);
    return m_copysign(0.5 * (e + e / (e + 1.0)), x);
}
STEP f64 m_cosh(f64 x) {
    f64 a = m_abs(x);
    if (a > 700.0) { f64 h = m_exp(a * 0.5); return 0.5 * h * h; }
    f64 e = m_exp(a);
    return 0.5 * (e + 1.0 / e);
}
STEP f64 m_tanh(f64 x) {
    f64 a = m_abs(x);
    if (a > 22.0) return m_copysign(1.0, x);
    f64 e = m_expm1(2.0 * a);
    return m_copysign(e / (e + 2.0), x);
}
STEP f64 m_asinh(f64 x) {
    f64 a = m_abs(x);
    f64 v = a > 1e150 ? m_log(a) + M_LN2 : m_log1p(a + a * a / (1.0 + m_sqrt(a * a + 1.0)));
    return m_copysign(v, x);
}
STEP f64 m_acosh(f64 x) {
    if (x < 1.0) return m_nan();
    f64 t = x - 1.0;
    return x > 1e150 ? m_log(x) + M_LN2 : m_log1p(t + m_sqrt(2.0 * t + t * t));
}
STEP f64 m_atanh(f64 x) {
    f64 a = m_abs(x);
    if (a > 1.0) return m_nan();
    return m_copysign(a == 1.0 ? m_inf() : 0.5 * m_log1p(2.0 * a / (1.0 - a)), x);
}
// erf(x) = exp(-x^2) · 2 / sqrt(pi) · Σ 2^n x^(2n + 1) / (2n + 1)!!. All terms are positive.
STEP f64 m_erf(f64 x) {
    if (m_isnan(x)) return x;
    f64 a = m_abs(x);
    if (a > 6.0) return m_copysign(1.0, x);
    f64 term = a, sum = a, s = 2.0 * a * a;
    for (i32 n = 1; n < 160 && term > sum * 1e-17; n++) { term *= s / (2 * n + 1); sum += term; }
    return m_copysign(1.1283791670955126 * m_exp(-a * a) * sum, x);
}
STEP f64 m_pow(f64 x, f64 y) {
    if (y == 0.0 || x == 1.0) return 1.0;
    if (m_isnan(x) || m_isnan(y)) return m_nan();
    f64 a = m_abs(x);
    if (m_isinf(y)) return a == 1.0 ? 1.0 : ((a > 1.0) == (y > 0.0) ? m_inf() : 0.0);
    bool whole = m_floor(y) == y;
    bool odd = whole && m_abs(y) < 9007199254740992.0 && m_floor(y * 0.5) * 2.0 != y;
    bool negative = m_signed(x) && odd;
    if (x == 0.0 || m_isinf(x)) {
        f64 v = (a == 0.0) == (y > 0.0) ? 0.0 : m_inf();
        return negative ? -v : v;
    }
    if (x < 0.0 && !whole) return m_nan();
    f64 v;
    if (whole && m_abs(y) <= 64.0) {  // by squaring: powers of small integers are exact
        v = 1.0;
        f64 base = a;
        for (u32 n = (u32)m_abs(y); n != 0; n >>= 1) { if (n & 1) v *= base; base *= base; }
        if (y < 0.0) v = 1.0 / v;
    } else {
        v = m_exp(y * m_log(a));
    }
    return negative ? -v : v;
}
STEP f64 m_hypot(f64 x, f64 y) {
    f64 a = m_abs(x), b = m_abs(y);
    if (a == m_inf() || b == m_inf()) return m_inf();
    if (m_isnan(a) || m_isnan(b)) return m_nan();
    f64 high = a > b ? a : b, low = a > b ? b : a;
    if (high == 0.0) return 0.0;
    f64 q = low / high;
    return high * m_sqrt(m_fma(q, q, 1.0));
}
STEP f64 m_logaddexp(f64 a, f64 b) {
    if (a == b) return a + M_LN2;
    f64 d = a - b;
    if (d > 0.0) return a + m_log1p(m_exp(-d));
    return d <= 0.0 ? b + m_log1p(m_exp(d)) : d;
}
