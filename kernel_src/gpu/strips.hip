// strips: Y[t, r] = Σ_k X[t, k] · W[r, k] for a few tokens (one more of each of several sequences), W in any block format: the weights go
// from memory to registers to the matrix units, never through shared memory. Then bias, residual or a gated unit, as gemm.hip.
//
//   x    tokens × COLS halves in *strips* (mma.h's strip_at): for each 8 tokens and 128 columns the 2 KiB that a wave's lanes take in four
//        loads of 16 bytes, lane after lane; columns past COLS and tokens past `tokens` may hold anything
//   w0…, b0…, residual   as gemm.hip            y0…  OUT_F16 = 0: f32, tokens × rows; OUT_F16 = 1: strips of the segment's rows
//   parts, counters   with splits > 1: f32[tiles · splits · BM · BN], and a zeroed u32 a tile, zero again afterwards
//
// The order in which a product sums its columns is free, as long as both factors have the same: lane l takes 32 neighbouring weights (a
// piece, one 16-byte load of 4-bit codes) of rows l/4 and l/4 + 8, the four lanes of a row take pieces side by side, and pair 2j, 2j + 1
// of a lane's piece are its share of product j. The activations lie in just that order. So a block's only traffic besides the weights
// is the strips, which its waves find in the first-level cache.
//
// A wave has 16·ROW_TILES rows, WAVES_ROWS waves of a block lie side by side over BN rows, and the others share the columns: their sums meet
// in shared memory. Weights are asked for before the launch before is waited for.
//
// Constants: KJ_MMA 1, BM (tokens, a multiple of 8), BN, ROW_TILES, WAVES_ROWS, AHEAD (steps of 128 columns in flight), COLS, SEGMENTS,
// ROWS_0 … ROWS_2, RUN_1, RUN_2, BIASES, RESIDUAL, GLU, OUT_F16, EXPERTS 1 (as gemm.hip); Run0 … Run2 in weights_gen.h.
// Grid: (Σ rows ÷ BN, splits).
#define STRIPS 1
#include "dequant.h"
#include "gemm.h"
#include "weights_gen.h"

constexpr u32 STEPS = CEIL_DIV(COLS, 128), PIECES = COLS / 32;
constexpr u32 WAVES_COLS = kj_waves / WAVES_ROWS, LANE_ROWS = 2 * ROW_TILES, TOKEN_TILES = BM / 8;
static_assert(BN == 16 * ROW_TILES * WAVES_ROWS && WAVES_ROWS * WAVES_COLS == kj_waves, "waves tile the block");
constexpr u32 WIDE = BN + 4;  // of a token's results in shared memory: other banks for its neighbours

template <class W> STEP void strips_part(const u16* x, Part part, const float* residual, float* parts, u32* counters, u32 tokens, u32 splits) {
    LDS_DYNAMIC(pool);
    float* stage = (float*)pool;  // WAVES_COLS × BM × WIDE
    u32 wave_row = wave_id() % WAVES_ROWS * (16 * ROW_TILES), wave_col = wave_id() / WAVES_ROWS, lane = lane_id();
    u32 per = CEIL_DIV(STEPS, splits), first = block_id_y() * per, end = min_u32(first + per, STEPS);

    const u8* row[LANE_ROWS];
    Piece<W> raw[AHEAD][LANE_ROWS];
    UNROLL for (u32 r = 0; r < LANE_ROWS; r++) row[r] = part_row<W>(part, wave_row + r / 2 * 16 + r % 2 * 8 + lane / 4, 0);
    auto inside = [&](u32 step) { return COLS % 128 == 0 || 4 * step + lane % 4 < PIECES; };
    auto fetch = [&](Piece<W>(&q)[LANE_ROWS], u32 step) {
        if (step < end)
            UNROLL for (u32 r = 0; r < LANE_ROWS; r++) fetch_piece<W>(q[r], row[r], inside(step) ? 4 * step + lane % 4 : 0);
    };
    UNROLL for (u32 a = 0; a < AHEAD; a++) fetch(raw[a], first + wave_col + a * WAVES_COLS);
    launch_dependents();
    wait_for_producer();

    float acc[ROW_TILES][TOKEN_TILES][4];
    UNROLL for (u32 i = 0; i < ROW_TILES; i++)
        UNROLL for (u32 n = 0; n < TOKEN_TILES; n++)
            UNROLL for (u32 e = 0; e < 4; e++) acc[i][n][e] = 0.0f;
    NO_UNROLL for (u32 from = first + wave_col; from < end; from += AHEAD * WAVES_COLS)
        UNROLL for (u32 a = 0; a < AHEAD; a++) {
            u32 step = from + a * WAVES_COLS;
            if (step >= end) break;
            const u16* xs = x + (u64)step * 1024 + lane * 8;
            u32 pair[LANE_ROWS][16];
            UNROLL for (u32 r = 0; r < LANE_ROWS; r++) piece_pairs<W>(raw[a][r], pair[r]);
            fetch(raw[a], step + AHEAD * WAVES_COLS);
            bool there = inside(step);
            UNROLL for (u32 i = 0; i < 4; i++)
                UNROLL for (u32 n = 0; n < TOKEN_TILES; n++) {
                    u32x4 q = load16(xs + (u64)n * (STEPS * 1024) + i * 256);
                    u32 b[4] = {there ? q.x : 0, there ? q.y : 0, there ? q.z : 0, there ? q.w : 0};
                    UNROLL for (u32 t = 0; t < ROW_TILES; t++)
                        UNROLL for (u32 h = 0; h < 2; h++) {
                            u32 at = 4 * i + 2 * h;
                            u32 w[4] = {pair[2 * t][at], pair[2 * t + 1][at], pair[2 * t][at + 1], pair[2 * t + 1][at + 1]};
                            mma_m16n8k16(acc[t][n], w, b + 2 * h);
                        }
                }
        }

    UNROLL for (u32 t = 0; t < ROW_TILES; t++)
        UNROLL for (u32 n = 0; n < TOKEN_TILES; n++)
            UNROLL for (u32 e = 0; e < 4; e++)
                stage[(wave_col * BM + n * 8 + lane % 4 * 2 + e % 2) * WIDE + wave_row + t * 16 + lane / 4 + e / 2 * 8] = acc[t][n][e];
    block_sync();
    u32 tile = block_id();
    float* mine = parts + ((u64)tile * splits + block_id_y()) * (BM * BN);
    for (u32 i = thread_id(); i < BM * BN; i += KJ_BLOCK) {
        float* s = stage + i / BN * WIDE + i % BN;
        float sum = s[0];
        UNROLL for (u32 w = 1; w < WAVES_COLS; w++) sum += s[w * (BM * WIDE)];
        if (splits > 1) mine[i] = sum;
        else s[0] = sum;
    }
    if (splits > 1) {  // sums of parts, always in the same order
        if (!last_block(counters + tile, splits)) return;
        const float* all = parts + (u64)tile * splits * (BM * BN);
        for (u32 i = thread_id(); i < BM * BN; i += KJ_BLOCK) {
            float sum = 0.0f;
            for (u32 s = 0; s < splits; s++) sum += all[(u64)s * (BM * BN) + i];
            stage[i / BN * WIDE + i % BN] = sum;
        }
    }
    block_sync();
    finish_rows(part, stage, WIDE, BM, BN, 0, 0, tokens, residual, thread_id(), KJ_BLOCK);
}

KERNEL strips(const u16* x, const float* residual, const u8* RESTRICT w0, const float* RESTRICT b0, void* y0, const u8* RESTRICT w1,
              const float* RESTRICT b1, void* y1, const u8* RESTRICT w2, const float* RESTRICT b2, void* y2, float* parts, u32* counters,
              u32 tokens, u32 splits) {
    Segments s{w0, w1, w2, b0, b1, b2, y0, y1, y2};
    u32 tile = block_id();
    Part part = part_of(s, tile);
    if (tile < TILES_UNTIL(RUN_1)) strips_part<Run0>(x, part, residual, parts, counters, tokens, splits);
#if RUN_1 < SEGMENTS
    else if (tile < TILES_UNTIL(RUN_2)) strips_part<Run1>(x, part, residual, parts, counters, tokens, splits);
#endif
#if RUN_2 < SEGMENTS
    else strips_part<Run2>(x, part, residual, parts, counters, tokens, splits);
#endif
}
