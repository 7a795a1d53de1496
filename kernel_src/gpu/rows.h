// rows: gathers rows, out[r] = x[which[r]]. A row has `words` 32-bit words.
//
// Share: x a block of words, y the row.
#pragma once
#include "kjit.h"

struct CopyRowsArgs {
    const u32 *x, *which;
    u32* out;
    u32 words;
};

STEP void copy_rows(CopyRowsArgs a, Share share) {
    u64 row = share.y, from = a.which[row];
    u32 i = share.x * KJ_BLOCK + thread_id();
    if (i < a.words) a.out[row * a.words + i] = a.x[from * a.words + i];
}
