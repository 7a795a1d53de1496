// dequant.h: loads 32 weights of a row record from device memory into f16 in a tile, for any block
// format.
//
// A *span* of 32 weights is loaded into registers long before it is expanded, so products hide the
// latency. Codes become f16 exactly: the low bits of the f16 1024 + code are the code. Then they
// are multiplied by the group's scale, and the offset is added, in f16. These two roundings of
// 2^-11 per weight are as small as the rounding of an activation.
#pragma once
#include "halves.h"
#include "mma.h"
#include "weights.h"

template <class W> struct Span { Unit<W> unit[32 / W::UNIT]; };

// Loads weights 32·p … 32·p + 31 of the row whose record is `row`.
template <class W> STEP void fetch_span(Span<W>& q, const u8* row, u32 p) {
    constexpr u32 n = 32 / W::UNIT;
    UNROLL for (u32 i = 0; i < n; i++) q.unit[i] = load_unit<W>(row, n * p + i);
}

// Writes zeros to `chunks` chunks from `first` on (a multiple of `chunks`), for columns after the
// end of the row.
STEP void zero_chunks(u16* tile, u32 row, u32 first, u32 chunks) {
    UNROLL for (u32 i = 0; i < chunks; i++)
        *(u32x4*)(tile + tile_at(row, (8 * first) ^ (8 * i))) = u32x4{0, 0, 0, 0};
}
STEP void zero_span(u16* tile, u32 row, u32 first) { zero_chunks(tile, row, first, 4); }

// The weights of a span as f16, two per word.
template <class W> STEP void span_pairs(const Span<W>& q, u32 (&pair)[16]) {
    if constexpr (PLAIN<W>) {
        UNROLL for (u32 u = 0; u < 32 / W::UNIT; u++) {
            const u32* v = q.unit[u].big;
            if constexpr (W::ENCODING == Encoding::F32) {
                pair[2 * u] = half_pair(as_f32(v[0]), as_f32(v[1]));
                pair[2 * u + 1] = half_pair(as_f32(v[2]), as_f32(v[3]));
            } else {
                UNROLL for (u32 i = 0; i < 4; i++)
                    pair[4 * u + i] =
                        W::ENCODING == Encoding::F16
                            ? v[i]
                            : half_pair(as_f32(v[i] << 16), as_f32(v[i] & 0xffff0000u));
            }
        }
    } else {
        Factors f = unit_factors<W>(q.unit[0]);
        constexpr bool two = SIXTEENS<W>;
        u32 scale[2], offset[2];
        UNROLL for (u32 h = 0; h < (two ? 2 : 1); h++)
            scale[h] = h2_both(f.scale[h]), offset[h] = h2_both(f.offset[h]);
        if (!two) scale[1] = scale[0], offset[1] = offset[0];
        // With its top bit flipped, a signed byte is an unsigned byte that is 128 too large.
        constexpr bool sign = SIGNED_CODES<W>;
        const u32 zero = h2_both((float)(1024 + W::BIAS + (sign ? 128 : 0)));
        UNROLL for (u32 u = 0; u < 32 / W::UNIT; u++) {
            u32 quad[W::UNIT / 4];
            unit_codes<W>(q.unit[u], quad);
            UNROLL for (u32 i = 0; i < W::UNIT / 4; i++) {
                u32 at = u * (W::UNIT / 2) + 2 * i, g = at / 8;
                bytes_to_halves(sign ? quad[i] ^ 0x80808080u : quad[i], pair[at], pair[at + 1]);
                UNROLL for (u32 h = 0; h < 2; h++) {
                    u32 v = h2_sub(pair[at + h], zero);
                    pair[at + h] = W::OFFSET != Offset::None ? h2_fma(v, scale[g], offset[g])
                                                             : h2_mul(v, scale[g]);
                }
            }
        }
    }
}

// Writes the span into row `row` of a tile, as chunks `first` … `first` + 3 of the row's eight.
template <class W> STEP void expand_span(const Span<W>& q, u16* tile, u32 row, u32 first) {
    u32 pair[16];
    span_pairs<W>(q, pair);
    UNROLL for (u32 i = 0; i < 4; i++)
        *(u32x4*)(tile + tile_at(row, (8 * first) ^ (8 * i))) =
            u32x4{pair[4 * i], pair[4 * i + 1], pair[4 * i + 2], pair[4 * i + 3]};
}

// As expand_span, for one unit of sixteen 8-bit codes: chunks `first` and `first` + 1.
template <class W> STEP void expand_unit(const Unit<W>& t, u16* tile, u32 row, u32 first) {
    static_assert(W::UNIT == 16 && !SIXTEENS<W>, "one group");
    Factors f = unit_factors<W>(t);
    const u32 scale = h2_both(f.scale[0]), offset = h2_both(f.offset[0]),
              zero = h2_both((float)(1024 + W::BIAS + 128));
    u32 quad[4], pair[8];
    unit_codes<W>(t, quad);
    UNROLL for (u32 i = 0; i < 4; i++) {
        bytes_to_halves(quad[i] ^ 0x80808080u, pair[2 * i], pair[2 * i + 1]);
        UNROLL for (u32 h = 0; h < 2; h++) {
            u32 v = h2_sub(pair[2 * i + h], zero);
            pair[2 * i + h] =
                W::OFFSET != Offset::None ? h2_fma(v, scale, offset) : h2_mul(v, scale);
        }
    }
    UNROLL for (u32 i = 0; i < 2; i++)
        *(u32x4*)(tile + tile_at(row, (8 * first) ^ (8 * i))) =
            u32x4{pair[4 * i], pair[4 * i + 1], pair[4 * i + 2], pair[4 * i + 3]};
}
