// tiles: converts rows of f32 into the f16 tiles that gemm.h reads: blocks of 64 rows × 64 columns,
// zeros after COLS.
//
//   x       f32, rows of COLS
//   aux     Prologue::Norm: COLS f32, the norm's weight; Silu, Gelu: like x, the other factor
//   y       tiles of as many rows as the grid has blocks; OUT_PANELS: panels (mma.h), not written
//           after COLS; OUT_TURNED: turned tiles (turned.h), zeros up to 128 columns
//   source  GATHER: the row of x for each row of y, or ~0: the row of y is not written
//
//   Prologue::None  y = x
//   Norm            y = x / sqrt(mean(x²) + eps) · weight
//                   (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4)
//   Silu, Gelu      y = act(x) · aux
//
// S: COLS, PROLOGUE, GATHER, OUT_PANELS, OUT_TURNED. Share: x the row of y.
#pragma once
#include "gate.h"
#include "turned.h"

struct TilesArgs {
    const float *x, *aux;
    u16* y;
    const u32* source;
    float eps;
};

template <class S> struct Tiles {
    // Chunks of eight columns.
    static constexpr u32 COLS = S::COLS,
                         CHUNKS = S::OUT_TURNED ? CEIL_DIV(COLS, 128) * 16 : CEIL_DIV(COLS, 64) * 8;
    static constexpr u32 PASSES = CEIL_DIV(CHUNKS, KJ_BLOCK);
    static constexpr bool NORMED = S::PROLOGUE == Prologue::Norm,
                          GATED = S::PROLOGUE == Prologue::Silu || S::PROLOGUE == Prologue::Gelu;

    STEP void load_chunk(const float* row, u32 c, float (&v)[8]) {
        if (COLS % 8 == 0 && c < COLS / 8) {
            u32x4 a = load16(row + 8 * c), b = load16(row + 8 * c + 4);
            v[0] = as_f32(a.x), v[1] = as_f32(a.y), v[2] = as_f32(a.z), v[3] = as_f32(a.w);
            v[4] = as_f32(b.x), v[5] = as_f32(b.y), v[6] = as_f32(b.z), v[7] = as_f32(b.w);
        } else {
            UNROLL for (u32 i = 0; i < 8; i++) v[i] = 8 * c + i < COLS ? row[8 * c + i] : 0.0f;
        }
    }

    STEP void step(TilesArgs a, Share share) {
        u32 to = share.x, from = S::GATHER ? a.source[to] : to;
        if (from == ~0u) return;
        const float* row = a.x + (u64)from * COLS;
        const float* other = GATED ? a.aux + (u64)from * COLS : a.aux;
        float v[PASSES][8], scale = 1.0f;
        UNROLL for (u32 p = 0; p < PASSES; p++) load_chunk(row, thread_id() + p * KJ_BLOCK, v[p]);
        if (NORMED) {
            float squares = 0.0f;
            UNROLL for (u32 p = 0; p < PASSES; p++)
                UNROLL for (u32 i = 0; i < 8; i++) squares += v[p][i] * v[p][i];
            scale = rsqrt_f32(block_sum(squares) / COLS + a.eps);
        }
        UNROLL for (u32 p = 0; p < PASSES; p++) {
            u32 c = thread_id() + p * KJ_BLOCK;
            if (c >= CHUNKS) break;
            if (NORMED || GATED) {
                float w[8];
                load_chunk(other, c, w);
                UNROLL for (u32 i = 0; i < 8; i++)
                    v[p][i] = NORMED ? v[p][i] * scale * w[i]
                                     : (S::PROLOGUE == Prologue::Silu ? v[p][i] * sigmoid(v[p][i])
                                                                      : gelu_tanh(v[p][i])) *
                                           w[i];
            }
            if (S::OUT_PANELS && 8 * c >= COLS) break;
            const u32 pair[4] = {pack_input(v[p][0], v[p][1]), pack_input(v[p][2], v[p][3]),
                                 pack_input(v[p][4], v[p][5]), pack_input(v[p][6], v[p][7])};
            if constexpr (S::OUT_TURNED) {
                store_turned(a.y, to, 8 * c, CEIL_DIV(COLS, 128), pair);
            } else {
                u64 tiled =
                    ((u64)(to / 64) * (CHUNKS / 8) + c / 8) * 4096 + tile_at(to % 64, c % 8 * 8);
                u64 panel = panel_at(to, 8 * c, CEIL_DIV(COLS, 128));
                *(u32x4*)(a.y + (S::OUT_PANELS ? panel : tiled)) =
                    u32x4{pair[0], pair[1], pair[2], pair[3]};
            }
        }
    }
};
