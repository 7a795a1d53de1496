// embed: out[r] = scale · table[token of row r], any format; a thread makes one unit of a row.
//
//   table  row records (kernel_src/src/layout.rs); out  rows × COLS f32
//   tokens, position  BATCH 0: row r is the token at position[0] + r; BATCH 1: that of place p = slots[r] at position[p], its tokens
//   starting at p · capacity
//   slots  BATCH 1: the place of each row; null: row r has place r
// Grid: blocks of units × rows.
//
// Constants: COLS, BATCH; struct W in weights_gen.h.
#include "weights.h"
#include "weights_gen.h"

KERNEL embed(const u8* RESTRICT table, const u32* tokens, const u32* slots, const u32* position, float* out, float scale, u32 capacity) {
    launch_dependents();
    wait_for_producer();
    u32 row = block_id_y(), u = block_id() * KJ_BLOCK + thread_id();
    if (u >= W::UNITS) return;
    u32 slot = BATCH && slots ? slots[row] : row;
    u32 token = BATCH ? tokens[(u64)slot * capacity + position[slot]] : tokens[position[0] + row];
    Unit<W> unit = load_unit<W>(table + (u64)token * W::ROW_BYTES, u);
    float v[W::UNIT];
    unit_values<W>(unit, v);
    float* to = out + (u64)row * COLS + u * W::UNIT;
    if constexpr (COLS % 4 == 0) {
        UNROLL for (u32 i = 0; i < W::UNIT; i += 4)
            if (u * W::UNIT + i < COLS)
                *(u32x4*)(to + i) = u32x4{as_u32(v[i] * scale), as_u32(v[i + 1] * scale), as_u32(v[i + 2] * scale), as_u32(v[i + 3] * scale)};
    } else {
        UNROLL for (u32 i = 0; i < W::UNIT; i++)
            if (u * W::UNIT + i < COLS) to[i] = v[i] * scale;
    }
}
