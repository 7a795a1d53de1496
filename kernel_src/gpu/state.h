// state.h: the fixed-size state of a sequence, for any number of tokens.
//
//   slots, position   as for attend.h, one token of each sequence; with ONE: tokens of one
//             sequence, position is the position of the first token
//   state     f32; slot s starts at `sequence_bytes` · s. The state is zero at position 0: memory
//             is not read
#pragma once
#include "kjit.h"

template <bool ONE> struct Past {
    u32 first;    // the first row of this sequence
    u32 tokens;   // rows of this sequence, from `first` on
    bool begins;  // position 0: the state is zero
    float* state;

    STEP Past of(const u32* slots, const u32* position, u8* state, u64 sequence_bytes, u32 row,
                 u32 tokens) {
        if constexpr (ONE) return Past{0, tokens, position[0] == 0, (float*)state};
        u32 slot = slots ? slots[row] : row;
        return Past{row, 1, position[slot] == 0, (float*)(state + slot * sequence_bytes)};
    }
};
