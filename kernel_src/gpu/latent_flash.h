// latent_flash: attention of a prompt's new tokens to latents (latent.h) on matrix units, with
// online softmax (flash.h).
//
//   q         TOKENS × HEADS × HEAD_DIM f32
//   out       TOKENS × HEADS × RANK f32
//   rows      a cache (kv.h) of one head of `capacity` positions, including these tokens' rows; or
//             the pages of table (paged.h)
//   position  u32: number of tokens before these
//   chosen    only with KJ_CHOSEN (chosen.h)
//
// All heads read the same keys, so the heads of successive tokens are the rows of one product: row
// r of TOKENS·HEADS sees the positions that token r / HEADS sees. A block has BQ of these rows. A
// tile of BK positions in shared memory is both key and value. The result has too many columns for
// one wave, so WAVES_N waves share MI·MMA_M rows. Each of them computes the scores of some
// positions and the maximum of its rows. Maxima and probabilities are exchanged through shared
// memory. Then each wave multiplies all probabilities with its own columns. With chosen positions
// (chosen.h) all rows of a block belong to one token.
//
// S: HEADS, RANK, MI, BK, WAVES_N, STAGES (1 or 2 tiles in shared memory), and as for kv.h. Share:
// x of ⌈TOKENS·HEADS / BQ⌉ or more; with chosen positions of TOKENS·⌈HEADS / BQ⌉.
#pragma once
#include "chosen.h"
#include "flash_args.h"
#include "kv_tiles.h"
#include "mma.h"

struct LatentFlashArgs {
    const float* q;
    const u8* rows;
    const u32* position;
    float* out;
    float scale;
    u32 tokens, capacity;
    PAGED(const u32* table;)
    CHOSEN(const u32* chosen;)
};

template <class S> struct LatentFlash {
    using Tiles = KvTiles<S, S::BK, KJ_BLOCK, 1>;
    static constexpr u32 HEADS = S::HEADS, HEAD_DIM = S::HEAD_DIM, RANK = S::RANK, MI = S::MI,
                         BK = S::BK, STAGES = S::STAGES, WAVES_N = S::WAVES_N;
    static constexpr u32 BQ = kj_waves / WAVES_N * MI * MMA_M;
    static constexpr u32 D_BLOCKS = CEIL_DIV(HEAD_DIM, 64), P_BLOCKS = CEIL_DIV(BK, 64);
    static constexpr u32 DK = HEAD_DIM / MMA_K;            // steps of depth of a score
    // Number of products per row: all scores, the scores of a wave, the results of a wave.
    static constexpr u32 SN = BK / MMA_N, SE = CEIL_DIV(SN, WAVES_N);
    static constexpr u32 RN = RANK / MMA_N, ON = CEIL_DIV(RN, WAVES_N);
    static constexpr u32 SCORERS = SN / SE;                // waves that compute scores
    static constexpr u32 TILE = D_BLOCKS * BK * 64;        // number of f16
    static_assert(kj_waves % WAVES_N == 0 && DK * MMA_K == HEAD_DIM && RN * MMA_N == RANK &&
                      SN * MMA_N == BK && SCORERS * SE == SN && BK % MMA_K == 0,
                  "whole products");
    // Bytes of dynamic shared memory.
    static constexpr u32 POOL =
        ((D_BLOCKS + P_BLOCKS) * BQ * 64 + STAGES * TILE) * 2 + WAVES_N * BQ * 4;

    // `pool`: POOL bytes of shared memory.
    STEP void step(LatentFlashArgs a, Share share, u8* pool) {
        u16* qs = (u16*)pool;                     // BQ × HEAD_DIM
        u16* ks = qs + D_BLOCKS * BQ * 64;        // STAGES × BK × HEAD_DIM
        u16* ps = ks + STAGES * TILE;             // BQ × BK: probabilities
        float* told = (float*)(ps + P_BLOCKS * BQ * 64);  // WAVES_N × BQ

        constexpr u32 PER = CEIL_DIV(HEADS, BQ);  // blocks of a token with KJ_CHOSEN
        const u32 past = a.position[0], token = share.x / PER;
        const u32 all = kj_chosen != 0 ? (token + 1) * HEADS : a.tokens * HEADS;
        if (kj_chosen != 0 ? token >= a.tokens : share.x >= CEIL_DIV(all, BQ)) return;
        // The rows with the most keys come first, because blocks start in order.
        const u32 q0 = kj_chosen != 0 ? token * HEADS + share.x % PER * BQ
                                      : (CEIL_DIV(all, BQ) - 1 - share.x) * BQ;
        // End of the positions that any row sees, and of those that the first row sees.
        const u32 last = kj_chosen != 0 ? chosen_of(past + token + 1)
                                        : past + (min_u32(q0 + BQ, all) - 1) / HEADS + 1;
        const u32 seen = kj_chosen != 0 ? last : past + q0 / HEADS + 1;

        const float factor = a.scale * 1.4426950408889634f;
        for (u32 c = thread_id(); c < BQ * (HEAD_DIM / 8); c += KJ_BLOCK) {
            u32 row = c / (HEAD_DIM / 8), col = c % (HEAD_DIM / 8) * 8;
            const float* p = a.q + (u64)min_u32(q0 + row, all - 1) * HEAD_DIM + col;
            *(u32x4*)(qs + kv_tile_at(BQ, row, col)) =
                scaled_inputs(load16(p), load16(p + 4), factor);
        }

        const KvHead kv{a.rows, a.rows, stretch(a.capacity), 0, Pages{PAGED(a.table)},
                        Chosen{CHOSEN(chosen_by(a.chosen, token))}};
        const u32 wave_n = wave_id() % WAVES_N, wave_row = wave_id() / WAVES_N * (MI * MMA_M);
        const bool scores = wave_n < SCORERS;
        const u32 key0 = wave_n * SE * MMA_N;
        FragC out[MI][ON];
        float most[MI][MMA_ROWS], sum[MI][MMA_ROWS];
        UNROLL for (u32 i = 0; i < MI; i++) {
            UNROLL for (u32 n = 0; n < ON; n++) acc_zero(out[i][n]);
            UNROLL for (u32 r = 0; r < MMA_ROWS; r++) most[i][r] = -1e30f, sum[i][r] = 0.0f;
        }

        u32 stage = 0;
        typename Tiles::Fetched fetched;
        Tiles::fetch(fetched, kv, thread_id(), 0, last, ks, ks), copy_commit();
        Tiles::store(fetched, thread_id(), ks, ks);
        NO_UNROLL for (u32 j0 = 0; j0 < last; j0 += BK) {
            copy_wait(0);
            block_sync();  // this tile has arrived, and all waves have read the previous one
            const u16* kt = ks + stage * TILE;
            u16* next = ks + (STAGES == 2 ? stage ^ 1 : 0) * TILE;
            if (STAGES == 2 && j0 + BK < last)
                Tiles::fetch(fetched, kv, thread_id(), j0 + BK, last, next, next), copy_commit();

            FragC s[MI][SE];
            if (scores) {
                UNROLL for (u32 i = 0; i < MI; i++)
                    UNROLL for (u32 n = 0; n < SE; n++) acc_zero(s[i][n]);
                FLASH_DEPTH for (u32 d = 0; d < DK; d++) {
                    FragA x[MI];
                    UNROLL for (u32 i = 0; i < MI; i++)
                        load_a(x[i], qs + d * MMA_K / 64 * BQ * 64, wave_row + i * MMA_M,
                               d * MMA_K % 64);
                    UNROLL for (u32 n = 0; n < SE; n++) {
                        FragB b;
                        load_b(b, kt + d * MMA_K / 64 * BK * 64, key0 + n * MMA_N, d * MMA_K % 64);
                        UNROLL for (u32 i = 0; i < MI; i++) mma(s[i][n], x[i], b);
                    }
                }
                products_settle();
                if (j0 + BK > seen)
                    UNROLL for (u32 i = 0; i < MI; i++)
                        UNROLL for (u32 n = 0; n < SE; n++)
                            UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                                u32 row = q0 + wave_row + i * MMA_M + acc_row(e);
                                if (j0 + key0 + n * MMA_N + acc_col(e) >
                                    (kj_chosen != 0 ? last - 1 : past + row / HEADS))
                                    s[i][n].v[e] = -2e30f;
                            }
                UNROLL for (u32 i = 0; i < MI; i++) {
                    float high[MMA_ROWS];
                    UNROLL for (u32 r = 0; r < MMA_ROWS; r++) high[r] = most[i][r];
                    UNROLL for (u32 n = 0; n < SE; n++) UNROLL
                        for (u32 e = 0; e < MMA_ACC; e++)
                            high[acc_slot(e)] = max_f32(high[acc_slot(e)], s[i][n].v[e]);
                    UNROLL for (u32 r = 0; r < MMA_ROWS; r++) {
                        high[r] = group_max(high[r], MMA_ROW_LANES);
                        if (lane_id() % MMA_ROW_LANES == 0)
                            told[wave_n * BQ + wave_row + i * MMA_M + slot_row(r)] = high[r];
                    }
                }
            }
            block_sync();
            UNROLL for (u32 i = 0; i < MI; i++) {
                float shrink[MMA_ROWS];
                UNROLL for (u32 r = 0; r < MMA_ROWS; r++) {
                    const float* row = told + wave_row + i * MMA_M + slot_row(r);
                    float high = row[0];
                    UNROLL for (u32 w = 1; w < SCORERS; w++) high = max_f32(high, row[w * BQ]);
                    shrink[r] = exp2_hw(most[i][r] - high);
                    most[i][r] = high;
                    sum[i][r] *= shrink[r];
                }
                UNROLL for (u32 n = 0; n < ON; n++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++) out[i][n].v[e] *= shrink[acc_slot(e)];
                if (scores)
                    UNROLL for (u32 n = 0; n < SE; n++)
                        UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                            float p = exp2_hw(s[i][n].v[e] - most[i][acc_slot(e)]);
                            sum[i][acc_slot(e)] += p;
                            u32 row = wave_row + i * MMA_M + acc_row(e);
                            ps[kv_tile_at(BQ, row, key0 + n * MMA_N + acc_col(e))] =
                                (u16)pack_input(p, 0.0f);
                        }
            }
            block_sync();
            FLASH_DEPTH for (u32 k = 0; k < BK / MMA_K; k++) {
                FragA x[MI];
                UNROLL for (u32 i = 0; i < MI; i++)
                    load_a(x[i], ps + k * MMA_K / 64 * BQ * 64, wave_row + i * MMA_M,
                           k * MMA_K % 64);
                UNROLL for (u32 n = 0; n < ON; n++) {
                    const u32 col = column(wave_n, n);
                    FragB b;
                    load_b_t(b, kt + col / 64 * BK * 64, k * MMA_K, col % 64);
                    UNROLL for (u32 i = 0; i < MI; i++) mma(out[i][n], x[i], b);
                }
            }
            products_settle();

            if (j0 + BK < last) {
                if (STAGES == 1) {
                    block_sync();
                    Tiles::fetch(fetched, kv, thread_id(), j0 + BK, last, next, next),
                        copy_commit();
                }
                Tiles::store(fetched, thread_id(), next, next);
                if (STAGES == 2) stage ^= 1;
            }
        }

        // Sums each row over all waves.
        UNROLL for (u32 i = 0; i < MI; i++)
            UNROLL for (u32 r = 0; r < MMA_ROWS; r++) {
                float mine = group_sum(sum[i][r], MMA_ROW_LANES);
                if (lane_id() % MMA_ROW_LANES == 0)
                    told[wave_n * BQ + wave_row + i * MMA_M + slot_row(r)] = mine;
            }
        block_sync();
        UNROLL for (u32 i = 0; i < MI; i++) {
            float inverse[MMA_ROWS];
            UNROLL for (u32 r = 0; r < MMA_ROWS; r++) {
                const float* row = told + wave_row + i * MMA_M + slot_row(r);
                float total = row[0];
                UNROLL for (u32 w = 1; w < SCORERS; w++) total += row[w * BQ];
                inverse[r] = 1.0f / total;
            }
            UNROLL for (u32 n = 0; n < ON; n++) {
                if (RN % WAVES_N != 0 && wave_n * ON + n >= RN) break;
                UNROLL for (u32 e = 0; e < MMA_ACC; e++) {
                    u32 row = q0 + wave_row + i * MMA_M + acc_row(e);
                    if (row < all)
                        a.out[(u64)row * RANK + column(wave_n, n) + acc_col(e)] =
                            out[i][n].v[e] * inverse[acc_slot(e)];
                }
            }
        }
    }

    // First column of a wave's n-th product. If there are fewer products, that of the last one.
    STEP u32 column(u32 wave_n, u32 n) {
        u32 at = wave_n * ON + n;
        return (RN % WAVES_N != 0 ? min_u32(at, RN - 1) : at) * MMA_N;
    }
};
