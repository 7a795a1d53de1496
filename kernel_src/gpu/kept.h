// kept.h: what a sequence keeps of its past in so many numbers, whatever the number of tokens.
//
//   slots, position   as attend.h has them, a token of each sequence; ONE: tokens of one, position
//   is the
//             first's
//   state     f32; slot s starts `sequence_bytes`·s further on. Nothing is read of a sequence whose
//   position
//             is 0: it begins with zeros
#pragma once
#include "kjit.h"

template <bool ONE> struct Past {
    u32 first;    // the first row at hand
    u32 tokens;   // rows of this sequence, from `first` on
    bool begins;  // there is no past
    float* state;

    STEP Past of(const u32* slots, const u32* position, u8* state, u64 sequence_bytes, u32 row, u32 tokens) {
        if constexpr (ONE) return Past{0, tokens, position[0] == 0, (float*)state};
        u32 slot = slots ? slots[row] : row;
        return Past{row, 1, position[slot] == 0, (float*)(state + slot * sequence_bytes)};
    }
};
