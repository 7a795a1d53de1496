// halves.h: arithmetic on two f16 in a word, and bytes converted to f16, for each vendor.
#pragma once
#include "kjit.h"

#if defined(KJ_NVIDIA)
STEP u32 h2_fma(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
STEP u32 h2_mul(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
STEP u32 h2_sub(u32 a, u32 b) {
    u32 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
// Converts four bytes, each below 256, to four f16 1024 + byte.
STEP void bytes_to_halves(u32 v, u32& low, u32& high) {
    low = kj_prmt(v, 0x64646464u, 0x4140);
    high = kj_prmt(v, 0x64646464u, 0x4342);
}
#elif defined(KJ_AMD) && !defined(KJ_F32)
typedef _Float16 half2_t __attribute__((ext_vector_type(2)));
STEP u32 h2_fma(u32 a, u32 b, u32 c) {
    half2_t x = __builtin_bit_cast(half2_t, a), y = __builtin_bit_cast(half2_t, b),
            z = __builtin_bit_cast(half2_t, c);
#if __has_builtin(__builtin_elementwise_fma)
    return __builtin_bit_cast(u32, __builtin_elementwise_fma(x, y, z));
#else  // ROCm 5's LLVM 15, which makes v_pk_fma_f16 from the pair
    half2_t r = {(_Float16)__builtin_fmaf16(x.x, y.x, z.x),
                 (_Float16)__builtin_fmaf16(x.y, y.y, z.y)};
    return __builtin_bit_cast(u32, r);
#endif
}
STEP u32 h2_mul(u32 a, u32 b) {
    return __builtin_bit_cast(u32, __builtin_bit_cast(half2_t, a) * __builtin_bit_cast(half2_t, b));
}
STEP u32 h2_sub(u32 a, u32 b) {
    return __builtin_bit_cast(u32, __builtin_bit_cast(half2_t, a) - __builtin_bit_cast(half2_t, b));
}
STEP void bytes_to_halves(u32 v, u32& low, u32& high) {
    low = __builtin_amdgcn_perm(0x64646464u, v, 0x04010400u);
    high = __builtin_amdgcn_perm(0x64646464u, v, 0x04030402u);
}
#else  // f32 only, and the simulated device, where tests can make f16 wrong
#if defined(KJSIM_WRONG_packed) && !defined(KJ_F32)
#define H2(pair) kjsim::wrong_half(pair)
#else
#define H2(pair) (pair)
#endif
STEP u32 h2_fma(u32 a, u32 b, u32 c) {
    return H2(half_pair(fma_f32(half_low(a), half_low(b), half_low(c)),
                        fma_f32(half_high(a), half_high(b), half_high(c))));
}
STEP u32 h2_mul(u32 a, u32 b) {
    return H2(half_pair(half_low(a) * half_low(b), half_high(a) * half_high(b)));
}
STEP u32 h2_sub(u32 a, u32 b) {
    return H2(half_pair(half_low(a) - half_low(b), half_high(a) - half_high(b)));
}
STEP void bytes_to_halves(u32 v, u32& low, u32& high) {
    low = 0x64006400u | (v & 0xff) | (v & 0xff00) << 8;
    high = 0x64006400u | (v >> 16 & 0xff) | (v >> 24) << 16;
}
#endif
STEP u32 h2_both(float f) {
    u32 h = round_f16(f).bits;
    return h | h << 16;
}
