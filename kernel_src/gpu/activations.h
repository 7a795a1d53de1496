// activations.h: prepares a column of activations for the dot products of a matvec.
//
// Form::Quantised: 16-bit integers in groups of 32, x ≈ scale · q with |q| ≤ 32639. They are stored
// as two planes of signed bytes, q = 256 · high + low, so dot products of bytes are exact. The
// error is 2^-16 of the group's largest value (f16: 2^-11 of each value). A column consists of
// vectors of 16 bytes, with G = COLS / 32:
//
//   2G  high bytes
//   2G  low bytes
//   G   {scale as f32, Σ q of the first 16, Σ q of the second 16, Σ q of all}
//
// With X_SPLIT the two vectors of group g are at g and G + g, so lanes that read one group each use
// different banks. Without it they are at 2g and 2g + 1.
//
// Form::Plain (for weights of f32, f16, bf16): f32 in units of X_UNIT, with zeros after the end.
// The quads (four elements each) of unit u are at u and UNITS + u.
//
// S: COLS, FORM, X_SPLIT, X_UNIT (4 or 8), PROLOGUE (Norm: aux is the norm's weight; Silu, Gelu:
// aux is the other factor).
#pragma once
#include "gate.h"

template <class S> struct Activations {
    static constexpr u32 COLS = S::COLS;
    static constexpr Prologue PROLOGUE = S::PROLOGUE;
    static constexpr bool PLAIN = S::FORM == Form::Plain;
    static constexpr bool NORMED = PROLOGUE == Prologue::Norm,
                          GATED = PROLOGUE == Prologue::Silu || PROLOGUE == Prologue::Gelu;
    static_assert(PLAIN || COLS % 32 == 0, "quantised columns come in groups of 32");
    static constexpr u32 GROUPS = COLS / 32;
    static constexpr u32 UNITS = CEIL_DIV(COLS, S::X_UNIT);                     // of a plain column
    static constexpr u32 QUADS = PLAIN ? UNITS * (S::X_UNIT / 4) : COLS / 4;
    // vectors of 16 bytes in a column
    static constexpr u32 VECTORS = PLAIN ? QUADS : 5 * GROUPS;
    static constexpr u32 PASSES = CEIL_DIV(QUADS, KJ_BLOCK);

    // Elements 4q … 4q + 3 of a row of COLS floats; zeros after its end.
    STEP void load_quad(const float* row, u32 q, float (&v)[4]) {
        if constexpr (COLS % 4 == 0) {
            u32x4 w = q < COLS / 4 ? load16(row + 4 * q) : u32x4{0, 0, 0, 0};
            v[0] = as_f32(w.x), v[1] = as_f32(w.y), v[2] = as_f32(w.z), v[3] = as_f32(w.w);
        } else {
            UNROLL for (u32 i = 0; i < 4; i++) v[i] = 4 * q + i < COLS ? row[4 * q + i] : 0.0f;
        }
    }

    // Stores quad q. If the column is quantised, all threads must call it: eight neighbouring
    // threads share a group, and `active` must be equal in these eight.
    STEP void keep_quad(u32x4* column, u32 q, const float (&v)[4], bool active) {
        if constexpr (PLAIN) {
            u32 at = S::X_UNIT == 8 ? (q % 2) * UNITS + q / 2 : q;
            if (active) column[at] = u32x4{as_u32(v[0]), as_u32(v[1]), as_u32(v[2]), as_u32(v[3])};
        } else {
            float most = max_f32(max_f32(abs_f32(v[0]), abs_f32(v[1])),
                                 max_f32(abs_f32(v[2]), abs_f32(v[3])));
            most = group_max(most, 8);
            float inverse = most > 0.0f ? 32639.0f / most : 0.0f;
            if (inverse > 3.0e38f) inverse = 3.0e38f;  // all values of the group are subnormal
            u32 high = 0, low = 0;
            i32 sum = 0;
            // NaN if any element is NaN or infinite. It is added to the scale, so the result is NaN
            // too.
            float bad = 0.0f;
            UNROLL for (u32 i = 0; i < 4; i++) {
                i32 whole = round_int(v[i] * inverse);
                i32 bottom = (i32)(i8)(u8)whole;
                low |= (u32)(u8)whole << (8 * i);
                high |= (u32)(u8)((whole - bottom) >> 8) << (8 * i);
                sum += whole;
                bad += v[i] * 0.0f;
            }
            bad = group_sum(bad, 8);
            i32 half = group_sum(sum, 4);
            i32 other = wave_xor(half, 4);
            u32 group = q / 8, vector = q / 4 % 2;
            u32 at = S::X_SPLIT ? vector * GROUPS + group : 2 * group + vector;
            if (active) {
                ((u32*)(column + at))[q % 4] = high;
                ((u32*)(column + 2 * GROUPS + at))[q % 4] = low;
                if (q % 8 == 0)
                    column[4 * GROUPS + group] = u32x4{as_u32(most / 32639.0f + bad), (u32)half,
                                                       (u32)other, (u32)(half + other)};
            }
        }
    }

    // Whether the weights of a norm are loaded before the wait for the activations. They come from
    // device memory, so loading them after the norm's sum would add its latency again. Rows of many
    // passes have too few registers for this.
    static constexpr bool NORM_AHEAD = NORMED && PASSES <= 4;
    struct Norm { float w[NORM_AHEAD ? PASSES : 1][4]; };
    STEP void load_norm(Norm& norm, const float* aux) {
        if constexpr (NORM_AHEAD) {
            UNROLL for (u32 i = 0; i < PASSES; i++)
                load_quad(aux, thread_id() + i * KJ_BLOCK, norm.w[i]);
        }
    }

    // Makes N columns one after another, with all threads of the block. Ends without a barrier.
    template <u32 N>
    STEP void make(const float* x, const float* aux, const Norm& norm, float eps, u32x4* columns) {
        if constexpr (NORMED) make_normed<N>(x, aux, norm, eps, columns);
        else make_plain<N>(x, aux, columns);
    }

    template <u32 N>
    STEP void make_normed(const float* x, const float* aux, const Norm& norm, float eps,
                          u32x4* columns) {
        NO_UNROLL for (u32 n = 0; n < N; n++) {
            float v[PASSES][4];  // the row stays in registers between the two passes
            float squares = 0.0f;
            UNROLL for (u32 i = 0; i < PASSES; i++)
                load_quad(x + n * COLS, thread_id() + i * KJ_BLOCK, v[i]);
            UNROLL for (u32 i = 0; i < PASSES; i++)
                UNROLL for (u32 e = 0; e < 4; e++) squares += v[i][e] * v[i][e];
            float scale = rsqrt_f32(block_sum(squares) / COLS + eps);
            UNROLL for (u32 i = 0; i < PASSES; i++) {
                u32 q = thread_id() + i * KJ_BLOCK;
                float w[4];
                if constexpr (NORM_AHEAD) {
                    UNROLL for (u32 e = 0; e < 4; e++) w[e] = norm.w[i][e];
                } else {
                    load_quad(aux, q, w);
                }
                UNROLL for (u32 e = 0; e < 4; e++) v[i][e] = v[i][e] * scale * w[e];
                keep_quad(columns + n * VECTORS, q, v[i], q < QUADS);
            }
        }
    }

    // All columns are processed as one range, with a few quads in flight. If columns were processed
    // one after another, a row of 14336 would wait seven times for L2, and the eight short columns
    // of a token's experts eight times.
    template <u32 N> STEP void make_plain(const float* x, const float* aux, u32x4* columns) {
        constexpr u32 quads = N * QUADS, passes = CEIL_DIV(quads, KJ_BLOCK);
        constexpr u32 most = GATED ? 4 : 8, each = CEIL_DIV(passes, CEIL_DIV(passes, most));
        NO_UNROLL for (u32 from = 0; from < passes; from += each) {
            float v[each][4];
            UNROLL for (u32 i = 0; i < each; i++) {
                u32 q = thread_id() + (from + i) * KJ_BLOCK, n = N == 1 ? 0 : q / QUADS;
                load_quad(x + n * COLS, q < quads ? q - n * QUADS : QUADS, v[i]);
            }
            float up[each][4];
            if constexpr (GATED) {
                UNROLL for (u32 i = 0; i < each; i++) {
                    u32 q = thread_id() + (from + i) * KJ_BLOCK, n = N == 1 ? 0 : q / QUADS;
                    load_quad(aux + n * COLS, q < quads ? q - n * QUADS : QUADS, up[i]);
                }
            }
            UNROLL for (u32 i = 0; i < each; i++) {
                u32 q = thread_id() + (from + i) * KJ_BLOCK, n = N == 1 ? 0 : q / QUADS;
                if constexpr (GATED) {
                    UNROLL for (u32 e = 0; e < 4; e++)
                        v[i][e] =
                            (PROLOGUE == Prologue::Silu ? silu(v[i][e]) : gelu(v[i][e])) * up[i][e];
                }
                keep_quad(columns + n * VECTORS, q - n * QUADS, v[i], q < quads);
            }
        }
    }
};
