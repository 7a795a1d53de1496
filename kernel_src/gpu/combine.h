// combine: y = a + b (Combine::Add), silu(a) · b (Silu) or gelu(a) · b (Gelu), elementwise. y may
// be a or b.
//
// S: OP. Share: x of `blocks`.
#pragma once
#include "gate.h"

struct CombineArgs {
    const float *a, *b;
    float* y;
    u64 n;
    u32 blocks;
};

template <class S> struct Combined {
    STEP void step(CombineArgs a, Share share) {
        for (u64 i = (u64)share.x * KJ_BLOCK + thread_id(); i < a.n; i += (u64)a.blocks * KJ_BLOCK)
            a.y[i] = S::OP == Combine::Add
                         ? a.a[i] + a.b[i]
                         : (S::OP == Combine::Silu ? silu(a.a[i]) : gelu(a.a[i])) * a.b[i];
    }
};
