// linear: linear attention. The state of each head is a matrix S of N keys × VALUES values. It
// decays, and with CORRECTED it is corrected (Yang et al. 2024, arXiv 2412.06464; RWKV-7, arXiv
// 2503.14456):
//
//   S'[n][v] = w[n] · S[n][v] + b[n] · Σ_j a[j] · S[j][v] + k[n] · v[v]
//   y[v]     = Σ_n q[n] · S'[n][v]
//
// With BONUS (RWKV-6, arXiv 2404.05892) instead:
//
//   y[v]     = Σ_n q[n] · (S[n][v] + u[n] · k[n] · v[v])
//
//   q, k, a, b   rows of HEADS × N f32, one for each token; a and b only with CORRECTED
//   v, y      rows of HEADS × VALUES f32
//   w         rows of HEADS f32, with W_EACH HEADS × N
//   u         HEADS × N f32, only with BONUS
//   slots, position, state, sequence_bytes   state.h; the state is HEADS × VALUES × N
//
// Share: x of HEADS × VALUES / (KJ_BLOCK / LANES); y: 1 with ONE, and the number of sequences
// without.
//
// LANES threads have one column of S in registers and loop over the tokens.
//
// S: HEADS, VALUES, N, LANES, W_EACH, CORRECTED, BONUS, ONE.
#pragma once
#include "state.h"

struct LinearArgs {
    const float *q, *k, *v, *w, *a, *b, *u;
    const u32 *slots, *position;
    u8* state;
    float* y;
    u32 tokens;
    u64 sequence_bytes;
};

template <class S> struct Linear {
    static constexpr u32 HEADS = S::HEADS, ROWS = S::HEADS * S::VALUES, N = S::N;
    static constexpr u32 EACH = CEIL_DIV(S::N, S::LANES);

    STEP void step(LinearArgs a, Share share) {
        const u32 lane = thread_id() % S::LANES;
        const u32 at = share.x * (KJ_BLOCK / S::LANES) + thread_id() / S::LANES;
        const bool mine = at < ROWS;  // sums need all lanes, also those without a row
        // A thread without a row must not read a state: the owner of the last row may already have
        // overwritten it.
        const bool idle = ROWS % (KJ_BLOCK / S::LANES) != 0 && !mine;
        const u32 row = min_u32(at, ROWS - 1), head = row / S::VALUES;
        auto past =
            Past<S::ONE>::of(a.slots, a.position, a.state, a.sequence_bytes, share.y, a.tokens);
        float* state = past.state + (u64)row * N;
        float s[EACH], u[S::BONUS ? EACH : 1];
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 n = lane + i * S::LANES;
            s[i] = past.begins || idle || n >= N ? 0.0f : state[n];
            if constexpr (S::BONUS) u[i] = n < N ? a.u[head * N + n] : 0.0f;
        }
        NO_UNROLL for (u32 t = past.first; t < past.first + past.tokens; t++) {
            const u64 keys = ((u64)t * HEADS + head) * N;
            const float v = a.v[(u64)t * ROWS + row];
            float corrected = 0.0f, sum = 0.0f;
            if constexpr (S::CORRECTED) {
                UNROLL for (u32 i = 0; i < EACH; i++) {
                    u32 n = lane + i * S::LANES;
                    if (N % S::LANES != 0 && n >= N) break;
                    corrected = fma_f32(a.a[keys + n], s[i], corrected);
                }
                corrected = group_sum(corrected, S::LANES);
            }
            const float all = S::W_EACH ? 0.0f : a.w[(u64)t * HEADS + head];
            UNROLL for (u32 i = 0; i < EACH; i++) {
                u32 n = lane + i * S::LANES;
                if (N % S::LANES != 0 && n >= N) break;
                float own = a.k[keys + n] * v,
                      next = fma_f32(S::W_EACH ? a.w[keys + n] : all, s[i], own);
                if constexpr (S::CORRECTED) next = fma_f32(a.b[keys + n], corrected, next);
                float seen = next;
                if constexpr (S::BONUS) seen = fma_f32(u[i], own, s[i]);
                sum = fma_f32(a.q[keys + n], seen, sum);
                s[i] = next;
            }
            sum = group_sum(sum, S::LANES);
            if (mine && lane == 0) a.y[(u64)t * ROWS + row] = sum;
        }
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 n = lane + i * S::LANES;
            if (mine && n < N) state[n] = s[i];
        }
    }
};
