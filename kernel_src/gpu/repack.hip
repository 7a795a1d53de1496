// repack: rows of a GGUF tensor, as the file has them, into row records (kernel_src/src/layout.rs).
//
//   raw      rows × the file's bytes of a row          records  rows × W::ROW_BYTES
// A thread makes one group of 32 weights of a record, or 16 bytes of a plain one; the padding of sections is written as zeros by whoever
// writes the end of the section.
//
// Constants: COLS; structs W (weights.h) and Raw (where the file's blocks have what) in weights_gen.h.
#include "weights.h"
#include "weights_gen.h"

#if PLAIN_BYTES == 0
// The bits of code i that a plane gives: as Plane::bits_of in kernel_src/src/format.
STEP u32 plane_bits(const u8* block, u32 i, u32 at, u32 bits, u32 run) {
    u32 per_byte = 8 / bits;
    return (block[at + i / (run * per_byte) * run + i % run] >> (bits * (i / run % per_byte))) & ((1u << bits) - 1);
}

// A word of a section with codes of `bits` bits: 32/bits weights from `first` on, four neighbours to a shift.
STEP u32 pack_word(const u8* block, u32 first, u32 at, u32 bits, u32 run) {
    u32 word = 0;
    UNROLL for (u32 i = 0; i < 32 / bits; i++) word |= plane_bits(block, first + i, at, bits, run) << (8 * (i % 4) + bits * (i / 4));
    return word;
}

// Scale s and offset factor t of a group: as BlockFormat::group_codes.
STEP void group_codes(const u8* block, u32 g, u32& s, u32& t) {
    s = t = 1;
    if constexpr (Raw::GROUP_SCALE == 1) {
        const u8* b = block + Raw::GROUP_SCALE_AT;
        s = g < 4 ? b[g] & 63u : (b[g + 4] & 15u) | (u32)(b[g - 4] >> 6) << 4;
        t = g < 4 ? b[g + 4] & 63u : (u32)(b[g + 4] >> 4) | (u32)(b[g] >> 6) << 4;
    } else if constexpr (Raw::GROUP_SCALE == 2) {
        s = block[Raw::GROUP_SCALE_AT + g] & 15u, t = block[Raw::GROUP_SCALE_AT + g] >> 4;
    } else if constexpr (Raw::GROUP_SCALE == 3) {
        s = plane_bits(block, g, Raw::LOW_AT, Raw::LOW_BITS, Raw::LOW_RUN);
        if constexpr (Raw::HIGH_BITS != 0) s |= plane_bits(block, g, Raw::HIGH_AT, Raw::HIGH_BITS, Raw::HIGH_RUN) << Raw::LOW_BITS;
        s = (u32)((i32)s - Raw::GROUP_BIAS) & 255u;
    }
}

STEP void zeros(u8* from, const u8* to) { while (from < to) *from++ = 0; }

STEP void repack_group(const u8* raw, u8* record, u32 u) {
    constexpr u32 groups = COLS / 32;
    const u8* block = raw + (u64)(u * 32 / Raw::BLOCK) * Raw::BYTES;
    u32 first = u * 32 % Raw::BLOCK;
    if constexpr (W::C8 != NONE)
        for (u32 w = 0; w < 8; w++) ((u32*)(record + W::C8))[u * 8 + w] = pack_word(block, first + 4 * w, Raw::C8_AT, 8, Raw::C8_RUN);
    if constexpr (W::C4 != NONE)
        for (u32 w = 0; w < 4; w++) ((u32*)(record + W::C4))[u * 4 + w] = pack_word(block, first + 8 * w, Raw::C4_AT, 4, Raw::C4_RUN);
    if constexpr (W::C2 != NONE)
        for (u32 w = 0; w < 2; w++) ((u32*)(record + W::C2))[u * 2 + w] = pack_word(block, first + 16 * w, Raw::C2_AT, 2, Raw::C2_RUN);
    if constexpr (W::C1 != NONE) ((u32*)(record + W::C1))[u] = pack_word(block, first, Raw::C1_AT, 1, Raw::C1_RUN);

    constexpr u32 per = 32 / Raw::GROUP;  // groups here: 1 or 2 (a block without group scales has none)
    UNROLL for (u32 i = 0; i < per; i++) {
        u32 s, t;
        group_codes(block, first / Raw::GROUP + i, s, t);
        if constexpr (W::GROUPS == 1) ((u16*)(record + W::GROUPS_AT))[u] = (u16)(s | t << 8);
        if constexpr (W::GROUPS == 2) record[W::GROUPS_AT + per * u + i] = (u8)(s | t << 4);
        if constexpr (W::GROUPS >= 3) record[W::GROUPS_AT + per * u + i] = (u8)s;
    }
    if (first == 0) {
        u32 b = u * 32 / Raw::BLOCK;
        constexpr u32 size = W::BLOCKS == 3 ? 1 : 2 * W::BLOCKS;
        u8* to = record + W::BLOCKS_AT + size * b;
        to[0] = block[Raw::SCALE_AT];
        if constexpr (size >= 2) to[1] = block[Raw::SCALE_AT + 1];
        if constexpr (size == 4) to[2] = block[Raw::OFFSET_AT], to[3] = block[Raw::OFFSET_AT + 1];
    }
    if (u == groups - 1) {  // the padding behind each section
        if constexpr (W::C8 != NONE) zeros(record + W::C8 + 32 * groups, record + (W::C8 + 32 * groups + 15) / 16 * 16);
        if constexpr (W::C2 != NONE) zeros(record + W::C2 + 8 * groups, record + (W::C2 + 8 * groups + 15) / 16 * 16);
        if constexpr (W::C1 != NONE) zeros(record + W::C1 + 4 * groups, record + (W::C1 + 4 * groups + 15) / 16 * 16);
        constexpr u32 each = W::GROUPS == 0 ? 0 : W::GROUPS == 4 ? 1 : 2;
        zeros(record + W::GROUPS_AT + each * groups, record + W::BLOCKS_AT);
        constexpr u32 size = W::BLOCKS == 3 ? 1 : 2 * W::BLOCKS;
        zeros(record + W::BLOCKS_AT + size * (COLS / Raw::BLOCK), record + W::ROW_BYTES);
    }
}
constexpr u32 THREADS_A_ROW = COLS / 32;
constexpr u64 RAW_ROW = (u64)(COLS / Raw::BLOCK) * Raw::BYTES;
#else
STEP void repack_group(const u8* raw, u8* record, u32 u) {
    UNROLL for (u32 i = 0; i < 16; i++) record[16 * u + i] = 16 * u + i < COLS * PLAIN_BYTES ? raw[16 * u + i] : 0;
}
constexpr u32 THREADS_A_ROW = W::ROW_BYTES / 16;
constexpr u64 RAW_ROW = (u64)COLS * PLAIN_BYTES;
#endif

KERNEL repack(const u8* RESTRICT raw, u8* RESTRICT records, u64 rows, u32 blocks) {
    launch_dependents();
    wait_for_producer();
    u64 all = rows * THREADS_A_ROW;
    for (u64 i = (u64)block_id() * KJ_BLOCK + thread_id(); i < all; i += (u64)blocks * KJ_BLOCK) {
        u64 row = i / THREADS_A_ROW;
        repack_group(raw + row * RAW_ROW, records + row * W::ROW_BYTES, (u32)(i % THREADS_A_ROW));
    }
}
