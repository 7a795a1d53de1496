// weights.h: a unit of a row's weights in registers, whatever the format.
//
// A format comes as a rendered struct W of constants (kernel_src/src/render.rs, from the one description of the format):
//   UNIT      weights a lane takes at a time: 32, or 16 of 8-bit codes, 8 halves, 4 singles      UNITS   of them in a row
//   ROW_BYTES of a row record; C8 C4 C2 C1: offsets of its code sections, or NONE; GROUPS_AT, BLOCKS_AT: of its scales
//   C2_LOW C1_LOW   the bit of a code at which that section's bits go
//   GROUPS    0 none, 1 byte pair (s, t) for 32, 2 nibble pair for 16, 3 signed byte for 16, 4 signed byte for 32
//   BLOCKS    0 none, 1 half d, 2 halves d m, 3 E8M0 byte; BLOCK_32: groups of 32 weights that a block has
//   BIAS      subtracted from a code; LOOKUP 1: the code indexes the sixteen bytes T0 … T3
//   OFFSET    0 none, 1 + m, 2 − m·t;   PLAIN  0 quantised, 1 f32, 2 f16, 3 bf16
// The formula: w = d·s·(code − BIAS) + offset, sections and their order as kernel_src/src/layout.rs has them.
#pragma once
#include "kjit.h"

constexpr u32 NONE = ~0u;

template <class W> struct Unit {
    u32 big[4];  // c8, c4 or plain elements
    u32 c2[2];
    u32 c1;
    u32 group, block;  // scales as they are stored
};

template <class W> STEP Unit<W> zero_unit() { return Unit<W>{{0, 0, 0, 0}, {0, 0}, 0, 0, 0}; }

// Unit u (below UNITS) of the row record at `row`.
template <class W> STEP Unit<W> load_unit(const u8* row, u32 u) {
    Unit<W> t = zero_unit<W>();
    if constexpr (W::PLAIN != 0 || W::C8 != NONE || W::C4 != NONE) {
        constexpr u32 at = W::PLAIN != 0 ? 0 : W::C8 != NONE ? W::C8 : W::C4;
        u32x4 v = load16_once(row + at + 16 * u);
        t.big[0] = v.x, t.big[1] = v.y, t.big[2] = v.z, t.big[3] = v.w;
    }
    if constexpr (W::PLAIN == 0) {
        if constexpr (W::C2 != NONE) {
            u32x2 v = load8_once(row + W::C2 + 8 * u);
            t.c2[0] = v.x, t.c2[1] = v.y;
        }
        if constexpr (W::C1 != NONE) t.c1 = load4_once(row + W::C1 + 4 * u);
        u32 g = W::UNIT == 16 ? u / 2 : u;  // scales are counted in groups of 32
        if constexpr (W::GROUPS == 4) t.group = row[W::GROUPS_AT + g];
        else if constexpr (W::GROUPS != 0) t.group = *(const u16*)(row + W::GROUPS_AT + 2 * g);
        u32 b = g / W::BLOCK_32;
        if constexpr (W::BLOCKS == 1) t.block = *(const u16*)(row + W::BLOCKS_AT + 2 * b);
        if constexpr (W::BLOCKS == 2) t.block = *(const u32*)(row + W::BLOCKS_AT + 4 * b);
        if constexpr (W::BLOCKS == 3) t.block = row[W::BLOCKS_AT + b];
    }
    return t;
}

// Its codes, four a word, as signed bytes: quad q holds weights 4q … 4q + 3.
template <class W> STEP void unit_codes(const Unit<W>& t, u32 (&quad)[W::UNIT / 4]) {
    if constexpr (W::UNIT == 16) {
        UNROLL for (u32 q = 0; q < 4; q++) quad[q] = t.big[q];
    } else if constexpr (W::LOOKUP != 0) {
        UNROLL for (u32 w = 0; w < 4; w++) lookup16(t.big[w], u32x4{W::T0, W::T1, W::T2, W::T3}, quad[2 * w], quad[2 * w + 1]);
    } else {
        UNROLL for (u32 q = 0; q < 8; q++) {
            u32 code = 0;
            if constexpr (W::C4 != NONE) code = (t.big[q / 2] >> (4 * (q % 2))) & 0x0f0f0f0fu;
            if constexpr (W::C2 != NONE) {
                u32 from = 2 * (q % 4), word = t.c2[q / 4];
                u32 at = W::C2_LOW >= from ? word << (W::C2_LOW - from) : word >> (from - W::C2_LOW);
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

STEP float half_e8m0(u32 e) { return as_f32(e < 2 ? 0x00200000u << e : (e - 1) << 23); }  // 2^(e − 128)

// w = scale·(code − BIAS) + offset, for the first and the second 16 weights of the unit.
struct Factors { float scale[2], offset[2]; };
template <class W> STEP Factors unit_factors(const Unit<W>& t) {
    float d = W::BLOCKS == 3 ? half_e8m0(t.block) : half_low(t.block);
    float m = W::BLOCKS == 2 ? half_high(t.block) : 0.0f;
    Factors f{{d, d}, {m, m}};
    if constexpr (W::GROUPS == 1) {
        f.scale[0] = f.scale[1] = d * (float)(t.group & 255);
        f.offset[0] = f.offset[1] = -(m * (float)(t.group >> 8));
    } else if constexpr (W::GROUPS == 2) {
        f.scale[0] = d * (float)(t.group & 15), f.scale[1] = d * (float)((t.group >> 8) & 15);
        f.offset[0] = -(m * (float)((t.group >> 4) & 15)), f.offset[1] = -(m * (float)((t.group >> 12) & 15));
    } else if constexpr (W::GROUPS == 3) {
        f.scale[0] = d * (float)(i32)(i8)(u8)t.group, f.scale[1] = d * (float)(i32)(i8)(u8)(t.group >> 8);
    } else if constexpr (W::GROUPS == 4) {
        f.scale[0] = f.scale[1] = d * (float)(i32)(i8)(u8)t.group;
    }
    return f;
}

// The weights themselves.
template <class W> STEP void unit_values(const Unit<W>& t, float (&v)[W::UNIT]) {
    if constexpr (W::PLAIN == 1) {
        UNROLL for (u32 i = 0; i < 4; i++) v[i] = as_f32(t.big[i]);
    } else if constexpr (W::PLAIN == 2) {
        UNROLL for (u32 i = 0; i < 4; i++) v[2 * i] = half_low(t.big[i]), v[2 * i + 1] = half_high(t.big[i]);
    } else if constexpr (W::PLAIN == 3) {
        UNROLL for (u32 i = 0; i < 4; i++) v[2 * i] = as_f32(t.big[i] << 16), v[2 * i + 1] = as_f32(t.big[i] & 0xffff0000u);
    } else {
        u32 quad[W::UNIT / 4];
        unit_codes<W>(t, quad);
        Factors f = unit_factors<W>(t);
        UNROLL for (u32 i = 0; i < W::UNIT; i++) {
            float code = (float)((i32)(i8)(u8)(quad[i / 4] >> (8 * (i % 4))) - W::BIAS);
            v[i] = f.scale[i / 16] * code;
            if constexpr (W::OFFSET != 0) v[i] += f.offset[i / 16];
        }
    }
}
