// stream_experts.h: products through chosen experts' matrices whose rows come through the ring
// (stream.h).
//
// The rows to load are known only after the choice of experts, so every block makes the choice. It
// receives the scores one by one (packets.h) and chooses; then its extra warp loads the block's
// rows of the chosen matrices. So no grid barrier is needed. (When one wave chose between two grid
// barriers, and rows were loaded outside the ring, a layer of qwen3-30b-a3b took 34 µs more than
// the 31 µs of its launches.)
//
// The rows of all chosen matrices are one vector, slot after slot. A block computes whole groups of
// it and sends them as packets. With SUM a block has the same rows of all matrices, and the columns
// are contiguous.
//
// S: as for experts.h with TOKENS 1, TOP up to 16, without X_GLOBAL, BIAS, CLAMPED, ALL; ROWS_0 is
// a multiple of 16, a matrix has whole lines. R: as for stream.h.
#pragma once
#include "experts.h"
#include "route.h"
#include "stream.h"

// The choice for a token, in shared memory. It is not overwritten too early: the next choice
// depends on scores that exist only after this block has sent the rows that it summed with these
// shares. A block without such rows does not read the shares.
struct ChosenExperts {
    u32 experts[32];
    float shares[32];
};
STEP ChosenExperts& chosen_here() {
    LDS_ARRAY(ChosenExperts, only, 1);
    return only[0];
}

// Barrier of the block and its extra warp, after the choice. It is the barrier of all threads,
// which is otherwise used only at the kernel's start.
STEP void choice_sync() { __syncthreads(); }

template <class S> struct StreamRoute {
    using Choice = Route<S>;
    static constexpr u32 EXPERTS = S::EXPERTS, TOP = S::TOP;
    // The rank of an expert is the number of greater scores. All scores are compared concurrently;
    // SIDE threads share one expert. (One wave that finds the largest remaining score in each round
    // took 3 µs of the layer's 33 µs, while memory was idle.) Code that runs once takes 8 to 12
    // clocks per instruction, because it is not in near caches. So this is a short loop: unrolled
    // it took 1.8 µs.
    static constexpr bool BY_SCORE = S::GATING != Gating::Sigmoid && !S::BIAS && S::GROUPS == 0;
    STEP constexpr u32 side(u32 n) {
        return n < KJ_WAVE && 2 * n * EXPERTS <= KJ_BLOCK ? side(2 * n) : n;
    }
    static constexpr u32 SIDE = side(1), PADDED = CEIL_DIV(EXPERTS, 4 * SIDE) * 4 * SIDE;
    struct Shared {
        u64 key[PADDED];
        float score[EXPERTS];
    };

    STEP void step(RouteArgs a, const Links& links, Shared& lds) {
        Meeting::delay(104);
        take(links, lds);
        block_sync();
        Meeting::stamp(1);
        a.experts = chosen_here().experts, a.shares = chosen_here().shares;
        float scores[Choice::EACH];
        if (wave_id() == 0)
            UNROLL for (u32 i = 0; i < Choice::EACH; i++) {
                const u32 e = lane_id() + i * KJ_WAVE;
                scores[i] = e < EXPERTS ? lds.score[e] : 0.0f;
            }
        if constexpr (BY_SCORE) {
            rank(lds, a.experts);
            choice_sync();
            if (wave_id() == 0) {
                float v[Choice::EACH];
                const float sum = Choice::gate(v, scores);
                Choice::share_out(a, 0, v, sum, lane_id() < TOP ? a.experts[lane_id()] : 0);
            }
        } else {
            if (wave_id() == 0) Choice::choose(a, 0, scores);
            choice_sync();
        }
    }

    // Receives the scores.
    STEP void take(const Links& links, Shared& lds) {
        NO_UNROLL for (u32 e = thread_id(); e < PADDED; e += KJ_BLOCK) {
            u64 v = (u64)(e < EXPERTS ? ~links.epoch : links.epoch) << 32;
            u32 turns = 0;
            u64 since = 0;
            while ((u32)(v >> 32) != links.epoch && !Meeting::over(turns, since))
                v = packet_load8(links.in + (u64)e * 8);
            // Keys after the last expert are below all others.
            lds.key[e] = e < EXPERTS ? Choice::order_key(as_f32((u32)v), e) : 0;
            if (e < EXPERTS) lds.score[e] = as_f32((u32)v);
        }
    }
    // The TOP experts in order: larger keys first, among equal scores the lower index (order_key).
    STEP void rank(const Shared& lds, u32* experts) {
        NO_UNROLL for (u32 from = 0; from < EXPERTS; from += KJ_BLOCK / SIDE) {
            const u32 e = from + thread_id() / SIDE;
            const u64 mine = lds.key[e < EXPERTS ? e : 0];
            u32 above = 0;
            NO_UNROLL for (u32 i = thread_id() % SIDE * 4; i < PADDED; i += 4 * SIDE)
                UNROLL for (u32 k = 0; k < 4; k++) above += lds.key[i + k] > mine;
            UNROLL for (u32 m = 1; m < SIDE; m *= 2) above += wave_xor(above, m);
            if (e < EXPERTS && above < TOP && thread_id() % SIDE == 0)
                experts[above] = e / S::ALIKE;
        }
    }
};

template <class S, class R> struct StreamExperts {
    using X = Activations<S>;
    using K = Ring<R>;
    using W = StreamFormatOf<typename S::Run0>;
    using Rows = StreamRows<W, S::COLS, 1, false, S::X_SPLIT, R, S::SUM>;
    using Segment = typename Rows::Segment;
    using Shared = typename Rows::Shared;
    static constexpr u32 TOP = S::TOP, LISTS = S::GATE != Gate::None ? 2 : 1,
                         COLUMNS = S::SUM ? TOP : 1;
    static constexpr u32 RESULTS = (S::SUM ? 1 : TOP) * S::ROWS_0;
    static constexpr u64 MATRIX = (u64)S::ROWS_0 * W::ROW_BYTES;
    // Rows of a round with SUM. The sums of all slots use the memory for the sums of two matrices.
    STEP constexpr u32 power_of_two_in(u32 n) { return n < 2 ? n : 2 * power_of_two_in(n / 2); }
    static constexpr u32 MANY = Rows::least(power_of_two_in(2 * Rows::MOST / TOP), Rows::MOST);
    static_assert(!X::PLAIN && !X::GATED && !(S::SUM && X::NORMED), "what streams");
    static_assert(S::X_PER_SLOT == S::SUM && MANY >= Packets::GROUP, "what streams");
    static_assert(S::ROWS_0 % Packets::GROUP == 0 && MATRIX % K::LINE == 0, "what streams");

    struct Dealt { u32 first, end; };
    STEP Dealt dealt(u32 block, u32 blocks) {
        constexpr u32 all = RESULTS / Packets::GROUP;
        const u32 some = all / blocks, more = all - some * blocks;
        const u32 first = some * block + min_u32(block, more);
        return Dealt{first * Packets::GROUP,
                     (first + some + (block < more ? 1 : 0)) * Packets::GROUP};
    }

    // Called by all lanes of the extra warp before its first step after a choice, when everything
    // else is ready.
    STEP void await_choice() {
        if constexpr (!S::SUM) choice_sync();
    }
    // Called by one lane of the extra warp.
    STEP void feed(const ExpertsArgs& a, u32 block, u32 blocks, typename K::Shared& ring,
                   u8* memory, RingAt& at) {
        const Dealt d = dealt(block, blocks);
        const ChosenExperts& chosen = chosen_here();
        if constexpr (S::SUM) {
            NO_UNROLL for (u32 r = d.first; r < d.end; r += MANY)
                NO_UNROLL for (u32 s = 0; s < TOP; s++)
                    at = Rows::feed(a.w0 + chosen.experts[s] * MATRIX, nullptr, r,
                                    min_u32(r + MANY, d.end), ring, memory, at);
        } else {
            NO_UNROLL for (u32 v = d.first; v < d.end;) {
                const u32 s = v / S::ROWS_0, from = s * S::ROWS_0,
                          end = min_u32(d.end, from + S::ROWS_0);
                const u64 matrix = chosen.experts[s] * MATRIX;
                at = Rows::feed(a.w0 + matrix, LISTS == 2 ? a.w1 + matrix : nullptr, v - from,
                                end - from, ring, memory, at);
                v = end;
            }
        }
    }

    // Multiplies the same rows of the matrices of all slots. Each matrix has its own column.
    CALLED RingAt take_sum(Segment s, const u64* instruction, const u32x4* x,
                           typename K::Shared& ring, const u8* memory, RingAt at, Shared& lds) {
        const Links links = links_of(instruction);
        const u32 barriers = kept_place(&ring), slots = kept_place(memory),
                  base = kept_place(lds.sum);
        NO_UNROLL for (u32 r = s.first; r < s.end; r += MANY) {
            const u32 n = min_u32(MANY, s.end - r), row = r + thread_id();
            const bool ends = thread_id() < n;
            const float add = ends && s.residual ? s.residual[row] : 0.0f;
            const float weight = ends && links.weigh ? links.weigh[row] : 1.0f;
            const u32 each = (n + Rows::ROWS - 1) / Rows::ROWS;
            const u32 sums = base + at.buffer * sizeof(lds.sum[0]);
            at = Rows::walk(barriers, slots, TOP * each, at, [&](u32 i, u32 slot) {
                const u32 l = i / each, q = (i - l * each) * Rows::ROWS;
                const u32 to = sums + ((wave_id() % R::SHARE * TOP + l) * MANY + q) * 4;
                Rows::take_slot(at_place<const u8>(slot + Rows::off(r + q)),
                                min_u32(Rows::ROWS, n - q), x + l * X::VECTORS,
                                at_place<float>(to));
            });
            block_sync();
            if (thread_id() < CEIL_DIV(MANY, KJ_WAVE) * KJ_WAVE) {
                float v = 0.0f;
                if (ends) {
                    const float* sum = at_place<float>(sums) + thread_id();
                    UNROLL for (u32 l = 0; l < TOP; l++) {
                        float part = 0.0f;
                        UNROLL for (u32 w = 0; w < R::SHARE; w++) part += sum[(w * TOP + l) * MANY];
                        v = fma_f32(chosen_here().shares[l], part, v);
                    }
                    v += add;
                    if (links.values) Packets::give_value(links.values, links.epoch, row, v);
                    if (s.y) s.y[row] = v;
                }
                if (links.out)
                    Packets::give(links, s.rows / Packets::GROUP, row / Packets::GROUP, ends, v,
                                  weight);
            }
            at.buffer ^= 1;
        }
        return at;
    }

    // `pool`: shared memory of COLUMNS columns.
    STEP void step(ExpertsArgs a, u32 block, u32 blocks, const Links& links,
                   typename K::Shared& ring, const u8* memory, RingAt& at, u8* pool, Shared& lds) {
        constexpr u32 groups = COLUMNS * S::COLS / Packets::GROUP,
                      each = CEIL_DIV(groups, KJ_BLOCK);
        constexpr u32 few = each < 3 ? each : 4;
        const u32x4* x = (const u32x4*)pool;
        const Squares<1> squares = Packets::take<S::X_SPLIT, few, COLUMNS, 1>(
            links.in, groups, links.epoch, X::NORMED, (u32x4*)pool);
        float factor = 1.0f;
        if constexpr (X::NORMED)
            factor = rsqrt_f32(block_sum(squares.of[0]) / (float)S::COLS + a.eps);
        else block_sync();
        Meeting::stamp(1);
        const Dealt d = dealt(block, blocks);
        constexpr u32 gate = S::GATE == Gate::None ? 0 : S::GATE == Gate::Silu ? 1 : 2;
        Segment s{nullptr, nullptr, S::RESIDUAL ? a.residual : nullptr,
                  a.y,     RESULTS, d.first,
                  d.end,   0,       RESULTS,
                  gate,    {factor}};
        if constexpr (S::SUM) {
            at = take_sum(s, links.instruction, x, ring, memory, at, lds);
        } else {
            // Rounds are in the order of the loads: each has rows of one matrix.
            NO_UNROLL for (u32 v = d.first; v < d.end; v = s.end) {
                s.first = v, s.end = min_u32(d.end, (v / S::ROWS_0 + 1) * S::ROWS_0);
                at = Rows::take(s, links.instruction, x, ring, memory, at, lds);
            }
        }
    }
};
