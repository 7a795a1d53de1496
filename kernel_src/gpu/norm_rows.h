// norm_rows: normalises rows of COLS elements, optionally plus a residual; one block per row.
//
//   NormKind::Rms    y = x / sqrt(mean(x²) + eps) · weight
//                    (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4)
//   NormKind::Layer  y = (x − mean) / sqrt(var + eps) · weight + bias
//                    (Ba et al. 2016, arXiv 1607.06450, equation 3)
//
//   x, y      rows × COLS f32; y may be x or residual
//   weight    WEIGHTS × COLS f32: row r uses row r mod WEIGHTS; WEIGHTS 0: no weights
//   bias      COLS f32 (Layer with BIAS)
//   residual  rows × COLS f32 if RESIDUAL
//
// S: COLS, KIND, WEIGHTS, BIAS, RESIDUAL. Share: x the row.
#pragma once
#include "enums.h"
#include "kjit.h"

struct NormRowsArgs {
    const float *x, *weight, *bias, *residual;
    float* y;
    float eps;
};

template <class S> struct NormRows {
    static constexpr u32 COLS = S::COLS, EACH = CEIL_DIV(COLS, KJ_BLOCK);
    static constexpr bool LAYER = S::KIND == NormKind::Layer;

    STEP void step(NormRowsArgs a, Share share) {
        const u64 row = (u64)share.x * COLS;
        const float *x = a.x + row, *residual = a.residual + row;
        float* y = a.y + row;
        float v[EACH];  // the row stays in registers between the passes
        float sum = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 c = thread_id() + i * KJ_BLOCK;
            v[i] = c < COLS ? x[c] : 0.0f;
            sum += LAYER ? v[i] : v[i] * v[i];
        }
        sum = block_sum(sum);
        float mean = 0.0f;
        if (LAYER) {  // a second pass for the variance: a difference of two sums would cancel
            mean = sum / COLS;
            sum = 0.0f;
            UNROLL for (u32 i = 0; i < EACH; i++)
                if (thread_id() + i * KJ_BLOCK < COLS) sum += (v[i] - mean) * (v[i] - mean);
            sum = block_sum(sum);
        }
        float scale = rsqrt_f32(sum / COLS + a.eps);
        const float* weight = a.weight + (S::WEIGHTS > 1 ? share.x % S::WEIGHTS * COLS : 0);
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 c = thread_id() + i * KJ_BLOCK;
            if (c >= COLS) continue;
            float r = (v[i] - mean) * scale;
            if (S::WEIGHTS > 0) r *= weight[c];
            if (S::BIAS) r += a.bias[c];
            if (S::RESIDUAL) r += residual[c];
            y[c] = r;
        }
    }
};
