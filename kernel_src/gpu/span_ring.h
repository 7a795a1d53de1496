// span_ring.h: loads spans of 32 weights (dequant.h) through shared memory. Each thread has its own
// slots there. Spans are requested many steps ahead by asynchronous copies. Loads into registers
// cannot be so far ahead: a warp has only six counters for all its loads, and a wait for one load
// of a counter waits for all of them.
//
// If a section has less than a word for a span, the whole word is copied.
#pragma once
#include "dequant.h"
#include "mma.h"

// Slots are numbers (addresses in shared memory): the compiler would recompute a pointer from the
// block's base at each use.
template <u32 BYTES> STEP void copy_to(u32 to, const void* from) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES)
                     : "memory");
}
STEP u32x4 shared16(u32 at) {
    u32x4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
STEP u32x2 shared8(u32 at) {
    u32x2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
STEP u32 shared4(u32 at) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

template <class W> struct SpanRing {
    static constexpr u32 UNITS = 32 / W::UNIT;
    static constexpr u32 BLOCK_BYTES = W::BLOCKS == Blocks::None       ? 0
                                       : W::BLOCKS == Blocks::HalfE8M0 ? 1
                                       : W::BLOCKS == Blocks::Half     ? 2
                                                                       : 4;
    static constexpr u32 GROUP_BYTES =
        W::GROUPS == Groups::None || W::GROUPS == Groups::InSigns || W::GROUPS == Groups::InHigh ? 0
        : W::GROUPS == Groups::Signed32 || W::GROUPS == Groups::Odd16 ? 1 : 2;
    template <bool BOOK, class V> struct Parts {  // without a codebook
        static constexpr u32 index = 0, signs = 0, high = 0;
        static constexpr u32 index_at = 0, signs_at = 0, high_at = 0;
    };
    template <class V> struct Parts<true, V> {
        static constexpr u32 index = 32 / V::VECTOR, signs = V::SIGN_BITS != 0 ? 4 : 0,
                             high = V::HIGH_BYTES, index_at = V::INDEX_AT, signs_at = V::SIGNS_AT,
                             high_at = V::HIGH_AT;
    };
    using Book = Parts<CODEBOOK<W>, W>;
    // Bytes of a span in each section of the ring.
    static constexpr u32 BIG = PLAIN<W> || W::C8 != NONE || W::C4 != NONE ? 16 : 0,
                         TWO = !PLAIN<W> && W::C2 != NONE ? 8 : Book::index,
                         ONE = !PLAIN<W> && W::C1 != NONE ? 4 : Book::signs,
                         HIGH = Book::high != 0 ? 4 : 0, GROUP = GROUP_BYTES != 0 ? 4 : 0,
                         BLOCK = BLOCK_BYTES != 0 ? 4 : 0;
    static constexpr u32 BYTES = UNITS * BIG + TWO + ONE + HIGH + GROUP + BLOCK;
    static constexpr u32 TWO_AT = UNITS * BIG, ONE_AT = TWO_AT + TWO, HIGH_AT = ONE_AT + ONE,
                         GROUP_AT = HIGH_AT + HIGH, BLOCK_AT = GROUP_AT + GROUP;

    // Number of units of 128 columns (four spans) that share a block scale. Only the first of them
    // loads it.
    static constexpr u32 BLOCK_UNITS = W::BLOCK_32 >= 8 ? W::BLOCK_32 / 4 : 1;

    // Copies span p of the row record `row` to the slots of thread `me` of `all` threads, at
    // `place`. The slots of a section are contiguous over all threads: thread `me` has those at 16,
    // 8 or 4 · `me`.
    STEP void fetch(u32 place, u32 me, u32 all, const u8* row, u32 p, bool block) {
        if constexpr (BIG != 0) {
            constexpr u32 at = PLAIN<W> ? 0 : W::C8 != NONE ? W::C8 : W::C4;
            UNROLL for (u32 u = 0; u < UNITS; u++)
                copy_to<16>(place + u * 16 * all + 16 * me, row + at + 16 * (UNITS * p + u));
        }
        if constexpr (TWO != 0)
            copy_to<TWO>(place + TWO_AT * all + TWO * me,
                         row + (CODEBOOK<W> ? Book::index_at : W::C2) + TWO * p);
        if constexpr (ONE != 0)
            copy_to<4>(place + ONE_AT * all + 4 * me,
                       row + (CODEBOOK<W> ? Book::signs_at : W::C1) + 4 * p);
        if constexpr (HIGH != 0)
            copy_to<4>(place + HIGH_AT * all + 4 * me,
                       row + Book::high_at + (Book::high * p & ~3u));
        if constexpr (GROUP != 0)
            copy_to<4>(place + GROUP_AT * all + 4 * me,
                       row + W::GROUPS_AT + (GROUP_BYTES * p & ~3u));
        if constexpr (BLOCK != 0)
            if (block)
                copy_to<4>(place + BLOCK_AT * all + 4 * me,
                           row + W::BLOCKS_AT + (BLOCK_BYTES * (p / W::BLOCK_32) & ~3u));
    }

    // The `bytes` bytes at byte offset `at`; `word` is the word that contains them.
    STEP u32 part(u32 word, u32 bytes, u32 at) {
        if (bytes == 4) return word;
        u32 v = word >> (8 * (at & 3u));
        return bytes == 2 ? v & 0xffffu : v & 0xffu;
    }

    // Reads a span that has arrived, in the form of fetch_span. Without `block`, the block scale in
    // `q` stays.
    STEP void take(Span<W>& q, u32 place, u32 me, u32 all, u32 p, bool block) {
        const u32 before = q.unit[0].block;
        UNROLL for (u32 u = 0; u < UNITS; u++) {
            q.unit[u] = zero_unit<W>();
            if constexpr (BIG != 0) {
                u32x4 v = shared16(place + u * 16 * all + 16 * me);
                u32(&big)[4] = q.unit[u].big;
                big[0] = v.x, big[1] = v.y, big[2] = v.z, big[3] = v.w;
            }
        }
        Unit<W>& t = q.unit[0];
        if constexpr (TWO == 8) {
            u32x2 v = shared8(place + TWO_AT * all + 8 * me);
            t.c2[0] = v.x, t.c2[1] = v.y;
        }
        if constexpr (TWO == 4) t.c2[0] = shared4(place + TWO_AT * all + 4 * me);
        if constexpr (ONE != 0) t.c1 = shared4(place + ONE_AT * all + 4 * me);
        if constexpr (HIGH != 0)
            t.big[0] = part(shared4(place + HIGH_AT * all + 4 * me), Book::high, Book::high * p);
        if constexpr (GROUP != 0)
            t.group = part(shared4(place + GROUP_AT * all + 4 * me), GROUP_BYTES, GROUP_BYTES * p);
        t.block = before;
        if constexpr (BLOCK != 0) {
            if (block)
                t.block = part(shared4(place + BLOCK_AT * all + 4 * me), BLOCK_BYTES,
                               BLOCK_BYTES * (p / W::BLOCK_32));
        }
    }
};
