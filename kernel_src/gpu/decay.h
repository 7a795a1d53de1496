// decay: the factor by which a recurrent state decays after a token; elementwise on rows of
// projected values.
//
//   y[c] = e^(p · a[c / EACH mod FACTORS] · f(x[c] + b[c]))
//
//   x, y      rows of COLS f32
//   a         FACTORS f32; no factors if FACTORS is 0
//   b         COLS f32, with OFFSETS
//
// Share: x of COLS / KJ_BLOCK, y the row.
//
// S: COLS, FUNCTION (a function without parameters), FACTORS, EACH, OFFSETS.
#pragma once
#include "map.h"

struct DecayArgs {
    const float *x, *a, *b;
    float* y;
    float p;
};

template <class S> struct Decay {
    STEP void step(DecayArgs a, Share share) {
        u32 c = share.x * KJ_BLOCK + thread_id();
        if (c >= S::COLS) return;
        u64 at = (u64)share.y * S::COLS + c;
        float v = a.x[at];
        if constexpr (S::OFFSETS) v += a.b[c];
        v = function_of<S::FUNCTION>(v, MapArgs{}) * a.p;
        if constexpr (S::FACTORS != 0) v *= a.a[c / S::EACH % S::FACTORS];
        a.y[at] = exp_f32(v);
    }
};
