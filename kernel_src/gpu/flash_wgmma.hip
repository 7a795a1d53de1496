// flash_wgmma: flash.hip's attention for sm_90a, same arguments, on the asynchronous matrix units.
//
// Twice four warps have 64 tokens each of one head, with scores, softmax and result in registers; probabilities go into the second
// product from there. Four other warps fill two stages of BK keys and values. While one group is at its softmax, the other multiplies.
//
// Constants: HEADS, SCALE, SOFT_CAP, WINDOW (flash.hip), BK, FILL_REGS, MULTIPLY_REGS, KJ_BLOCK = 384, and kv.h's with HEAD_DIM 64, 80,
// 96, 128 or 256.
// Grid: (⌈tokens/128⌉, HEADS).
#include "hopper.h"
#include "kv_tiles.h"

static_assert(KJ_BLOCK == 384 && HEAD_DIM % 16 == 0, "roles");
constexpr u32 WIDE = CEIL_DIV(HEAD_DIM, 64) * 64;  // of tiles: those of 64 columns side by side; what is behind HEAD_DIM is not read
constexpr u32 KEY_TILE = BK * WIDE;                // halves
constexpr u32 OUT_TILES = CEIL_DIV(HEADS * HEAD_DIM, 64);

// cap · tanh(s / cap); the argument is s / cap · log2(e)·2, so that e^2x is one instruction.
STEP float soften(float x) { return 1.0f - 2.0f * rcp_hw(exp2_hw(x) + 1.0f); }

KERNEL flash_wgmma(const float* q, const u8* keys, const u8* values, u16* y, const u32* position, u32 tokens, u32 capacity) {
    LDS_DYNAMIC(pool);
    LDS_ARRAY(u64, full, 2);
    LDS_ARRAY(u64, empty, 2);
    u16* qs = (u16*)(pool + (1024 - shared_at(pool) % 1024) % 1024);  // 2 × 64 × WIDE
    u16* ks = qs + 128 * WIDE;                                    // 2 × (keys, values)
    if (thread_id() == 0) {
        for (u32 s = 0; s < 2; s++) barrier_init(full + s, 128), barrier_init(empty + s, 8);
        barrier_fence_init();
    }
    block_sync();
    launch_dependents();
    wait_for_producer();

    const u32 past = position[0];
    const u32 head = block_id_y(), q0 = (CEIL_DIV(tokens, 128) - 1 - block_id()) * 128;  // the longest rows first
    const u32 last = past + min_u32(q0 + 128, tokens), seen = past + q0 + 1;             // keys that some row, that all rows see end here
    const u32 from = WINDOW > 0 && seen > WINDOW ? (seen - WINDOW) / BK * BK : 0;

    if (thread_id() < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FILL_REGS));
        const KvHead kv{keys, values, (u64)KV_HEADS * capacity, (u64)(head / (HEADS / KV_HEADS)) * capacity};
        KvFetch<BK, 128> fetched;
        u32 i = 0;
        if (KV_TYPE == 2) kv_fetch<BK, 128>(fetched, kv, thread_id(), from, last, ks, ks);
        for (u32 j0 = from; j0 < last; j0 += BK, i++) {
            u32 s = i % 2;
            u16* k = ks + s * 2 * KEY_TILE;
            barrier_wait(empty + s, (i / 2 + 1) % 2);
            if (KV_TYPE == 2) {
                kv_store<BK, 128>(fetched, thread_id(), k, k + KEY_TILE);
                if (j0 + BK < last) kv_fetch<BK, 128>(fetched, kv, thread_id(), j0 + BK, last, ks, ks);
                fence_async();
                barrier_arrive(full + s);
            } else {
                kv_fetch<BK, 128>(fetched, kv, thread_id(), j0, last, k, k + KEY_TILE);
                fence_async();
                barrier_arrive_copied(full + s);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLY_REGS));
        const u32 group = thread_id() / 128 - 1, t = thread_id() % 128, lane = t % 32;
        u16* mine = qs + group * 64 * WIDE;
        constexpr float log2e = 1.4426950408889634f;
        const float factor = SOFT_CAP > 0 ? SCALE / SOFT_CAP * 2.0f * log2e : SCALE * log2e;
        for (u32 c = t; c < 64 * (HEAD_DIM / 8); c += 128) {
            u32 row = c / (HEAD_DIM / 8), col = c % (HEAD_DIM / 8) * 8;
            const float* p = q + ((u64)min_u32(q0 + group * 64 + row, tokens - 1) * HEADS + head) * HEAD_DIM + col;
            u32x4 a = load16(p), b = load16(p + 4);
            *(u32x4*)(mine + kv_tile_at(64, row, col)) = u32x4{pack_input(as_f32(a.x) * factor, as_f32(a.y) * factor), pack_input(as_f32(a.z) * factor, as_f32(a.w) * factor),
                                                               pack_input(as_f32(b.x) * factor, as_f32(b.y) * factor), pack_input(as_f32(b.z) * factor, as_f32(b.w) * factor)};
        }
        fence_async();
        part_sync(group + 1, 128);

        float out[HEAD_DIM / 2], most[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};
        UNROLL for (u32 e = 0; e < HEAD_DIM / 2; e++) out[e] = 0.0f;
        const u32 row0 = past + q0 + group * 64 + t / 32 * 16 + lane / 4;  // position of the lane's first row
        u32 i = 0;
        for (u32 j0 = from; j0 < last; j0 += BK, i++) {
            u32 s = i % 2;
            const u16* kt = ks + s * 2 * KEY_TILE;
            barrier_wait(full + s, i / 2 % 2);
            fence_async();  // copies were written as by ordinary stores
            float score[BK / 2];
            products_fence();
            UNROLL for (u32 d = 0; d < HEAD_DIM; d += 16)
                products<BK>(score, tile_descriptor(mine + d / 64 * 4096, d % 64), tile_descriptor(kt + d / 64 * (BK * 64), d % 64), d > 0);
            products_commit();
            products_wait(0);

            if (SOFT_CAP > 0)
                UNROLL for (u32 e = 0; e < BK / 2; e++) score[e] = SOFT_CAP * log2e * soften(score[e]);
            const bool inside = j0 + BK <= past + q0 + group * 64 + 1 && (WINDOW == 0 || j0 + WINDOW >= past + q0 + group * 64 + 64);
            if (!inside)
                UNROLL for (u32 e = 0; e < BK / 2; e++) {
                    u32 j = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2, p = row0 + e / 2 % 2 * 8;
                    if (j > p || (WINDOW > 0 && j + WINDOW <= p)) score[e] = -2e30f;
                }
            float high[2] = {most[0], most[1]};
            UNROLL for (u32 e = 0; e < BK / 2; e++) high[e / 2 % 2] = max_f32(high[e / 2 % 2], score[e]);
            UNROLL for (u32 r = 0; r < 2; r++) {
                high[r] = group_max(high[r], 4);
                float shrink = exp2_hw(most[r] - high[r]);
                most[r] = high[r];
                sum[r] *= shrink;
                UNROLL for (u32 e = 0; e < HEAD_DIM / 4; e++) out[e / 2 * 4 + 2 * r + e % 2] *= shrink;
            }
            u32 p[BK / 16][4];
            UNROLL for (u32 e = 0; e < BK / 2; e += 2) {
                u32 r = e / 2 % 2;
                float a = exp2_hw(score[e] - high[r]), b = exp2_hw(score[e + 1] - high[r]);
                sum[r] += a + b;
                p[e / 8][e / 2 % 4] = pack_input(a, b);
            }
            products_fence();
            UNROLL for (u32 k = 0; k < BK; k += 16) products_held<HEAD_DIM>(out, p[k / 16], turned_descriptor(kt + KEY_TILE, k, BK), 1);
            products_commit();
            products_wait(0);
            if (lane == 0) barrier_arrive(empty + s);
        }

        // Through this group's rows of the queries, so that results leave in pieces of 16 bytes.
        part_sync(group + 1, 128);
        UNROLL for (u32 r = 0; r < 2; r++) {
            float inverse = 1.0f / group_sum(sum[r], 4);
            UNROLL for (u32 n = 0; n < HEAD_DIM / 8; n++)
                *(u32*)(mine + kv_tile_at(64, t / 32 * 16 + lane / 4 + 8 * r, n * 8 + lane % 4 * 2)) =
                    pack_input(out[4 * n + 2 * r] * inverse, out[4 * n + 2 * r + 1] * inverse);
        }
        part_sync(group + 1, 128);
        for (u32 c = t; c < 64 * (HEAD_DIM / 8); c += 128) {
            u32 row = c / (HEAD_DIM / 8), col = c % (HEAD_DIM / 8) * 8, token = q0 + group * 64 + row, to = head * HEAD_DIM + col;
            if (token < tokens) *(u32x4*)(y + ((u64)(token / 64) * OUT_TILES + to / 64) * 4096 + tile_at(token % 64, to % 64)) = load16(mine + kv_tile_at(64, row, col));
        }
        if (HEADS * HEAD_DIM % 64 != 0 && head == HEADS - 1)  // zeros behind the last head
            for (u32 c = t; c < 64 * (8 - HEADS * HEAD_DIM % 64 / 8); c += 128) {
                constexpr u32 n = 8 - HEADS * HEAD_DIM % 64 / 8;
                u32 token = q0 + group * 64 + c / n, to = HEADS * HEAD_DIM + c % n * 8;
                if (token < tokens) *(u32x4*)(y + ((u64)(token / 64) * OUT_TILES + to / 64) * 4096 + tile_at(token % 64, to % 64)) = u32x4{0, 0, 0, 0};
            }
    }
}
