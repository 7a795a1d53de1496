// turned.h: *turned tiles* of f16, the second operand of batch_gemm.h. They are mma.h's tiles of 64
// rows × 64 columns, two for each 128 columns, with the columns permuted: in the order in which a
// warp's lanes unpack weights.
//
// Of each 128 columns, lane l % 4 has a span of 32, which is eight quads. Quad j goes to product j,
// at the indices 2·(l % 4) and 2·(l % 4) + 8 of its depth: columns 0 and 2 of the quad, then 1 and
// 3.
#pragma once
#include "mma.h"

// Index of a column in its 128 columns.
STEP u32 turned_place(u32 col) {
    return col % 32 / 4 * 16 + col % 2 * 8 + col / 32 * 2 + col % 4 / 2;
}

// Index of an element in turned tiles, `steps` of 128 columns.
STEP u64 turned_at(u32 token, u32 col, u32 steps) {
    u32 place = turned_place(col % 128);
    return ((u64)(token / 64) * (2 * steps) + col / 128 * 2 + place / 64) * 4096 +
           tile_at(token % 64, place % 64);
}

// Stores eight columns from `col` on, a multiple of 8, as words of two f16 in their original order.
STEP void store_turned(u16* tiles, u32 token, u32 col, u32 steps, const u32 (&pair)[4]) {
    u16* to = tiles + turned_at(token, col, steps);
    const u32 half[4] = {
        (pair[0] & 0xffffu) | pair[1] << 16, pair[0] >> 16 | (pair[1] & 0xffff0000u),
        (pair[2] & 0xffffu) | pair[3] << 16, pair[2] >> 16 | (pair[3] & 0xffff0000u)};
    // The four words are at indices 0, 8, 16 and 24 from there, each in the next chunk of the row.
    // Chunks are swizzled by the row.
    const u32 chunk = turned_place(col % 128) % 64 / 8, row = token % 64 % 8;
    UNROLL for (u32 i = 0; i < 4; i++)
        *(u32*)(to + 8 * (i32)(((chunk + i) ^ row) - (chunk ^ row))) = half[i];
}
