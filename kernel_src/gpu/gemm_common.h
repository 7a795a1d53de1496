// gemm_common.h: the rows of a block of a matrix product, and the epilogue.
//
// S: BN, COLS, SEGMENTS, ROWS_0 … ROWS_2, RUN_1, RUN_2, BIASES, RESIDUAL, GATE, OUT (Results), as
// described in gemm.h.
#pragma once
#include "gate.h"
#include "mma.h"

// The rows of a block: BN rows of one segment, or with a gate BN/2 rows of each matrix.
struct Part {
    const u8* w;      // first record of the matrix
    const u8* w_up;   // first record of the second matrix (of a gate)
    const float* bias;
    const float* bias_up;
    void* y;
    u32 rows;         // rows of the matrix
    u32 first;        // first row of the block in the matrix
};

struct GemmArgs {
    const u16* x;
    const float* residual;
    const u8 *w0, *w1, *w2;
    const float *b0, *b1, *b2;
    void *y0, *y1, *y2;
    float* parts;
    u32* counters;
    const u32* tile_expert;
    u32 tokens, splits, token_tiles, tiles, blocks;
};

STEP void read8(const float* p, float (&v)[8]) {
    u32x4 a = load16(p), b = load16(p + 4);
    v[0] = as_f32(a.x), v[1] = as_f32(a.y), v[2] = as_f32(a.z), v[3] = as_f32(a.w);
    v[4] = as_f32(b.x), v[5] = as_f32(b.y), v[6] = as_f32(b.z), v[7] = as_f32(b.w);
}
STEP void write8(float* p, const float (&v)[8]) {
    *(u32x4*)p = u32x4{as_u32(v[0]), as_u32(v[1]), as_u32(v[2]), as_u32(v[3])};
    *(u32x4*)(p + 4) = u32x4{as_u32(v[4]), as_u32(v[5]), as_u32(v[6]), as_u32(v[7])};
}

template <class S> struct GemmCommon {
    static constexpr u32 COLS = S::COLS, BN = S::BN, K_TILES = CEIL_DIV(COLS, 64);
    static constexpr bool GATED = S::GATE != Gate::None, HALVES = S::OUT != Results::Singles;
    // Rows of results of a block, and segments with results.
    static constexpr u32 PART_ROWS = GATED ? BN / 2 : BN, SEGMENTS = GATED ? 1 : S::SEGMENTS;
    // Tiled results are padded with zeros to 64 rows.
    static constexpr u32 WHOLE = S::OUT == Results::Tiles ? 64 : 1;
    // Number of tiles up to the end of a segment.
    static constexpr u32 END_0 = CEIL_DIV(CEIL_DIV(S::ROWS_0, WHOLE) * WHOLE, PART_ROWS);
    static constexpr u32 END_1 =
        END_0 + (SEGMENTS < 2 ? 0 : CEIL_DIV(CEIL_DIV(S::ROWS_1, WHOLE) * WHOLE, PART_ROWS));
    static constexpr u32 END_2 =
        END_1 + (SEGMENTS < 3 ? 0 : CEIL_DIV(CEIL_DIV(S::ROWS_2, WHOLE) * WHOLE, PART_ROWS));
    // First tile of the second and of the third format.
    static constexpr u32 RUN_1 = S::RUN_1 == 1 ? END_0 : S::RUN_1 == 2 ? END_1 : END_2;
    static constexpr u32 RUN_2 = S::RUN_2 == 1 ? END_0 : S::RUN_2 == 2 ? END_1 : END_2;
    // Whether a second and a third format exist.
    static constexpr bool SECOND = S::RUN_1 < S::SEGMENTS, THIRD = S::RUN_2 < S::SEGMENTS;

    // The segment and position of a tile of rows. Fields are selected one by one: selecting among
    // whole structs used scratch memory on AMD.
    STEP Part part_of(const GemmArgs& s, u32 tile) {
        constexpr u32 biases = S::BIASES;
        const bool second = SEGMENTS > 1 && tile >= END_0, third = SEGMENTS > 2 && tile >= END_1;
        Part p;
        p.w = third ? s.w2 : second ? s.w1 : s.w0;
        p.w_up = GATED ? s.w1 : nullptr;
        p.bias = third    ? (biases & 4 ? s.b2 : nullptr)
                 : second ? (biases & 2 ? s.b1 : nullptr)
                          : (biases & 1 ? s.b0 : nullptr);
        p.bias_up = GATED && (biases & 2) != 0 ? s.b1 : nullptr;
        p.y = third ? s.y2 : second ? s.y1 : s.y0;
        p.rows = third ? S::ROWS_2 : second ? S::ROWS_1 : S::ROWS_0;
        p.first = (tile - (third ? END_1 : second ? END_0 : 0)) * PART_ROWS;
        return p;
    }

    // Record of row n of the block's weight tile. After the end of the matrix it is the last
    // record, whose results are not stored.
    template <class W> STEP const u8* part_row(const Part& p, u32 n, u32 expert) {
        bool up = GATED && n % 32 >= 16;
        u32 r = min_u32(p.first + (GATED ? n / 32 * 16 + n % 16 : n), p.rows - 1);
        return (up ? p.w_up : p.w) + ((u64)expert * p.rows + r) * W::ROW_BYTES;
    }

    STEP float activate(float g) { return S::GATE == Gate::Gelu ? gelu_tanh(g) : silu(g); }

    // Stores `m` tokens × `n` columns of results that are in shared memory (`stage`, rows of `wide`
    // floats): tokens from token0 on, below `tokens`; columns from col0 on. `lanes` threads share
    // the work, eight columns each at a time; `lane` is this thread's number.
    STEP void finish_rows(const Part& p, const float* stage, u32 wide, u32 m, u32 n, u32 col0,
                          u32 token0, u32 tokens, const float* residual, u32 lane, u32 lanes) {
        const u32 groups = GATED ? n / 16 : n / 8;  // eight results each
        for (u32 i = lane; i < m * groups; i += lanes) {
            u32 token = token0 + i / groups, g = i % groups;
            u32 col = GATED ? g / 2 * 32 + g % 2 * 8 : g * 8;  // column in the stage
            u32 row = p.first + (GATED ? (col0 + col) / 32 * 16 + col % 16 : col0 + col);
            if (token >= tokens) continue;
            u16* half = nullptr;  // destination of f16 results
            if constexpr (S::OUT == Results::Panels) {
                if (row >= p.rows) continue;
                half = (u16*)p.y + panel_at(token, row, CEIL_DIV(p.rows, 128));
            } else if constexpr (S::OUT == Results::Tiles) {
                u32 out_tiles = (p.rows + 63) / 64;
                half = (u16*)p.y + ((u64)(token / 64) * out_tiles + row / 64) * 4096 +
                       tile_at(token % 64, row % 64);
                if (row >= p.rows) {  // zeros, because the next product reads whole tiles
                    if (row < out_tiles * 64) *(u32x4*)half = u32x4{0, 0, 0, 0};
                    continue;
                }
            } else {
                if (row >= p.rows) continue;
            }
            float v[8];
            read8(stage + i / groups * wide + col, v);
            u32 here = min_u32(8, p.rows - row);
            if (p.bias)
                UNROLL for (u32 e = 0; e < 8; e++) if (e < here) v[e] += p.bias[row + e];
            if constexpr (GATED) {
                float up[8];
                read8(stage + i / groups * wide + col + 16, up);
                UNROLL for (u32 e = 0; e < 8; e++) {
                    if (p.bias_up && e < here) up[e] += p.bias_up[row + e];
                    v[e] = activate(v[e]) * up[e];
                }
            }
            if constexpr (HALVES) {
                UNROLL for (u32 e = 0; e < 8; e++) if (e >= here) v[e] = 0.0f;
                *(u32x4*)half = u32x4{pack_input(v[0], v[1]), pack_input(v[2], v[3]),
                                      pack_input(v[4], v[5]), pack_input(v[6], v[7])};
            } else {
                u64 at = (u64)token * p.rows + row;
                float* y = (float*)p.y + at;
                if (p.rows % 4 == 0 && here == 8) {
                    if constexpr (S::RESIDUAL) {
                        float r[8];
                        read8(residual + at, r);
                        UNROLL for (u32 e = 0; e < 8; e++) v[e] += r[e];
                    }
                    write8(y, v);
                } else {
                    UNROLL for (u32 e = 0; e < 8; e++)
                        if (e < here) y[e] = S::RESIDUAL ? v[e] + residual[at + e] : v[e];
                }
            }
        }
    }
};
