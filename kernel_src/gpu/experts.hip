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
constexpr u32 SLOTS = SUM ? TOP : 1;                                  // that a tile goes through
constexpr u32 STEPS = CEIL_DIV(Run0::UNITS, TEAM), BATCHES = CEIL_DIV(STEPS, BATCH);
constexpr u32 X_COLUMNS = TOKENS * (X_PER_SLOT ? TOP : 1);

// Batch `b` of a tile: slots one after the other, BATCHES for each.
STEP u32 slot_of(u32 tile, u32 b) { return SUM ? tile / TILES * TOP + b / BATCHES : tile / TILES; }
STEP u32 first_row(u32 tile) { return tile % TILES * TILE + team_id() * ROWS; }

STEP void load_slot(Batch<Run0, LISTS>& batch, const u8* w0, const u8* w1, const u32* experts, u32 tile, u32 b) {
    u64 matrix = (u64)experts[slot_of(tile, b)] * ROWS_0 * Run0::ROW_BYTES;
    load_rows<Run0, LISTS>(batch, 0, w0 + matrix, first_row(tile), ROWS_0, b % BATCHES * BATCH);
    if constexpr (LISTS == 2) load_rows<Run0, LISTS>(batch, 1, w1 + matrix, first_row(tile), ROWS_0, b % BATCHES * BATCH);
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
    launch_dependents();
    wait_for_producer();
    u32 tile = worker_id(blocks), stride = blocks * WORKERS, b = 0;
    Batch<Run0, LISTS> batch;
    if (tile < ALL_TILES) load_slot(batch, w0, w1, chosen, tile, 0);
#if X_GLOBAL
    const u32x4* columns = (const u32x4*)x;
#else
    LDS_DYNAMIC(lds);
    u32x4* columns = (u32x4*)lds;
    NO_UNROLL for (u32 n = 0; n < X_COLUMNS; n++)
        make_column(x + n * COLS, PROLOGUE == 1 ? aux : aux + n * COLS, eps, columns + n * X_VECTORS);
    block_sync();
#endif
    float acc[LISTS * ROWS][1] = {}, slot[LISTS * ROWS][1] = {};
    NO_UNROLL while (tile < ALL_TILES) {
        u32 next = b + 1, next_tile = tile;
        if (next == SLOTS * BATCHES) next = 0, next_tile = tile + stride;
        Batch<Run0, LISTS> ahead;
        if (next_tile < ALL_TILES) load_slot(ahead, w0, w1, chosen, next_tile, next);
        else ahead = batch;
        u32 which = slot_of(tile, b), column = X_PER_SLOT ? which : which / TOP;
        dot_batch<Run0, LISTS>(slot, batch, columns + column * X_VECTORS, b % BATCHES * BATCH);
        if (next % BATCHES == 0) {  // a slot is through
            float share = SUM ? shares[which] : 1.0f;
            UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) acc[r][0] = fma_f32(share, slot[r][0], acc[r][0]), slot[r][0] = 0.0f;
        }
        if (next == 0) {
            store_rows(acc, y, residual, tile);
            UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) acc[r][0] = 0.0f;
        }
        batch = ahead;
        b = next;
        tile = next_tile;
    }
}
