// argmax: the token with the largest logit; among equal logits the lowest id. NaN is never chosen.
// Then the sequence advances by one token.
//
//   logits    SEQUENCES × VOCAB f32
//   slots     SEQUENCES u32: the slot of each sequence; null: sequence s has slot s
//   tokens    SLOTS × capacity u32: position p + 1 gets the token
//   position  SLOTS u32: + 1
//   part      SEQUENCES × blocks u64
//   counters  SEQUENCES u32, zero before and after a launch
//
// S: VOCAB. Share: x of `blocks`, y the sequence.
#pragma once
#include "sample.h"

struct ArgmaxArgs {
    const float* logits;
    u64* part;
    u32* counters;
    const u32* slots;
    u32 *tokens, *position;
    u32 capacity, blocks;
};

template <class S> struct Argmax {
    STEP void step(ArgmaxArgs a, Share share) {
        u32 sequence = share.y;
        u64 best = 0;
        for (u32 i = share.x * KJ_BLOCK + thread_id(); i < S::VOCAB; i += a.blocks * KJ_BLOCK) {
            u64 key =
                (u64)order_bits(a.logits[(u64)sequence * S::VOCAB + i]) << 32 | (0xffffffffu - i);
            best = key > best ? key : best;
        }
        best = block_largest(best);
        u64* part = a.part + sequence * a.blocks;
        if (thread_id() == 0) part[share.x] = best;
        if (!last_block(a.counters + sequence, a.blocks)) return;
        best = 0;
        for (u32 i = thread_id(); i < a.blocks; i += KJ_BLOCK)
            best = part[i] > best ? part[i] : best;
        best = block_largest(best);
        u32 token = best >> 32 ? 0xffffffffu - (u32)best : 0;
        if (thread_id() == 0)
            move_on(a.tokens, a.position, slot_of(a.slots, sequence), a.capacity, token);
    }
};
