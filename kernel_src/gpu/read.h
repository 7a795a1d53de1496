// read: measures the read rate of memory, which limits decoding. Threads read vectors of 16 bytes,
// with FLIGHT of them in flight per thread. The outputs prove that every word was read.
//
//   x    `vectors` vectors of 16 bytes
//   out  a u32 for each thread: the exclusive or of its words
//
// S: FLIGHT. Share: x of `blocks`.
#pragma once
#include "kjit.h"

struct ReadArgs {
    const u32x4* x;
    u32* out;
    u64 vectors;
    u32 blocks;
};

template <class S> struct Read {
    static constexpr u32 FLIGHT = S::FLIGHT;

    STEP void step(ReadArgs a, Share share) {
        u64 stride = (u64)a.blocks * KJ_BLOCK, at = (u64)share.x * KJ_BLOCK + thread_id();
        u32 sum = 0;
        for (; at + (FLIGHT - 1) * stride < a.vectors; at += FLIGHT * stride) {
            u32x4 v[FLIGHT];
            UNROLL for (u32 i = 0; i < FLIGHT; i++) v[i] = load16(a.x + at + i * stride);
            UNROLL for (u32 i = 0; i < FLIGHT; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        }
        for (; at < a.vectors; at += stride) {
            u32x4 v = load16(a.x + at);
            sum ^= v.x ^ v.y ^ v.z ^ v.w;
        }
        a.out[(u64)share.x * KJ_BLOCK + thread_id()] = sum;
    }
};
