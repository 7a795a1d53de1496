// sample.h: the order of logits, and the advance to the next token.
#pragma once
#include "kjit.h"

STEP u32 order_bits(float x) {  // a key in the order of floats: −0 equals 0, NaN is lowest
    u32 bits = as_u32(x + 0.0f);
    return x != x ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The inverse of order_bits.
STEP float logit_of_order(u32 key) { return as_f32(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// The slot of a row of logits.
STEP u32 slot_of(const u32* slots, u32 row) { return slots ? slots[row] : row; }

STEP void move_on(u32* tokens, u32* position, u32 slot, u32 capacity, u32 token) {
    u32 next = position[slot] + 1;
    if (next < capacity) tokens[(u64)slot * capacity + next] = token;
    position[slot] = next;
}
