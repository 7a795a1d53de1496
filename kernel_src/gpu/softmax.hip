// softmax: y = exp(scale·x − largest) / sum, over rows of COLS; one block a row; y may be x.
#include "kjit.h"

constexpr u32 EACH = CEIL_DIV(COLS, KJ_BLOCK);

KERNEL softmax(const float* x, float* y, float scale) {
    launch_dependents();
    wait_for_producer();
    u64 row = (u64)block_id() * COLS;
    float v[EACH];
    float most = as_f32(0xff800000u), sum = 0.0f;
    UNROLL for (u32 i = 0; i < EACH; i++) {
        u32 c = thread_id() + i * KJ_BLOCK;
        v[i] = c < COLS ? x[row + c] * scale : as_f32(0xff800000u);
        most = max_f32(most, v[i]);
    }
    most = block_max(most);
    UNROLL for (u32 i = 0; i < EACH; i++) sum += v[i] = exp_f32(v[i] - most);
    sum = block_sum(sum);
    UNROLL for (u32 i = 0; i < EACH; i++) {
        u32 c = thread_id() + i * KJ_BLOCK;
        if (c < COLS) y[row + c] = v[i] / sum;
    }
}
