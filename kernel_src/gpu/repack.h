// repack: converts rows of a GGUF tensor from the file's layout into row records
// (kernel_src/formats/src/layout.rs).
//
//   raw      rows × the file's bytes of a row
//   records  rows × W::ROW_BYTES
//
// A thread converts 32 weights of a record, or 16 bytes of a plain format. The thread that writes
// the end of a section also writes zeros to its padding.
//
// S: COLS, W (weights.h), Raw (offsets in the file's blocks). Share: x of `blocks`.
#pragma once
#include "weights.h"

struct RepackArgs {
    const u8* raw;
    u8* records;
    u64 rows;
    u32 blocks;
};

template <class S> struct Repack {
    using W = typename S::W;
    using Raw = typename S::Raw;
    static constexpr u32 COLS = S::COLS;
    // Bytes of a block's scales.
    static constexpr u32 SCALE_BYTES = W::BLOCKS == Blocks::None       ? 0
                                       : W::BLOCKS == Blocks::HalfE8M0 ? 1
                                       : W::BLOCKS == Blocks::Half     ? 2
                                                                       : 4;
    // Threads per row.
    static constexpr u32 THREADS = PLAIN<W> ? W::ROW_BYTES / 16 : COLS / 32;
    static constexpr u64 RAW_ROW = (u64)(COLS / Raw::BLOCK) * Raw::BYTES;

    // The bits of code i in a plane: as Plane::bits_of in kernel_src/formats/src/format.
    STEP u32 plane_bits(const u8* block, u32 i, u32 at, u32 bits, u32 run) {
        u32 per_byte = 8 / bits;
        return (block[at + i / (run * per_byte) * run + i % run] >> (bits * (i / run % per_byte))) &
               ((1u << bits) - 1);
    }

    // Digit i of base 3: as BlockFormat::code.
    STEP u32 digit(const u8* block, u32 i) {
        u32 byte = i < 160   ? i % 32
                   : i < 240 ? 32 + i % 16
                             : 48 + i % 4,
            n = i < 160   ? i / 32
                : i < 240 ? i / 16 - 10
                          : i / 4 - 60;
        u32 power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
        return (((block[byte] * power) & 255u) * 3) >> 8;
    }

    // Element i of a field F: as Field::of.
    template <class F> STEP u32 field(const u8* block, u32 i) {
        u32 bit = F::SHIFT + i % F::PER * F::EACH,
            byte = F::AT + i / F::PER * F::STEP_BYTES + bit / 8, shift = bit % 8;
        u32 word = block[byte];
        if (shift + F::BITS > 8) word |= (u32)block[byte + 1] << 8;
        return (word >> shift) & ((1u << F::BITS) - 1);
    }

    // Writes the codebook sections of unit u: as Vectors::pack.
    STEP void repack_vectors(const u8* block, u8* record, u32 u, u32 first) {
        constexpr u32 vectors = 32 / W::VECTOR;
        u32 signs = 0, high = 0;
        UNROLL for (u32 j = 0; j < vectors; j++) {
            u32 i = first / W::VECTOR + j, index = field<typename Raw::Low>(block, i);
            if constexpr (Raw::High::BITS != 0)
                index |= field<typename Raw::High>(block, i) << Raw::LOW_INDEX_BITS;
            record[W::INDEX_AT + u * vectors + j] = (u8)index;
            if constexpr (W::INDEX_IN_SIGNS) signs |= (index >> 8) << (28 + j);
            else high |= (index >> 8) << (W::HIGH_STEP * j);
        }
        UNROLL for (u32 e = 0; e < 4; e++) {
            u32 bits = field<typename Raw::Turned>(
                block, Raw::TURN == Turn::ShiftAll ? first / 32 : first / 8 + e);
            if constexpr (W::SIGN_BITS != 0) signs |= bits << (W::SIGN_BITS * e);
            else high |= bits << (W::SHIFT_AT + W::SHIFT_STEP * e);
        }
        u32 odd = field<typename Raw::Odd>(block, first / Raw::GROUP);
        if constexpr (W::GROUPS == Groups::InSigns) signs |= odd << 28;
        if constexpr (W::GROUPS == Groups::InHigh) high |= odd << 12;
        if constexpr (W::GROUPS == Groups::Odd16)
            record[W::GROUPS_AT + u] =
                (u8)(odd | field<typename Raw::Odd>(block, first / 16 + 1) << 4);
        if constexpr (W::GROUPS == Groups::Signed32) record[W::GROUPS_AT + u] = (u8)(2 * odd + 1);
        if constexpr (W::SIGN_BITS != 0) ((u32*)(record + W::SIGNS_AT))[u] = signs;
        if constexpr (W::HIGH_BYTES == 1) record[W::HIGH_AT + u] = (u8)high;
        if constexpr (W::HIGH_BYTES == 2) ((u16*)(record + W::HIGH_AT))[u] = (u16)high;
        if (u == COLS / 32 - 1) {  // the padding after each section
            constexpr u32 groups = COLS / 32;
            zeros(record + W::INDEX_AT + vectors * groups,
                  record + (W::INDEX_AT + vectors * groups + 15) / 16 * 16);
            if constexpr (W::SIGN_BITS != 0)
                zeros(record + W::SIGNS_AT + 4 * groups,
                      record + (W::SIGNS_AT + 4 * groups + 15) / 16 * 16);
            if constexpr (W::HIGH_BYTES != 0)
                zeros(record + W::HIGH_AT + W::HIGH_BYTES * groups,
                      record + (W::HIGH_AT + W::HIGH_BYTES * groups + 15) / 16 * 16);
        }
    }

    // A word of a section with codes of `bits` bits: 32/bits weights from `first` on. Four
    // neighbouring weights have the same shift.
    STEP u32 pack_word(const u8* block, u32 first, u32 at, u32 bits, u32 run) {
        u32 word = 0;
        UNROLL for (u32 i = 0; i < 32 / bits; i++)
            word |= (Raw::TERNARY ? digit(block, first + i)
                                  : plane_bits(block, first + i, at, bits, run))
                    << (8 * (i % 4) + bits * (i / 4));
        return word;
    }

    // Scale s and offset factor t of a group: as BlockFormat::group_codes.
    STEP void group_codes(const u8* block, u32 g, u32& s, u32& t) {
        s = t = 1;
        if constexpr (Raw::GROUP_SCALE == GroupScale::SixBitPairs) {
            const u8* b = block + Raw::GROUP_SCALE_AT;
            s = g < 4 ? b[g] & 63u : (b[g + 4] & 15u) | (u32)(b[g - 4] >> 6) << 4;
            t = g < 4 ? b[g + 4] & 63u : (u32)(b[g + 4] >> 4) | (u32)(b[g] >> 6) << 4;
        } else if constexpr (Raw::GROUP_SCALE == GroupScale::NibblePair) {
            s = block[Raw::GROUP_SCALE_AT + g] & 15u, t = block[Raw::GROUP_SCALE_AT + g] >> 4;
        } else if constexpr (Raw::GROUP_SCALE == GroupScale::Planes) {
            s = plane_bits(block, g, Raw::LOW_AT, Raw::LOW_BITS, Raw::LOW_RUN);
            if constexpr (Raw::HIGH_BITS != 0)
                s |= plane_bits(block, g, Raw::HIGH_AT, Raw::HIGH_BITS, Raw::HIGH_RUN)
                     << Raw::LOW_BITS;
            s = (u32)((i32)s - Raw::GROUP_BIAS) & 255u;
        } else if constexpr (Raw::GROUP_SCALE == GroupScale::Ue4m3) {
            s = block[Raw::GROUP_SCALE_AT + g];
        }
    }

    STEP void zeros(u8* from, const u8* to) { while (from < to) *from++ = 0; }

    STEP void repack_blocks(const u8* raw, u8* record, u32 u) {
        constexpr u32 groups = COLS / 32;
        const u8* block = raw + (u64)(u * 32 / Raw::BLOCK) * Raw::BYTES;
        u32 first = u * 32 % Raw::BLOCK;
        if constexpr (W::C8 != NONE)
            for (u32 w = 0; w < 8; w++)
                ((u32*)(record + W::C8))[u * 8 + w] =
                    pack_word(block, first + 4 * w, Raw::C8_AT, 8, Raw::C8_RUN);
        if constexpr (W::C4 != NONE)
            for (u32 w = 0; w < 4; w++)
                ((u32*)(record + W::C4))[u * 4 + w] =
                    pack_word(block, first + 8 * w, Raw::C4_AT, 4, Raw::C4_RUN);
        if constexpr (W::C2 != NONE)
            for (u32 w = 0; w < 2; w++)
                ((u32*)(record + W::C2))[u * 2 + w] =
                    pack_word(block, first + 16 * w, Raw::C2_AT, 2, Raw::C2_RUN);
        if constexpr (W::C1 != NONE)
            ((u32*)(record + W::C1))[u] = pack_word(block, first, Raw::C1_AT, 1, Raw::C1_RUN);

        if constexpr (CODEBOOK<W>) repack_vectors(block, record, u, first);
        // Groups of these 32 weights: 1 or 2, or 0 for a codebook.
        constexpr u32 per = CODEBOOK<W> ? 0 : 32 / Raw::GROUP;
        UNROLL for (u32 i = 0; i < per; i++) {
            u32 s, t;
            group_codes(block, first / Raw::GROUP + i, s, t);
            if constexpr (W::GROUPS == Groups::BytePair)
                ((u16*)(record + W::GROUPS_AT))[u] = (u16)(s | t << 8);
            if constexpr (W::GROUPS == Groups::NibblePair)
                record[W::GROUPS_AT + per * u + i] = (u8)(s | t << 4);
            if constexpr (W::GROUPS == Groups::Signed16 || W::GROUPS == Groups::Signed32 ||
                          W::GROUPS == Groups::Ue4m3)
                record[W::GROUPS_AT + per * u + i] = (u8)s;
        }
        if (first == 0) {
            u32 b = u * 32 / Raw::BLOCK;
            u8* to = record + W::BLOCKS_AT + SCALE_BYTES * b;
            if constexpr (Raw::SCALE == BlockScale::SplitF16Down) {
                const u8* nibble = block + Raw::SCALE_AT + 1;
                to[0] = (u8)(nibble[0] >> 4 | (nibble[2] & 0xf0)),
                to[1] = (u8)(nibble[4] >> 4 | (nibble[6] & 0xf0));
            } else {
                if constexpr (SCALE_BYTES >= 1) to[0] = block[Raw::SCALE_AT];
                if constexpr (SCALE_BYTES >= 2) to[1] = block[Raw::SCALE_AT + 1];
            }
            if constexpr (SCALE_BYTES == 4)
                to[2] = block[Raw::OFFSET_AT], to[3] = block[Raw::OFFSET_AT + 1];
        }
        if (u == groups - 1) {  // the padding after each section
            if constexpr (W::C8 != NONE)
                zeros(record + W::C8 + 32 * groups, record + (W::C8 + 32 * groups + 15) / 16 * 16);
            if constexpr (W::C2 != NONE)
                zeros(record + W::C2 + 8 * groups, record + (W::C2 + 8 * groups + 15) / 16 * 16);
            if constexpr (W::C1 != NONE)
                zeros(record + W::C1 + 4 * groups, record + (W::C1 + 4 * groups + 15) / 16 * 16);
            constexpr u32 each = W::GROUPS == Groups::None || W::GROUPS == Groups::InSigns ||
                                         W::GROUPS == Groups::InHigh
                                     ? 0
                                 : W::GROUPS == Groups::Signed32 || W::GROUPS == Groups::Odd16 ? 1
                                                                                               : 2;
            zeros(record + W::GROUPS_AT + each * groups, record + W::BLOCKS_AT);
            zeros(record + W::BLOCKS_AT + SCALE_BYTES * (COLS / Raw::BLOCK), record + W::ROW_BYTES);
        }
    }

    STEP void repack_plain(const u8* raw, u8* record, u32 u) {
        UNROLL for (u32 i = 0; i < 16; i++)
            record[16 * u + i] = 16 * u + i < RAW_ROW ? raw[16 * u + i] : 0;
    }

    STEP void step(RepackArgs a, Share share) {
        u64 all = a.rows * THREADS;
        for (u64 i = (u64)share.x * KJ_BLOCK + thread_id(); i < all;
             i += (u64)a.blocks * KJ_BLOCK) {
            u64 row = i / THREADS;
            const u8* raw = a.raw + row * RAW_ROW;
            u8* record = a.records + row * W::ROW_BYTES;
            if constexpr (PLAIN<W>) repack_plain(raw, record, (u32)(i % THREADS));
            else repack_blocks(raw, record, (u32)(i % THREADS));
        }
    }
};
