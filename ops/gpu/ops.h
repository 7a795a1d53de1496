// ops.h: the primitives of tensor kernels. A primitive has one name for all dtypes. As on the CPU,
// integers wrap, an integer divided by zero gives 0, and f16 and bf16 are computed in f32 and
// rounded after each operation.
#pragma once
#include "math32.h"

// Rounds to f16 or bf16. Registers hold the rounded value as f32.
STEP float round_half(float v) { return load(round_f16(v)); }
STEP float round_bfloat(float v) { return load(round_bf16(v)); }

// Integer operations, by unsigned 64-bit arithmetic, truncated to T.
#define OP_INT(T, SIGNED)                                                                         \
    STEP T op_add(T a, T b) { return (T)((u64)a + (u64)b); }                                      \
    STEP T op_subtract(T a, T b) { return (T)((u64)a - (u64)b); }                                 \
    STEP T op_multiply(T a, T b) { return (T)((u64)a * (u64)b); }                                 \
    STEP T op_negative(T a) { return (T)(0 - (u64)a); }                                           \
    STEP T op_abs(T a) { return SIGNED && a < (T)0 ? op_negative(a) : a; }                        \
    STEP T op_sign(T a) { return SIGNED && a < (T)0 ? (T)-1 : (T)(a != 0); }                      \
    STEP T op_floor_divide(T a, T b) {                                                            \
        if (b == 0) return 0;                                                                     \
        if (SIGNED && b == (T)-1) return op_negative(a);                                          \
        T q = (T)(a / b), r = (T)(a % b);                                                         \
        return r != 0 && SIGNED && ((r < (T)0) != (b < (T)0)) ? (T)(q - 1) : q;                   \
    }                                                                                             \
    STEP T op_remainder(T a, T b) {                                                               \
        if (b == 0 || (SIGNED && b == (T)-1)) return 0;                                           \
        T r = (T)(a % b);                                                                         \
        return r != 0 && SIGNED && ((r < (T)0) != (b < (T)0)) ? (T)(r + b) : r;                   \
    }                                                                                             \
    STEP T op_divide(T a, T b) { return op_floor_divide(a, b); }                                  \
    STEP T op_pow(T a, T b) {                                                                     \
        if (SIGNED && b < (T)0) return a == 1 ? (T)1 : a == (T)-1 ? ((b & 1) ? a : (T)1) : (T)0;  \
        u64 out = 1, base = (u64)a;                                                               \
        for (u64 n = (u64)b; n != 0; n >>= 1) { if (n & 1) out *= base; base *= base; }           \
        return (T)out;                                                                            \
    }                                                                                             \
    STEP T op_minimum(T a, T b) { return a < b ? a : b; }                                         \
    STEP T op_maximum(T a, T b) { return a > b ? a : b; }                                         \
    STEP T op_bitwise_and(T a, T b) { return (T)(a & b); }                                        \
    STEP T op_bitwise_or(T a, T b) { return (T)(a | b); }                                         \
    STEP T op_bitwise_xor(T a, T b) { return (T)(a ^ b); }                                        \
    STEP T op_bitwise_invert(T a) { return (T)~a; }                                               \
    STEP T op_bitwise_left_shift(T a, T b) {                                                      \
        return (u64)b < sizeof(T) * 8 ? (T)((u64)a << (u64)b) : (T)0;                             \
    }                                                                                             \
    STEP T op_bitwise_right_shift(T a, T b) {                                                     \
        return (u64)b < sizeof(T) * 8 ? (T)(a >> b) : (SIGNED && a < (T)0 ? (T)-1 : (T)0);        \
    }                                                                                             \
    STEP bool op_isnan(T) { return false; }
OP_INT(i8, true)
OP_INT(i16, true)
OP_INT(i32, true)
OP_INT(i64, true)
OP_INT(u8, false)
OP_INT(u16, false)
OP_INT(u32, false)
OP_INT(u64, false)

STEP u8 op_not(u8 a) { return a ^ 1; }  // a is 0 or 1

// Minimum and maximum: NaN if either argument is NaN; -0 is less than 0.
template <class T> STEP T m_min(T a, T b) {
    return a < b || a != a || (a == b && m_signed(a)) ? a : b;
}
template <class T> STEP T m_max(T a, T b) {
    return a > b || a != a || (a == b && m_signed(b)) ? a : b;
}
#if defined(KJ_NVIDIA) && __CUDA_ARCH__ >= 800
STEP float m_min(float a, float b) {
    float v;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}
STEP float m_max(float a, float b) {
    float v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}
#endif

#define OP_OWN(T, name) STEP T op_##name(T x) { return m_##name(x); }
#define OP_OWN_2(T, name) STEP T op_##name(T a, T b) { return m_##name(a, b); }
#define OP_BY_F64(T, name) STEP T op_##name(T x) { return (T)m_##name((f64)x); }
#define OP_BY_F64_2(T, name) STEP T op_##name(T a, T b) { return (T)m_##name((f64)a, (f64)b); }
#define OP_FLOAT(T)                                                                               \
    STEP T op_add(T a, T b) { return m_add(a, b); }                                               \
    STEP T op_subtract(T a, T b) { return m_add(a, -b); }                                         \
    STEP T op_multiply(T a, T b) { return m_mul(a, b); }                                          \
    STEP T op_divide(T a, T b) { return a / b; }                                                  \
    STEP T op_negative(T a) { return -a; }                                                        \
    STEP T op_sign(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a + 0; }                          \
    STEP bool op_isnan(T a) { return a != a; }                                                    \
    STEP bool op_isinf(T a) { return m_isinf(a); }                                                \
    STEP bool op_isfinite(T a) { return a - a == 0; }                                             \
    STEP bool op_signbit(T a) { return m_signed(a); }                                             \
    STEP T op_minimum(T a, T b) { return m_min(a, b); }                                           \
    STEP T op_maximum(T a, T b) { return m_max(a, b); }                                           \
    STEP T op_floor_divide(T a, T b) {                                                            \
        if (b == 0 || op_isinf(a) || op_isinf(b)) return a / b;                                   \
        T rest = (T)m_fmod((f64)a, (f64)b), whole = (a - rest) / b;                               \
        if (rest != 0 && (rest < 0) != (b < 0)) whole -= 1;                                       \
        if (whole == 0) return (T)m_copysign(0.0, (f64)(a / b));                                  \
        T down = (T)m_floor((f64)whole);                                                          \
        return whole - down > (T)0.5 ? down + 1 : down;                                           \
    }                                                                                             \
    STEP T op_remainder(T a, T b) {                                                               \
        T rest = (T)m_fmod((f64)a, (f64)b);                                                       \
        if (rest == 0) return (T)m_copysign((f64)rest, (f64)b);                                   \
        return (rest < 0) != (b < 0) ? rest + b : rest;                                           \
    }                                                                                             \
    OP_OWN(T, abs) OP_OWN(T, floor) OP_OWN(T, ceil) OP_OWN(T, trunc) OP_OWN(T, round)             \
    OP_OWN(T, sqrt) OP_OWN(T, exp) OP_OWN(T, expm1) OP_OWN(T, log) OP_OWN(T, log1p)               \
    OP_OWN(T, log2) OP_OWN(T, log10) OP_OWN(T, sin) OP_OWN(T, cos) OP_OWN(T, tan)                 \
    OP_OWN(T, sinh) OP_OWN(T, cosh) OP_OWN(T, tanh) OP_OWN(T, erf) OP_OWN_2(T, copysign)          \
    OP_OWN_2(T, logaddexp) OP_BY_F64(T, asin) OP_BY_F64(T, acos) OP_BY_F64(T, atan)               \
    OP_BY_F64(T, asinh) OP_BY_F64(T, acosh) OP_BY_F64(T, atanh) OP_BY_F64_2(T, pow)               \
    OP_BY_F64_2(T, atan2) OP_BY_F64_2(T, hypot)
OP_FLOAT(float)
OP_FLOAT(f64)

STEP float op_nextafter(float a, float b) {
    if (a != a || b != b) return a + b;
    if (a == b) return b;
    if (a == 0) return as_f32(1u | (as_u32(b) & 0x80000000u));
    return as_f32((a < b) == (a > 0) ? as_u32(a) + 1 : as_u32(a) - 1);
}
STEP f64 op_nextafter(f64 a, f64 b) {
    if (a != a || b != b) return a + b;
    if (a == b) return b;
    if (a == 0) return m_from(1ull | (m_bits(b) & M_SIGN));
    return m_from((a < b) == (a > 0) ? m_bits(a) + 1 : m_bits(a) - 1);
}

// Converts a float to an integer: toward zero, saturating, NaN to 0.
template <class T> struct Limits;
#define OP_LIMITS(T, LOW, HIGH, ABOVE)                                                            \
    template <> struct Limits<T> {                                                                \
        STEP T low() { return LOW; }                                                              \
        STEP T high() { return HIGH; }                                                            \
        STEP f64 above() { return ABOVE; }                                                        \
    };
OP_LIMITS(i8, -128, 127, 128.0)
OP_LIMITS(i16, -32768, 32767, 32768.0)
OP_LIMITS(i32, -2147483647 - 1, 2147483647, 2147483648.0)
OP_LIMITS(i64, -9223372036854775807ll - 1, 9223372036854775807ll, 9223372036854775808.0)
OP_LIMITS(u8, 0, 255, 256.0)
OP_LIMITS(u16, 0, 65535, 65536.0)
OP_LIMITS(u32, 0, 4294967295u, 4294967296.0)
OP_LIMITS(u64, 0, 18446744073709551615ull, 18446744073709551616.0)
template <class T> STEP T from_float(f64 v) {
    if (v != v) return 0;
    if (v >= Limits<T>::above()) return Limits<T>::high();
    if (v <= (f64)Limits<T>::low()) return Limits<T>::low();
    return (T)v;
}

// Philox 4x32-10: the random word of a counter.
STEP u32 random_bits(u64 key, u64 counter) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    u64 block = counter >> 2;
    u32 c[4] = {(u32)block, (u32)(block >> 32), 0, 0};
    for (u32 i = 0; i < 10; i++) {
        u64 a = (u64)0xD2511F53u * c[0], b = (u64)0xCD9E8D57u * c[2];
        u32 d[4] = {(u32)(b >> 32) ^ c[1] ^ k0, (u32)b, (u32)(a >> 32) ^ c[3] ^ k1, (u32)a};
        c[0] = d[0]; c[1] = d[1]; c[2] = d[2]; c[3] = d[3];
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    u32 at = (u32)(counter & 3);
    return at == 0 ? c[0] : at == 1 ? c[1] : at == 2 ? c[2] : c[3];
}
