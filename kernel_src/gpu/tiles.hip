// tiles: rows of f32 made into the tiles of halves that gemm.hip reads: blocks of 64 rows × 64 columns, zeros behind COLS.
//
//   x       f32, rows of COLS        aux  INPUT 1: COLS f32, the norm's weight; 2, 3: as x, the other factor
//   y       tiles of as many rows as the grid has blocks; OUT_STRIPS 1: strips (mma.h), nothing behind COLS
//   source  GATHER 1: the row of x for each row of y, or ~0: nothing to do
// INPUT 0: y = x; 1: RMS norm, y = x / sqrt(mean(x²) + eps) · weight (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4);
//       2: y = silu(x)·aux; 3: y = gelu(x)·aux
//
// Constants: COLS, INPUT, GATHER, OUT_STRIPS. A block a row.
#include "gate.h"
#include "mma.h"

constexpr u32 chunks = CEIL_DIV(COLS, 64) * 8;           // of eight columns
constexpr u32 passes = CEIL_DIV(chunks, KJ_BLOCK);

STEP void load_chunk(const float* row, u32 c, float (&v)[8]) {
    if (COLS % 8 == 0 && c < COLS / 8) {
        u32x4 a = load16(row + 8 * c), b = load16(row + 8 * c + 4);
        v[0] = as_f32(a.x), v[1] = as_f32(a.y), v[2] = as_f32(a.z), v[3] = as_f32(a.w);
        v[4] = as_f32(b.x), v[5] = as_f32(b.y), v[6] = as_f32(b.z), v[7] = as_f32(b.w);
    } else {
        UNROLL for (u32 i = 0; i < 8; i++) v[i] = 8 * c + i < COLS ? row[8 * c + i] : 0.0f;
    }
}

KERNEL tiles(const float* x, const float* aux, u16* y, const u32* source, float eps) {
    launch_dependents();
    wait_for_producer();
    u32 to = block_id(), from = GATHER ? source[to] : to;
    if (from == ~0u) return;
    const float* row = x + (u64)from * COLS;
    const float* other = INPUT >= 2 ? aux + (u64)from * COLS : aux;
    float v[passes][8], scale = 1.0f;
    UNROLL for (u32 p = 0; p < passes; p++) load_chunk(row, thread_id() + p * KJ_BLOCK, v[p]);
    if (INPUT == 1) {
        float squares = 0.0f;
        UNROLL for (u32 p = 0; p < passes; p++)
            UNROLL for (u32 i = 0; i < 8; i++) squares += v[p][i] * v[p][i];
        scale = rsqrt_f32(block_sum(squares) / COLS + eps);
    }
    UNROLL for (u32 p = 0; p < passes; p++) {
        u32 c = thread_id() + p * KJ_BLOCK;
        if (c >= chunks) break;
        if (INPUT) {
            float w[8];
            load_chunk(other, c, w);
            UNROLL for (u32 i = 0; i < 8; i++)
                v[p][i] = INPUT == 1 ? v[p][i] * scale * w[i] : (INPUT == 2 ? v[p][i] * sigmoid(v[p][i]) : gelu_tanh(v[p][i])) * w[i];
        }
        if (OUT_STRIPS && 8 * c >= COLS) break;
        *(u32x4*)(y + (OUT_STRIPS ? strip_at(to, 8 * c, CEIL_DIV(COLS, 128)) : ((u64)(to / 64) * (chunks / 8) + c / 8) * 4096 + tile_at(to % 64, c % 8 * 8))) =
            u32x4{pack_input(v[p][0], v[p][1]), pack_input(v[p][2], v[p][3]), pack_input(v[p][4], v[p][5]), pack_input(v[p][6], v[p][7])};
    }
}
