// keep: stores the rows of new tokens in a cache (kv.h) that has one head.
//
//   row       TOKENS × HEAD_DIM f32
//   slots, position   as for latent.h
//   rows      `capacity` positions, slot s at `sequence_bytes` · s; or the pages of table (paged.h)
//
// Share: x of ⌈tokens / waves⌉: one wave per row.
//
// S: ONE, and as for kv.h.
#pragma once
#include "kv.h"

struct KeepArgs {
    const float* row;
    const u32 *slots, *position;
    u8* rows;
    u32 tokens, capacity;
    u64 sequence_bytes;
    PAGED(const u32* table;)
};

template <class S> STEP void keep_rows(KeepArgs a, Share share) {
    u32 token = share.x * kj_waves + wave_id();
    if (token >= a.tokens) return;
    u32 slot = S::ONE ? 0 : a.slots ? a.slots[token] : token;
    u32 here = a.position[slot] + (S::ONE ? token : 0);
    const Pages pages{PAGED(pages_of(a.table, slot, a.capacity).table)};
    Kv<S>::store_row(Kv<S>::page(a.rows + slot * a.sequence_bytes, pages, here),
                     stretch(a.capacity), within(here), a.row + (u64)token * S::HEAD_DIM);
}
