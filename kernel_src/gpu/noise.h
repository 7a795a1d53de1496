// noise.h: the random numbers of sampling, one per token. A token's score is (logit − largest) /
// temperature plus the noise −ln(−ln u), with u uniform in (0, 1). The token with the greatest
// score is drawn, so each token has its softmax probability (Gumbel-max trick). A small change of
// the logits rarely changes the drawn token. With cumulative sums, each change would shift the
// result.
//
// u is a function of the seed, the position of the token and its id: Philox4x32-10 (Salmon et al.
// 2011, "Parallel random numbers: as easy as 1, 2, 3"). Four ids share a block of four words. The
// host (kernel_src/src/choice/noise.rs) computes the same bits: integers, conversions, products
// with powers of two, and fused sums, which no compiler option changes.
#pragma once
#include "kjit.h"

// The random words of ids 4 · group to 4 · group + 3.
STEP u32x4 noise_words(u64 seed, u32 position, u32 group) {
    u32x4 c{group, position, 0, 0};
    u32 low = (u32)seed, high = (u32)(seed >> 32);
    NO_UNROLL for (u32 round = 0; round < 10; round++) {
        u64 a = (u64)0xd2511f53u * c.x, b = (u64)0xcd9e8d57u * c.z;
        c = u32x4{(u32)(b >> 32) ^ c.y ^ low, (u32)b, (u32)(a >> 32) ^ c.w ^ high, (u32)a};
        low += 0x9e3779b9u, high += 0xbb67ae85u;
    }
    return c;
}
STEP u32 noise_word(u64 seed, u32 position, u32 id) {
    u32x4 c = noise_words(seed, position, id / 4);
    u32 even = id & 2 ? c.z : c.x, odd = id & 2 ? c.w : c.y;
    return id & 1 ? odd : even;
}

// ln(2^e × (1 + f)) for f from −0.29 to 0.42 (the polynomial of Cephes' logf).
STEP float noise_ln(float e, float f) {
    float p = 7.0376836292e-2f;
    p = fma_f32(p, f, -1.1514610310e-1f);
    p = fma_f32(p, f, 1.1676998740e-1f);
    p = fma_f32(p, f, -1.2420140846e-1f);
    p = fma_f32(p, f, 1.4249322787e-1f);
    p = fma_f32(p, f, -1.6668057665e-1f);
    p = fma_f32(p, f, 2.0000714765e-1f);
    p = fma_f32(p, f, -2.4999993993e-1f);
    p = fma_f32(p, f, 3.3333331174e-1f);
    p = fma_f32(f, p, -0.5f);
    return fma_f32(e, 0.693147180559945f, fma_f32(f * f, p, f));
}
STEP float noise_ln(float x) {  // x is a positive normal number
    u32 bits = as_u32(x) - 0x3f3504f3u;  // the exponent changes at √½
    float m = as_f32((bits & 0x007fffffu) + 0x3f3504f3u);
    return noise_ln((float)((i32)bits >> 23), m - 1.0f);
}

// −ln(−ln u), u = 1 − (word + ½) / 2^32: a value from −3.2 to 22.9. Smaller words give greater
// noise.
STEP float noise_fraction(u32 word) { return ((float)word + 0.5f) * (1.0f / 4294967296.0f); }
STEP float noise_of(u32 word) {
    float ln = word < 0x40000000u ? noise_ln(0.0f, -noise_fraction(word))
                                  : noise_ln(noise_fraction(~word));
    return -noise_ln(-ln);
}
// A cheap upper bound of the noise: −ln t > −ln(−ln(1 − t)), from the exponent of t.
STEP float noise_bound(u32 word) {
    return -0.6932f * (float)((i32)(as_u32(noise_fraction(word)) >> 23) - 127);
}
