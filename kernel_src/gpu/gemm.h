// gemm.h: which rows a block of a gemm makes, and what happens to its results: shared by the tile kernels.
// Constants: BN, COLS, SEGMENTS, ROWS_0 … ROWS_2, BIASES, RESIDUAL, GLU, OUT_F16 (gemm.hip says what they are).
#pragma once
#include "gate.h"
#include "mma.h"

#ifndef STRIPS
#define STRIPS 0  // 1: halves go out in strips, not in tiles
#endif

constexpr u32 K_TILES = (COLS + 63) / 64;

// The share of a block: BN rows of one segment (BN/2 of each of two with GLU).
struct Part {
    const u8* w;      // first record of the matrix
    const u8* w_up;   // of the second matrix (GLU)
    const float* bias;
    const float* bias_up;
    void* y;
    u32 rows;         // of the matrix
    u32 first;        // row of the matrix that is the block's first
};

struct Segments {
    const u8 *w0, *w1, *w2;
    const float *b0, *b1, *b2;
    void *y0, *y1, *y2;
};

constexpr u32 PART_ROWS = GLU ? BN / 2 : BN;
#define PARTS_OF(rows) CEIL_DIV(OUT_F16 && !STRIPS ? CEIL_DIV(rows, 64) * 64 : rows, PART_ROWS)  // tiled results have zeros up to 64
constexpr u32 TILES_0 = PARTS_OF(ROWS_0);
constexpr u32 TILES_1 = TILES_0 + (GLU || SEGMENTS < 2 ? 0 : PARTS_OF(ROWS_1));
constexpr u32 TILES_2 = TILES_1 + (GLU || SEGMENTS < 3 ? 0 : PARTS_OF(ROWS_2));
#define TILES_UNTIL(segment) ((segment) == 0 ? 0 : (segment) == 1 ? TILES_0 : (segment) == 2 ? TILES_1 : TILES_2)

// Where a tile of rows lies: its segment, chosen among constants. (Field by field: whole structs chosen among went through scratch
// memory on AMD.)
STEP Part part_of(const Segments& s, u32 tile) {
    const bool second = !GLU && SEGMENTS > 1 && tile >= TILES_0, third = !GLU && SEGMENTS > 2 && tile >= TILES_1;
    Part p;
    p.w = third ? s.w2 : second ? s.w1 : s.w0;
    p.w_up = GLU ? s.w1 : nullptr;
    p.bias = third ? (BIASES & 4 ? s.b2 : nullptr) : second ? (BIASES & 2 ? s.b1 : nullptr) : (BIASES & 1 ? s.b0 : nullptr);
    p.bias_up = GLU != 0 && (BIASES & 2) != 0 ? s.b1 : nullptr;
    p.y = third ? s.y2 : second ? s.y1 : s.y0;
    p.rows = third ? ROWS_2 : second ? ROWS_1 : ROWS_0;
    p.first = (tile - (third ? TILES_1 : second ? TILES_0 : 0)) * PART_ROWS;
    return p;
}

// The record that fills row n of the block's weight tile. Past the matrix's end: its last one, whose results nobody stores.
template <class W> STEP const u8* part_row(const Part& p, u32 n, u32 expert) {
    bool up = GLU && n % 32 >= 16;
    u32 r = min_u32(p.first + (GLU ? n / 32 * 16 + n % 16 : n), p.rows - 1);
    return (up ? p.w_up : p.w) + ((u64)expert * p.rows + r) * W::ROW_BYTES;
}

STEP float activate(float g) { return GLU == 2 ? gelu_tanh(g) : silu(g); }

STEP void read8(const float* p, float (&v)[8]) {
    u32x4 a = load16(p), b = load16(p + 4);
    v[0] = as_f32(a.x), v[1] = as_f32(a.y), v[2] = as_f32(a.z), v[3] = as_f32(a.w);
    v[4] = as_f32(b.x), v[5] = as_f32(b.y), v[6] = as_f32(b.z), v[7] = as_f32(b.w);
}
STEP void write8(float* p, const float (&v)[8]) {
    *(u32x4*)p = u32x4{as_u32(v[0]), as_u32(v[1]), as_u32(v[2]), as_u32(v[3])};
    *(u32x4*)(p + 4) = u32x4{as_u32(v[4]), as_u32(v[5]), as_u32(v[6]), as_u32(v[7])};
}

// Stores `m` tokens × `n` columns of results that lie in shared memory (`stage`, rows of `wide` floats): tokens token0 … of
// those below `tokens`, columns col0 … of the block. `lane` of `lanes` threads share the work, eight columns each at a time.
STEP void finish_rows(const Part& p, const float* stage, u32 wide, u32 m, u32 n, u32 col0, u32 token0, u32 tokens,
                      const float* residual, u32 lane, u32 lanes) {
    const u32 groups = GLU ? n / 16 : n / 8;  // eight results each
    for (u32 i = lane; i < m * groups; i += lanes) {
        u32 token = token0 + i / groups, g = i % groups;
        u32 col = GLU ? g / 2 * 32 + g % 2 * 8 : g * 8;  // in the stage
        u32 row = p.first + (GLU ? (col0 + col) / 32 * 16 + col % 16 : col0 + col);
        if (token >= tokens) continue;
#if OUT_F16 && STRIPS
        if (row >= p.rows) continue;
        u16* y = (u16*)p.y + strip_at(token, row, CEIL_DIV(p.rows, 128));
#elif OUT_F16
        u32 out_tiles = (p.rows + 63) / 64;
        u16* y = (u16*)p.y + ((u64)(token / 64) * out_tiles + row / 64) * 4096 + tile_at(token % 64, row % 64);
        if (row >= p.rows) {  // the next product reads whole tiles
            if (row < out_tiles * 64) *(u32x4*)y = u32x4{0, 0, 0, 0};
            continue;
        }
#else
        if (row >= p.rows) continue;
#endif
        float v[8];
        read8(stage + i / groups * wide + col, v);
        u32 here = min_u32(8, p.rows - row);
        if (p.bias)
            UNROLL for (u32 e = 0; e < 8; e++) if (e < here) v[e] += p.bias[row + e];
#if GLU
        float up[8];
        read8(stage + i / groups * wide + col + 16, up);
        UNROLL for (u32 e = 0; e < 8; e++) {
            if (p.bias_up && e < here) up[e] += p.bias_up[row + e];
            v[e] = activate(v[e]) * up[e];
        }
#endif
#if OUT_F16
        UNROLL for (u32 e = 0; e < 8; e++) if (e >= here) v[e] = 0.0f;
        *(u32x4*)y = u32x4{pack_input(v[0], v[1]), pack_input(v[2], v[3]), pack_input(v[4], v[5]), pack_input(v[6], v[7])};
#else
        u64 at = (u64)token * p.rows + row;
        float* y = (float*)p.y + at;
        if (p.rows % 4 == 0 && here == 8) {
#if RESIDUAL
            float r[8];
            read8(residual + at, r);
            UNROLL for (u32 e = 0; e < 8; e++) v[e] += r[e];
#endif
            write8(y, v);
        } else {
            UNROLL for (u32 e = 0; e < 8; e++) if (e < here) y[e] = RESIDUAL ? v[e] + residual[at + e] : v[e];
        }
#endif
    }
}
