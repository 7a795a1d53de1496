// matvec: y = W·x for one to three weights with the same input.
//
//   x         COLUMNS × COLS f32, or (X_GLOBAL) columns in the layout of activations.h, made by
//             quantize.h
//   aux       as for activations.h: COLS f32, or COLUMNS × COLS f32
//   w0..w2    row records (kernel_src/formats/src/layout.rs)
//   b0..b2    f32 per row, if BIASES has the bit
//   y0..y2    COLUMNS × ROWS_s f32
//   residual  COLUMNS × ROWS_0 f32, if RESIDUAL; may be y0
//   eps       epsilon of the norm
//   blocks    number of blocks in the grid
//
//   GATE      w0 is the gate and w1 the other factor, y0 = act(gate) · up, y1 unused
//
// S: as for dots.h; SEGMENTS, ROWS_0 … ROWS_2, Run0 … Run2 (formats), RUN_1, RUN_2 (the segment at
// which Run1, Run2 begins, or SEGMENTS), BIASES, RESIDUAL, X_GLOBAL. Share: x of `blocks`.
#pragma once
#include "dots.h"

struct MatvecArgs {
    const float *x, *aux, *residual;
    const u8 *w0, *w1, *w2;
    const float *b0, *b1, *b2;
    float *y0, *y1, *y2;
    float eps;
    u32 blocks;
};

template <class S> struct Matvec {
    using X = Activations<S>;
    using D = Dots<S>;
    using Shared = typename D::Shared;
    using Sums = typename D::Sums;
    template <class W> using Units = typename D::template Units<W>;
    // Segments with results: one if there is a gate.
    static constexpr u32 LISTS = D::LISTS, SEGMENTS = LISTS == 2 ? 1 : S::SEGMENTS;
    // Number of tiles up to the end of a segment.
    static constexpr u32 END_0 = CEIL_DIV(S::ROWS_0, D::TILE);
    static constexpr u32 END_1 = END_0 + (SEGMENTS < 2 ? 0 : CEIL_DIV(S::ROWS_1, D::TILE));
    static constexpr u32 END_2 = END_1 + (SEGMENTS < 3 ? 0 : CEIL_DIV(S::ROWS_2, D::TILE));
    // First tile of the second and of the third format.
    static constexpr u32 RUN_1 = S::RUN_1 == 1 ? END_0 : S::RUN_1 == 2 ? END_1 : END_2;
    static constexpr u32 RUN_2 = S::RUN_2 == 1 ? END_0 : S::RUN_2 == 2 ? END_1 : END_2;
    // Bytes of dynamic shared memory.
    static constexpr u32 COLUMN_BYTES = S::X_GLOBAL ? 0 : D::COLUMNS * X::VECTORS * 16;

    // The rows of a tile, all of one segment.
    struct Rows { const u8* w; const float* bias; float* y; u32 rows, first; };
    STEP Rows rows_of(const MatvecArgs& a, u32 tile) {
        // Copies of the arguments. Without them compilers select addresses of fields, so the fields
        // are in scratch memory: 80 bytes per lane.
        const u8 *w0 = a.w0, *w1 = a.w1, *w2 = a.w2;
        const float *b0 = a.b0, *b1 = a.b1, *b2 = a.b2;
        float *y0 = a.y0, *y1 = a.y1, *y2 = a.y2;
        Rows p{w0, b0, y0, S::ROWS_0, tile};
        if (SEGMENTS > 1 && tile >= END_0) p = Rows{w1, b1, y1, S::ROWS_1, tile - END_0};
        if (SEGMENTS > 2 && tile >= END_1) p = Rows{w2, b2, y2, S::ROWS_2, tile - END_1};
        p.first = p.first * D::TILE + D::team_id() * D::ROWS;
        return p;
    }

    template <class W> STEP void load_tile(Units<W>& b, const MatvecArgs& a, u32 tile, u32 step) {
        Rows p = rows_of(a, tile);
        D::template load_rows<W>(b, 0, p.w, p.first, p.rows, step);
        if constexpr (LISTS == 2) D::template load_rows<W>(b, 1, a.w1, p.first, p.rows, step);
    }

    STEP void store_tile(const MatvecArgs& a, u32 tile, Sums& acc, Shared& lds) {
        D::sum_team(acc, lds);
        Rows p = rows_of(a, tile);
        UNROLL for (u32 r = 0; r < D::ROWS; r++) {
            u32 row = p.first + r;
            if (D::team_lane() != 0 || row >= p.rows) continue;
            UNROLL for (u32 n = 0; n < D::COLUMNS; n++) {
                float v = acc[r][n];
                if ((S::BIASES & 1) || ((S::BIASES & 6) && p.bias))
                    v += p.bias ? p.bias[row] : 0.0f;
                if constexpr (LISTS == 2) {
                    float up = acc[D::ROWS + r][n] + (S::BIASES & 2 ? a.b1[row] : 0.0f);
                    v = (S::GATE == Gate::Silu ? silu(v) : gelu(v)) * up;
                }
                if (S::RESIDUAL) v += a.residual[n * S::ROWS_0 + row];
                p.y[n * p.rows + row] = v;
            }
        }
    }

    // Computes the tiles of this worker from `tile` to `end`. `units` has the first units of the
    // first tile, if there is one.
    template <class W>
    STEP void run_tiles(Units<W>& units, u32& tile, u32 end, u32 stride, const MatvecArgs& a,
                        const u32x4* x, Shared& lds) {
        constexpr u32 steps = CEIL_DIV(W::UNITS, D::TEAM);
        float acc[LISTS * D::ROWS][D::COLUMNS] = {};
        u32 step = 0;
        NO_UNROLL while (tile < end) {
            u32 next_step = step + D::IN_FLIGHT, next_tile = tile;
            if (next_step >= steps) next_step = 0, next_tile = tile + stride;
            Units<W> next;
            if (next_tile < end) load_tile<W>(next, a, next_tile, next_step);
            else next = units;
            D::template dot_units<W>(acc, units, x, step);
            if (next_step == 0) {
                store_tile(a, tile, acc, lds);
                D::clear(acc);
            }
            units = next;
            step = next_step;
            tile = next_tile;
        }
    }

    // `columns`: COLUMN_BYTES of shared memory.
    template <class Before> STEP void step(MatvecArgs a, Share share, u8* columns, Shared& lds) {
        using Run0 = typename S::Run0;
        using Run1 = typename S::Run1;
        using Run2 = typename S::Run2;
        constexpr bool second = S::RUN_1 < S::SEGMENTS, third = S::RUN_2 < S::SEGMENTS;
        typename D::Work work = D::work_of(END_2, share.x, a.blocks);
        u32 tile = work.tile, stride = work.stride;
        u32 end0 = min_u32(RUN_1, work.end), end1 = min_u32(RUN_2, work.end);

        Units<Run0> first0;  // loaded first: weights do not depend on the previous kernel
        if (tile < end0) load_tile<Run0>(first0, a, tile, 0);
        Units<Run1> first1;
        bool loaded1 = second && tile >= RUN_1 && tile < end1;
        if constexpr (second)
            if (loaded1) load_tile<Run1>(first1, a, tile, 0);
        typename X::Norm norm;
        if constexpr (!S::X_GLOBAL) X::load_norm(norm, a.aux);
        Before::release();
        Before::wait();

        const u32x4* x = (const u32x4*)(S::X_GLOBAL ? (const u8*)a.x : columns);
        if constexpr (!S::X_GLOBAL) {
            X::template make<D::COLUMNS>(a.x, a.aux, norm, a.eps, (u32x4*)columns);
            block_sync();
        }

        run_tiles<Run0>(first0, tile, end0, stride, a, x, lds);
        if constexpr (second) {
            if (!loaded1 && tile < end1) load_tile<Run1>(first1, a, tile, 0);
            run_tiles<Run1>(first1, tile, end1, stride, a, x, lds);
        }
        if constexpr (third) {
            Units<Run2> first2;
            if (tile < work.end) load_tile<Run2>(first2, a, tile, 0);
            run_tiles<Run2>(first2, tile, work.end, stride, a, x, lds);
        }
    }
};
