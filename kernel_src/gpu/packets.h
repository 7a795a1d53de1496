// packets.h: sends vectors from the blocks that compute them to the blocks that multiply with them,
// inside a kernel of many steps (stream.h). The sender quantises 16 values once for all readers.
// There is no grid barrier: a reader polls its inputs until they arrive.
//
// 16 values, a *group*, are three packets of 16 bytes. 16 high bytes, 16 low bytes (activations.h:
// q = 256 · high + low) and the scale are nine words, three for each packet. The fourth word of a
// packet is the *epoch*, the number of the launch: it shows whether the packet belongs to this
// launch. Each vector has its own memory, so that a packet of one vector is never read as one of
// another. The first packets of all groups are contiguous, then the second, then the third; {sum of
// squares, epoch} of each group follow.
//
// A packet must be read in one access. For PTX a vector of four words is four atomic accesses;
// `.b128` is one (PTX ISA 8.3, sm_70 and later), so one epoch is enough for four words. An epoch in
// each pair of words, which are atomic on all targets, would take 4.5 bytes per value instead of 3.
// Compilers before CUDA 12.3 do not know `.b128`; they get the vector, which is the same
// instruction.
//
// If the reader applies a norm, the sender quantises each value times the norm's weight. The norm's
// scale is the same for all values, so the reader multiplies its results by it. It computes the
// scale from the sums of squares.
//
// Values sent *one by one* are not quantised: each is {f32, epoch}. These are heads (queries, keys,
// values), because attention normalises and rotates them and waits only for its own heads; and
// scores of experts and their inputs, because a choice depends on them.
#pragma once
#include "persist.h"

#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 3)
STEP u32x4 packet_load(const u8* p) {
    u64 low, high;
    asm volatile("{ .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(low), "=l"(high)
                 : "l"(p)
                 : "memory");
    return u32x4{(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
}
STEP void packet_store(u8* p, u32x4 v) {
    asm volatile(
        "{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(p),
        "l"((u64)v.y << 32 | v.x), "l"((u64)v.w << 32 | v.z)
        : "memory");
}
#else
STEP u32x4 packet_load(const u8* p) {
    u32x4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
STEP void packet_store(u8* p, u32x4 v) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
#endif
STEP u64 packet_load8(const u8* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
STEP void packet_store8(u8* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// Source and destinations of an instruction's values; null: plain memory.
struct Links {
    const u8* in;        // packets, or values one by one, depending on the step
    u8* out;             // packets
    const float* weigh;  // for `out`: weight of the norm of its reader, or null
    u8* values;          // values one by one
    u32 epoch;
    u32 sum;                 // number of the sum over several devices, from 1 (sums.h); 0: none
    const u64* instruction;  // the instruction in shared memory
};
// Loads the links of an instruction into registers. Passed by reference they would be in local
// memory, whose loads after a barrier queue behind all loads of the ring.
STEP Links links_of(const u64* c) {
    return Links{(const u8*)c[4], (u8*)c[5], (const float*)c[6], (u8*)c[7],
                 Meeting::place().epoch, sum_of(c), c};
}

// A product that is rounded. In a sum of two products a compiler fuses one of them with the sum,
// and it chose differently in two kernels with the same steps.
STEP float rounded_product(float scale, i32 sum) { return __fmul_rn(scale, (float)sum); }

// Sums of squares of a thread.
template <u32 N> struct Squares { float of[N]; };

struct Packets {
    static constexpr u32 GROUP = 16;

    // Bytes of `values` values that are sent one by one.
    STEP constexpr u32 values_bytes(u32 values) { return values * 8; }

    // Sends a group: sixteen lanes have one value `v` each. All lanes of the wave must call it.
    // `weight`: the norm's weight for this value.
    STEP void give(const Links& to, u32 groups, u32 group, bool active, float v, float weight) {
        Meeting::delay(100);
        const u32 lane = lane_id() % GROUP, first = lane_id() / GROUP * GROUP;
        const float x = v * weight;
        const float most = group_max(abs_f32(x), GROUP);
        const float squares = to.weigh ? group_sum(v * v, GROUP) : 0.0f;
        float inverse = most > 0.0f ? 32639.0f / most : 0.0f;
        if (inverse > 3.0e38f) inverse = 3.0e38f;
        const u32 whole = (u32)round_int(x * inverse);
        // A NaN or an infinity makes the scale NaN or infinite, and so the result.
        const bool bad = (u32)(wave_ballot(!(abs_f32(x) <= 3.4e38f)) >> first) & 0xffff;
        const u32 scale = bad ? 0x7fc00000u : as_u32(most / 32639.0f);
        // The high bytes of four lanes as a word, and their low bytes as a word.
        u32 pair = (whole + 128) >> 8 & 0xff | (whole & 0xff) << 16;
        u32 other = wave_xor(pair, 1);
        pair = lane & 1 ? other | pair << 8 : pair | other << 8;
        other = wave_xor(pair, 2);
        const u32 left = lane & 2 ? other : pair, right = lane & 2 ? pair : other;
        const u32 word = lane & 1 ? kj_prmt(left, right, 0x7632) : kj_prmt(left, right, 0x5410);
        // Word n of nine: high bytes of quad n, low bytes of quad n − 4, the scale. Lanes 0 … 2
        // have three words each; words of other lanes are not used.
        u32 three[3];
        UNROLL for (u32 i = 0; i < 3; i++) {
            const u32 n = 3 * lane + i, quad = n % 4;
            const u32 got = wave_get(word, first + 4 * quad + (n >= 4 ? 1 : 0));
            three[i] = n == 8 ? scale : got;
        }
        u8* at = to.out + ((u64)lane * groups + group) * 16;
        if (active && lane < 3) packet_store(at, u32x4{three[0], three[1], three[2], to.epoch});
        if (to.weigh && active && lane == 3)
            packet_store8(to.out + (u64)groups * 48 + group * 8,
                          (u64)to.epoch << 32 | as_u32(squares));
    }

    // Sends one value without quantisation.
    STEP void give_value(u8* to, u32 epoch, u32 at, float v) {
        packet_store8(to + (u64)at * 8, (u64)epoch << 32 | as_u32(v));
    }
    // Receives N values, from index `at` on, into shared memory. Called by one wave.
    template <u32 N> STEP void take_values(const u8* in, u32 epoch, u32 at, float* to) {
        constexpr u32 EACH = CEIL_DIV(N, KJ_WAVE);
        Meeting::delay(102);
        u64 v[EACH];
        // Values beyond the end are not polled.
        UNROLL for (u32 i = 0; i < EACH; i++)
            v[i] = (u64)(lane_id() + i * KJ_WAVE < N ? ~epoch : epoch) << 32;
        in += (u64)(at + lane_id()) * 8;
        u32 turns = 0;
        u64 since = 0;
        bool all;
        do {
            UNROLL for (u32 i = 0; i < EACH; i++)
                if ((u32)(v[i] >> 32) != epoch) v[i] = packet_load8(in + i * KJ_WAVE * 8);
            all = true;
            UNROLL for (u32 i = 0; i < EACH; i++) all = all && (u32)(v[i] >> 32) == epoch;
        } while (!all && !Meeting::over(turns, since));
        UNROLL for (u32 i = 0; i < EACH; i++)
            if (lane_id() + i * KJ_WAVE < N) to[lane_id() + i * KJ_WAVE] = as_f32((u32)v[i]);
        wave_sync();
    }

    // Index of a group's vectors in the column: as in activations.h, except for the scales. For
    // each 32 values there are the scales of both groups, then the sums of both.
    template <bool SPLIT>
    STEP void keep(u32x4* column, u32 groups, u32 group, const u32x4 (&p)[3]) {
        const u32 wide = groups / 2, at = SPLIT ? group % 2 * wide + group / 2 : group;
        column[at] = u32x4{p[0].x, p[0].y, p[0].z, p[1].x};
        column[groups + at] = u32x4{p[1].y, p[1].z, p[2].x, p[2].y};
        u32* last = (u32*)(column + 2 * groups + group / 2);
        last[group % 2] = p[2].z;
        const u32 one = 0x01010101u;
        const i32 high =
            dot4(one, p[0].x, dot4(one, p[0].y, dot4(one, p[0].z, dot4(one, p[1].x, 0))));
        const i32 low =
            dot4(one, p[1].y, dot4(one, p[1].z, dot4(one, p[2].x, dot4(one, p[2].y, 0))));
        last[2 + group % 2] = as_u32(rounded_product(as_f32(p[2].z), high * 256 + low));
    }

    // Receives a vector whose values were sent one by one into a plain column (activations.h; COLS
    // is a multiple of UNIT). Multiplies by the norm's `weights` if there are any. All threads of
    // the block must call it. Returns the sum of squares of this thread's values. Ends without a
    // barrier. FEW: quads that a thread polls together.
    template <u32 COLS, u32 UNIT, u32 FEW>
    CALLED float take_plain(const u8* in, u32 epoch, const float* weights, u32x4* column) {
        constexpr u32 QUADS = COLS / 4, UNITS = COLS / UNIT;
        Meeting::delay(103);
        float sum = 0.0f;
        NO_UNROLL for (u32 from = 0; from < QUADS; from += FEW * KJ_BLOCK) {
            u32x4 p[FEW][2], w[FEW];
            UNROLL for (u32 i = 0; i < FEW; i++) {
                const u32 q = from + i * KJ_BLOCK + thread_id(), none = q < QUADS ? ~epoch : epoch;
                p[i][0] = p[i][1] = u32x4{0, none, 0, none};
                w[i] = weights && q < QUADS ? load16(weights + 4 * q) : u32x4{};
            }
            u32 turns = 0;
            u64 since = 0;
            bool all;
            do {
                all = true;
                UNROLL for (u32 i = 0; i < FEW; i++)
                    UNROLL for (u32 k = 0; k < 2; k++) {
                        const u32 q = from + i * KJ_BLOCK + thread_id();
                        // Two values, each with its own epoch.
                        if (p[i][k].y != epoch || p[i][k].w != epoch)
                            p[i][k] = packet_load(in + ((u64)q * 2 + k) * 16);
                    }
                UNROLL for (u32 i = 0; i < FEW; i++)
                    UNROLL for (u32 k = 0; k < 2; k++)
                        all = all && p[i][k].y == epoch && p[i][k].w == epoch;
            } while (!all && !Meeting::over(turns, since));
            UNROLL for (u32 i = 0; i < FEW; i++) {
                const u32 q = from + i * KJ_BLOCK + thread_id();
                float v[4] = {as_f32(p[i][0].x), as_f32(p[i][0].z), as_f32(p[i][1].x),
                              as_f32(p[i][1].z)};
                UNROLL for (u32 e = 0; e < 4; e++) sum = fma_f32(v[e], v[e], sum);
                if (weights)
                    v[0] *= as_f32(w[i].x), v[1] *= as_f32(w[i].y), v[2] *= as_f32(w[i].z),
                        v[3] *= as_f32(w[i].w);
                if (q < QUADS)
                    column[UNIT == 8 ? q % 2 * UNITS + q / 2 : q] =
                        u32x4{as_u32(v[0]), as_u32(v[1]), as_u32(v[2]), as_u32(v[3])};
            }
        }
        return sum;
    }

    // Receives `groups` groups into the block's column, or into COLUMNS successive columns. If SUMS
    // is not 0, returns sums of squares of this thread's values: one per column, or one for all.
    // Ends without a barrier. FEW: groups that a thread polls together.
    template <bool SPLIT, u32 FEW, u32 COLUMNS, u32 SUMS>
    CALLED Squares<SUMS> take(const u8* in, u32 groups, u32 epoch, bool squares, u32x4* column) {
        static_assert(SUMS == 1 || SUMS == COLUMNS, "sums of columns");
        Meeting::delay(101);
        Squares<SUMS> sum{};
        NO_UNROLL for (u32 from = 0; from < groups; from += FEW * KJ_BLOCK) {
            u32x4 p[FEW][3];
            u64 q[FEW];
            bool inside[FEW];
            UNROLL for (u32 i = 0; i < FEW; i++) {
                inside[i] = from + i * KJ_BLOCK + thread_id() < groups;
                // Values beyond the end are not polled.
                const u32 w = inside[i] ? ~epoch : epoch;
                UNROLL for (u32 k = 0; k < 3; k++) p[i][k] = u32x4{0, 0, 0, w};
                q[i] = (u64)(squares ? w : epoch) << 32;
            }
            u32 turns = 0;
            u64 since = 0;
            bool all;
            do {
                UNROLL for (u32 i = 0; i < FEW; i++) {
                    const u32 group = from + i * KJ_BLOCK + thread_id();
                    UNROLL for (u32 k = 0; k < 3; k++)
                        if (p[i][k].w != epoch)
                            p[i][k] = packet_load(in + ((u64)k * groups + group) * 16);
                    if ((u32)(q[i] >> 32) != epoch)
                        q[i] = packet_load8(in + (u64)groups * 48 + group * 8);
                }
                all = true;
                UNROLL for (u32 i = 0; i < FEW; i++) {
                    UNROLL for (u32 k = 0; k < 3; k++) all = all && p[i][k].w == epoch;
                    all = all && (u32)(q[i] >> 32) == epoch;
                }
            } while (!all && !Meeting::over(turns, since));
            UNROLL for (u32 i = 0; i < FEW; i++) {
                const u32 group = from + i * KJ_BLOCK + thread_id(), each = groups / COLUMNS;
                const u32 which = COLUMNS == 1 ? 0 : group / each;
                if (inside[i])
                    keep<SPLIT>(column + which * (5 * each / 2), each, group - which * each, p[i]);
                UNROLL for (u32 c = 0; c < SUMS; c++)
                    sum.of[c] += SUMS == 1 || which == c ? as_f32((u32)q[i]) : 0.0f;
            }
        }
        return sum;
    }
};

// The links of attention (attend_mma.h). Its heads arrive one by one if the previous step sends
// them, and the lanes that have results send them as packets. (Results in device memory would need
// another wait of at least 1 µs, behind the loads of weights.) S: as for attend_mma.h; SEQUENCES.
template <class S> struct HandedBefore {
    static constexpr u32 VALUES = S::HEADS * S::HEAD_DIM;  // values of a sequence's result
    Links links;
    STEP void release() {}
    STEP void wait() { Meeting::wait(); }
    STEP u32 slot(const u32* at) { return Meeting::kept(0, at); }
    STEP u32 position(const u32* at) { return Meeting::kept(1, at); }
    // The N values from index `at` on: in memory at `x`, or received into `row`. Called by one
    // wave.
    template <u32 N>
    __device__ __forceinline__ const float* head(float* row, const float* x, u32 at) const {
        if (links.in == nullptr) return x;
        Packets::take_values<N>(links.in, links.epoch, at, row);
        return row;
    }
    // Stores or sends result `at`, if `inside`. Sixteen lanes have a group; all lanes of a wave
    // must call it.
    __device__ __forceinline__ void made(float* out, u32 at, bool inside, float v) const {
        if (links.out != nullptr)
            Packets::give(links, S::SEQUENCES * VALUES / Packets::GROUP, at / Packets::GROUP,
                          inside, v, inside && links.weigh ? links.weigh[at % VALUES] : 1.0f);
        else if (inside) out[at] = v;
    }
};
