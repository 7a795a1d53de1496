// read: memory as fast as it can be read, in vectors of 16 bytes, FLIGHT of them on their way in each thread. What decoding is held
// against; the sums show that all of it was read.
//
//   x  `vectors` vectors of 16 bytes    out  a u32 for each thread: its words, exclusive-or
//
// Constants: FLIGHT.
#include "kjit.h"

KERNEL read_all(const u32x4* x, u32* out, u64 vectors, u32 blocks) {
    launch_dependents();
    wait_for_producer();
    u64 step = (u64)blocks * KJ_BLOCK, at = (u64)block_id() * KJ_BLOCK + thread_id();
    u32 sum = 0;
    for (; at + (FLIGHT - 1) * step < vectors; at += FLIGHT * step) {
        u32x4 v[FLIGHT];
        UNROLL for (u32 i = 0; i < FLIGHT; i++) v[i] = load16(x + at + i * step);
        UNROLL for (u32 i = 0; i < FLIGHT; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (; at < vectors; at += step) {
        u32x4 v = load16(x + at);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    out[(u64)block_id() * KJ_BLOCK + thread_id()] = sum;
}
