// expert_sum: out[t, c] = residual[t, c] + Σ over slots of shares[t, slot] · x[t, slot, c]
//
//   x         tokens × TOP × COLS f32
//   shares    tokens × TOP f32
//   residual  tokens × COLS f32 if RESIDUAL; may be out
//
// S: COLS, TOP, RESIDUAL. Share: x a block of columns, y the token.
#pragma once
#include "kjit.h"

struct ExpertSumArgs {
    const float *x, *shares, *residual;
    float* out;
};

template <class S> struct ExpertSum {
    static constexpr u32 COLS = S::COLS, TOP = S::TOP;

    STEP void step(ExpertSumArgs a, Share share) {
        u64 token = share.y;
        u32 c = share.x * KJ_BLOCK + thread_id();
        if (c >= COLS) return;
        float sum = 0.0f;
        UNROLL for (u32 s = 0; s < TOP; s++)
            sum = fma_f32(a.shares[token * TOP + s], a.x[(token * TOP + s) * COLS + c], sum);
        a.out[token * COLS + c] = S::RESIDUAL ? a.residual[token * COLS + c] + sum : sum;
    }
};
