// flash: causal attention of a prompt's new tokens to the cache, with online softmax (Dao 2023,
// arXiv 2307.08691).
//
//   y[t, h] = softmax_j(cap(scale · q[t, h] · k[j, h/G])) · v[j, h/G],  G = HEADS / KV_HEADS,
//             j ≤ past + t, within the bounds of scores.h
//
//   q         f32, tokens × HEADS·HEAD_DIM, rotated
//   k, v      caches (kv.h) of `capacity` positions, including these tokens' keys and values
//   position  u32: number of tokens before these
//   sinks     HEADS f32 if SINKS
//   table     the sequence's pages (paged.h)
//   y         f16 tiles (mma.h, gemm.h), tokens × HEADS·HEAD_DIM, zeros after the end
//
// A block has BQ = WAVES·MI·MMA_M tokens of one head. Each wave has MI·MMA_M of them, with their
// running maximum, sum and result in registers. Keys and values pass through shared memory in tiles
// of BK positions; the next tile is loaded while one is multiplied. Scores are in units of log 2,
// so the exponential is the hardware's 2^x.
//
// KJ_AROUND: no causal mask; positions up to KJ_AROUND away are visible on both sides (encoders).
//
// S: HEADS, KV_HEADS, SCALE, SOFT_CAP (0: none), MI, BK, HOLD_Q (queries stay in registers),
// KV_STAGES (1 or 2 tiles in shared memory), OUT_PARTS (blocks that share the columns of a result,
// if one block has too few registers for all), and as for kv.h and scores.h. Share: x of
// ⌈tokens/BQ⌉, y the head, z of OUT_PARTS.
#pragma once
#include "flash_args.h"
#include "kv_tiles.h"
#include "mma.h"

template <class S> struct Flash {
    using K = Kv<S>;
    static constexpr u32 HEAD_DIM = S::HEAD_DIM, MI = S::MI, BK = S::BK, KV_STAGES = S::KV_STAGES,
                         OUT_PARTS = S::OUT_PARTS;
    using Tiles = KvTiles<S, BK, KJ_BLOCK>;
    static constexpr u32 WAVES = kj_waves, BQ = WAVES * MI * MMA_M;
    static constexpr u32 D_BLOCKS = CEIL_DIV(HEAD_DIM, 64);      // tiles of 64 columns side by side
    static constexpr u32 DK = HEAD_DIM / MMA_K;                  // steps of depth of a score
    // Columns of the result that a block computes.
    static constexpr u32 OUT_DIM = HEAD_DIM / OUT_PARTS;
    static constexpr u32 SN = BK / MMA_N, ON = CEIL_DIV(OUT_DIM, MMA_N);
    // Chunks after HEAD_DIM that products read.
    static constexpr u32 PAD = ON * MMA_N > OUT_DIM ? (ON * MMA_N - OUT_DIM) / 8 : 1;
    static constexpr u32 KEY_TILE = D_BLOCKS * BK * 64;     // number of f16
    static constexpr u32 OUT_TILES = CEIL_DIV(S::HEADS * HEAD_DIM, 64);
    static_assert((OUT_PARTS == 1 || OUT_DIM % 64 == 0) && HEAD_DIM % 16 == 0 && SN * MMA_N == BK &&
                      BK % MMA_K == 0,
                  "whole products");
    // Bytes of dynamic shared memory.
    static constexpr u32 POOL =
        (D_BLOCKS * BQ * 64 + KV_STAGES * 2 * KEY_TILE + (MMA_ACC_IS_A ? 0 : BQ * 64)) * 2;

    // `pool`: POOL bytes of shared memory.
    STEP void step(FlashArgs args, Share share, u8* pool) {
        u16* qs = (u16*)pool;                       // BQ × HEAD_DIM
        u16* ks = qs + D_BLOCKS * BQ * 64;          // KV_STAGES × (keys, values)

        const u32 past = args.position[0];
        // The rows with the most keys come first, because blocks start in order.
        const u32 head = share.y, q0 = (CEIL_DIV(args.tokens, BQ) - 1 - share.x) * BQ;
#ifdef KJ_AROUND
        const u32 all = past + args.tokens, here = past + q0;
        const u32 last = min_u32(all, past + min_u32(q0 + BQ, args.tokens) + KJ_AROUND);
        const u32 from = (here > KJ_AROUND ? here - KJ_AROUND : 0) / BK * BK;
#else
        const u32 last = past + min_u32(q0 + BQ, args.tokens);  // end of the keys of all rows
        const u32 seen = past + q0 + 1;                         // end of the keys of the first row
        const u32 from = Scores<S>::seen_from(seen - 1) / BK * BK;
#endif

        constexpr float log2e = 1.4426950408889634f;
        const float factor =
            S::SOFT_CAP > 0 ? S::SCALE / S::SOFT_CAP * 2.0f * log2e : S::SCALE * log2e;
        for (u32 c = thread_id(); c < BQ * (HEAD_DIM / 8); c += KJ_BLOCK) {
            u32 row = c / (HEAD_DIM / 8), col = c % (HEAD_DIM / 8) * 8;
            const float* p =
                args.q + ((u64)min_u32(q0 + row, args.tokens - 1) * S::HEADS + head) * HEAD_DIM +
                col;
            *(u32x4*)(qs + kv_tile_at(BQ, row, col)) =
                scaled_inputs(load16(p), load16(p + 4), factor);
        }
        if (ON * MMA_N > OUT_DIM)
            for (u32 c = thread_id(); c < KV_STAGES * BK * PAD; c += KJ_BLOCK) {
                u32 row = c / PAD, col = HEAD_DIM + c % PAD * 8;
                *(u32x4*)(ks + (row / BK * 2 + 1) * KEY_TILE + kv_tile_at(BK, row % BK, col)) =
                    u32x4{0, 0, 0, 0};
            }

        const KvHead kv{args.keys, args.values, (u64)S::KV_HEADS * stretch(args.capacity),
                        (u64)(head / (S::HEADS / S::KV_HEADS)) * stretch(args.capacity),
                        Pages{PAGED(args.table)}};
        const u32 wave_row = wave_id() * (MI * MMA_M);
        const u32 out0 = OUT_PARTS > 1 ? share.z * OUT_DIM : 0;
        FragA held[S::HOLD_Q ? MI : 1][S::HOLD_Q ? DK : 1];
        FragC out[MI][ON];
        float most[MI][MMA_ROWS], sum[MI][MMA_ROWS];
        UNROLL for (u32 i = 0; i < MI; i++) {
            UNROLL for (u32 n = 0; n < ON; n++) acc_zero(out[i][n]);
            UNROLL for (u32 r = 0; r < MMA_ROWS; r++) most[i][r] = -1e30f, sum[i][r] = 0.0f;
        }

        float slope = 0.0f;
        if constexpr (S::ALIBI != 0.0f) slope = Scores<S>::slope(head);
        u32 stage = 0;
        typename Tiles::Fetched fetched;
        Tiles::fetch(fetched, kv, thread_id(), from, last, ks, ks + KEY_TILE), copy_commit();
        Tiles::store(fetched, thread_id(), ks, ks + KEY_TILE);
        for (u32 j0 = from; j0 < last; j0 += BK) {
            copy_wait(0);
            block_sync();  // this tile has arrived, and all waves have read the previous one
            const u16* kt = ks + stage * 2 * KEY_TILE;
            const u16* vt = kt + KEY_TILE;
            u16* next = ks + (KV_STAGES == 2 ? stage ^ 1 : 0) * 2 * KEY_TILE;
            if (KV_STAGES == 2 && j0 + BK < last)
                Tiles::fetch(fetched, kv, thread_id(), j0 + BK, last, next, next + KEY_TILE),
                    copy_commit();
            if (S::HOLD_Q && j0 == from)
                UNROLL for (u32 i = 0; i < MI; i++)
                    UNROLL for (u32 d = 0; d < DK; d++)
                        load_a(held[S::HOLD_Q ? i : 0][S::HOLD_Q ? d : 0],
                               qs + d * MMA_K / 64 * BQ * 64, wave_row + i * MMA_M, d * MMA_K % 64);

            FragC s[MI][SN];
            UNROLL for (u32 i = 0; i < MI; i++)
                UNROLL for (u32 n = 0; n < SN; n++) acc_zero(s[i][n]);
            FLASH_DEPTH for (u32 d = 0; d < DK; d++) {
                FragA a[MI];
                UNROLL for (u32 i = 0; i < MI; i++) {
                    if (S::HOLD_Q) a[i] = held[S::HOLD_Q ? i : 0][S::HOLD_Q ? d : 0];
                    else
                        load_a(a[i], qs + d * MMA_K / 64 * BQ * 64, wave_row + i * MMA_M,
                               d * MMA_K % 64);
                }
                UNROLL for (u32 n = 0; n < SN; n++) {
                    FragB b;
                    load_b(b, kt + d * MMA_K / 64 * BK * 64, n * MMA_N, d * MMA_K % 64);
                    UNROLL for (u32 i = 0; i < MI; i++) mma(s[i][n], a[i], b);
                }
            }
            products_settle();

#ifdef KJ_AROUND
            const bool inside = j0 + BK <= all && KJ_AROUND >= 1u << 30;
#else
            const bool inside = j0 + BK <= seen &&
                                (S::WINDOW == 0 || j0 + S::WINDOW >= past + q0 + BQ) &&
                                // Whether no row's chunk begins within this tile.
                                (S::CHUNK == 0 || j0 >= Scores<S>::seen_from(past + q0 + BQ - 1));
#endif
            UNROLL for (u32 i = 0; i < MI; i++) {
                const u32 row0 = past + q0 + wave_row + i * MMA_M;
                if (S::SOFT_CAP > 0)
                    UNROLL
                    for (u32 n = 0; n < SN; n++) UNROLL
                        for (u32 e = 0; e < MMA_ACC; e++)
                            s[i][n].v[e] = S::SOFT_CAP * log2e * soften(s[i][n].v[e]);
                if constexpr (S::ALIBI != 0.0f)
                    UNROLL for (u32 n = 0; n < SN; n++)
#ifdef KJ_AROUND
                        UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                            u32 j = j0 + n * MMA_N + acc_col(e), p = row0 + acc_row(e);
                            s[i][n].v[e] -= Scores<S>::lost(slope, j > p ? j : p, min_u32(j, p));
                        }
#else
                        UNROLL for (u32 e = 0; e < MMA_ACC; e++)
                            s[i][n].v[e] -= Scores<S>::lost(slope, row0 + acc_row(e),
                                                            j0 + n * MMA_N + acc_col(e));
#endif
                if (!inside)
                    UNROLL for (u32 n = 0; n < SN; n++)
                        UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                            u32 j = j0 + n * MMA_N + acc_col(e), p = row0 + acc_row(e);
#ifdef KJ_AROUND
                            if (j >= all || j > p + KJ_AROUND || j + KJ_AROUND < p)
                                s[i][n].v[e] = -2e30f;
#else
                            if (j > p || (S::WINDOW > 0 && j + S::WINDOW <= p) ||
                                (S::CHUNK != 0 && j < Scores<S>::seen_from(p)))
                                s[i][n].v[e] = -2e30f;
#endif
                        }
                float high[MMA_ROWS], shrink[MMA_ROWS];
                UNROLL for (u32 r = 0; r < MMA_ROWS; r++) high[r] = most[i][r];
                UNROLL for (u32 n = 0; n < SN; n++) UNROLL
                    for (u32 e = 0; e < MMA_ACC; e++)
                        high[acc_slot(e)] = max_f32(high[acc_slot(e)], s[i][n].v[e]);
                UNROLL for (u32 r = 0; r < MMA_ROWS; r++) {
                    high[r] = group_max(high[r], MMA_ROW_LANES);
                    shrink[r] = exp2_hw(most[i][r] - high[r]);
                    most[i][r] = high[r];
                    sum[i][r] *= shrink[r];
                }
                UNROLL for (u32 n = 0; n < SN; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                        float p = exp2_hw(s[i][n].v[e] - high[acc_slot(e)]);
                        s[i][n].v[e] = p;
                        sum[i][acc_slot(e)] += p;
                    }
                UNROLL for (u32 n = 0; n < ON; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++) out[i][n].v[e] *= shrink[acc_slot(e)];
            }

#if !MMA_ACC_IS_A
            // Shared memory for this wave's results: MI·MMA_M rows of one tile.
            u16* mine = ks + KV_STAGES * 2 * KEY_TILE + wave_row * 64;
            wave_sync();
            UNROLL for (u32 i = 0; i < MI; i++)
                UNROLL for (u32 n = 0; n < SN; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++)
                        mine[tile_at(i * MMA_M + acc_row(e), n * MMA_N + acc_col(e))] =
                            (u16)pack_input(s[i][n].v[e], 0.0f);
            wave_sync();
#endif
            FLASH_DEPTH for (u32 k = 0; k < BK / MMA_K; k++) {
                FragA a[MI];
                UNROLL for (u32 i = 0; i < MI; i++) {
#if MMA_ACC_IS_A
                    acc_to_a(a[i], s[i][k]);
#else
                    load_a(a[i], mine, i * MMA_M, k * MMA_K);
#endif
                }
                UNROLL for (u32 n = 0; n < ON; n++) {
                    FragB b;
                    load_b_t(b, vt + (out0 + n * MMA_N) / 64 * BK * 64, k * MMA_K,
                             (out0 + n * MMA_N) % 64);
                    UNROLL for (u32 i = 0; i < MI; i++) mma(out[i][n], a[i], b);
                }
            }
            products_settle();

            if (j0 + BK < last) {
                if (KV_STAGES == 1) {
                    block_sync();
                    Tiles::fetch(fetched, kv, thread_id(), j0 + BK, last, next, next + KEY_TILE),
                        copy_commit();
                }
                Tiles::store(fetched, thread_id(), next, next + KEY_TILE);
                if (KV_STAGES == 2) stage ^= 1;
            }
        }

        // Results pass through the wave's own rows of the queries' tile, so that 16 bytes are
        // stored at a time.
        wave_sync();
        UNROLL for (u32 i = 0; i < MI; i++) {
            float inverse[MMA_ROWS];
            UNROLL for (u32 r = 0; r < MMA_ROWS; r++)
                inverse[r] =
                    1.0f / Scores<S>::all_shares(most[i][r], group_sum(sum[i][r], MMA_ROW_LANES),
                                                 args.sinks, head, 0.0f);
            UNROLL for (u32 n = 0; n < ON; n++)
                UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                    u32 col = n * MMA_N + acc_col(e);
                    if (ON * MMA_N == OUT_DIM || col < OUT_DIM)
                        qs[kv_tile_at(BQ, wave_row + i * MMA_M + acc_row(e), col)] =
                            (u16)pack_input(out[i][n].v[e] * inverse[acc_slot(e)], 0.0f);
                }
        }
        wave_sync();
        for (u32 c = lane_id(); c < MI * MMA_M * (OUT_DIM / 8); c += KJ_WAVE) {
            u32 row = wave_row + c / (OUT_DIM / 8), col = c % (OUT_DIM / 8) * 8, t = q0 + row,
                to = head * HEAD_DIM + out0 + col;
            if (t < args.tokens)
                *(u32x4*)(args.y + ((u64)(t / 64) * OUT_TILES + to / 64) * 4096 +
                          tile_at(t % 64, to % 64)) = load16(qs + kv_tile_at(BQ, row, col));
        }
        if (S::HEADS * HEAD_DIM % 64 != 0 && head == S::HEADS - 1)  // zeros after the last head
            for (u32 c = lane_id(); c < MI * MMA_M * (8 - S::HEADS * HEAD_DIM % 64 / 8);
                 c += KJ_WAVE) {
                constexpr u32 n = 8 - S::HEADS * HEAD_DIM % 64 / 8;
                u32 t = q0 + wave_row + c / n, to = S::HEADS * HEAD_DIM + c % n * 8;
                if (t < args.tokens)
                    *(u32x4*)(args.y + ((u64)(t / 64) * OUT_TILES + to / 64) * 4096 +
                              tile_at(t % 64, to % 64)) = u32x4{0, 0, 0, 0};
            }
    }
};
