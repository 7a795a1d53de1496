// gemm: Y[t, r] = Σ_k X[t, k] · W[r, k] for all tokens of a prompt or a batch. W has any block
// format, products use the matrix units, sums are f32. Then bias, residual or a gated unit.
//
//   x    tokens × COLS f16 in *tiles*: blocks of 64 tokens × 64 columns (mma.h's tile: 8 KiB),
//        K_TILES = ⌈COLS/64⌉ blocks for each 64 tokens. Columns after COLS are zero; rows after
//        `tokens` are allocated but may hold anything
//   w0…  row records (layout.rs), one matrix per segment; with EXPERTS > 1 EXPERTS matrices one
//        after another
//   b0…  f32, rows
//   y0…  Results::Singles: f32, tokens × rows; Results::Tiles: tiles like x, of the segment's rows
//   residual     f32, tokens × rows, added; may be y0
//   parts        with splits > 1: f32[tiles · splits · BM · BN]
//   counters     with splits > 1: one u32 per tile, zero before and after a launch
//   tile_expert  with EXPERTS > 1: the expert of each block of BM tokens, or ~0: no work
//   token_tiles, tiles, blocks   only for gemm_wgmma
//
// A block computes BM tokens × BN rows. A step is 64·KB columns. Weights are loaded into registers
// AHEAD steps before their use, and expanded to f16 in shared memory one step before; X is loaded
// X_STAGES − 1 steps before. Blocks that share weights are neighbours in x, so weights are read
// from device memory once. With a gate, sixteen rows of the gate alternate with the same rows of
// the other matrix, so one block has both.
//
// S: BM, BN, WM, WN (waves over tokens, over rows), KB, AHEAD, X_STAGES, COLS, SEGMENTS, ROWS_0 …
// ROWS_2, Run0 … Run2 (formats), RUN_1, RUN_2 (the segment at which Run1, Run2 begins, or
// SEGMENTS), BIASES (one bit per segment), RESIDUAL, GATE, OUT, EXPERTS. Share: x of tokens ÷ BM, y
// of Σ rows ÷ BN, z of `splits`.
#pragma once
#include "dequant.h"
#include "gemm_common.h"

template <class S> struct Gemm {
    using G = GemmCommon<S>;
    static constexpr u32 COLS = S::COLS, BN = S::BN, K_TILES = G::K_TILES;
    static constexpr u32 BM = S::BM, WM = S::WM, WN = S::WN, KB = S::KB, AHEAD = S::AHEAD,
                         X_STAGES = S::X_STAGES;
    static constexpr u32 MI = BM / WM / MMA_M, NI = BN / WN / MMA_N;       // products per wave
    // Number of steps, and of spans of 32 weights per row and step.
    static constexpr u32 STEPS = CEIL_DIV(K_TILES, KB), SPANS = 2 * KB;
    static constexpr u32 EACH = BN * SPANS / KJ_BLOCK;                    // spans per thread
    static_assert(MI * WM * MMA_M == BM && NI * WN * MMA_N == BN && WM * WN == kj_waves,
                  "waves tile the block");
    static_assert(EACH * KJ_BLOCK == BN * SPANS, "threads share the weights evenly");
    static_assert(!G::GATED || BN / WN % 32 == 0, "a wave has both rows of a gated unit");

    template <class W>
    STEP void gemm_part(GemmArgs args, Share share, u8* pool, Part part, u32 expert) {
        const u32 tokens = args.tokens, splits = args.splits;
        u16* xs = (u16*)pool;                    // X_STAGES × KB × BM × 64
        u16* ws = xs + X_STAGES * KB * BM * 64;  // 2 × KB × BN × 64

        u32 token0 = share.x * BM;
        u32 per = CEIL_DIV(STEPS, splits), from = min_u32(share.z * per, STEPS),
            to = min_u32(from + per, STEPS);

        const u8* row[EACH];
        Span<W> raw[AHEAD][EACH];
        UNROLL for (u32 i = 0; i < EACH; i++)
            row[i] = G::template part_row<W>(part, (thread_id() + i * KJ_BLOCK) / SPANS, expert);
        const u16* xt = args.x + (u64)(token0 / 64) * K_TILES * 4096 + token0 % 64 * 64;

        // Position of this thread's span i: SPANS neighbouring threads share a row, so that a row
        // is read in the longest possible ranges.
        auto span = [&](u32 i) { return (thread_id() + i * KJ_BLOCK) % SPANS; };
        auto inside = [&](u32 p) { return COLS % (64 * KB) == 0 || 32 * p < COLS; };
        auto fetch = [&](Span<W>(&q)[EACH], u32 step) {
            if (step < to)
                UNROLL for (u32 i = 0; i < EACH; i++)
                    if (inside(SPANS * step + span(i)))
                        fetch_span<W>(q[i], row[i], SPANS * step + span(i));
        };
        // In tile b of a step, row r is at r ^ b (within eight), so that neighbouring threads store
        // to different banks.
        auto expand = [&](const Span<W>(&q)[EACH], u32 step) {
            UNROLL for (u32 i = 0; i < EACH; i++) {
                u32 p = span(i), r = (thread_id() + i * KJ_BLOCK) / SPANS ^ (KB > 1 ? p / 2 : 0);
                u16* tile = ws + (step % 2 * KB + p / 2) * (BN * 64);
                if (inside(SPANS * step + p)) expand_span<W>(q[i], tile, r, p % 2 * 4);
                else zero_span(tile, r, p % 2 * 4);
            }
        };
        auto copy_x = [&](u32 step, u32 slot) {
            if (step < to) {
                u16* dest = xs + slot * (KB * BM * 64);
                UNROLL for (u32 c = thread_id(); c < KB * BM * 8; c += KJ_BLOCK) {
                    u32 kt = min_u32(step * KB + c / (BM * 8), K_TILES - 1), chunk = c % (BM * 8);
                    copy16(dest + c * 8,
                           xt + ((u64)(chunk / 512) * K_TILES + kt) * 4096 + chunk % 512 * 8);
                }
            }
            copy_commit();
        };

        FragC acc[MI][NI];
        UNROLL for (u32 i = 0; i < MI; i++)
            UNROLL for (u32 j = 0; j < NI; j++) acc_zero(acc[i][j]);
        UNROLL for (u32 a = 0; a < AHEAD; a++) fetch(raw[a], from + a);
        UNROLL for (u32 s = 0; s + 1 < X_STAGES; s++) copy_x(from + s, s);
        if (from < to) expand(raw[0], from);
        fetch(raw[0], from + AHEAD);

        u32 wave_row = wave_id() % WM * (BM / WM), wave_col = wave_id() / WM * (BN / WN), slot = 0;
        for (u32 first = from; first < to; first += AHEAD)
            UNROLL for (u32 a = 0; a < AHEAD; a++) {
                u32 step = first + a;
                if (step >= to) break;
                copy_wait(X_STAGES - 2);
                block_sync();  // this step has arrived, and all waves have read the previous one
                copy_x(step + X_STAGES - 1, slot == 0 ? X_STAGES - 1 : slot - 1);
                if (step + 1 < to) {
                    expand(raw[(a + 1) % AHEAD], step + 1);
                    fetch(raw[(a + 1) % AHEAD], step + 1 + AHEAD);
                }
                UNROLL for (u32 b = 0; b < KB; b++) {
                    const u16* xa = xs + (slot * KB + b) * (BM * 64);
                    const u16* wb = ws + (step % 2 * KB + b) * (BN * 64);
                    MMA_UNROLL for (u32 k = 0; k < 64; k += MMA_K) {
                        FragA fa[MI];
                        UNROLL for (u32 i = 0; i < MI; i++)
                            load_a(fa[i], xa, wave_row + i * MMA_M, k);
                        UNROLL for (u32 j = 0; j < NI; j++) {
                            FragB fb;
                            load_b(fb, wb, wave_col + j * MMA_N, k, b);
                            UNROLL for (u32 i = 0; i < MI; i++) mma(acc[i][j], fa[i], fb);
                        }
                    }
                }
                slot = slot + 1 == X_STAGES ? 0 : slot + 1;
            }
        copy_wait(0);
        products_settle();

        if (splits > 1) {  // adds partial sums, always in the same order
            u32 tiles = (tokens + BM - 1) / BM, tile = share.y * tiles + share.x;
            constexpr u32 block_acc = MI * NI * MMA_ACC * KJ_BLOCK;
            float* mine = args.parts + ((u64)tile * splits + share.z) * block_acc + thread_id();
            UNROLL for (u32 i = 0; i < MI; i++)
                UNROLL for (u32 j = 0; j < NI; j++) UNROLL
                    for (u32 e = 0; e < MMA_ACC; e++)
                        mine[((i * NI + j) * MMA_ACC + e) * KJ_BLOCK] = acc[i][j].v[e];
            if (!last_block(args.counters + tile, splits)) return;
            UNROLL for (u32 i = 0; i < MI; i++)
                UNROLL for (u32 j = 0; j < NI; j++) acc_zero(acc[i][j]);
            for (u32 s = 0; s < splits; s++) {
                const float* p = args.parts + ((u64)tile * splits + s) * block_acc + thread_id();
                UNROLL for (u32 i = 0; i < MI; i++)
                    UNROLL for (u32 j = 0; j < NI; j++) UNROLL
                        for (u32 e = 0; e < MMA_ACC; e++)
                            acc[i][j].v[e] += p[((i * NI + j) * MMA_ACC + e) * KJ_BLOCK];
            }
        }

        // Results pass through shared memory, sixteen tokens of a wave at a time, so that whole
        // lines are stored.
        constexpr u32 wide = BN / WN + 4;
        block_sync();  // all waves have read the tiles
        float* stage = (float*)pool + wave_id() * (MMA_M * wide);
        UNROLL for (u32 i = 0; i < MI; i++) {
            wave_sync();
            UNROLL for (u32 j = 0; j < NI; j++) UNROLL
                for (u32 e = 0; e < MMA_ACC; e++)
                    stage[acc_row(e) * wide + j * MMA_N + acc_col(e)] = acc[i][j].v[e];
            wave_sync();
            u32 token = token0 + wave_row + i * MMA_M;
            G::finish_rows(part, stage, wide, MMA_M, BN / WN, wave_col, token, tokens,
                           args.residual, lane_id(), KJ_WAVE);
        }
    }

    // `pool`: shared memory, the larger of X_STAGES × KB × BM × 64 + 2 × KB × BN × 64 f16 and
    // results of 16 tokens.
    STEP void step(GemmArgs a, Share share, u8* pool) {
        u32 expert = S::EXPERTS > 1 ? a.tile_expert[share.x] : 0, tile = share.y;
        if (expert == ~0u) return;
        Part part = G::part_of(a, tile);
        if (tile < G::RUN_1) return gemm_part<typename S::Run0>(a, share, pool, part, expert);
        if constexpr (G::SECOND)
            if (tile < G::RUN_2) return gemm_part<typename S::Run1>(a, share, pool, part, expert);
        if constexpr (G::THIRD) gemm_part<typename S::Run2>(a, share, pool, part, expert);
    }
};
