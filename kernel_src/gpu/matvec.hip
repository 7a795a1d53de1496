// matvec: y = W·x for one to three weights that share their input, rows by rows.
//
//   x        COLUMNS × COLS f32, or (X_GLOBAL 1) columns as activations.h lays them out, made by `quantise`
//   aux      PROLOGUE 1: COLS f32, the norm's weight; 2, 3: COLUMNS × COLS f32, the other factor; else unused
//   w0..w2   row records (kernel_src/src/layout.rs); b0..b2  f32 per row, where BIASES has the bit; y0..y2  COLUMNS × ROWS_s f32
//   residual COLUMNS × ROWS_0 f32, where RESIDUAL 1 (may be y0); eps of the norm; blocks: the grid's size
//   GLU 1 (silu), 2 (gelu): w0 gate and w1 up, y0 = act(gate)·up, y1 unused
//   dynamic LDS: COLUMNS · X_VECTORS · 16 bytes unless X_GLOBAL
//
// Constants beside those of matvec.h: SEGMENTS, ROWS_0 … ROWS_2, RUN_1, RUN_2 (segment at which another layout begins, or SEGMENTS),
// BIASES, RESIDUAL, GLU, X_GLOBAL; structs Run0 … Run2 (weights.h) in weights_gen.h.
#include "matvec.h"
#include "gate.h"
#include "weights_gen.h"

constexpr u32 LISTS = GLU ? 2 : 1;
constexpr u32 TILES_0 = CEIL_DIV(ROWS_0, TILE);
constexpr u32 TILES_1 = TILES_0 + (GLU || SEGMENTS < 2 ? 0 : CEIL_DIV(ROWS_1, TILE));
constexpr u32 TILES_2 = TILES_1 + (GLU || SEGMENTS < 3 ? 0 : CEIL_DIV(ROWS_2, TILE));
#define TILES_UNTIL(segment) ((segment) == 0 ? 0 : (segment) == 1 ? TILES_0 : (segment) == 2 ? TILES_1 : TILES_2)

struct Segments {
    const u8 *w0, *w1, *w2;
    const float *b0, *b1, *b2;
    float *y0, *y1, *y2;
};

// Where a tile lies: its segment, chosen among constants.
struct Place { const u8* w; const float* bias; float* y; u32 rows, first; };
STEP Place find_tile(const Segments& s, u32 tile) {
    // Chosen among values: compilers choose among the fields' addresses, if let, and keep them in memory for it (80 bytes of scratch a lane).
    const u8 *w0 = s.w0, *w1 = s.w1, *w2 = s.w2;
    const float *b0 = s.b0, *b1 = s.b1, *b2 = s.b2;
    float *y0 = s.y0, *y1 = s.y1, *y2 = s.y2;
    Place p{w0, b0, y0, ROWS_0, tile};
    if (SEGMENTS > 1 && !GLU && tile >= TILES_0) p = Place{w1, b1, y1, ROWS_1, tile - TILES_0};
    if (SEGMENTS > 2 && !GLU && tile >= TILES_1) p = Place{w2, b2, y2, ROWS_2, tile - TILES_1};
    p.first = p.first * TILE + team_id() * ROWS;
    return p;
}

template <class W> STEP void load_tile(Batch<W, LISTS>& b, const Segments& s, u32 tile, u32 step) {
    Place p = find_tile(s, tile);
    load_rows<W, LISTS>(b, 0, p.w, p.first, p.rows, step);
    if constexpr (LISTS == 2) load_rows<W, LISTS>(b, 1, s.w1, p.first, p.rows, step);
}

STEP void store_tile(const Segments& s, u32 tile, float (&acc)[LISTS * ROWS][COLUMNS], const float* residual) {
    sum_team<LISTS>(acc);
    Place p = find_tile(s, tile);
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        u32 row = p.first + r;
        if (team_lane() != 0 || row >= p.rows) continue;
        UNROLL for (u32 n = 0; n < COLUMNS; n++) {
            float v = acc[r][n];
            if ((BIASES & 1) || ((BIASES & 6) && p.bias)) v += p.bias ? p.bias[row] : 0.0f;
            if constexpr (LISTS == 2) {
                float up = acc[ROWS + r][n] + (BIASES & 2 ? s.b1[row] : 0.0f);
                v = (GLU == 1 ? silu(v) : gelu(v)) * up;
            }
            if (RESIDUAL) v += residual[n * ROWS_0 + row];
            p.y[n * p.rows + row] = v;
        }
    }
}

// All tiles from `tile` to `end` that are this worker's; `batch` holds the start of the first if there is one.
template <class W> STEP void run_tiles(Batch<W, LISTS>& batch, u32& tile, u32 end, u32 stride, const Segments& s, const u32x4* x, const float* residual) {
    constexpr u32 steps = CEIL_DIV(W::UNITS, TEAM);
    float acc[LISTS * ROWS][COLUMNS] = {};
    u32 step = 0;
    NO_UNROLL while (tile < end) {
        u32 next_step = step + BATCH, next_tile = tile;
        if (next_step >= steps) next_step = 0, next_tile = tile + stride;
        Batch<W, LISTS> next;
        if (next_tile < end) load_tile<W>(next, s, next_tile, next_step);
        else next = batch;
        dot_batch<W, LISTS>(acc, batch, x, step);
        if (next_step == 0) {
            store_tile(s, tile, acc, residual);
            UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) UNROLL for (u32 n = 0; n < COLUMNS; n++) acc[r][n] = 0.0f;
        }
        batch = next;
        step = next_step;
        tile = next_tile;
    }
}

KERNEL matvec(const float* x, const float* aux, const float* residual, const u8* RESTRICT w0, const float* RESTRICT b0, float* y0,
              const u8* RESTRICT w1, const float* RESTRICT b1, float* y1, const u8* RESTRICT w2, const float* RESTRICT b2, float* y2, float eps, u32 blocks) {
    Segments s{w0, w1, w2, b0, b1, b2, y0, y1, y2};
    Work work = my_work(TILES_UNTIL(SEGMENTS), blocks);
    u32 tile = work.tile, stride = work.stride;
    u32 end0 = min_u32(TILES_UNTIL(RUN_1), work.end);

    Batch<Run0, LISTS> first0;  // weights do not depend on the kernel before
    if (tile < end0) load_tile<Run0>(first0, s, tile, 0);
#if RUN_1 < SEGMENTS
    u32 end1 = min_u32(TILES_UNTIL(RUN_2), work.end);
    Batch<Run1, LISTS> first1;
    bool loaded1 = tile >= TILES_UNTIL(RUN_1) && tile < end1;
    if (loaded1) load_tile<Run1>(first1, s, tile, 0);
#endif
#if !X_GLOBAL
    Norm norm;
    load_norm(norm, aux);
#endif
    launch_dependents();
    wait_for_producer();

#if X_GLOBAL
    const u32x4* columns = (const u32x4*)x;
#else
    LDS_DYNAMIC(lds);
    u32x4* columns = (u32x4*)lds;
    make_columns<COLUMNS>(x, aux, norm, eps, columns);
    block_sync();
#endif

    run_tiles<Run0>(first0, tile, end0, stride, s, columns, residual);
#if RUN_1 < SEGMENTS
    if (!loaded1 && tile < end1) load_tile<Run1>(first1, s, tile, 0);
    run_tiles<Run1>(first1, tile, end1, stride, s, columns, residual);
#endif
#if RUN_2 < SEGMENTS
    u32 end2 = work.end;
    Batch<Run2, LISTS> first2;
    if (tile < end2) load_tile<Run2>(first2, s, tile, 0);
    run_tiles<Run2>(first2, tile, end2, stride, s, columns, residual);
#endif
}
