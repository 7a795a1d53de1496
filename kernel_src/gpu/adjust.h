// adjust: applies biases, a mask and penalties to a row of logits, before a token is chosen.
// model/src/sample.rs is the reference and defines the order.
//
//   logits  SEQUENCES × VOCAB f32, changed in place
//   slots   SEQUENCES u32: the slot of each sequence; null: sequence s has slot s
//   lists   SLOTS × STRIDE u32:
//             4 words: number of entries, 1 if there is a mask, the repetition penalty (f32), a 0
//               whose value the compiler does not know
//             MOST × (id, bias f32, f32 to subtract, 1 for a repeated token); each id once
//             one bit for each token: 1 if it may be chosen
//
// A row is unchanged if its slot has no entries and no mask.
//
// S: VOCAB, MOST, STRIDE. Share: x of `blocks`, each with a range of ids; y the sequence.
#pragma once
#include "sample.h"

struct AdjustArgs {
    float* logits;
    const u32 *slots, *lists;
    u32 blocks;
};

template <class S> struct Adjust {
    static constexpr u32 HEAD = 4;

    STEP void step(AdjustArgs a, Share share) {
        u32 row = share.y;
        const u32* list = a.lists + (u64)slot_of(a.slots, row) * S::STRIDE;
        u32 entries = list[0];
        bool masked = list[1] != 0;
        if (entries == 0 && !masked) return;
        float repeat = as_f32(list[2]);
        float* x = a.logits + (u64)row * S::VOCAB;
        const u32* mask = list + HEAD + 4 * S::MOST;
        // The range of a block is a multiple of 32 ids: whole words of the mask.
        u32 part = CEIL_DIV(CEIL_DIV(S::VOCAB, a.blocks), 32) * 32;
        u32 from = min_u32(share.x * part, S::VOCAB), to = min_u32(from + part, S::VOCAB);
        auto allowed = [&](u32 id) { return !masked || (mask[id / 32] >> (id % 32) & 1) != 0; };
        if (masked) {
            for (u32 i = from + thread_id(); i < to; i += KJ_BLOCK)
                if (!allowed(i)) x[i] = as_f32(0xff800000u);  // −∞
        }
        // Only one thread writes the logit of an entry. A token that is masked out needs no further
        // work.
        for (u32 e = thread_id(); e < entries; e += KJ_BLOCK) {
            u32x4 entry = load16(list + HEAD + 4 * e);
            if (entry.x < from || entry.x >= to || !allowed(entry.x)) continue;
            float v = x[entry.x] + as_f32(entry.y);
            if (entry.w != 0) v = v > 0.0f ? v / repeat : v * repeat;
            // Two roundings, as on the host. The xor with an unknown word (0) prevents the compiler
            // from fusing the operations.
            x[entry.x] = as_f32(as_u32(v) ^ list[3]) - as_f32(entry.z);
        }
    }
};
