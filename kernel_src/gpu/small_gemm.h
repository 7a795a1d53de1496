// small_gemm: Y[t, r] = Σ_k X[t, k] · W[r, k] for a few tokens (one of each of several sequences).
// W has any block format: the weights are loaded from memory to registers for the matrix units,
// never through shared memory. Then bias, residual or a gated unit, as in gemm.h.
//
//   x    tokens × COLS f16 in *panels* (mma.h): what the lanes of a wave load for 8 tokens and 128
//        columns, in the order of lanes, and sums of columns. Columns after COLS, their sums, and
//        tokens after `tokens` may hold anything
//   w0…, b0…, residual   as for gemm.h
//   y0…  Results::Singles: f32, tokens × rows; Results::Panels: panels of the segment's rows
//   parts     with splits > 1: f32[tiles · splits · BM · BN]
//   counters  with splits > 1: one u32 per tile, zero before and after a launch
//
// Lane l has octets (octets.h) of rows l/4 and l/4 + 8. Weights stay exact: the operand of the
// matrix units is codes, or codes times small integers, and a product over a span or a step of 128
// columns starts from zero and is added to the result times the scale, in f32. So a row of a batch
// has nearly the result that it has alone (dots.h). The only other traffic of a block is the
// panels, which its waves find in L1.
//
// A wave has 16·ROW_TILES rows. WAVES_ROWS waves of a block divide BN rows; the others share the
// columns, and their sums are added in shared memory. Weights are loaded before the wait for the
// previous launch.
//
// S: as for gemm.h without WM, WN, KB, X_STAGES and EXPERTS (there are no experts); BM (tokens) is
// a multiple of 8, ROW_TILES, WAVES_ROWS, AHEAD (steps of 128 columns in flight). KJ_MMA is 1.
// Share: x of Σ rows ÷ BN, y of `splits`.
#pragma once
#include "gemm_common.h"
#include "octets.h"

template <class S> struct SmallGemm {
    using G = GemmCommon<S>;
    static constexpr u32 COLS = S::COLS, BM = S::BM, BN = S::BN, AHEAD = S::AHEAD,
                         ROW_TILES = S::ROW_TILES, WAVES_ROWS = S::WAVES_ROWS;
    static constexpr u32 STEPS = CEIL_DIV(COLS, 128), SPANS = COLS / 32;
    static constexpr u32 WAVES_COLS = kj_waves / WAVES_ROWS, LANE_ROWS = 2 * ROW_TILES,
                         TOKEN_TILES = BM / 8;
    static_assert(BN == 16 * ROW_TILES * WAVES_ROWS && WAVES_ROWS * WAVES_COLS == kj_waves,
                  "waves tile the block");
    // Stride of a token's results in shared memory: neighbours are in different banks.
    static constexpr u32 WIDE = BN + 4;

    // acc += scale · sum, where scale[h] is that of row l/4 + 8h.
    STEP void add_scaled(float (&acc)[4], const float (&sum)[4], const float (&scale)[2]) {
        UNROLL for (u32 e = 0; e < 4; e++) acc[e] = fma_f32(scale[e / 2], sum[e], acc[e]);
    }

    // The span of a step with which the scales are loaded. Scales of spans are needed last, and in
    // their stored form they take fewer registers.
    template <class W>
    static constexpr u32 SCALES_AT = Octets<W>::SCALING == Scaling::Span ? 3 : 0;

    // Adds the product of a step's offsets.
    template <class W>
    STEP void add_offsets(float (&acc)[ROW_TILES][TOKEN_TILES][4],
                          const typename Octets<W>::Raw (&raw)[LANE_ROWS], const u16* panel,
                          bool there, u32 p) {
        u32 w[ROW_TILES][4];
        float by[ROW_TILES][2];
        UNROLL for (u32 r = 0; r < LANE_ROWS; r++) {
            Octets<W>::offsets_of(raw[r], p, w[r / 2][r % 2], w[r / 2][2 + r % 2]);
            by[r / 2][r % 2] = Octets<W>::offset_scale(raw[r]);
        }
        UNROLL for (u32 n = 0; n < TOKEN_TILES; n++) {
            u32x2 q = load8(panel + (u64)n * (STEPS * PANEL) + PANEL_SUMS + lane_id() * 4);
            const u32 b[2] = {there ? q.x : 0, there ? q.y : 0};
            UNROLL for (u32 t = 0; t < ROW_TILES; t++) {
                float sum[4] = {};
                mma_m16n8k16(sum, w[t], b);
                add_scaled(acc[t][n], sum, by[t]);
            }
        }
    }

    // Adds the products of a step. `next(i)` loads span i of a later step in the place of this one.
    template <class W, class Next>
    STEP void add_step(float (&acc)[ROW_TILES][TOKEN_TILES][4],
                       typename Octets<W>::Raw (&raw)[LANE_ROWS], const u16* xs, u32 step, u32 p,
                       Next next) {
        using O = Octets<W>;
        constexpr Scaling scaling = O::SCALING;
        auto inside = [&](u32 span) { return COLS % 128 == 0 || span < SPANS; };
        const u16* panel = xs;
        xs += lane_id() * 8;
        // Taken out before the scales of a later step are loaded.
        float scale[ROW_TILES][2];
        u32 group[LANE_ROWS][4] = {};
        if constexpr (scaling == Scaling::Step) {
            if constexpr (O::OFFSET) add_offsets<W>(acc, raw, panel, inside(4 * step + p), p);
            UNROLL for (u32 r = 0; r < LANE_ROWS; r++) {
                scale[r / 2][r % 2] = O::scale_of(raw[r], 0);
                UNROLL for (u32 i = 0; i < 4; i++) group[r][i] = O::step_scale(raw[r], i, p);
            }
        }
        float sum[ROW_TILES][TOKEN_TILES][4] = {};
        UNROLL for (u32 i = 0; i < 4; i++) {
            if constexpr (scaling == Scaling::Span) {
                UNROLL for (u32 r = 0; r < LANE_ROWS; r++)
                    scale[r / 2][r % 2] = O::scale_of(raw[r], i);
                if constexpr (O::OFFSET)
                    if (i == SCALES_AT<W>)
                        add_offsets<W>(acc, raw, panel, inside(4 * step + p), p);
            }
            u32 pair[LANE_ROWS][4];
            UNROLL for (u32 r = 0; r < LANE_ROWS; r++)
                O::pairs_of(raw[r], i, p, group[r][i], pair[r]);
            next(i);
            const bool there = inside(4 * step + i);
            UNROLL for (u32 n = 0; n < TOKEN_TILES; n++) {
                u32x4 q = load16(xs + (u64)n * (STEPS * PANEL) + i * 256);
                const u32 b[4] = {there ? q.x : 0, there ? q.y : 0, there ? q.z : 0,
                                  there ? q.w : 0};
                UNROLL for (u32 t = 0; t < ROW_TILES; t++) {
                    float(&to)[4] = scaling == Scaling::None ? acc[t][n] : sum[t][n];
                    UNROLL for (u32 h = 0; h < 2; h++) {
                        const u32 w[4] = {pair[2 * t][2 * h], pair[2 * t + 1][2 * h],
                                          pair[2 * t][2 * h + 1], pair[2 * t + 1][2 * h + 1]};
                        mma_m16n8k16(to, w, b + 2 * h);
                    }
                    if constexpr (scaling == Scaling::Span) {
                        add_scaled(acc[t][n], sum[t][n], scale[t]);
                        UNROLL for (u32 e = 0; e < 4; e++) sum[t][n][e] = 0.0f;
                    }
                }
            }
        }
        if constexpr (scaling == Scaling::Step) UNROLL
            for (u32 t = 0; t < ROW_TILES; t++)
                UNROLL for (u32 n = 0; n < TOKEN_TILES; n++)
                    add_scaled(acc[t][n], sum[t][n], scale[t]);
    }

    // `stage`: WAVES_COLS × BM × WIDE.
    template <class W, class Before>
    STEP void product(GemmArgs args, Share share, float* stage, Part part) {
        const u32 splits = args.splits;
        u32 wave_row = wave_id() % WAVES_ROWS * (16 * ROW_TILES), wave_col = wave_id() / WAVES_ROWS,
            lane = lane_id();
        u32 per = CEIL_DIV(STEPS, splits), first = share.y * per, end = min_u32(first + per, STEPS);

        using O = Octets<W>;
        const u32 p = lane % 4;
        const u8* row[LANE_ROWS];
        typename O::Raw raw[AHEAD][LANE_ROWS];
        UNROLL for (u32 r = 0; r < LANE_ROWS; r++)
            row[r] = G::template part_row<W>(part, wave_row + r / 2 * 16 + r % 2 * 8 + lane / 4, 0);
        auto inside = [&](u32 span) { return COLS % 128 == 0 || span < SPANS; };
        // Loads span i of a step, and with one of them the scales.
        auto fetch = [&](typename O::Raw(&q)[LANE_ROWS], u32 step, u32 i) {
            if (step >= end) return;
            const u32 span = inside(4 * step + i) ? 4 * step + i : 0;
            UNROLL for (u32 r = 0; r < LANE_ROWS; r++) {
                if (i == SCALES_AT<W>) O::load_scales(q[r], row[r], step);
                O::load_codes(q[r], i, row[r], span, p);
            }
        };
        UNROLL for (u32 a = 0; a < AHEAD; a++)
            UNROLL for (u32 i = 0; i < 4; i++) fetch(raw[a], first + wave_col + a * WAVES_COLS, i);
        Before::release();
        Before::wait();

        float acc[ROW_TILES][TOKEN_TILES][4] = {};
        NO_UNROLL for (u32 from = first + wave_col; from < end; from += AHEAD * WAVES_COLS)
            UNROLL for (u32 a = 0; a < AHEAD; a++) {
                const u32 step = from + a * WAVES_COLS;
                if (step >= end) break;
                add_step<W>(acc, raw[a], args.x + (u64)step * PANEL, step, p,
                            [&](u32 i) { fetch(raw[a], step + AHEAD * WAVES_COLS, i); });
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
        if (splits > 1) {  // sums of parts, always in the same order
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
