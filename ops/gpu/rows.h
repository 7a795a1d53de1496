// rows.h: reductions of rows, for the generated kernels of ops/src/gpu/rows.rs. TEAM threads, a
// power of two, share a row; a block has KJ_BLOCK / TEAM rows.
#pragma once

// N elements that are loaded and stored together.
template <class T, u32 N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Pack { T v[N]; };

template <class State> STEP State other_lane(State s, u32 mask) {
    union Words {
        State s;
        u32 w[sizeof(State) / 4];
    };
    static_assert(sizeof(State) % 4 == 0, "whole words");
    Words v;
    v.s = s;
    UNROLL for (u32 i = 0; i < sizeof(State) / 4; i++) v.w[i] = wave_xor(v.w[i], mask);
    return v.s;
}

// Reduces the values of a team; all its threads get the same result. `join` must be commutative bit
// for bit. All threads of the block must call it. `pool`: one State per wave.
template <u32 TEAM, class State> STEP State team_fold(State s, State* pool) {
    UNROLL for (u32 m = (TEAM < KJ_WAVE ? TEAM : KJ_WAVE) / 2; m > 0; m /= 2)
        s = join(s, other_lane(s, m));
    if (TEAM <= KJ_WAVE) return s;
    if (lane_id() == 0) pool[wave_id()] = s;
    block_sync();
    constexpr u32 waves = TEAM <= KJ_WAVE ? 1 : TEAM / KJ_WAVE;
    const u32 first = wave_id() / waves * waves;
    s = pool[first];
    UNROLL for (u32 w = 1; w < waves; w++) s = join(s, pool[first + w]);
    block_sync();
    return s;
}
