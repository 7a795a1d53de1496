// math32.h: functions of math.h for f32 without f64, which consumer cards compute at 1/32 or 1/64
// of the rate. Errors are below 2 units in the last place; those of log10, log1p, tan, tanh, sinh
// and cosh below 4 (ops/tests/it/elements.rs compares f32 with f64). Results are equal on all GPUs:
// there is no contraction, because a product that is added is m_mul or an explicit fma.
// Coefficients are minimax fits; the comment after the first one is the error of the fit.
#pragma once
#include "math.h"

#if defined(KJ_NVIDIA)
STEP float m_sqrt(float x) { return __fsqrt_rn(x); }
STEP float m_floor(float x) { return floorf(x); }
STEP float m_ceil(float x) { return ceilf(x); }
STEP float m_trunc(float x) { return truncf(x); }
STEP float m_round(float x) { return rintf(x); }
#else
#if defined(KJ_SIMULATED) && defined(__x86_64__)
STEP float m_sqrt(float x) { float r; asm("sqrtss %1, %0" : "=x"(r) : "x"(x)); return r; }
#else
STEP float m_sqrt(float x) { return __builtin_sqrtf(x); }
#endif
STEP float m_floor(float x) { return __builtin_floorf(x); }
STEP float m_ceil(float x) { return __builtin_ceilf(x); }
STEP float m_trunc(float x) { return __builtin_truncf(x); }
STEP float m_round(float x) { return __builtin_rintf(x); }
#endif

STEP bool m_signed(float x) { return as_u32(x) >> 31 != 0; }
STEP float m_abs(float x) { return as_f32(as_u32(x) & 0x7fffffffu); }
STEP float m_copysign(float x, float s) {
    return as_f32((as_u32(x) & 0x7fffffffu) | (as_u32(s) & 0x80000000u));
}
STEP bool m_isinf(float x) { return m_abs(x) == as_f32(0x7f800000u); }
STEP float m_inf32() { return as_f32(0x7f800000u); }
STEP float m_nan32() { return as_f32(0x7fc00000u); }
STEP float m_two32(i32 n) { return as_f32((u32)(n + 127) << 23); }  // 2^n, normal

// Splits x = k log 2 + r with |r| <= log(2) / 2, sets k, returns r. |x| must be at most 105.
STEP float m_exp_rest(float x, i32& k) {
    const float magic = 12582912.0f;  // 1.5 · 2^23: rounds to an integer
    const float t = fma_f32(x, 1.442695022f, magic), n = m_add(t, -magic);
    k = (i32)(as_u32(t) - 0x4b400000u);
    return fma_f32(-n, 1.428606765e-06f, fma_f32(-n, 0.693145752f, x));
}
STEP float m_exp(float x) {
    i32 k;
    const float r = m_exp_rest(min_f32(max_f32(x, -105.0f), 89.0f), k);
    float q = 1.395073952e-03f;  // error 2^-28 of e^r
    q = fma_f32(q, r, 8.369024843e-03f);
    q = fma_f32(q, r, 4.166620225e-02f);
    q = fma_f32(q, r, 1.666651815e-01f);
    q = fma_f32(q, r, 0.5f);
    const float e = m_add(fma_f32(m_mul(q, r), r, r), 1.0f);
    // Two factors, because 2^k may be subnormal or overflow.
    const i32 half = k >> 1;
    const float v = m_mul(m_mul(e, m_two32(half)), m_two32(k - half));
    return x != x ? x : v;
}
STEP float m_expm1(float x) {
    i32 k;
    const float r = m_exp_rest(min_f32(max_f32(x, -20.0f), 88.0f), k);
    float q = 1.991992031e-04f;  // 2^-31
    q = fma_f32(q, r, 1.394507592e-03f);
    q = fma_f32(q, r, 8.333262987e-03f);
    q = fma_f32(q, r, 4.166630283e-02f);
    q = fma_f32(q, r, 1.666666716e-01f);
    q = fma_f32(q, r, 0.5f);
    const float p = fma_f32(m_mul(q, r), r, r), two = m_two32(k);
    const float v = fma_f32(p, two, m_add(two, -1.0f));
    return x == 0.0f || x != x ? x : x > 87.0f ? m_exp(x) : v;
}

// Sets the exponent of a positive, finite x. Log of its mantissa, in [-log(2) / 2, log(2) / 2], is
// the sum of the result and `low`.
STEP float m_log_parts(float x, float& exponent, float& low) {
    i32 e = 0;
    if (x < 1.17549435e-38f) { x = m_mul(x, 8388608.0f); e = -23; }
    const i32 up = (i32)(as_u32(x) - 0x3f3504f3u) >> 23;
    exponent = (float)(e + up);
    const float f = m_add(as_f32(as_u32(x) - ((u32)up << 23)), -1.0f), s = m_mul(f, f);
    float p = 6.915969402e-02f;  // 2^-30
    p = fma_f32(p, f, -1.178885177e-01f);
    p = fma_f32(p, f, 1.187215075e-01f);
    p = fma_f32(p, f, -1.238447577e-01f);
    p = fma_f32(p, f, 1.421880126e-01f);
    p = fma_f32(p, f, -1.666924655e-01f);
    p = fma_f32(p, f, 2.000221759e-01f);
    p = fma_f32(p, f, -2.499998659e-01f);
    p = fma_f32(p, f, 3.333331048e-01f);
    low = fma_f32(-0.5f, s, m_mul(m_mul(p, f), s));
    return f;
}
// log of 0, of a negative number, of infinity or of NaN; 1 for other x.
STEP float m_log_special(float x) {
    return x != x || x == m_inf32() ? x : x == 0.0f ? -m_inf32() : x < 0.0f ? m_nan32() : 1.0f;
}
STEP bool m_log_usual(float x) { return x > 0.0f && x < m_inf32(); }
STEP float m_log(float x) {
    float e, low;
    const bool usual = m_log_usual(x);
    const float f = m_log_parts(usual ? x : 1.0f, e, low);
    const float sum = m_add(fma_f32(e, 1.428606765e-06f, low), f);
    return usual ? fma_f32(e, 0.693145752f, sum) : m_log_special(x);
}
STEP float m_log2(float x) {
    float e, low;
    const bool usual = m_log_usual(x);
    const float f = m_log_parts(usual ? x : 1.0f, e, low), l = m_add(f, low);
    const float lost = m_add(m_add(f, -l), low);
    const float rest = fma_f32(l, 1.925963034e-08f, m_mul(lost, 1.442695022f));
    return usual ? m_add(fma_f32(l, 1.442695022f, rest), e) : m_log_special(x);
}
STEP float m_log10(float x) { return m_mul(m_log(x), 0.4342944819f); }
STEP float m_log1p(float x) {
    const float u = m_add(1.0f, x);
    if (u == 1.0f) return x;
    const float l = m_log(u);
    return m_log_usual(u) ? m_add(l, -(m_add(m_add(u, -1.0f), -x) / u)) : l;
}

// Sets the nearest multiple of π/2 as a number `quarter`, and returns x minus that multiple. |x| <
// 2^15.
STEP float m_circle_rest(float x, u32& quarter) {
    const float n = m_round(m_mul(x, 0.636619772f));
    quarter = (u32)(i32)n;
    float r = fma_f32(-n, 1.570796371f, x);
    r = fma_f32(-n, -4.371138829e-08f, r);
    return fma_f32(-n, -1.715124510e-15f, r);
}
STEP float m_sin_near(float r) {
    const float s = m_mul(r, r);
    float p = 2.718240921e-06f;  // 2^-37
    p = fma_f32(p, s, -1.983932743e-04f);
    p = fma_f32(p, s, 8.333329111e-03f);
    p = fma_f32(p, s, -1.666666716e-01f);
    return fma_f32(m_mul(p, s), r, r);
}
STEP float m_cos_near(float r) {
    const float s = m_mul(r, r);
    float p = 2.443783160e-05f;  // 2^-33
    p = fma_f32(p, s, -1.388736302e-03f);
    p = fma_f32(p, s, 4.166664556e-02f);
    return m_add(fma_f32(m_mul(p, s), s, m_mul(-0.5f, s)), 1.0f);
}
// sin (turn 0) or cos (turn 1). Large |x| are computed in f64.
STEP float m_circle(float x, u32 turn) {
    if (!(m_abs(x) < 32768.0f)) return (float)m_circle((f64)x, turn);
    u32 q;
    const float r = m_circle_rest(x, q);
    q += turn;
    const float v = (q & 1) ? m_cos_near(r) : m_sin_near(r);
    return x == 0.0f && turn == 0 ? x : (q & 2) ? -v : v;
}
STEP float m_sin(float x) { return m_circle(x, 0); }
STEP float m_cos(float x) { return m_circle(x, 1); }
STEP float m_tan(float x) {
    if (!(m_abs(x) < 32768.0f)) return (float)m_tan((f64)x);
    u32 q;
    const float r = m_circle_rest(x, q), s = m_sin_near(r), c = m_cos_near(r);
    return x == 0.0f ? x : (q & 1) ? -c / s : s / c;
}

STEP float m_sinh(float x) {
    const float a = m_abs(x);
    if (a > 87.0f) { const float h = m_exp(m_mul(a, 0.5f)); return m_copysign(0.5f * h * h, x); }
    const float e = m_expm1(a);
    return m_copysign(m_mul(0.5f, m_add(e, e / m_add(e, 1.0f))), x);
}
STEP float m_cosh(float x) {
    const float a = m_abs(x);
    if (a > 87.0f) { const float h = m_exp(m_mul(a, 0.5f)); return 0.5f * h * h; }
    const float e = m_exp(a);
    return m_mul(0.5f, m_add(e, 1.0f / e));
}
STEP float m_tanh(float x) {
    const float a = m_abs(x), e = m_expm1(m_mul(2.0f, min_f32(a, 10.0f)));
    return x != x ? x : m_copysign(e / m_add(e, 2.0f), x);
}

// |x| below 1: x · P(x²). Otherwise 1 − exp(−t · Q(t)), with the polynomial of log erfc.
STEP float m_erf(float x) {
    const float a = m_abs(x), s = m_mul(x, x);
    float p = 7.889114931e-05f;  // error 2^-29.7 of erf(x) / x
    p = fma_f32(p, s, -8.020840469e-04f);
    p = fma_f32(p, s, 5.189535208e-03f);
    p = fma_f32(p, s, -2.685444430e-02f);
    p = fma_f32(p, s, 1.128360033e-01f);
    p = fma_f32(p, s, -3.761262596e-01f);
    p = fma_f32(p, s, 1.283791661e-01f);
    const float t = min_f32(a, 4.0f);
    float l = 1.855725859e-04f;  // error 2^-29.9 of erfc(t)
    l = fma_f32(l, t, -2.939593047e-03f);
    l = fma_f32(l, t, 2.180526033e-02f);
    l = fma_f32(l, t, -1.030372456e-01f);
    l = fma_f32(l, t, -6.382257938e-01f);
    l = fma_f32(l, t, -1.127039909e+00f);
    l = fma_f32(l, t, -3.537402663e-04f);
    const float far = m_copysign(m_add(1.0f, -m_exp(l)), x);
    return a < 1.0f || x != x ? fma_f32(p, x, x) : far;
}
STEP float m_logaddexp(float a, float b) {
    if (a == b) return m_add(a, 0.6931471806f);
    const float d = m_add(a, -b);
    if (d > 0.0f) return m_add(a, m_log1p(m_exp(-d)));
    return d <= 0.0f ? m_add(b, m_log1p(m_exp(d))) : d;
}
