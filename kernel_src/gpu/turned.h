// turned.h: halves in *turned tiles*, the second factor of batch_gemm.h: mma.h's tiles of 64 rows ×
// 64 columns, two for each 128 columns, whose columns lie in the order in which a warp's lanes have
// the weights that they unpack.
//
// Of each 128 columns lane l % 4 has a span of 32, eight quads, and gives quad j to product j as
// its places 2·(l % 4) and 2·(l % 4) + 8: columns 0 and 2 of the quad, then 1 and 3.
#pragma once
#include "mma.h"

// The place among 128 of a column.
STEP u32 turned_place(u32 col) {
    return col % 32 / 4 * 16 + col % 2 * 8 + col / 32 * 2 + col % 4 / 2;
}

// Index of an element in turned tiles, `steps` of 128 columns.
STEP u64 turned_at(u32 token, u32 col, u32 steps) {
    u32 place = turned_place(col % 128);
    return ((u64)(token / 64) * (2 * steps) + col / 128 * 2 + place / 64) * 4096 +
           tile_at(token % 64, place % 64);
}

// Eight columns from `col` on, a multiple of 8, as two halves a word each in their own order.
STEP void store_turned(u16* tiles, u32 token, u32 col, u32 steps, const u32 (&pair)[4]) {
    u16* to = tiles + turned_at(token, col, steps);
    const u32 half[4] = {
        (pair[0] & 0xffffu) | pair[1] << 16, pair[0] >> 16 | (pair[1] & 0xffff0000u),
        (pair[2] & 0xffffu) | pair[3] << 16, pair[2] >> 16 | (pair[3] & 0xffff0000u)};
    // Places 0, 8, 16 and 24 from there: the next chunk of the row each, swizzled by the row.
    const u32 chunk = turned_place(col % 128) % 64 / 8, row = token % 64 % 8;
    UNROLL for (u32 i = 0; i < 4; i++)
        *(u32*)(to + 8 * (i32)(((chunk + i) ^ row) - (chunk ^ row))) = half[i];
}
