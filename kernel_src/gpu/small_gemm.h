// small_gemm: Y[t, r] = Σ_k X[t, k] · W[r, k] for a few tokens, one of each sequence. W has any
// block format: the weights are loaded from memory to registers for the matrix units, never through
// shared memory. Then bias, residual or a gated unit, as in gemm.h.
//
//   x    tokens × COLS f16 in *panels* (mma.h's panel_at): for each 8 tokens and 128 columns the
//        2 KiB that the lanes of a wave load in four loads of 16 bytes, in the order of lanes.
//        Columns after COLS and tokens after `tokens` may hold anything
//   w0…, b0…, residual   as for gemm.h
//   y0…  Results::Singles: f32, tokens × rows; Results::Panels: panels of the segment's rows
//   parts     with splits > 1: f32[tiles · splits · BM · BN]
//   counters  with splits > 1: one u32 per tile, zero before and after a launch
//
// A product may sum its columns in any order, if both operands have the same order. Lane l takes a
// span of 32 neighbouring weights (one 16-byte load of 4-bit codes) of rows l/4 and l/4 + 8. The
// four lanes of a row have adjacent spans; weights 2j and 2j + 1 of a lane's span are its share of
// product j. The activations have the same order. So a block reads only weights, and panels from
// L1.
//
// A wave has 16·ROW_TILES rows. WAVES_ROWS waves of a block have different rows of BN. The other
// waves have the same rows and different columns, and their sums are added in shared memory.
// Weights are loaded before the wait for the previous launch.
//
// S: as for gemm.h without WM, WN, KB, X_STAGES and EXPERTS (there are no experts); BM (tokens) is
// a multiple of 8, ROW_TILES, WAVES_ROWS, AHEAD (steps of 128 columns in flight). KJ_MMA is 1.
// Share: x of Σ rows ÷ BN, y of `splits`.
#pragma once
#include "dequant.h"
#include "gemm_common.h"

template <class S> struct SmallGemm {
    using G = GemmCommon<S>;
    static constexpr u32 COLS = S::COLS, BM = S::BM, BN = S::BN, AHEAD = S::AHEAD,
                         ROW_TILES = S::ROW_TILES, WAVES_ROWS = S::WAVES_ROWS;
    static constexpr u32 STEPS = CEIL_DIV(COLS, 128), SPANS = COLS / 32;
    static constexpr u32 WAVES_COLS = kj_waves / WAVES_ROWS, LANE_ROWS = 2 * ROW_TILES,
                         TOKEN_TILES = BM / 8;
    static_assert(BN == 16 * ROW_TILES * WAVES_ROWS && WAVES_ROWS * WAVES_COLS == kj_waves,
                  "waves tile the block");
    // Stride of a token's results in shared memory, padded so that neighbours are in different
    // banks.
    static constexpr u32 WIDE = BN + 4;

    // `stage`: WAVES_COLS × BM × WIDE.
    template <class W, class Before>
    STEP void product(GemmArgs args, Share share, float* stage, Part part) {
        const u32 splits = args.splits;
        u32 wave_row = wave_id() % WAVES_ROWS * (16 * ROW_TILES), wave_col = wave_id() / WAVES_ROWS,
            lane = lane_id();
        u32 per = CEIL_DIV(STEPS, splits), first = share.y * per, end = min_u32(first + per, STEPS);

        const u8* row[LANE_ROWS];
        Span<W> raw[AHEAD][LANE_ROWS];
        UNROLL for (u32 r = 0; r < LANE_ROWS; r++)
            row[r] = G::template part_row<W>(part, wave_row + r / 2 * 16 + r % 2 * 8 + lane / 4, 0);
        auto inside = [&](u32 step) { return COLS % 128 == 0 || 4 * step + lane % 4 < SPANS; };
        auto fetch = [&](Span<W>(&q)[LANE_ROWS], u32 step) {
            if (step < end) UNROLL
                for (u32 r = 0; r < LANE_ROWS; r++)
                    fetch_span<W>(q[r], row[r], inside(step) ? 4 * step + lane % 4 : 0);
        };
        UNROLL for (u32 a = 0; a < AHEAD; a++) fetch(raw[a], first + wave_col + a * WAVES_COLS);
        Before::release();
        Before::wait();

        float acc[ROW_TILES][TOKEN_TILES][4];
        UNROLL for (u32 i = 0; i < ROW_TILES; i++)
            UNROLL for (u32 n = 0; n < TOKEN_TILES; n++)
                UNROLL for (u32 e = 0; e < 4; e++) acc[i][n][e] = 0.0f;
        NO_UNROLL for (u32 from = first + wave_col; from < end; from += AHEAD * WAVES_COLS)
            UNROLL for (u32 a = 0; a < AHEAD; a++) {
                u32 step = from + a * WAVES_COLS;
                if (step >= end) break;
                const u16* xs = args.x + (u64)step * 1024 + lane * 8;
                u32 pair[LANE_ROWS][16];
                UNROLL for (u32 r = 0; r < LANE_ROWS; r++) span_pairs<W>(raw[a][r], pair[r]);
                fetch(raw[a], step + AHEAD * WAVES_COLS);
                bool there = inside(step);
                UNROLL for (u32 i = 0; i < 4; i++)
                    UNROLL for (u32 n = 0; n < TOKEN_TILES; n++) {
                        u32x4 q = load16(xs + (u64)n * (STEPS * 1024) + i * 256);
                        u32 b[4] = {there ? q.x : 0, there ? q.y : 0, there ? q.z : 0,
                                    there ? q.w : 0};
                        UNROLL for (u32 t = 0; t < ROW_TILES; t++)
                            UNROLL for (u32 h = 0; h < 2; h++) {
                                u32 at = 4 * i + 2 * h;
                                u32 w[4] = {pair[2 * t][at], pair[2 * t + 1][at],
                                            pair[2 * t][at + 1], pair[2 * t + 1][at + 1]};
                                mma_m16n8k16(acc[t][n], w, b + 2 * h);
                            }
                    }
            }

        UNROLL for (u32 t = 0; t < ROW_TILES; t++)
            UNROLL for (u32 n = 0; n < TOKEN_TILES; n++)
                UNROLL for (u32 e = 0; e < 4; e++)
                    stage[(wave_col * BM + n * 8 + lane % 4 * 2 + e % 2) * WIDE + wave_row +
                          t * 16 + lane / 4 + e / 2 * 8] = acc[t][n][e];
        block_sync();
        u32 tile = share.x;
        float* mine = args.parts + ((u64)tile * splits + share.y) * (BM * BN);
        for (u32 i = thread_id(); i < BM * BN; i += KJ_BLOCK) {
            float* s = stage + i / BN * WIDE + i % BN;
            float sum = s[0];
            UNROLL for (u32 w = 1; w < WAVES_COLS; w++) sum += s[w * (BM * WIDE)];
            if (splits > 1) mine[i] = sum;
            else s[0] = sum;
        }
        if (splits > 1) {  // adds partial sums, always in the same order
            if (!last_block(args.counters + tile, splits)) return;
            const float* all = args.parts + (u64)tile * splits * (BM * BN);
            for (u32 i = thread_id(); i < BM * BN; i += KJ_BLOCK) {
                float sum = 0.0f;
                for (u32 s = 0; s < splits; s++) sum += all[(u64)s * (BM * BN) + i];
                stage[i / BN * WIDE + i % BN] = sum;
            }
        }
        block_sync();
        G::finish_rows(part, stage, WIDE, BM, BN, 0, 0, args.tokens, args.residual, thread_id(),
                       KJ_BLOCK);
    }

    // `pool`: WAVES_COLS × BM × WIDE floats of shared memory.
    template <class Before> STEP void step(GemmArgs a, Share share, u8* pool) {
        u32 tile = share.x;
        float* stage = (float*)pool;
        Part part = G::part_of(a, tile);
        if (tile < G::RUN_1) return product<typename S::Run0, Before>(a, share, stage, part);
        if constexpr (G::SECOND)
            if (tile < G::RUN_2) return product<typename S::Run1, Before>(a, share, stage, part);
        if constexpr (G::THIRD) product<typename S::Run2, Before>(a, share, stage, part);
    }
};
