// conv: a causal convolution of each channel over the last TAPS tokens, one thread for each
// channel.
//
//   y[t][c] = f(b[c] + Σ_k w[c][k] · x[t − (TAPS − 1) + k][c])
//
//   x, y      rows of CHANNELS f32, one for each token
//   w         CHANNELS × TAPS f32; without WEIGHTS y is the oldest of these tokens
//   b         CHANNELS f32, with BIAS
//   f         silu, with SILU
//   slots, position, state, sequence_bytes   state.h; the state is the last TAPS − 1 tokens, oldest
//             first
//
// Share: x of CHANNELS / KJ_BLOCK; y: tokens / SLAB with ONE, and the number of sequences without.
//
// A slab is SLAB tokens. Only the first slab reads the state and writes the new one.
//
// S: CHANNELS, TAPS, SLAB, WEIGHTS, BIAS, SILU, ONE.
#pragma once
#include "gate.h"
#include "state.h"

struct ConvArgs {
    const float *x, *w, *b;
    const u32 *slots, *position;
    u8* state;
    float* y;
    u32 tokens;
    u64 sequence_bytes;
};

template <class S> struct Conv {
    static constexpr u32 CHANNELS = S::CHANNELS, TAPS = S::TAPS, BEFORE = S::TAPS - 1;
    static_assert(TAPS > 1 && BEFORE <= S::SLAB, "slabs behind the first see no state");

    STEP void step(ConvArgs a, Share share) {
        u32 c = share.x * KJ_BLOCK + thread_id();
        if (c >= CHANNELS) return;
        auto past =
            Past<S::ONE>::of(a.slots, a.position, a.state, a.sequence_bytes, share.y, a.tokens);
        u32 from = S::ONE ? share.y * S::SLAB : 0, to = min_u32(from + S::SLAB, past.tokens);
        const float* x = a.x + (u64)past.first * CHANNELS + c;
        float* y = a.y + (u64)past.first * CHANNELS + c;
        float* state = past.state + c;
        // Token 0 is the first one in the state.
        auto token = [&](u32 at) -> float {
            if (at >= BEFORE) return x[(u64)(at - BEFORE) * CHANNELS];
            return past.begins ? 0.0f : state[at * CHANNELS];
        };

        float w[TAPS], seen[TAPS];
        UNROLL for (u32 k = 0; k < TAPS; k++) w[k] = S::WEIGHTS ? a.w[c * TAPS + k] : 0.0f;
        const float bias = S::BIAS ? a.b[c] : 0.0f;
        UNROLL for (u32 k = 0; k < BEFORE; k++) seen[k + 1] = token(from + k);
        NO_UNROLL for (u32 t = from; t < to; t++) {
            UNROLL for (u32 k = 0; k < BEFORE; k++) seen[k] = seen[k + 1];
            seen[BEFORE] = x[(u64)t * CHANNELS];
            float v = S::WEIGHTS ? bias : seen[0];
            if constexpr (S::WEIGHTS) {
                UNROLL for (u32 k = 0; k < TAPS; k++) v = fma_f32(w[k], seen[k], v);
            }
            y[(u64)t * CHANNELS] = S::SILU ? silu(v) : v;
        }
        // Later rows of the state move to earlier rows, so each is read before it is overwritten.
        if (from == 0) {
            UNROLL for (u32 k = 0; k < BEFORE; k++) state[k * CHANNELS] = token(past.tokens + k);
        }
    }
};
