// scan: the recurrence of selective state spaces (Gu & Dao 2023, arXiv 2312.00752; Dao & Gu 2024,
// arXiv 2405.21060). Each of CHANNELS channels of a head has a state h of N numbers:
//
//   h[n] ← e^(dt · a[n]) · h[n] + dt · x · b[n]
//   y    = Σ_n h[n] · c[n] + d · x
//
//   x, y      rows of HEADS × CHANNELS f32, one for each token
//   dt        rows of HEADS f32
//   b, c      rows of GROUPS × N f32; neighbouring heads share a group
//   a         HEADS f32, with A_EACH HEADS × N
//   d         HEADS f32
//   slots, position, state, sequence_bytes   state.h; the state is HEADS × CHANNELS × N
//
// Share: x of HEADS × CHANNELS / (KJ_BLOCK / LANES); y: 1 with ONE, and the number of sequences
// without.
//
// LANES threads have the state of a channel in registers and loop over the tokens.
//
// S: HEADS, CHANNELS, N, GROUPS, LANES, A_EACH, ONE.
#pragma once
#include "state.h"

struct ScanArgs {
    const float *x, *dt, *b, *c, *a, *d;
    const u32 *slots, *position;
    u8* state;
    float* y;
    u32 tokens;
    u64 sequence_bytes;
};

template <class S> struct Scan {
    static constexpr u32 HEADS = S::HEADS, ROWS = S::HEADS * S::CHANNELS, N = S::N,
                         WIDTH = S::GROUPS * S::N;
    static constexpr u32 EACH = CEIL_DIV(S::N, S::LANES), RATES = S::A_EACH ? EACH : 1;

    STEP void step(ScanArgs a, Share share) {
        const u32 lane = thread_id() % S::LANES;
        const u32 at = share.x * (KJ_BLOCK / S::LANES) + thread_id() / S::LANES;
        const bool mine = at < ROWS;  // sums need all lanes, also those without a row
        // A thread without a row must not read a state: the owner of the last row may already have
        // overwritten it.
        const bool idle = ROWS % (KJ_BLOCK / S::LANES) != 0 && !mine;
        const u32 row = min_u32(at, ROWS - 1), head = row / S::CHANNELS,
                  group = head * S::GROUPS / HEADS;
        auto past =
            Past<S::ONE>::of(a.slots, a.position, a.state, a.sequence_bytes, share.y, a.tokens);
        float* state = past.state + (u64)row * N;
        float h[EACH], rate[RATES];
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 n = lane + i * S::LANES;
            h[i] = past.begins || idle || n >= N ? 0.0f : state[n];
        }
        UNROLL for (u32 i = 0; i < RATES; i++) {
            u32 n = lane + i * S::LANES;
            rate[i] = !S::A_EACH ? a.a[head] : n < N ? a.a[head * N + n] : 0.0f;
        }
        const float d = a.d[head];
        NO_UNROLL for (u32 t = past.first; t < past.first + past.tokens; t++) {
            const float dt = a.dt[(u64)t * HEADS + head], x = a.x[(u64)t * ROWS + row];
            const float *b = a.b + (u64)t * WIDTH + group * N,
                        *c = a.c + (u64)t * WIDTH + group * N;
            float stays = exp_f32(dt * rate[0]), sum = 0.0f;
            UNROLL for (u32 i = 0; i < EACH; i++) {
                u32 n = lane + i * S::LANES;
                if (N % S::LANES != 0 && n >= N) break;
                if (S::A_EACH && i > 0) stays = exp_f32(dt * rate[i % RATES]);
                h[i] = fma_f32(stays, h[i], dt * x * b[n]);
                sum = fma_f32(h[i], c[n], sum);
            }
            sum = group_sum(sum, S::LANES);
            if (mine && lane == 0) a.y[(u64)t * ROWS + row] = fma_f32(d, x, sum);
        }
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 n = lane + i * S::LANES;
            if (mine && n < N) state[n] = h[i];
        }
    }
};
