// expert_sum: out[t, c] = residual[t, c] + Σ over slots of shares[t, slot] · x[t, slot, c]
//
//   x  tokens × TOP × COLS f32; shares  tokens × TOP f32; residual  tokens × COLS f32 where RESIDUAL (may be out)
// Constants: COLS, TOP, RESIDUAL.
#include "kjit.h"

KERNEL expert_sum(const float* x, const float* shares, const float* residual, float* out) {
    launch_dependents();
    wait_for_producer();
    u64 token = block_id_y();
    u32 c = block_id() * KJ_BLOCK + thread_id();
    if (c >= COLS) return;
    float sum = 0.0f;
    UNROLL for (u32 s = 0; s < TOP; s++) sum = fma_f32(shares[token * TOP + s], x[(token * TOP + s) * COLS + c], sum);
    out[token * COLS + c] = RESIDUAL ? residual[token * COLS + c] + sum : sum;
}
