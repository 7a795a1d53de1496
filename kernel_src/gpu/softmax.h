// softmax: y = exp(scale·x − largest) / sum, over rows of COLS; one block per row; y may be x.
//
// S: COLS. Share: x the row.
#pragma once
#include "kjit.h"

struct SoftmaxArgs {
    const float* x;
    float* y;
    float scale;
};

template <class S> struct SoftmaxRows {
    static constexpr u32 COLS = S::COLS, EACH = CEIL_DIV(COLS, KJ_BLOCK);

    STEP void step(SoftmaxArgs a, Share share) {
        u64 row = (u64)share.x * COLS;
        float v[EACH];
        float most = as_f32(0xff800000u), sum = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 c = thread_id() + i * KJ_BLOCK;
            v[i] = c < COLS ? a.x[row + c] * a.scale : as_f32(0xff800000u);
            most = max_f32(most, v[i]);
        }
        most = block_max(most);
        UNROLL for (u32 i = 0; i < EACH; i++) sum += v[i] = exp_f32(v[i] - most);
        sum = block_sum(sum);
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 c = thread_id() + i * KJ_BLOCK;
            if (c < COLS) a.y[row + c] = v[i] / sum;
        }
    }
};
