// weights.h: loads and decodes a unit of a row's weights in registers, for any format.
//
// A format is a generated struct W of constants (kernel_src/src/vocabulary/weights.rs makes it from
// the format's description):
//   UNIT       weights that a lane takes at a time: 32, or 16 for 8-bit codes, 8 for f16, 4 for f32
//   UNITS      units in a row
//   ROW_BYTES  bytes of a row record
//   C8 C4 C2 C1        offsets of the code sections, or NONE
//   GROUPS_AT, BLOCKS_AT   offsets of the scales
//   C2_LOW C1_LOW      position in a code of the bits from section C2, C1
//   ENCODING   Blocks: quantised; other values: plain weights
//   GROUPS, BLOCKS     kinds of the scale sections: layout.rs
//   BLOCK_32   groups of 32 weights in a block
//   BIAS       subtracted from a code
//   LOOKUP     the code indexes the sixteen bytes T0 … T3
//   OFFSET     None, Plus (+ m), MinusScaled (− m·t)
// Formats with a codebook also have VECTOR (weights of a vector), the offsets of the sections of
// layout.rs's Vectors, DOWN (a factor of the block's scale), and grid(), the vectors.
//
// The formula: w = d·s·(code − BIAS) + offset. Sections and their order as in
// kernel_src/formats/src/layout.rs.
#pragma once
#include "enums.h"
#include "kjit.h"

constexpr u32 NONE = ~0u;

template <class W> constexpr bool PLAIN = W::ENCODING != Encoding::Blocks;

// Whether a format has a codebook.
template <class W, class = void> struct HasVectors { static constexpr bool value = false; };
template <class W> struct HasVectors<W, decltype((void)W::VECTOR)> {
    static constexpr bool value = true;
};
template <class W> constexpr bool CODEBOOK = HasVectors<W>::value;

// True: 16 weights share a scale. False: 32 weights.
template <class W>
constexpr bool SIXTEENS = W::GROUPS == Groups::NibblePair || W::GROUPS == Groups::Signed16 ||
                          W::GROUPS == Groups::Odd16 || W::GROUPS == Groups::Ue4m3;

// Whether unit_codes returns signed bytes.
template <class W, bool = CODEBOOK<W>> struct SignedCodes {
    static constexpr bool value = W::UNIT == 16 || W::LOOKUP;
};
template <class W> struct SignedCodes<W, true> { static constexpr bool value = W::SIGN_BITS != 0; };
template <class W> constexpr bool SIGNED_CODES = SignedCodes<W>::value;

template <class W> struct Unit {
    u32 big[4];  // c8, c4 or plain elements; high bits of codebook indices
    u32 c2[2];   // for codebooks: low bytes of indices
    u32 c1;      // for codebooks: signs
    u32 group, block;  // scales as stored
};

template <class W> STEP Unit<W> zero_unit() { return Unit<W>{{0, 0, 0, 0}, {0, 0}, 0, 0, 0}; }

// Loads the codebook sections of unit u.
template <class W> STEP void load_vectors(Unit<W>& t, const u8* row, u32 u) {
    if constexpr (W::VECTOR == 8) {
        t.c2[0] = load4_once(row + W::INDEX_AT + 4 * u);
    } else {
        u32x2 v = load8_once(row + W::INDEX_AT + 8 * u);
        t.c2[0] = v.x, t.c2[1] = v.y;
    }
    if constexpr (W::SIGN_BITS != 0) t.c1 = load4_once(row + W::SIGNS_AT + 4 * u);
    if constexpr (W::HIGH_BYTES == 1) t.big[0] = row[W::HIGH_AT + u];
    if constexpr (W::HIGH_BYTES == 2) t.big[0] = *(const u16*)(row + W::HIGH_AT + 2 * u);
}

// The index of vector j of a unit.
template <class W> STEP u32 vector_index(const Unit<W>& t, u32 j) {
    u32 low = (t.c2[j / 4] >> (8 * (j % 4))) & 255u;
    if constexpr (W::HIGH_BITS == 0) return low;
    u32 high = W::INDEX_IN_SIGNS ? t.c1 >> (28 + j) : t.big[0] >> (W::HIGH_STEP * j);
    return low | (high & ((1u << W::HIGH_BITS) - 1)) << 8;
}

// Byte i is 0xff if bit i of `bits` is set (4 bits).
STEP u32 byte_mask(u32 bits) { return ((bits * 0x00204081u) & 0x01010101u) * 255u; }

// Decodes vectors of the codebook to bytes, then applies signs or a shift to each group of eight
// weights. No byte overflows into the next: magnitudes are at least 1, and at least 8 if a shift is
// added.
template <class W> STEP void vector_codes(const Unit<W>& t, u32 (&quad)[W::UNIT / 4]) {
    UNROLL for (u32 e = 0; e < 4; e++) {
        u32 low, high;
        if constexpr (W::VECTOR == 8) {
            u32x2 v = ((const u32x2*)W::grid())[vector_index<W>(t, e)];
            low = v.x, high = v.y;
        } else {
            low = W::grid()[vector_index<W>(t, 2 * e)],
            high = W::grid()[vector_index<W>(t, 2 * e + 1)];
        }
        if constexpr (W::SIGN_BITS != 0) {
            u32 s = (t.c1 >> (W::SIGN_BITS * e)) & ((1u << W::SIGN_BITS) - 1);
            // The eighth sign makes the number of negative weights even.
            if constexpr (W::SIGN_BITS == 7) s |= ((0x6996u >> ((s ^ (s >> 4)) & 15u)) & 1u) << 7;
            u32 first = byte_mask(s & 15u), second = byte_mask(s >> 4);
            quad[2 * e] = (low ^ first) + (first & 0x01010101u),
                     quad[2 * e + 1] = (high ^ second) + (second & 0x01010101u);
        } else {
            u32 shift = (t.big[0] >> (W::SHIFT_AT + W::SHIFT_STEP * e)) & 1u ? 0u - 0x01010101u
                                                                             : 0x01010101u;
            quad[2 * e] = low + shift, quad[2 * e + 1] = high + shift;
        }
    }
}

// Loads unit u (below UNITS) of the row record at `row`.
template <class W> STEP Unit<W> load_unit(const u8* row, u32 u) {
    Unit<W> t = zero_unit<W>();
    if constexpr (PLAIN<W> || W::C8 != NONE || W::C4 != NONE) {
        constexpr u32 at = PLAIN<W> ? 0 : W::C8 != NONE ? W::C8 : W::C4;
        u32x4 v = load16_once(row + at + 16 * u);
        t.big[0] = v.x, t.big[1] = v.y, t.big[2] = v.z, t.big[3] = v.w;
    }
    if constexpr (!PLAIN<W>) {
        if constexpr (W::C2 != NONE) {
            u32x2 v = load8_once(row + W::C2 + 8 * u);
            t.c2[0] = v.x, t.c2[1] = v.y;
        }
        if constexpr (W::C1 != NONE) t.c1 = load4_once(row + W::C1 + 4 * u);
        if constexpr (CODEBOOK<W>) load_vectors<W>(t, row, u);
        u32 g = W::UNIT == 16 ? u / 2 : u;  // index of the group of 32 weights
        if constexpr (W::GROUPS == Groups::Signed32 || W::GROUPS == Groups::Odd16)
            t.group = row[W::GROUPS_AT + g];
        else if constexpr (W::GROUPS != Groups::None && W::GROUPS != Groups::InSigns &&
                           W::GROUPS != Groups::InHigh)
            t.group = *(const u16*)(row + W::GROUPS_AT + 2 * g);
        u32 b = g / W::BLOCK_32;
        if constexpr (W::BLOCKS == Blocks::Half)
            t.block = *(const u16*)(row + W::BLOCKS_AT + 2 * b);
        if constexpr (W::BLOCKS == Blocks::HalfPair)
            t.block = *(const u32*)(row + W::BLOCKS_AT + 4 * b);
        if constexpr (W::BLOCKS == Blocks::HalfE8M0) t.block = row[W::BLOCKS_AT + b];
    }
    return t;
}

// Decodes the codes of a unit to signed bytes, four per word: quad[q] has weights 4q … 4q + 3.
template <class W> STEP void unit_codes(const Unit<W>& t, u32 (&quad)[W::UNIT / 4]) {
    if constexpr (CODEBOOK<W>) {
        vector_codes<W>(t, quad);
    } else if constexpr (W::UNIT == 16) {
        UNROLL for (u32 q = 0; q < 4; q++) quad[q] = t.big[q];
    } else if constexpr (W::LOOKUP) {
        UNROLL for (u32 w = 0; w < 4; w++)
            lookup16(t.big[w], u32x4{W::T0, W::T1, W::T2, W::T3}, quad[2 * w], quad[2 * w + 1]);
    } else {
        UNROLL for (u32 q = 0; q < 8; q++) {
            u32 code = 0;
            if constexpr (W::C4 != NONE) code = (t.big[q / 2] >> (4 * (q % 2))) & 0x0f0f0f0fu;
            if constexpr (W::C2 != NONE) {
                u32 from = 2 * (q % 4), word = t.c2[q / 4];
                u32 at =
                    W::C2_LOW >= from ? word << (W::C2_LOW - from) : word >> (from - W::C2_LOW);
                code |= at & (0x03030303u << W::C2_LOW);
            }
            if constexpr (W::C1 != NONE) {
                u32 at = W::C1_LOW >= q ? t.c1 << (W::C1_LOW - q) : t.c1 >> (q - W::C1_LOW);
                code |= at & (0x01010101u << W::C1_LOW);
            }
            quad[q] = code;
        }
    }
}

// 2^(e − 128)
STEP float half_e8m0(u32 e) { return as_f32(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// A UE4M3 float; its NaN, 0x7f, becomes 0.
STEP float ue4m3(u32 e) {
    u32 exponent = (e >> 3) & 15u, mantissa = e & 7u;
    u32 steps = e == 0x7fu ? 0u : exponent == 0 ? mantissa : (8u + mantissa) << (exponent - 1);
    return (float)steps * 0.001953125f;
}

// w = scale·(code − BIAS) + offset, for the first and the second 16 weights of the unit.
struct Factors { float scale[2], offset[2]; };
template <class W> STEP Factors unit_factors(const Unit<W>& t) {
    float d = W::BLOCKS == Blocks::HalfE8M0 ? half_e8m0(t.block) : half_low(t.block);
    float m = W::BLOCKS == Blocks::HalfPair ? half_high(t.block) : 0.0f;
    if constexpr (CODEBOOK<W>) d *= W::DOWN;
    Factors f{{d, d}, {m, m}};
    if constexpr (W::GROUPS == Groups::BytePair) {
        f.scale[0] = f.scale[1] = d * (float)(t.group & 255);
        f.offset[0] = f.offset[1] = -(m * (float)(t.group >> 8));
    } else if constexpr (W::GROUPS == Groups::NibblePair) {
        f.scale[0] = d * (float)(t.group & 15), f.scale[1] = d * (float)((t.group >> 8) & 15);
        f.offset[0] = -(m * (float)((t.group >> 4) & 15)),
        f.offset[1] = -(m * (float)((t.group >> 12) & 15));
    } else if constexpr (W::GROUPS == Groups::Signed16) {
        f.scale[0] = d * (float)(i32)(i8)(u8)t.group,
        f.scale[1] = d * (float)(i32)(i8)(u8)(t.group >> 8);
    } else if constexpr (W::GROUPS == Groups::Signed32) {
        f.scale[0] = f.scale[1] = d * (float)(i32)(i8)(u8)t.group;
    } else if constexpr (W::GROUPS == Groups::Odd16) {
        f.scale[0] = d * (float)(2 * (t.group & 15) + 1),
        f.scale[1] = d * (float)(2 * (t.group >> 4) + 1);
    } else if constexpr (W::GROUPS == Groups::InSigns) {
        f.scale[0] = f.scale[1] = d * (float)(2 * (t.c1 >> 28) + 1);
    } else if constexpr (W::GROUPS == Groups::InHigh) {
        f.scale[0] = f.scale[1] = d * (float)(2 * ((t.big[0] >> 12) & 7) + 1);
    } else if constexpr (W::GROUPS == Groups::Ue4m3) {  // halved, because the table is doubled
        f.scale[0] = 0.5f * ue4m3(t.group & 255), f.scale[1] = 0.5f * ue4m3(t.group >> 8);
    }
    return f;
}

// The weights of a unit as f32.
template <class W> STEP void unit_values(const Unit<W>& t, float (&v)[W::UNIT]) {
    if constexpr (W::ENCODING == Encoding::F32) {
        UNROLL for (u32 i = 0; i < 4; i++) v[i] = as_f32(t.big[i]);
    } else if constexpr (W::ENCODING == Encoding::F16) {
        UNROLL for (u32 i = 0; i < 4; i++)
            v[2 * i] = half_low(t.big[i]), v[2 * i + 1] = half_high(t.big[i]);
    } else if constexpr (W::ENCODING == Encoding::BF16) {
        UNROLL for (u32 i = 0; i < 4; i++)
            v[2 * i] = as_f32(t.big[i] << 16), v[2 * i + 1] = as_f32(t.big[i] & 0xffff0000u);
    } else {
        u32 quad[W::UNIT / 4];
        unit_codes<W>(t, quad);
        Factors f = unit_factors<W>(t);
        UNROLL for (u32 i = 0; i < W::UNIT; i++) {
            float code = (float)((i32)(i8)(u8)(quad[i / 4] >> (8 * (i % 4))) - W::BIAS);
            v[i] = f.scale[i / 16] * code;
            if constexpr (W::OFFSET != Offset::None) v[i] += f.offset[i / 16];
        }
    }
}
