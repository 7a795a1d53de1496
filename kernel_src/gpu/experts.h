// experts: matrix × vector through the matrices of chosen experts: y[t, s] = W[chosen[t, s]] · x.
//
//   x       TOKENS × COLS f32 (one column for all slots), TOKENS × TOP × COLS f32 (X_PER_SLOT), or
//           such columns in the layout of activations.h (X_GLOBAL)
//   aux     as for activations.h
//   chosen  TOKENS × TOP u32 (ALL: absent, slot s uses matrix s)
//   shares  TOKENS × TOP f32 if SUM
//   w0, w1  row records of all experts, ROWS_0 rows each
//   b0, b1  BIAS: a row of offsets for each expert, for w0 and for w1
//   y       TOKENS × TOP × ROWS_0 f32, or TOKENS × ROWS_0 if SUM
//   tokens  rows in use, up to TOKENS. `chosen` of the other rows is not initialised and not read;
//           their y is not written
//
//   GATE    w0 is the gate and w1 the other factor, y = act(gate) · up; CLAMPED: both limited by
//           `limit` (gate.h)
//   SUM     y[t] = Σ over slots of shares[t, s] · W[chosen[t, s]] · x[t, s], + residual[t] if
//           RESIDUAL (may be y)
//
// S: as for dots.h (COLUMNS is 1); TOKENS, TOP, ROWS_0, Run0 (the format), X_PER_SLOT, X_GLOBAL,
// SUM, BIAS, CLAMPED, ALL, RESIDUAL. Share: x of `blocks`.
#pragma once
#include "dots.h"

struct ExpertsArgs {
    const float *x, *aux;
    const u32* chosen;
    const float *shares, *residual;
    const u8 *w0, *w1;
    const float *b0, *b1;
    float* y;
    float eps, limit;
    u32 tokens, blocks;
};

template <class S> struct Experts {
    using W = typename S::Run0;
    using X = Activations<S>;
    using D = Dots<S>;
    using Shared = typename D::Shared;
    using Sums = typename D::Sums;
    using Units = typename D::template Units<W>;
    static constexpr u32 LISTS = D::LISTS, ROWS = D::ROWS, TOP = S::TOP;
    static constexpr u32 TILES = CEIL_DIV(S::ROWS_0, D::TILE);  // of one matrix
    // Tiles of all matrices of a token.
    static constexpr u32 TOKEN_TILES = TILES * (S::SUM ? 1 : TOP);
    static constexpr u32 STEPS = CEIL_DIV(W::UNITS, D::TEAM), LOADS = CEIL_DIV(STEPS, D::IN_FLIGHT);
    // Slots whose weights are in flight together. If a lane loads a row in one access, processing
    // slots one by one would add the memory latency for each slot.
    static constexpr u32 TOGETHER = !S::SUM || LOADS > 1 || ROWS* D::IN_FLIGHT > 1 ? 1
                                    : TOP % 4 == 0                                 ? 4
                                    : TOP % 2 == 0                                 ? 2
                                                                                   : 1;
    // rounds of a tile
    static constexpr u32 ROUNDS = S::SUM ? TOP / TOGETHER : 1;
    static constexpr u32 X_COLUMNS = S::TOKENS * (S::X_PER_SLOT ? TOP : 1);
    // Bytes of dynamic shared memory.
    static constexpr u32 COLUMN_BYTES = S::X_GLOBAL ? 0 : X_COLUMNS * X::VECTORS * 16;

    // First slot of the round that contains load `b` of a tile; a round has LOADS loads.
    STEP u32 slot_of(u32 tile, u32 b) {
        return S::SUM ? tile / TILES * TOP + b / LOADS * TOGETHER : tile / TILES;
    }
    STEP u32 first_row(u32 tile) { return tile % TILES * D::TILE + D::team_id() * ROWS; }

    STEP u32 matrix_of(ExpertsArgs a, u32 slot) {
        if constexpr (S::ALL) return slot % TOP;
        return a.chosen[slot];
    }

    using Slots = Units[TOGETHER];
    STEP void load_slots(Slots& units, ExpertsArgs a, u32 tile, u32 b) {
        UNROLL for (u32 i = 0; i < TOGETHER; i++) {
            u64 matrix = (u64)matrix_of(a, slot_of(tile, b) + i) * S::ROWS_0 * W::ROW_BYTES;
            u32 first = first_row(tile), step = b % LOADS * D::IN_FLIGHT;
            D::template load_rows<W>(units[i], 0, a.w0 + matrix, first, S::ROWS_0, step);
            if constexpr (LISTS == 2)
                D::template load_rows<W>(units[i], 1, a.w1 + matrix, first, S::ROWS_0, step);
        }
    }

    // The bias of a row: of one slot's expert, or the sum over all slots of a token, weighted by
    // their shares.
    STEP float offset(ExpertsArgs a, const float* b, u32 tile, u32 row) {
        u32 at = tile / TILES;
        if constexpr (!S::SUM) return b[(u64)matrix_of(a, at) * S::ROWS_0 + row];
        float sum = 0.0f;
        for (u32 s = at * TOP; s < (at + 1) * TOP; s++)
            sum = fma_f32(a.shares[s], b[(u64)matrix_of(a, s) * S::ROWS_0 + row], sum);
        return sum;
    }

    STEP void store_rows(Sums& acc, ExpertsArgs a, u32 tile, Shared& lds) {
        D::sum_team(acc, lds);
        u64 at = (u64)(tile / TILES) * S::ROWS_0;
        UNROLL for (u32 r = 0; r < ROWS; r++) {
            u32 row = first_row(tile) + r;
            if (D::team_lane() != 0 || row >= S::ROWS_0) continue;
            float v = acc[r][0];
            if constexpr (S::BIAS) v += offset(a, a.b0, tile, row);
            if constexpr (LISTS == 2) {
                float up = acc[ROWS + r][0];
                if constexpr (S::BIAS) up += offset(a, a.b1, tile, row);
                if constexpr (S::CLAMPED) v = clamped_silu(v, a.limit) * clamped_up(up, a.limit);
                else v = (S::GATE == Gate::Silu ? silu(v) : gelu(v)) * up;
            }
            if (S::RESIDUAL) v += a.residual[at + row];
            a.y[at + row] = v;
        }
    }

    // `columns`: COLUMN_BYTES of shared memory.
    template <class Before> STEP void step(ExpertsArgs a, Share share, u8* columns, Shared& lds) {
        typename X::Norm norm;
        if constexpr (!S::X_GLOBAL) X::load_norm(norm, a.aux);
        Before::release();
        Before::wait();
        typename D::Work work =
            D::work_of(TOKEN_TILES * (S::TOKENS == 1 ? 1 : a.tokens), share.x, a.blocks);
        u32 tile = work.tile, stride = work.stride, b = 0;
        Slots units;
        if (tile < work.end) load_slots(units, a, tile, 0);
        const u32x4* x = (const u32x4*)(S::X_GLOBAL ? (const u8*)a.x : columns);
        if constexpr (!S::X_GLOBAL) {
            X::template make<X_COLUMNS>(a.x, a.aux, norm, a.eps, (u32x4*)columns);
            block_sync();
        }
        float acc[LISTS * ROWS][1] = {}, slot[LISTS * ROWS][1] = {};
        NO_UNROLL while (tile < work.end) {
            u32 next = b + 1, next_tile = tile;
            if (next == ROUNDS * LOADS) next = 0, next_tile = tile + stride;
            Slots ahead;
            if (next_tile < work.end) {
                load_slots(ahead, a, next_tile, next);
            } else {
                UNROLL for (u32 i = 0; i < TOGETHER; i++) ahead[i] = units[i];
            }
            UNROLL for (u32 i = 0; i < TOGETHER; i++) {
                u32 which = slot_of(tile, b) + i, column = S::X_PER_SLOT ? which : which / TOP;
                D::template dot_units<W>(slot, units[i], x + column * X::VECTORS,
                                         b % LOADS * D::IN_FLIGHT);
                if (next % LOADS == 0) {  // a slot is done
                    float part = S::SUM ? a.shares[which] : 1.0f;
                    UNROLL for (u32 r = 0; r < LISTS * ROWS; r++)
                        acc[r][0] = fma_f32(part, slot[r][0], acc[r][0]), slot[r][0] = 0.0f;
                }
            }
            if (next == 0) {
                store_rows(acc, a, tile, lds);
                D::clear(acc);
            }
            UNROLL for (u32 i = 0; i < TOGETHER; i++) units[i] = ahead[i];
            b = next;
            tile = next_tile;
        }
    }
};
