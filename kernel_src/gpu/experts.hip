// experts: matrix × vector through the matrices of chosen experts: y[t, s] = W[experts[t, s]] · x.
//
//   x       TOKENS × COLS f32 (X_PER_SLOT 0: one for all slots) or TOKENS × TOP × COLS (1), or prepared columns (X_GLOBAL 1)
//   aux     PROLOGUE 1: COLS f32; 2, 3: as x
//   experts TOKENS × TOP u32; shares  TOKENS × TOP f32 where SUM
//   w0, w1  row records of all experts, ROWS_0 rows each; y  TOKENS × TOP × ROWS_0 f32, or TOKENS × ROWS_0 where SUM
//   GLU 1 (silu), 2 (gelu): w0 gate and w1 up, y = act(gate)·up
//   SUM 1: y[t] = Σ over slots of shares[t, s] · W[experts[t, s]] · x[t, s], + residual[t] where RESIDUAL (may be y)
//   dynamic LDS: X_COLUMNS · X_VECTORS · 16 bytes unless X_GLOBAL
//
// Constants beside those of matvec.h (COLUMNS is 1): TOKENS, TOP, ROWS_0, X_PER_SLOT, X_GLOBAL, GLU, SUM, RESIDUAL; struct Run0.
#include "matvec.h"
#include "gate.h"
#include "weights_gen.h"

constexpr u32 LISTS = GLU ? 2 : 1;
constexpr u32 TILES = CEIL_DIV(ROWS_0, TILE);                         // of one matrix
constexpr u32 ALL_TILES = TILES * TOKENS * (SUM ? 1 : TOP);
constexpr u32 STEPS = CEIL_DIV(Run0::UNITS, TEAM), BATCHES = CEIL_DIV(STEPS, BATCH);
// Slots whose weights are on their way together: where a lane's part of a row is one batch, one slot after the other would wait for memory
// once for each.
constexpr u32 TOGETHER = !SUM || BATCHES > 1 || ROWS * BATCH > 1 ? 1 : TOP % 4 == 0 ? 4 : TOP % 2 == 0 ? 2 : 1;
constexpr u32 SLOTS = SUM ? TOP / TOGETHER : 1;                       // turns that a tile takes
constexpr u32 X_COLUMNS = TOKENS * (X_PER_SLOT ? TOP : 1);

// Batch `b` of a tile: turns one after the other, BATCHES for each; the first slot of its turn.
STEP u32 slot_of(u32 tile, u32 b) { return SUM ? tile / TILES * TOP + b / BATCHES * TOGETHER : tile / TILES; }
STEP u32 first_row(u32 tile) { return tile % TILES * TILE + team_id() * ROWS; }

using Slots = Batch<Run0, LISTS>[TOGETHER];
STEP void load_slots(Slots& batch, const u8* w0, const u8* w1, const u32* experts, u32 tile, u32 b) {
    UNROLL for (u32 i = 0; i < TOGETHER; i++) {
        u64 matrix = (u64)experts[slot_of(tile, b) + i] * ROWS_0 * Run0::ROW_BYTES;
        load_rows<Run0, LISTS>(batch[i], 0, w0 + matrix, first_row(tile), ROWS_0, b % BATCHES * BATCH);
        if constexpr (LISTS == 2) load_rows<Run0, LISTS>(batch[i], 1, w1 + matrix, first_row(tile), ROWS_0, b % BATCHES * BATCH);
    }
}

STEP void store_rows(float (&acc)[LISTS * ROWS][1], float* y, const float* residual, u32 tile) {
    sum_team<LISTS>(acc);
    u64 at = (u64)(tile / TILES) * ROWS_0;
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        u32 row = first_row(tile) + r;
        if (team_lane() != 0 || row >= ROWS_0) continue;
        float v = acc[r][0];
        if constexpr (LISTS == 2) v = (GLU == 1 ? silu(v) : gelu(v)) * acc[ROWS + r][0];
        if (RESIDUAL) v += residual[at + row];
        y[at + row] = v;
    }
}

KERNEL experts(const float* x, const float* aux, const u32* chosen, const float* shares, const float* residual,
               const u8* RESTRICT w0, const u8* RESTRICT w1, float* y, float eps, u32 blocks) {
#if !X_GLOBAL
    Norm norm;
    load_norm(norm, aux);
#endif
    launch_dependents();
    wait_for_producer();
    Work work = my_work(ALL_TILES, blocks);
    u32 tile = work.tile, stride = work.stride, b = 0;
    Slots batch;
    if (tile < work.end) load_slots(batch, w0, w1, chosen, tile, 0);
#if X_GLOBAL
    const u32x4* columns = (const u32x4*)x;
#else
    LDS_DYNAMIC(lds);
    u32x4* columns = (u32x4*)lds;
    make_columns<X_COLUMNS>(x, aux, norm, eps, columns);
    block_sync();
#endif
    float acc[LISTS * ROWS][1] = {}, slot[LISTS * ROWS][1] = {};
    NO_UNROLL while (tile < work.end) {
        u32 next = b + 1, next_tile = tile;
        if (next == SLOTS * BATCHES) next = 0, next_tile = tile + stride;
        Slots ahead;
        if (next_tile < work.end) {
            load_slots(ahead, w0, w1, chosen, next_tile, next);
        } else {
            UNROLL for (u32 i = 0; i < TOGETHER; i++) ahead[i] = batch[i];
        }
        UNROLL for (u32 i = 0; i < TOGETHER; i++) {
            u32 which = slot_of(tile, b) + i, column = X_PER_SLOT ? which : which / TOP;
            dot_batch<Run0, LISTS>(slot, batch[i], columns + column * X_VECTORS, b % BATCHES * BATCH);
            if (next % BATCHES == 0) {  // a slot is through
                float share = SUM ? shares[which] : 1.0f;
                UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) acc[r][0] = fma_f32(share, slot[r][0], acc[r][0]), slot[r][0] = 0.0f;
            }
        }
        if (next == 0) {
            store_rows(acc, y, residual, tile);
            UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) acc[r][0] = 0.0f;
        }
        UNROLL for (u32 i = 0; i < TOGETHER; i++) batch[i] = ahead[i];
        b = next;
        tile = next_tile;
    }
}
