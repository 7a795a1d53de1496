// slices.h: combines the results of several slices of a context.
//
// For each head a slice stores EACH floats: WIDTH sums of values, each value times 2^(its score −
// most); most; the sum of those powers. A head has `splits` slices, one after another. The block
// that finishes last (last_block) combines them.
//
// 16-byte loads of DEEP slices are in flight together. With one load in flight, 16 heads of 512
// after 1024 positions took 80 µs on an H200.
#pragma once
#include "kjit.h"

template <u32 HEADS, u32 WIDTH> struct Slices {
    static constexpr u32 EACH = CEIL_DIV(WIDTH + 2, 4) * 4;
    static constexpr u32 MOST = 256, DEEP = 8;  // slices
    static constexpr float NEVER = -1e30f;      // the maximum before the first score

    struct Shared {
        float factor[HEADS][MOST + DEEP];
        float most[HEADS], sum[HEADS];
    };

    // Computes the factors of `busy` slices from their maxima and sums. Ends with a barrier.
    STEP void weigh(Shared& lds, const float* part, u32 splits, u32 busy) {
        for (u32 h = wave_id(); h < HEADS; h += kj_waves) {
            const float* p = part + (u64)h * splits * EACH + WIDTH;
            float most = NEVER, sum = 0.0f;
            for (u32 s = lane_id(); s < busy; s += KJ_WAVE) most = max_f32(most, p[(u64)s * EACH]);
            most = wave_max(most);
            for (u32 s = lane_id(); s < CEIL_DIV(busy, DEEP) * DEEP; s += KJ_WAVE) {
                const float by = s < busy ? exp2_hw(p[(u64)s * EACH] - most) : 0.0f;
                lds.factor[h][s] = by;
                if (s < busy) sum = fma_f32(p[(u64)s * EACH + 1], by, sum);
            }
            sum = wave_sum(sum);
            if (lane_id() == 0) lds.most[h] = most, lds.sum[h] = sum;
        }
        block_sync();
    }

    // Columns 4c … 4c + 3 of a head, not yet divided by the sum of powers.
    STEP u32x4 columns(const Shared& lds, const float* part, u32 splits, u32 busy, u32 h, u32 c) {
        const float* p = part + (u64)h * splits * EACH + 4 * c;
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        NO_UNROLL for (u32 s = 0; s < busy; s += DEEP) {
            u32x4 x[DEEP];
            UNROLL for (u32 i = 0; i < DEEP; i++)
                x[i] = load16(p + (u64)min_u32(s + i, busy - 1) * EACH);
            UNROLL for (u32 i = 0; i < DEEP; i++) {
                const float by = lds.factor[h][s + i];
                v[0] = fma_f32(as_f32(x[i].x), by, v[0]), v[1] = fma_f32(as_f32(x[i].y), by, v[1]);
                v[2] = fma_f32(as_f32(x[i].z), by, v[2]), v[3] = fma_f32(as_f32(x[i].w), by, v[3]);
            }
        }
        return u32x4{as_u32(v[0]), as_u32(v[1]), as_u32(v[2]), as_u32(v[3])};
    }
};
