// argmax: the largest logit's token, the lower id first among equals, NaN never; and the sequence moves on by one.
//
//   logits    SEQUENCES × VOCAB f32; slots  SEQUENCES u32: the place of each (null: the same)
//   tokens    PLACES × capacity u32: position p + 1 gets the token; position  PLACES u32: +1
//   part      SEQUENCES × blocks u64; counters  SEQUENCES u32 (zero before and after)
// Grid: blocks × sequences.
//
// Constants: VOCAB.
#include "sample.h"

KERNEL argmax(const float* logits, u64* part, u32* counters, const u32* slots, u32* tokens, u32* position, u32 capacity, u32 blocks) {
    launch_dependents();
    wait_for_producer();
    u32 sequence = block_id_y();
    u64 best = 0;
    for (u32 i = block_id() * KJ_BLOCK + thread_id(); i < VOCAB; i += blocks * KJ_BLOCK) {
        u64 key = (u64)order_bits(logits[(u64)sequence * VOCAB + i]) << 32 | (0xffffffffu - i);
        best = key > best ? key : best;
    }
    best = block_largest(best);
    if (thread_id() == 0) part[sequence * blocks + block_id()] = best;
    if (!last_block(counters + sequence, blocks)) return;
    best = 0;
    for (u32 i = thread_id(); i < blocks; i += KJ_BLOCK) best = part[sequence * blocks + i] > best ? part[sequence * blocks + i] : best;
    best = block_largest(best);
    if (thread_id() == 0) move_on(tokens, position, place_of(slots, sequence), capacity, best >> 32 ? 0xffffffffu - (u32)best : 0);
}
