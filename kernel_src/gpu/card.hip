// card.hip: kernels that measure a card for `kjit probe` (src/card.rs): launches, grid barriers,
// reads in strides, LDS, the clock. The host predicts each result except the clock's.
#include "persist.h"

// Adds one to `count`, without an atomic operation: successive launches must not overlap.
KERNEL card_count(u32* count) {
    if (block_id() == 0 && thread_id() == 0) count[0] += 1;
}

// `rounds` grid barriers (persist.h). Each block adds one to `count` after the last.
KERNEL card_meet(MeetingWords* at, u32* late, u64 limit, u32 blocks, u32 rounds, u32* count) {
    Meeting::open(at, late, limit, blocks, 0);
    for (u32 r = 0; r < rounds; r++) {
        Meeting::arrive();
        Meeting::wait();
    }
    if (thread_id() == 0) global_add(count, 1u);
    Meeting::leave();
}

// Reads 2^(row_bits + apart_bits) chunks of KJ_WAVE vectors once. Neighbouring waves read chunks
// with a distance of 2^apart_bits chunks. The exclusive or of `out` is that of all words.
KERNEL card_stride(const u32x4* x, u32* out, u32 row_bits, u32 apart_bits, u32 blocks) {
    constexpr u32 FLIGHT = 4;
    const u32 pieces = 1u << (row_bits + apart_bits), waves = blocks * kj_waves;
    const u32 last_row = (1u << row_bits) - 1;
    u32 sum = 0, at = block_id() * kj_waves + wave_id();
    for (; at + (FLIGHT - 1) * waves < pieces; at += FLIGHT * waves) {
        u32x4 v[FLIGHT];
        UNROLL for (u32 i = 0; i < FLIGHT; i++) {
            const u32 n = at + i * waves, piece = ((n & last_row) << apart_bits) + (n >> row_bits);
            v[i] = load16(x + (u64)piece * KJ_WAVE + lane_id());
        }
        UNROLL for (u32 i = 0; i < FLIGHT; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (; at < pieces; at += waves) {
        const u32 piece = ((at & last_row) << apart_bits) + (at >> row_bits);
        const u32x4 v = load16(x + (u64)piece * KJ_WAVE + lane_id());
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    out[block_id() * KJ_BLOCK + thread_id()] = sum;
}

// Reads eight vectors of LDS in each round.
KERNEL card_lds(u32* out, u32 rounds) {
    LDS_ARRAY(u32x4, words, KJ_BLOCK);
    const u32 t = thread_id();
    words[t] = u32x4{t, 3 * t + 1, ~t, t << 8};
    block_sync();
    u32 sum = 0;
    for (u32 r = 0; r < rounds; r++) {
        UNROLL for (u32 i = 0; i < 8; i++) {
            const u32x4 v = words[(t + r * 8 + i) % KJ_BLOCK];
            sum += v.x ^ v.y ^ v.z ^ v.w;
        }
    }
    out[block_id() * KJ_BLOCK + t] = sum;
}

// Cycles of the core's clock. The counter of gfx11 has 20 bits.
STEP u64 cycles() {
#if defined(KJ_NVIDIA)
    u64 c;
    asm volatile("mov.u64 %0, %clock64;" : "=l"(c));
    return c;
#elif defined(KJ_AMD)
    return __builtin_readcyclecounter();
#else
    return kjsim::nanoseconds();
#endif
}

// Measures `rounds` dependent products in block 0: cycles and nanoseconds.
KERNEL card_clock(u64* out, float* kept, u32 rounds) {
    float x = (float)thread_id();
    const u64 ns = clock_ns(), c = cycles();
    for (u32 r = 0; r < rounds; r++) x = fma_f32(x, 0.5f, 1.0f);
    const u64 c_end = cycles(), ns_end = clock_ns();
    kept[block_id() * KJ_BLOCK + thread_id()] = x;
#if defined(KJ_AMD) && defined(__GFX11__)
    const u64 mask = 0xfffff;
#else
    const u64 mask = ~0ull;
#endif
    if (block_id() == 0 && thread_id() == 0) out[0] = (c_end - c) & mask, out[1] = ns_end - ns;
}
