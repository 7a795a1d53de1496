// flash_wgmma: the attention of flash.h for sm_90a, with the same arguments, on the asynchronous
// matrix units.
//
// Two groups of four warps have 64 tokens each of one head. Scores, softmax and result are in
// registers, and probabilities are a register operand of the second product. Four other warps fill
// two stages of BK keys and values. While one group computes its softmax, the other multiplies.
//
// S: HEADS, KV_HEADS, SCALE, SOFT_CAP (flash.h), BK, FILL_REGS, MULTIPLY_REGS, and as for scores.h
// and kv.h with HEAD_DIM 64, 80, 96, 128 or 256. KJ_BLOCK is 384. Share: x of ⌈tokens/128⌉, y the
// head.
#pragma once
#include "flash_args.h"
#include "hopper.h"
#include "kv_tiles.h"

template <class S> struct FlashWgmma {
    using K = Kv<S>;
    static constexpr u32 HEAD_DIM = S::HEAD_DIM, BK = S::BK;
    using Tiles = KvTiles<S, BK, 128>;
    static_assert(KJ_BLOCK == 384 && HEAD_DIM % 16 == 0, "roles");
    // Width of a row: HEAD_DIM rounded up to tiles of 64 columns. Columns after HEAD_DIM are not
    // read.
    static constexpr u32 WIDE = CEIL_DIV(HEAD_DIM, 64) * 64;
    static constexpr u32 KEY_TILE = BK * WIDE;  // number of f16
    static constexpr u32 OUT_TILES = CEIL_DIV(S::HEADS * HEAD_DIM, 64);
    // bytes of dynamic shared memory
    static constexpr u32 POOL = 1024 + (128 * WIDE + 4 * KEY_TILE) * 2;

    struct Shared { u64 full[2], empty[2]; };

    // `pool`: POOL bytes of shared memory.
    template <class Before> STEP void step(FlashArgs args, Share share, u8* pool, Shared& lds) {
        u16* qs = (u16*)(pool + (1024 - shared_at(pool) % 1024) % 1024);  // 2 × 64 × WIDE
        u16* ks = qs + 128 * WIDE;                                    // 2 × (keys, values)
        if (thread_id() == 0) {
            for (u32 s = 0; s < 2; s++)
                barrier_init(lds.full + s, 128), barrier_init(lds.empty + s, 8);
            barrier_fence_init();
        }
        block_sync();
        Before::release();
        Before::wait();

        const u32 past = args.position[0];
        // The rows with the most keys come first.
        const u32 head = share.y, q0 = (CEIL_DIV(args.tokens, 128) - 1 - share.x) * 128;
        // End of the keys that any row sees, and of the keys that all rows see.
        const u32 last = past + min_u32(q0 + 128, args.tokens), seen = past + q0 + 1;
        const u32 from = Scores<S>::seen_from(seen - 1) / BK * BK;

        if (thread_id() < 128) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::FILL_REGS));
            const KvHead kv{args.keys, args.values, (u64)S::KV_HEADS * stretch(args.capacity),
                            (u64)(head / (S::HEADS / S::KV_HEADS)) * stretch(args.capacity),
                            Pages{PAGED(args.table)}};
            typename Tiles::Fetched fetched;
            u32 i = 0;
            if (K::BYTES) Tiles::fetch(fetched, kv, thread_id(), from, last, ks, ks);
            for (u32 j0 = from; j0 < last; j0 += BK, i++) {
                u32 s = i % 2;
                u16* k = ks + s * 2 * KEY_TILE;
                barrier_wait(lds.empty + s, (i / 2 + 1) % 2);
                if (K::BYTES) {
                    Tiles::store(fetched, thread_id(), k, k + KEY_TILE);
                    if (j0 + BK < last)
                        Tiles::fetch(fetched, kv, thread_id(), j0 + BK, last, ks, ks);
                    fence_async();
                    barrier_arrive(lds.full + s);
                } else {
                    Tiles::fetch(fetched, kv, thread_id(), j0, last, k, k + KEY_TILE);
                    fence_async();
                    barrier_arrive_copied(lds.full + s);
                }
            }
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::MULTIPLY_REGS));
            const u32 group = thread_id() / 128 - 1, t = thread_id() % 128, lane = t % 32;
            u16* mine = qs + group * 64 * WIDE;
            constexpr float log2e = 1.4426950408889634f;
            const float factor =
                S::SOFT_CAP > 0 ? S::SCALE / S::SOFT_CAP * 2.0f * log2e : S::SCALE * log2e;
            for (u32 c = t; c < 64 * (HEAD_DIM / 8); c += 128) {
                u32 row = c / (HEAD_DIM / 8), col = c % (HEAD_DIM / 8) * 8;
                const float* p =
                    args.q +
                    ((u64)min_u32(q0 + group * 64 + row, args.tokens - 1) * S::HEADS + head) *
                        HEAD_DIM +
                    col;
                *(u32x4*)(mine + kv_tile_at(64, row, col)) =
                    scaled_inputs(load16(p), load16(p + 4), factor);
            }
            fence_async();
            part_sync(group + 1, 128);

            float out[HEAD_DIM / 2], most[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};
            UNROLL for (u32 e = 0; e < HEAD_DIM / 2; e++) out[e] = 0.0f;
            // Position of the lane's first row.
            const u32 row0 = past + q0 + group * 64 + t / 32 * 16 + lane / 4;
            float slope = 0.0f;
            if constexpr (S::ALIBI != 0.0f) slope = Scores<S>::slope(head);
            u32 i = 0;
            for (u32 j0 = from; j0 < last; j0 += BK, i++) {
                u32 s = i % 2;
                const u16* kt = ks + s * 2 * KEY_TILE;
                barrier_wait(lds.full + s, i / 2 % 2);
                fence_async();  // makes these copies visible to the matrix units
                float score[BK / 2];
                products_fence();
                UNROLL for (u32 d = 0; d < HEAD_DIM; d += 16)
                    products<BK>(score, tile_descriptor(mine + d / 64 * 4096, d % 64),
                                 tile_descriptor(kt + d / 64 * (BK * 64), d % 64), d > 0);
                products_commit();
                products_wait(0);

                if (S::SOFT_CAP > 0)
                    UNROLL for (u32 e = 0; e < BK / 2; e++)
                        score[e] = S::SOFT_CAP * log2e * soften(score[e]);
                const bool inside =
                    j0 + BK <= past + q0 + group * 64 + 1 &&
                    (S::WINDOW == 0 || j0 + S::WINDOW >= past + q0 + group * 64 + 64) &&
                    (S::CHUNK == 0 || j0 >= Scores<S>::seen_from(past + q0 + group * 64 + 63));
                if constexpr (S::ALIBI != 0.0f)
                    UNROLL for (u32 e = 0; e < BK / 2; e++)
                        score[e] -= Scores<S>::lost(slope, row0 + e / 2 % 2 * 8,
                                                    j0 + e / 4 * 8 + lane % 4 * 2 + e % 2);
                if (!inside)
                    UNROLL for (u32 e = 0; e < BK / 2; e++) {
                        u32 j = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2, p = row0 + e / 2 % 2 * 8;
                        if (j > p || (S::WINDOW > 0 && j + S::WINDOW <= p) ||
                            (S::CHUNK != 0 && j < Scores<S>::seen_from(p)))
                            score[e] = -2e30f;
                    }
                float high[2] = {most[0], most[1]};
                UNROLL for (u32 e = 0; e < BK / 2; e++)
                    high[e / 2 % 2] = max_f32(high[e / 2 % 2], score[e]);
                UNROLL for (u32 r = 0; r < 2; r++) {
                    high[r] = group_max(high[r], 4);
                    float shrink = exp2_hw(most[r] - high[r]);
                    most[r] = high[r];
                    sum[r] *= shrink;
                    UNROLL for (u32 e = 0; e < HEAD_DIM / 4; e++)
                        out[e / 2 * 4 + 2 * r + e % 2] *= shrink;
                }
                u32 p[BK / 16][4];
                UNROLL for (u32 e = 0; e < BK / 2; e += 2) {
                    u32 r = e / 2 % 2;
                    float a = exp2_hw(score[e] - high[r]), b = exp2_hw(score[e + 1] - high[r]);
                    sum[r] += a + b;
                    p[e / 8][e / 2 % 4] = pack_input(a, b);
                }
                products_fence();
                UNROLL for (u32 k = 0; k < BK; k += 16)
                    products_held<HEAD_DIM>(out, p[k / 16],
                                            transposed_descriptor(kt + KEY_TILE, k, BK), 1);
                products_commit();
                products_wait(0);
                if (lane == 0) barrier_arrive(lds.empty + s);
            }

            // Results pass through this group's rows of the queries, so that 16 bytes are stored at
            // a time.
            part_sync(group + 1, 128);
            UNROLL for (u32 r = 0; r < 2; r++) {
                float inverse = 1.0f / Scores<S>::all_shares(most[r], group_sum(sum[r], 4),
                                                             args.sinks, head, 0.0f);
                UNROLL for (u32 n = 0; n < HEAD_DIM / 8; n++)
                    *(u32*)(mine +
                            kv_tile_at(64, t / 32 * 16 + lane / 4 + 8 * r, n * 8 + lane % 4 * 2)) =
                        pack_input(out[4 * n + 2 * r] * inverse, out[4 * n + 2 * r + 1] * inverse);
            }
            part_sync(group + 1, 128);
            for (u32 c = t; c < 64 * (HEAD_DIM / 8); c += 128) {
                u32 row = c / (HEAD_DIM / 8), col = c % (HEAD_DIM / 8) * 8,
                    token = q0 + group * 64 + row, to = head * HEAD_DIM + col;
                if (token < args.tokens)
                    *(u32x4*)(args.y + ((u64)(token / 64) * OUT_TILES + to / 64) * 4096 +
                              tile_at(token % 64, to % 64)) =
                        load16(mine + kv_tile_at(64, row, col));
            }
            // zeros after the last head
            if (S::HEADS * HEAD_DIM % 64 != 0 && head == S::HEADS - 1)
                for (u32 c = t; c < 64 * (8 - S::HEADS * HEAD_DIM % 64 / 8); c += 128) {
                    constexpr u32 n = 8 - S::HEADS * HEAD_DIM % 64 / 8;
                    u32 token = q0 + group * 64 + c / n, to = S::HEADS * HEAD_DIM + c % n * 8;
                    if (token < args.tokens)
                        *(u32x4*)(args.y + ((u64)(token / 64) * OUT_TILES + to / 64) * 4096 +
                                  tile_at(token % 64, to % 64)) = u32x4{0, 0, 0, 0};
                }
        }
    }
};
