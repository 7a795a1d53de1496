// dots.h: dot products of rows of weights with one or a few columns of activations. All matrix ×
// vector kernels use it.
//
// A *team* of TEAM lanes shares a row. A lane processes one unit (weights.h) of the row at a time,
// and has IN_FLIGHT units of ROWS rows in flight. A *worker* is a wave if a team fits into one, and
// otherwise the block. A *tile* is the rows that a worker computes together. The workers of the
// grid process tiles in round-robin order. The units of the next step are loaded while those of one
// step are multiplied; the first units are loaded before the wait for the activations.
//
// S: COLUMNS (multiplied with each row), TEAM, ROWS, IN_FLIGHT, GATE (not None: two matrices, gate
// and up, give one result), and as for activations.h. W: a format (weights.h).
#pragma once
#include "activations.h"
#include "weights.h"

template <class S> struct Dots {
    using X = Activations<S>;
    static constexpr u32 TEAM = S::TEAM, ROWS = S::ROWS, IN_FLIGHT = S::IN_FLIGHT,
                         COLUMNS = S::COLUMNS;
    // Matrices per result: two with a gate.
    static constexpr u32 LISTS = S::GATE != Gate::None ? 2 : 1;
    static constexpr bool TEAM_IN_WAVE = TEAM <= KJ_WAVE;
    static constexpr u32 WORKERS = TEAM_IN_WAVE ? KJ_BLOCK / KJ_WAVE : 1;     // of a block
    static constexpr u32 TEAMS = (TEAM_IN_WAVE ? KJ_WAVE : KJ_BLOCK) / TEAM;  // of a worker
    // Rows of a tile.
    static constexpr u32 TILE = TEAMS * ROWS;
    static_assert((TEAM & (TEAM - 1)) == 0 && TEAM <= KJ_BLOCK,
                  "a team is a power of two of lanes");

    // Shared memory for the sums of a team's waves; empty if a team fits into a wave.
    struct Shared { float part[TEAM_IN_WAVE ? 1 : kj_waves * LISTS * ROWS * COLUMNS]; };
    using Sums = float[LISTS * ROWS][COLUMNS];

    STEP u32 team_lane() { return thread_id() % TEAM; }
    STEP u32 team_id() { return (TEAM_IN_WAVE ? lane_id() : thread_id()) / TEAM; }

    // The tiles of a worker: from `tile` to `end` − 1, with distance `stride`. The tiles of a block
    // are neighbours, so it reads one range of the matrix. With tiles in round-robin order over the
    // whole grid, every multiprocessor accessed every page: an 8b F16 model of 15 GB on an H200
    // decoded at 205 tokens/s instead of 222.
    struct Work { u32 tile, end, stride; };
    STEP Work work_of(u32 tiles, u32 block, u32 blocks) {
        u32 each = tiles / blocks, more = tiles % blocks;
        u32 first = block * each + min_u32(block, more);
        return Work{first + (TEAM_IN_WAVE ? wave_id() : 0), first + each + (block < more ? 1 : 0),
                    WORKERS};
    }

    template <class W> struct Units { Unit<W> unit[LISTS * ROWS][IN_FLIGHT]; };
    // Whether the row is a whole number of steps, so that no lane reads past its end.
    template <class W>
    static constexpr bool FULL = W::UNITS % TEAM == 0 && CEIL_DIV(W::UNITS, TEAM) % IN_FLIGHT == 0;

    // Loads units from `step` · TEAM on of rows first … first + ROWS − 1. Rows after the end of the
    // matrix repeat the last row.
    template <class W>
    STEP void load_rows(Units<W>& b, u32 list, const u8* w, u32 first, u32 rows, u32 step) {
        UNROLL for (u32 r = 0; r < ROWS; r++) {
            const u8* row = w + (u64)min_u32(first + r, rows - 1) * W::ROW_BYTES;
            UNROLL for (u32 k = 0; k < IN_FLIGHT; k++) {
                u32 u = (step + k) * TEAM + team_lane();
                b.unit[list * ROWS + r][k] =
                    FULL<W> || u < W::UNITS ? load_unit<W>(row, u) : zero_unit<W>();
            }
        }
    }

    // Adds the products of a step's units with the columns at `x`.
    template <class W> STEP void dot_units(Sums& acc, const Units<W>& b, const u32x4* x, u32 step) {
        if constexpr (X::PLAIN) dot_plain<W>(acc, b, x, step);
        else dot_quantised<W>(acc, b, x, step);
    }

    template <class W> STEP void dot_plain(Sums& acc, const Units<W>& b, const u32x4* x, u32 step) {
        UNROLL for (u32 k = 0; k < IN_FLIGHT; k++) {
            u32 u = (step + k) * TEAM + team_lane();
            bool inside = FULL<W> || u < W::UNITS;
            float w[LISTS * ROWS][W::UNIT];
            UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) unit_values<W>(b.unit[r][k], w[r]);
            UNROLL for (u32 n = 0; n < COLUMNS; n++) {
                UNROLL for (u32 v = 0; v < W::UNIT / 4; v++) {
                    u32x4 q = x[n * X::VECTORS + v * X::UNITS + (inside ? u : 0)];
                    UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) {
                        acc[r][n] = fma_f32(w[r][4 * v], as_f32(q.x), acc[r][n]);
                        acc[r][n] = fma_f32(w[r][4 * v + 1], as_f32(q.y), acc[r][n]);
                        acc[r][n] = fma_f32(w[r][4 * v + 2], as_f32(q.z), acc[r][n]);
                        acc[r][n] = fma_f32(w[r][4 * v + 3], as_f32(q.w), acc[r][n]);
                    }
                }
            }
        }
    }

    STEP i32 dot16(const u32* codes, u32x4 x) {
        return dot4(codes[0], x.x,
                    dot4(codes[1], x.y, dot4(codes[2], x.z, dot4(codes[3], x.w, 0))));
    }

    template <class W>
    STEP void dot_quantised(Sums& acc, const Units<W>& b, const u32x4* x, u32 step) {
        constexpr u32 halves = W::UNIT / 16;
        constexpr bool sixteens = SIXTEENS<W>;
        constexpr bool offset = W::OFFSET != Offset::None;
        UNROLL for (u32 k = 0; k < IN_FLIGHT; k++) {
            u32 u = (step + k) * TEAM + team_lane();
            bool inside = FULL<W> || u < W::UNITS;
            if (!inside) u = 0;
            u32 codes[LISTS * ROWS][W::UNIT / 4];
            Factors f[LISTS * ROWS];
            UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) {
                unit_codes<W>(b.unit[r][k], codes[r]);
                f[r] = unit_factors<W>(b.unit[r][k]);
            }
            UNROLL for (u32 n = 0; n < COLUMNS; n++) {
                const u32x4* column = x + n * X::VECTORS;
                u32 group = halves == 2 ? u : u / 2;
                u32x4 info = column[4 * X::GROUPS + group];
                float scale = inside ? as_f32(info.x) : 0.0f;
                i32 sums[2] = {(i32)info.y, (i32)info.z};
                i32 dot[LISTS * ROWS][halves];
                UNROLL for (u32 h = 0; h < halves; h++) {
                    u32 vector = halves == 2 ? h : u % 2;
                    u32 at = S::X_SPLIT ? vector * X::GROUPS + group : 2 * group + vector;
                    u32x4 high = column[at], low = column[2 * X::GROUPS + at];
                    UNROLL for (u32 r = 0; r < LISTS * ROWS; r++)
                        dot[r][h] =
                            dot16(codes[r] + 4 * h, high) * 256 + dot16(codes[r] + 4 * h, low);
                }
                UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) {
                    float sum;
                    if constexpr (halves == 1) {  // 8-bit codes: signed, no offset
                        sum = f[r].scale[0] * (float)dot[r][0];
                    } else if constexpr (sixteens) {
                        sum = f[r].scale[0] * (float)(dot[r][0] - W::BIAS * sums[0]) +
                              f[r].scale[1] * (float)(dot[r][1] - W::BIAS * sums[1]);
                        if constexpr (offset)
                            sum +=
                                f[r].offset[0] * (float)sums[0] + f[r].offset[1] * (float)sums[1];
                    } else {
                        sum =
                            f[r].scale[0] * (float)(dot[r][0] + dot[r][1] - W::BIAS * (i32)info.w);
                        if constexpr (offset) sum += f[r].offset[0] * (float)(i32)info.w;
                    }
                    acc[r][n] = fma_f32(scale, sum, acc[r][n]);
                }
            }
        }
    }

    // Sums over the lanes of a team. Every lane of the team's first wave gets the sum. If a team is
    // wider than a wave, all threads of the block must call it: it uses shared memory.
    STEP void sum_team(Sums& acc, Shared& lds) {
        UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) UNROLL
            for (u32 n = 0; n < COLUMNS; n++)
                acc[r][n] = group_sum(acc[r][n], TEAM_IN_WAVE ? TEAM : KJ_WAVE);
        if constexpr (!TEAM_IN_WAVE) {
            constexpr u32 waves = TEAM / KJ_WAVE, each = LISTS * ROWS * COLUMNS;
            if (lane_id() == 0)
                UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) UNROLL
                    for (u32 n = 0; n < COLUMNS; n++)
                        lds.part[wave_id() * each + r * COLUMNS + n] = acc[r][n];
            block_sync();
            if (team_lane() < KJ_WAVE)
                UNROLL for (u32 r = 0; r < LISTS * ROWS; r++)
                    UNROLL for (u32 n = 0; n < COLUMNS; n++) {
                        float sum = 0.0f;
                        UNROLL for (u32 w = 0; w < waves; w++)
                            sum += lds.part[(wave_id() + w) * each + r * COLUMNS + n];
                        acc[r][n] = sum;
                    }
            block_sync();
        }
    }

    STEP void clear(Sums& acc) {
        UNROLL for (u32 r = 0; r < LISTS * ROWS; r++) UNROLL
            for (u32 n = 0; n < COLUMNS; n++) acc[r][n] = 0.0f;
    }
};
