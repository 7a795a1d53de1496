// map: elementwise operations on rows, optionally plus a residual. One thread per element; for a
// sum one block.
//
//   Map::Act        f(x)
//   Map::Affine     p0 · a[c / EACH mod WEIGHTS] · x + b[c / EACH mod BIASES]; without a if WEIGHTS
//                   is 0, without b if BIASES is 0
//   Map::Gate       f(a[c / EACH]) · x: COLS / EACH gates
//   Map::AddChosen  x + b[which[c / EACH]][c mod EACH]: a row of b for each run of a row; `which`
//                   has COLS / EACH elements
//   Map::Spread     a[c / EACH] · x[c mod EACH]: one run times several factors
//   Map::Sum        Σ of the SLOTS runs of a row
//   Map::Slice      of each run of RUN elements: TAKE elements from AT on
//   Map::Concat     runs of FIRST elements of x, each followed by BEHIND elements of a: a has RUNS
//                   runs, used in order and repeated; zeros if RUNS is 0
//   Map::Dot        Σ of x · a over a run of EACH elements
//   Map::FromTiles  x, f16 in tiles: blocks of 64 × 64, the inputs of a GEMM
//   Map::Rotate     heads of HEAD elements rotated by position (rope.h); a has the angles
//   Map::Temper     x · (1 + p0 · ln(⌊(position + OFFSET) / PERIOD⌋ + 1))
//   Map::Adapters   f · x with f = a[slot · COLS / EACH + c / EACH]; 0 where f is 0. EACH_OWN: the
//                   slot of row r is which[r] (null: r). Without EACH_OWN it is 0
//
//   x, residual, y  f32, one row for each y of the grid; rows of y have COLS elements; y may be x
//                   or residual if element c depends on element c only
//   position        u32: row r has position[0] + r; EACH_OWN: row r has the position of slot
//                   which[r] (null: slot r)
//
// S: OP, COLS, RESIDUAL, and the constants of the operation. Share: x a block of elements, y the
// row.
#pragma once
#include "gate.h"
#include "row_enums.h"

struct MapArgs {
    const float *x, *a, *b;
    const u32 *which, *position;
    const float* residual;
    float* y;
    float p0, p1, p2, p3;
};

// ln within 2 ulp for positive normal numbers: the exponent times ln 2, plus a series of artanh for
// the mantissa.
STEP float ln_f32(float x) {
    u32 bits = as_u32(x) - 0x3f3504f3u;  // the exponent changes at √½
    float whole = (float)((i32)bits >> 23);
    float m = as_f32((bits & 0x007fffffu) + 0x3f3504f3u);
    float s = (m - 1.0f) / (m + 1.0f), q = s * s;
    float p = fma_f32(q, 0.11111111f, 0.14285715f);
    p = fma_f32(q, p, 0.2f);
    p = fma_f32(q, p, 0.33333334f);
    p = fma_f32(q * s, p, s);
    return fma_f32(whole, 0.69314718f, 2.0f * p);
}

// e^x − 1, precise near zero.
STEP float expm1_f32(float x) {
    float p = 1.9841270e-4f;  // 1/5040, 1/720 …
    p = fma_f32(p, x, 1.3888889e-3f);
    p = fma_f32(p, x, 8.3333333e-3f);
    p = fma_f32(p, x, 4.1666667e-2f);
    p = fma_f32(p, x, 1.6666667e-1f);
    p = fma_f32(p, x, 0.5f);
    return abs_f32(x) < 0.3f ? fma_f32(p * x, x, x) : exp_f32(x) - 1.0f;
}

template <Function F> STEP float function_of(float x, const MapArgs& a) {
    if constexpr (F == Function::Identity) return x;
    if constexpr (F == Function::Silu) return silu(x);
    if constexpr (F == Function::GeluTanh) return gelu(x);
    if constexpr (F == Function::Relu) return x < 0.0f ? 0.0f : x;
    if constexpr (F == Function::ReluSquared) return x < 0.0f ? 0.0f : x * x;
    if constexpr (F == Function::Sigmoid) return sigmoid(x);
    if constexpr (F == Function::Tanh) return tanh_f32(x);
    if constexpr (F == Function::Softplus) return x > 20.0f ? x : ln_f32(1.0f + exp_f32(x));
    if constexpr (F == Function::Clamp) return between(x, -a.p0, a.p0);
    if constexpr (F == Function::SoftCap) return a.p0 * tanh_f32(x / a.p0);
    if constexpr (F == Function::Above) return x - a.p0 < 0.0f ? 0.0f : x - a.p0;
    if constexpr (F == Function::Sqrt) return sqrt_f32(x);
    if constexpr (F == Function::ClampedSilu) return clamped_silu(x, a.p0);
    // p0: factor of the parabola; p1: factor of the exponential; p2: slope at zero; p3: largest
    // argument of the exponential.
    if constexpr (F == Function::Xielu)
        return x > 0.0f ? fma_f32(a.p0 * x, x, a.p2 * x)
                        : fma_f32(expm1_f32(x > a.p3 ? a.p3 : x) - x, a.p1, a.p2 * x);
}

template <class S> struct Mapped {
    static constexpr u32 COLS = S::COLS;

    STEP u32 position_of(const MapArgs& a, u64 row) {
        if constexpr (S::EACH_OWN) return a.position[a.which ? a.which[row] : row];
        else return a.position[0] + (u32)row;
    }

    STEP float made(const MapArgs& a, u64 row, u32 c) {
        const u64 at = row * COLS + c;
        if constexpr (S::OP == Map::Act) return function_of<S::FUNCTION>(a.x[at], a);
        if constexpr (S::OP == Map::Affine) {
            float v = a.x[at] * a.p0;
            if constexpr (S::WEIGHTS != 0) v *= a.a[c / S::EACH % S::WEIGHTS];
            if constexpr (S::BIASES != 0) v += a.b[c / S::EACH % S::BIASES];
            return v;
        }
        if constexpr (S::OP == Map::Gate) {
            float g = function_of<S::FUNCTION>(a.a[row * (COLS / S::EACH) + c / S::EACH], a),
                  up = a.x[at];
            if constexpr (S::FUNCTION == Function::ClampedSilu) up = clamped_up(up, a.p0);
            return g * up;
        }
        if constexpr (S::OP == Map::AddChosen) {
            u64 chosen = a.which[row * (COLS / S::EACH) + c / S::EACH];
            return a.x[at] + a.b[chosen * S::EACH + c % S::EACH];
        }
        if constexpr (S::OP == Map::Spread)
            return a.a[row * (COLS / S::EACH) + c / S::EACH] * a.x[row * S::EACH + c % S::EACH];
        if constexpr (S::OP == Map::Sum) {
            float sum = 0.0f;
            for (u32 s = 0; s < S::SLOTS; s++) sum += a.x[(row * S::SLOTS + s) * COLS + c];
            return sum;
        }
        if constexpr (S::OP == Map::Slice)
            return a.x[(row * (COLS / S::TAKE) + c / S::TAKE) * S::RUN + S::AT + c % S::TAKE];
        if constexpr (S::OP == Map::Concat) {
            constexpr u32 RUN = S::FIRST + S::BEHIND;
            u32 g = c / RUN, e = c % RUN;
            if (e < S::FIRST) return a.x[(row * (COLS / RUN) + g) * S::FIRST + e];
            if constexpr (S::RUNS == 0) return 0.0f;
            else return a.a[(row * S::RUNS + g % S::RUNS) * S::BEHIND + e - S::FIRST];
        }
        if constexpr (S::OP == Map::FromTiles) {
            u64 block = row / 64 * CEIL_DIV(COLS, 64) + c / 64;
            u32 r = (u32)(row % 64);
            return load(((const f16*)a.x)[block * 4096 + ((r * 64 + r % 8 * 8) ^ c % 64)]);
        }
        if constexpr (S::OP == Map::Rotate) {
            constexpr u32 PAIRS = S::DIMS / 2;
            u32 e = c % S::HEAD;
            if (e >= S::DIMS) return a.x[at];
            u32 i = S::HALVES ? e % PAIRS : e / 2;
            bool second = S::HALVES ? e >= PAIRS : e % 2 == 1;
            u64 other = second ? at - (S::HALVES ? PAIRS : 1) : at + (S::HALVES ? PAIRS : 1);
            u32x2 t = ((const u32x2*)a.a)[(u64)position_of(a, row) * PAIRS + i];
            float cosine = as_f32(t.x), sine = as_f32(t.y);
            return second ? a.x[other] * sine + a.x[at] * cosine
                          : a.x[at] * cosine - a.x[other] * sine;
        }
        if constexpr (S::OP == Map::Temper) {
            u32 steps = (position_of(a, row) + S::OFFSET) / S::PERIOD + 1;
            return a.x[at] * (1.0f + a.p0 * ln_f32((float)steps));
        }
        if constexpr (S::OP == Map::Adapters) {
            u64 slot = 0;
            if constexpr (S::EACH_OWN) slot = a.which ? a.which[row] : row;
            float f = a.a[slot * (COLS / S::EACH) + c / S::EACH];
            return f == 0.0f ? 0.0f : f * a.x[at];
        }
    }

    STEP void step(MapArgs a, Share share) {
        u64 row = share.y;
        if constexpr (S::OP == Map::Dot) {
            u64 at = row * COLS + share.x;
            float v = 0.0f;
            for (u32 e = thread_id(); e < S::EACH; e += KJ_BLOCK)
                v = fma_f32(a.x[at * S::EACH + e], a.a[at * S::EACH + e], v);
            v = block_sum(v);
            if (thread_id() == 0) a.y[at] = S::RESIDUAL ? v + a.residual[at] : v;
            return;
        }
        u32 c = share.x * KJ_BLOCK + thread_id();
        if (c >= COLS) return;
        float v = made(a, row, c);
        if constexpr (S::RESIDUAL) v += a.residual[row * COLS + c];
        a.y[row * COLS + c] = v;
    }
};
