// norm_rows: rows of COLS elements, normed and possibly added to a residual; one block a row.
//
//   KIND 0, RMS norm (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4):  y = x / sqrt(mean(x²) + eps) · weight
//   KIND 1, layer norm (Ba et al. 2016, arXiv 1607.06450, equation 3):       y = (x − mean) / sqrt(var + eps) · weight + bias
//   x, y  rows × COLS f32 (y may be x or residual); weight, bias (KIND 1 with BIAS)  COLS f32; residual  rows × COLS f32 where RESIDUAL
//
// Constants: COLS, KIND, BIAS, RESIDUAL.
#include "kjit.h"

constexpr u32 EACH = CEIL_DIV(COLS, KJ_BLOCK);

STEP void norm_row(const float* x, const float* weight, const float* bias, const float* residual, float* y, float eps) {
    float v[EACH];  // the row stays in registers between the passes
    float sum = 0.0f;
    UNROLL for (u32 i = 0; i < EACH; i++) {
        u32 c = thread_id() + i * KJ_BLOCK;
        v[i] = c < COLS ? x[c] : 0.0f;
        sum += KIND == 0 ? v[i] * v[i] : v[i];
    }
    sum = block_sum(sum);
    float mean = 0.0f;
    if (KIND == 1) {  // the variance about the mean: the difference of two sums would cancel
        mean = sum / COLS;
        sum = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++)
            if (thread_id() + i * KJ_BLOCK < COLS) sum += (v[i] - mean) * (v[i] - mean);
        sum = block_sum(sum);
    }
    float scale = rsqrt_f32(sum / COLS + eps);
    UNROLL for (u32 i = 0; i < EACH; i++) {
        u32 c = thread_id() + i * KJ_BLOCK;
        if (c >= COLS) continue;
        float r = (v[i] - mean) * scale * weight[c];
        if (BIAS) r += bias[c];
        if (RESIDUAL) r += residual[c];
        y[c] = r;
    }
}

KERNEL norm_rows(const float* x, const float* RESTRICT weight, const float* RESTRICT bias, const float* residual, float* y, float eps) {
    launch_dependents();
    wait_for_producer();
    u64 row = (u64)block_id() * COLS;
    norm_row(x + row, weight, bias, residual + row, y + row, eps);
}
