// attention.h: softmax(q kᵀ · scale) v in one pass over the keys, on matrix units (mma.h), for f16
// and bf16 with sums in f32. Scores stay in registers.
//
// The text before this file has Numbers (n[0] queries, n[1] keys, n[2] width, n[3] batches, n[4]
// the scale as bits of an f32, n[8] right, n[9] left), Query, Key and Value with batch(p, z) and
// own(p, row): the place of a row, whose elements are neighbours and start at a multiple of sixteen
// bytes; and Shape:
//   In       f16, or bf16 on NVIDIA
//   WIDTH    a multiple of 64 up to 256, at least the width, which is a multiple of 8
//   BK       keys of a tile
//   MI       products of sixteen queries in a wave
//   STAGES   tiles of keys and values in shared memory
//   RIGHT    query i sees no key after i + right
//   LEFT     query i sees no key before i - left
//   MASKED   Mask has batch(p, z) and at(p, row, key): the place of a Cell. Of u8: a query sees the
//            keys whose cell is not 0. Of In: added to the scaled score
// A query that sees no key has the result NaN, as softmax of -inf alone.
// A block has 16 · MI queries for each wave. The result is packed: (batch, queries, width).
#pragma once
#include "product_mma.h"

STEP u32 pack_of(float low, float high, f16) { return pack_input(low, high); }
#if defined(KJ_NVIDIA) && __CUDA_ARCH__ >= 800
STEP u32 pack_of(float low, float high, bf16) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
#endif
STEP u16 bits_of(float v, f16) { return round_f16(v).bits; }
STEP u16 bits_of(float v, bf16) { return round_bf16(v).bits; }

// A score, in powers of two, with the mask's value for it. Far below any score: not seen.
#define UNSEEN (-2e30f)
STEP float masked(float x, u8 seen) { return seen ? x : UNSEEN; }
template <class T> STEP float masked(float x, T bias) {
    return x + load(bias) * 1.4426950408889634f;
}

// The keys that a block of queries sees: tiles from `first` on, and the keys before `last`.
template <class S> struct Sight {
    u32 keys, right, left;
    STEP Sight of(const Numbers& p) { return {(u32)p.n[1], (u32)p.n[8], (u32)p.n[9]}; }
    STEP u32 first(const Sight& s, u32 q0, u32 tile) {
        return S::LEFT && q0 > s.left ? (q0 - s.left) / tile * tile : 0;
    }
    STEP u32 last(const Sight& s, u32 end) {
        return S::RIGHT ? min_u32(s.keys, end + s.right) : s.keys;
    }
    // Whether queries q0 … q0 + rows - 1 see all keys j0 … j0 + tile - 1.
    STEP bool all(const Sight& s, u32 q0, u32 rows, u32 j0, u32 tile) {
        return j0 + tile <= s.keys && (!S::RIGHT || j0 + tile <= q0 + 1 + s.right) &&
               (!S::LEFT || j0 + s.left >= q0 + rows - 1);
    }
    STEP bool sees(const Sight& s, u32 row, u32 j) {
        return j < s.keys && (!S::RIGHT || j <= row + s.right) && (!S::LEFT || j + s.left >= row);
    }
};

template <class S> struct Attention {
    using In = typename S::In;
    static constexpr u32 WIDTH = S::WIDTH, MI = S::MI, STAGES = S::STAGES, BK = S::BK;
    static constexpr u32 BQ = kj_waves * MI * MMA_M;
    static constexpr u32 DK = WIDTH / MMA_K, SN = BK / MMA_N, ON = WIDTH / MMA_N;
    static_assert(BK % MMA_K == 0 && BK <= 64 && WIDTH % 64 == 0, "whole products");

    // Offset in rows of WIDTH elements, which are stored as blocks of 64 columns.
    STEP u32 wide_at(u32 rows, u32 row, u32 col) {
        return col / 64 * rows * 64 + tile_at(row, col % 64);
    }

    // Starts to copy rows from `first` on. Rows and columns outside the tensor are zeros.
    template <class Side, u32 ROWS>
    STEP void bring(const Numbers& p, u16* to, const u16* from, u32 first, u32 rows) {
        UNROLL for (u32 i = 0; i < CEIL_DIV(ROWS * (WIDTH / 8), KJ_BLOCK); i++) {
            const u32 c = thread_id() + i * KJ_BLOCK;
            const u32 row = c / (WIDTH / 8), col = c % (WIDTH / 8) * 8;
            if (row >= ROWS) break;
            u16* at = to + wide_at(ROWS, row, col);
            if (first + row < rows && col < (u32)p.n[2])
                copy16(at, from + Side::own(p, first + row) + col);
            else *(u32x4*)at = u32x4{0, 0, 0, 0};
        }
    }

    STEP void run(const Numbers& p, In* to, const void* q, const void* k, const void* v,
                  const void* mask, u8* pool) {
        const u32 queries = (u32)p.n[0], keys = (u32)p.n[1], width = (u32)p.n[2];
        const u32 tiles = CEIL_DIV(queries, BQ), batch = block_id() / tiles;
        // The last queries come first, because they see the most keys.
        const u32 q0 = (tiles - 1 - block_id() % tiles) * BQ;
        const float factor = as_f32((u32)p.n[4]) * 1.4426950408889634f;
        const u16* ks_from = (const u16*)k + Key::batch(p, batch);
        const u16* vs_from = (const u16*)v + Value::batch(p, batch);
        const Sight<S> sight = Sight<S>::of(p);
        const u32 begin = sight.first(sight, q0, BK), last = sight.last(sight, q0 + BQ);
        using Cell = typename S::Cell;
        const Cell* seen = (const Cell*)mask + S::Mask::batch(p, batch);
        u16* qs = (u16*)pool;
        u16* ks = qs + BQ * WIDTH;
        u16* vs = ks + STAGES * BK * WIDTH;
        auto fetch = [&](u32 j0, u32 stage) {
            bring<Key, BK>(p, ks + stage * BK * WIDTH, ks_from, j0, keys);
            bring<Value, BK>(p, vs + stage * BK * WIDTH, vs_from, j0, keys);
            copy_commit();
        };
        bring<Query, BQ>(p, qs, (const u16*)q + Query::batch(p, batch), q0, queries);
        fetch(begin, 0);
        const u32 wave_row = wave_id() * (MI * MMA_M);
        FragC out[MI][ON];
        float most[MI][MMA_ROWS], sum[MI][MMA_ROWS];
        UNROLL for (u32 i = 0; i < MI; i++) {
            UNROLL for (u32 n = 0; n < ON; n++) acc_zero(out[i][n]);
            UNROLL for (u32 r = 0; r < MMA_ROWS; r++) most[i][r] = -1e30f, sum[i][r] = 0.0f;
        }
        u32 stage = 0;
        for (u32 j0 = begin; j0 < last; j0 += BK) {
            copy_wait(0);
            block_sync();  // this tile has arrived, and all waves have read the previous one
            const u32 next = STAGES == 2 ? stage ^ 1 : 0;
            if (STAGES == 2 && j0 + BK < last) fetch(j0 + BK, next);
            const u16* kt = ks + stage * BK * WIDTH;
            const u16* vt = vs + stage * BK * WIDTH;
            FragC s[MI][SN];
            UNROLL for (u32 i = 0; i < MI; i++)
                UNROLL for (u32 n = 0; n < SN; n++) acc_zero(s[i][n]);
            DEPTH_UNROLL for (u32 d = 0; d < DK; d++) {
                FragA a[MI];
                UNROLL for (u32 i = 0; i < MI; i++)
                    load_a(a[i], qs + d * MMA_K / 64 * BQ * 64, wave_row + i * MMA_M,
                           d * MMA_K % 64);
                UNROLL for (u32 n = 0; n < SN; n++) {
                    FragB b;
                    load_b(b, kt + d * MMA_K / 64 * BK * 64, n * MMA_N, d * MMA_K % 64);
                    UNROLL for (u32 i = 0; i < MI; i++) mma_of(s[i][n], a[i], b, In{});
                }
            }
            products_settle();
            const bool inside = sight.all(sight, q0, BQ, j0, BK);
            UNROLL for (u32 i = 0; i < MI; i++) {
                const u32 row0 = q0 + wave_row + i * MMA_M;
                UNROLL for (u32 n = 0; n < SN; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                        const u32 j = j0 + n * MMA_N + acc_col(e), row = row0 + acc_row(e);
                        float x = s[i][n].v[e] * factor;
                        if (!inside && !sight.sees(sight, row, j)) x = UNSEEN;
                        else if (S::MASKED && row < queries)
                            x = masked(x, seen[S::Mask::at(p, row, j)]);
                        s[i][n].v[e] = x;
                    }
                float high[MMA_ROWS], shrink[MMA_ROWS];
                UNROLL for (u32 r = 0; r < MMA_ROWS; r++) high[r] = most[i][r];
                UNROLL for (u32 n = 0; n < SN; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++)
                        high[acc_slot(e)] = max_f32(high[acc_slot(e)], s[i][n].v[e]);
                UNROLL for (u32 r = 0; r < MMA_ROWS; r++) {
                    high[r] = group_max(high[r], MMA_ROW_LANES);
                    shrink[r] = exp2_hw(most[i][r] - high[r]);
                    most[i][r] = high[r];
                    sum[i][r] *= shrink[r];
                }
                UNROLL for (u32 n = 0; n < SN; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                        const float x = exp2_hw(s[i][n].v[e] - high[acc_slot(e)]);
                        s[i][n].v[e] = x;
                        sum[i][acc_slot(e)] += x;
                    }
                UNROLL for (u32 n = 0; n < ON; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++)
                        out[i][n].v[e] *= shrink[acc_slot(e)];
            }
#if !MMA_ACC_IS_A
            // Shared memory for this wave's results: its rows of one tile.
            u16* mine = vs + STAGES * BK * WIDTH + wave_row * 64;
            wave_sync();
            UNROLL for (u32 i = 0; i < MI; i++)
                UNROLL for (u32 n = 0; n < SN; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++)
                        mine[tile_at(i * MMA_M + acc_row(e), n * MMA_N + acc_col(e))] =
                            (u16)pack_of(s[i][n].v[e], 0.0f, In{});
            wave_sync();
#endif
            DEPTH_UNROLL for (u32 k = 0; k < BK / MMA_K; k++) {
                FragA a[MI];
                UNROLL for (u32 i = 0; i < MI; i++) {
#if MMA_ACC_IS_A
                    UNROLL for (u32 w = 0; w < 4; w++)
                        a[i].v[w] = pack_of(s[i][k].v[2 * w], s[i][k].v[2 * w + 1], In{});
#else
                    load_a(a[i], mine, i * MMA_M, k * MMA_K);
#endif
                }
                UNROLL for (u32 n = 0; n < ON; n++) {
                    FragB b;
                    load_b_t(b, vt + n * MMA_N / 64 * BK * 64, k * MMA_K, n * MMA_N % 64);
                    UNROLL for (u32 i = 0; i < MI; i++) mma_of(out[i][n], a[i], b, In{});
                }
            }
            products_settle();
            if (STAGES == 1 && j0 + BK < last) {
                block_sync();
                fetch(j0 + BK, 0);
            }
            stage = next;
        }
        copy_wait(0);
        // Results pass through this wave's rows of the queries' tile, so that 16 bytes are stored
        // at a time.
        wave_sync();
        UNROLL for (u32 i = 0; i < MI; i++) {
            float inverse[MMA_ROWS];
            UNROLL for (u32 r = 0; r < MMA_ROWS; r++)
                inverse[r] = 1.0f / group_sum(sum[i][r], MMA_ROW_LANES);
            UNROLL for (u32 n = 0; n < ON; n++)
                UNROLL for (u32 e = 0; e < MMA_ACC; e++)
                    qs[wide_at(BQ, wave_row + i * MMA_M + acc_row(e), n * MMA_N + acc_col(e))] =
                        bits_of(out[i][n].v[e] * inverse[acc_slot(e)], In{});
        }
        wave_sync();
        for (u32 c = lane_id(); c < MI * MMA_M * (WIDTH / 8); c += KJ_WAVE) {
            const u32 row = wave_row + c / (WIDTH / 8), col = c % (WIDTH / 8) * 8;
            if (q0 + row < queries && col < width)
                *(u32x4*)((u16*)to + ((u64)batch * queries + q0 + row) * width + col) =
                    load16(qs + wide_at(BQ, row, col));
        }
    }
};
