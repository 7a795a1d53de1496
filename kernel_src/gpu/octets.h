// octets.h: the weights of a product of a few rows (small_gemm.h), exactly as f16.
//
// Four lanes share a row. A *step* is 128 columns, four spans of 32. Of each span lane p has an
// *octet*: columns 8p to 8p + 7. So the four lanes are always in the same span, and a product of
// matrix units over a span has one scale for each row. The operand is the codes as f16, which are
// exact integers, and the scale multiplies the f32 sum of the product:
//
//   Scaling::None   f32, f16 and bf16: the weights as f16 (f32 is rounded), no scale
//   Scaling::Span   w = d · code: a scale for each span
//   Scaling::Step   w = d · (s · code): s, the scale of 16 or 32 columns, has a few bits and is
//                   multiplied in f16. This is exact, except for products above 2048 (Q6_K), which
//                   lose their last bit. d is the same in a step
//
// Offsets (+ m, or − m·t with a small integer t) are a product of their own: of t or m as f16, and
// the sums of the activations over 16 columns (mma.h's panels).
#pragma once
#include "halves.h"
#include "weights.h"

enum class Scaling { None, Span, Step };

template <class W> struct Octets {
    static constexpr Scaling SCALING =
        PLAIN<W>                                            ? Scaling::None
        : SIXTEENS<W> || W::GROUPS == Groups::BytePair ? Scaling::Step
                                                            : Scaling::Span;
    static constexpr bool OFFSET = W::OFFSET != Offset::None;
    static constexpr bool LARGE = W::BLOCK_32 % 4 == 0;  // a step is in one block
    static_assert(SCALING != Scaling::Step || LARGE || W::BLOCKS == Blocks::None, "one d");
    static_assert(!OFFSET || SCALING != Scaling::Span || W::OFFSET == Offset::Plus, "m of a span");
    // Bytes of a span in the section of groups.
    static constexpr u32 GROUP_BYTES =
        W::GROUPS == Groups::Signed32 || W::GROUPS == Groups::Odd16 ? 1
        : W::GROUPS == Groups::None || W::GROUPS == Groups::InSigns || W::GROUPS == Groups::InHigh
            ? 0
            : 2;
    static constexpr u32 CODE_WORDS = W::ENCODING == Encoding::F32 ? 8
                                      : PLAIN<W>                   ? 4
                                      : CODEBOOK<W>                ? 4
                                      : W::UNIT == 16              ? 2
                                                                   : 3;

    // The words that a lane loads of a row for a step.
    struct Raw {
        u32 code[4][CODE_WORDS];  // 4-, 2- and 1-bit codes; or the fields of a codebook
        u32 group[2], block[4];   // scales in their stored form, packed
    };

    // Loads the lane's octet of span `span`, the i-th of a step.
    STEP void load_codes(Raw& q, u32 i, const u8* row, u32 span, u32 p) {
        u32(&c)[CODE_WORDS] = q.code[i];
        if constexpr (PLAIN<W>) {
            UNROLL for (u32 v = 0; v < CODE_WORDS / 4; v++) {
                u32x4 w = load16_once(row + (4 * span + p) * (4 * CODE_WORDS) + 16 * v);
                c[4 * v] = w.x, c[4 * v + 1] = w.y, c[4 * v + 2] = w.z, c[4 * v + 3] = w.w;
            }
        } else if constexpr (CODEBOOK<W>) {
            Unit<W> t = zero_unit<W>();
            load_vectors<W>(t, row, span);
            c[0] = t.c2[0], c[1] = t.c2[1], c[2] = t.c1, c[3] = t.big[0];
        } else if constexpr (W::UNIT == 16) {
            u32x2 w = load8_near(row + W::C8 + 32 * span + 8 * p);
            c[0] = w.x, c[1] = w.y;
        } else {
            // Neighbouring spans are in the same sector of memory, so the cache keeps it.
            if constexpr (W::C4 != NONE) c[0] = load4_near(row + W::C4 + 16 * span + 4 * p);
            if constexpr (W::C2 != NONE) c[1] = load4_near(row + W::C2 + 8 * span + p / 2 * 4);
            if constexpr (W::C1 != NONE) c[2] = load4_near(row + W::C1 + 4 * span);
        }
    }

    // Loads the scales of a step. Sections are padded to 16 bytes, so the last step stays in them.
    STEP void load_scales(Raw& q, const u8* row, u32 step) {
        if constexpr (GROUP_BYTES == 1) q.group[0] = load4_near(row + W::GROUPS_AT + 4 * step);
        if constexpr (GROUP_BYTES == 2) {
            u32x2 g = load8_near(row + W::GROUPS_AT + 8 * step);
            q.group[0] = g.x, q.group[1] = g.y;
        }
        constexpr u32 bytes = W::BLOCKS == Blocks::HalfPair   ? 4
                              : W::BLOCKS == Blocks::Half     ? 2
                              : W::BLOCKS == Blocks::HalfE8M0 ? 1
                                                              : 0;
        if constexpr (bytes > 0 && W::BLOCK_32 > 1) {
            UNROLL for (u32 i = 0; i < (LARGE ? 1 : 4); i++) {
                const u8* at = row + W::BLOCKS_AT + (4 * step + i) / W::BLOCK_32 * bytes;
                q.block[i] = bytes == 4 ? *(const u32*)at : bytes == 2 ? *(const u16*)at : *at;
            }
        } else if constexpr (bytes == 4) {
            u32x4 b = load16_near(row + W::BLOCKS_AT + 16 * step);
            q.block[0] = b.x, q.block[1] = b.y, q.block[2] = b.z, q.block[3] = b.w;
        } else if constexpr (bytes == 2) {
            u32x2 b = load8_near(row + W::BLOCKS_AT + 8 * step);
            q.block[0] = b.x, q.block[1] = b.y;
        } else if constexpr (bytes == 1) {
            q.block[0] = load4_near(row + W::BLOCKS_AT + 4 * step);
        }
    }

    // The scales of the block of span i, in their stored form.
    STEP u32 block_of(const Raw& q, u32 i) {
        if constexpr (LARGE) return q.block[0];
        if constexpr (W::BLOCK_32 > 1 || W::BLOCKS == Blocks::HalfPair) return q.block[i];
        if constexpr (W::BLOCKS == Blocks::HalfE8M0) return q.block[0] >> (8 * i) & 255;
        return q.block[i / 2] >> (16 * (i % 2)) & 0xffff;
    }

    STEP u32 group_of(const Raw& q, u32 i) {
        if constexpr (GROUP_BYTES == 1) return q.group[0] >> (8 * i) & 255;
        if constexpr (GROUP_BYTES == 2) return q.group[i / 2] >> (16 * (i % 2)) & 0xffff;
        return 0;
    }

    // The f32 scale of span i, or of the step.
    STEP float scale_of(const Raw& q, u32 i) {
        if constexpr (W::GROUPS == Groups::Ue4m3) return 1.0f;
        Unit<W> t = zero_unit<W>();
        t.block = block_of(q, i);
        if constexpr (SCALING == Scaling::Step) {
            float d = half_low(t.block);
            if constexpr (CODEBOOK<W>) d *= W::DOWN;
            return d;
        } else {
            t.group = group_of(q, i);
            if constexpr (CODEBOOK<W>) t.c1 = q.code[i][2], t.big[0] = q.code[i][3];
            return unit_factors<W>(t).scale[0];
        }
    }

    // Two times an integer below 1024 as f16.
    STEP u32 whole(u32 v) { return h2_sub(v * 0x00010001u | 0x64006400u, h2_both(1024.0f)); }

    // The integer scale of the octet of span i, twice.
    STEP u32 step_scale(const Raw& q, u32 i, u32 p) {
        u32 g = group_of(q, i);
        if constexpr (W::GROUPS == Groups::BytePair) return whole(g & 255);
        g >>= W::GROUPS == Groups::Odd16 ? p / 2 * 4 : p / 2 * 8;
        if constexpr (W::GROUPS == Groups::NibblePair) return whole(g & 15);
        if constexpr (W::GROUPS == Groups::Odd16) return whole(2 * (g & 15) + 1);
        if constexpr (W::GROUPS == Groups::Ue4m3) return h2_both(0.5f * ue4m3(g & 255));
        return h2_sub(((g & 255) ^ 128) * 0x00010001u | 0x64006400u, h2_both(1152.0f));
    }

    // The codes of the octet of span i, as bytes.
    STEP void codes_of(const Raw& q, u32 i, u32 p, u32 (&quad)[2]) {
        const u32(&c)[CODE_WORDS] = q.code[i];
        if constexpr (CODEBOOK<W>) {
            Unit<W> t = zero_unit<W>();
            t.c2[0] = c[0], t.c2[1] = c[1], t.c1 = c[2], t.big[0] = c[3];
            eight_codes<W>(t, p, quad[0], quad[1]);
        } else if constexpr (W::UNIT == 16) {
            quad[0] = c[0], quad[1] = c[1];
        } else if constexpr (W::LOOKUP) {
            lookup16(c[0], u32x4{W::T0, W::T1, W::T2, W::T3}, quad[0], quad[1]);
        } else {
            UNROLL for (u32 h = 0; h < 2; h++) {
                u32 code = 0;
                if constexpr (W::C4 != NONE) code = c[0] >> (4 * h) & 0x0f0f0f0fu;
                if constexpr (W::C2 != NONE)
                    code |= (c[1] >> (p % 2 * 4 + 2 * h) & 0x03030303u) << W::C2_LOW;
                if constexpr (W::C1 != NONE)
                    code |= (c[2] >> (2 * p + h) & 0x01010101u) << W::C1_LOW;
                quad[h] = code;
            }
        }
    }

    // The operand: the octet of span i as f16, two per word. `s`: its step_scale, if it has one.
    STEP void pairs_of(const Raw& q, u32 i, u32 p, u32 s, u32 (&pair)[4]) {
        if constexpr (PLAIN<W>) {
            const u32(&c)[CODE_WORDS] = q.code[i];
            UNROLL for (u32 n = 0; n < 4; n++) {
                if constexpr (W::ENCODING == Encoding::F32)
                    pair[n] = half_pair(as_f32(c[2 * n]), as_f32(c[2 * n + 1]));
                else if constexpr (W::ENCODING == Encoding::F16) pair[n] = c[n];
                else pair[n] = half_pair(as_f32(c[n] << 16), as_f32(c[n] & 0xffff0000u));
            }
        } else {
            // A signed byte with its top bit flipped is an unsigned byte that is 128 too large.
            constexpr bool sign = SIGNED_CODES<W>;
            const u32 zero = h2_both((float)(1024 + W::BIAS + (sign ? 128 : 0)));
            u32 quad[2];
            codes_of(q, i, p, quad);
            UNROLL for (u32 h = 0; h < 2; h++)
                bytes_to_halves(sign ? quad[h] ^ 0x80808080u : quad[h], pair[2 * h],
                                pair[2 * h + 1]);
            if constexpr (SCALING == Scaling::Span) {
                UNROLL for (u32 n = 0; n < 4; n++) pair[n] = h2_sub(pair[n], zero);
            } else if constexpr (W::GROUPS == Groups::BytePair && W::BIAS == 0 && !sign) {
                // (1024 + code) · s − 1024 · s, rounded once; s is below 64.
                const u32 less = h2_mul(s, h2_both(-1024.0f));
                UNROLL for (u32 n = 0; n < 4; n++) pair[n] = h2_fma(pair[n], s, less);
            } else {
                UNROLL for (u32 n = 0; n < 4; n++) pair[n] = h2_mul(h2_sub(pair[n], zero), s);
            }
        }
    }

    // The operand of the product of offsets: of span p, for its first and its second 16 columns.
    STEP void offsets_of(const Raw& q, u32 p, u32& first, u32& second) {
        if constexpr (W::OFFSET == Offset::Plus) {
            static_assert(W::BLOCK_32 == 1, "an offset for each span");
            const u32 b = p < 2 ? (p == 0 ? q.block[0] : q.block[1])
                                : (p == 2 ? q.block[2] : q.block[3]);
            first = second = (b >> 16) * 0x00010001u;
        } else {
            const u32 g = (p < 2 ? q.group[0] : q.group[1]) >> (16 * (p % 2)) & 0xffff;
            if constexpr (W::GROUPS == Groups::BytePair) {
                first = second = whole(g >> 8);
            } else {
                first = whole(g >> 4 & 15), second = whole(g >> 12);
            }
        }
    }
    // The f32 scale of that product. The sums of activations are divided by 16.
    STEP float offset_scale(const Raw& q) {
        return W::OFFSET == Offset::Plus ? 16.0f : -16.0f * half_high(q.block[0]);
    }
};
