// embed: out[r] = scale · table[token of row r], for any format. A thread makes one unit of a row.
//
// A row whose id has the highest bit (0x8000'0000) is no token: it stays as it is. The host wrote
// an embedding there, such as a row of an image.
//
//   table     row records (kernel_src/formats/src/layout.rs)
//   out       rows × COLS f32
//   tokens, position  row r is the token at position[0] + r; with EACH_OWN the token of slot
//             s = slots[r] at position[s], whose tokens start at s · capacity
//   slots     EACH_OWN: the slot of each row; null: row r has slot r
//
// S: COLS, EACH_OWN, W (the format). Share: x a block of units, y the row.
#pragma once
#include "weights.h"

struct EmbedArgs {
    const u8* table;
    const u32 *tokens, *slots, *position;
    float* out;
    float scale;
    u32 capacity;
};

template <class S> struct Embed {
    using W = typename S::W;
    static constexpr u32 COLS = S::COLS;

    STEP void step(EmbedArgs a, Share share) {
        u32 row = share.y, u = share.x * KJ_BLOCK + thread_id();
        if (u >= W::UNITS) return;
        u32 slot = S::EACH_OWN && a.slots ? a.slots[row] : row;
        u32 token = S::EACH_OWN ? a.tokens[(u64)slot * a.capacity + a.position[slot]]
                                : a.tokens[a.position[0] + row];
        if (token >> 31) return;
        Unit<W> unit = load_unit<W>(a.table + (u64)token * W::ROW_BYTES, u);
        float v[W::UNIT];
        unit_values<W>(unit, v);
        float* to = a.out + (u64)row * COLS + u * W::UNIT;
        if constexpr (COLS % 4 == 0) {
            UNROLL for (u32 i = 0; i < W::UNIT; i += 4)
                if (u * W::UNIT + i < COLS)
                    *(u32x4*)(to + i) =
                        u32x4{as_u32(v[i] * a.scale), as_u32(v[i + 1] * a.scale),
                              as_u32(v[i + 2] * a.scale), as_u32(v[i + 3] * a.scale)};
        } else {
            UNROLL for (u32 i = 0; i < W::UNIT; i++)
                if (u * W::UNIT + i < COLS) to[i] = v[i] * a.scale;
        }
    }
};
