// batch_tiles.h: the tiles of a product of batch_gemm.h: which blocks have their units, and how the
// results are summed and stored.
//
// S: as for batch_gemm.h.
#pragma once
#include "gemm_common.h"
#include "hopper.h"
#include "span_ring.h"
#include "turned.h"

template <class S> struct BatchTiles {
    using G = GemmCommon<S>;
    static constexpr u32 BN = S::BN, N = S::N, GROUPS = S::GROUPS, TILES = S::TILES;
    static constexpr u32 STEPS = CEIL_DIV(S::COLS, 128), WORKERS = 128 * GROUPS;
    static constexpr u32 ALL_TILES =
        S::TURNED ? CEIL_DIV(CEIL_DIV(S::ROWS_0, 128) * 128, G::PART_ROWS) : G::END_2;
    // Tokens that a group stores together, and the stride of its results in shared memory.
    static constexpr u32 AT_ONCE = N < 32 ? N : 32, WIDE = 64 + 4;

    // Bytes of that many tokens of all groups.
    static constexpr u32 EIGHTS = AT_ONCE / 8, PIECE = EIGHTS * 16 * WORKERS;
    // Bytes of both rings, and the number of pieces that fit there after the last unit of a block.
    static constexpr u32 RINGS = S::STAGES * (N * 256) + S::AHEAD * (2 * TILES) * WORKERS *
                                                             S::SPAN_BYTES,
                         FIT = RINGS / PIECE;

    // Tiles of N tokens. The tiles of the same rows are neighbours, so that weights are read from
    // device memory once.
    STEP u32 token_tiles(const GemmArgs& args) {
        return S::MANY ? CEIL_DIV(args.tokens, N) : 1;
    }
    STEP u32 row_tile(const GemmArgs& args, u32 tile) {
        return S::MANY ? tile / token_tiles(args) : tile;
    }
    STEP u32 first_token(const GemmArgs& args, u32 tile) {
        return S::MANY ? tile % token_tiles(args) * N : 0;
    }

    STEP u32 all_units(const GemmArgs& args) { return ALL_TILES * STEPS * token_tiles(args); }
    // Blocks that have units: so few that the rings have room for a piece of each block of a tile,
    // and that fewer than sixteen share a tile.
    STEP u32 used_blocks(const GemmArgs& args) {
        static_assert(FIT > 1, "room for the parts of other blocks");
        constexpr u32 most = FIT - 1 < 13 ? FIT - 1 : 13;
        return min_u32(args.blocks, all_units(args) / CEIL_DIV(STEPS, most));
    }
    // The first unit of a block, and the block of a unit. Later blocks begin after the last unit.
    STEP u32 first_unit(const GemmArgs& args, u32 block) {
        const u32 used = used_blocks(args);
        return (u32)((u64)min_u32(block, used) * all_units(args) / used);
    }
    STEP u32 block_of(const GemmArgs& args, u32 unit) {
        return (u32)((((u64)unit + 1) * used_blocks(args) - 1) / all_units(args));
    }

    // As G::activate. The divisor of the sigmoid is at least 1, so its reciprocal needs neither a
    // branch nor a call, and those of several results overlap.
    STEP float activated(float g) {
        if constexpr (S::GATE != Gate::Silu) return G::activate(g);
        const float e = exp_f32(-g), d = e > 1e37f ? 1e37f : 1.0f + e;
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
        return g * fma_f32(r, fma_f32(-d, r, 1.0f), r);
    }

    // As finish_rows of GemmCommon, but into turned tiles, with zeros after the last row.
    STEP void finish_turned(const Part& p, const float* stage, u32 m, u32 col0, u32 token0,
                            u32 tokens, u32 lane) {
        constexpr u32 groups = G::GATED ? 4 : 8, steps = CEIL_DIV(S::ROWS_0, 128);
        for (u32 i = lane; i < m * groups; i += 128) {
            u32 token = token0 + i / groups, g = i % groups;
            u32 col = G::GATED ? g / 2 * 32 + g % 2 * 8 : g * 8;
            u32 row = p.first + (G::GATED ? (col0 + col) / 32 * 16 + col % 16 : col0 + col);
            if (token >= tokens || row >= 128 * steps) continue;
            u32 here = row < p.rows ? min_u32(8, p.rows - row) : 0;
            float v[8], up[8];
            read8(stage + i / groups * WIDE + col, v);
            if constexpr (G::GATED) read8(stage + i / groups * WIDE + col + 16, up);
            UNROLL for (u32 e = 0; e < 8; e++) {
                if (p.bias && e < here) v[e] += p.bias[row + e];
                if constexpr (G::GATED) {
                    if (p.bias_up && e < here) up[e] += p.bias_up[row + e];
                    v[e] = activated(v[e]) * up[e];
                }
                if (e >= here) v[e] = 0.0f;
            }
            const u32 pair[4] = {pack_input(v[0], v[1]), pack_input(v[2], v[3]),
                                 pack_input(v[4], v[5]), pack_input(v[6], v[7])};
            store_turned((u16*)p.y, token, row, steps, pair);
        }
    }

    // Results that are stored together are a *piece*: AT_ONCE tokens of the 64 rows of each group's
    // tile t. Pieces are numbered by t, then by tokens. `in_tile`: pieces of a tile of 64 rows that
    // have tokens. This block stores the results of pieces from … to − 1.
    struct Pieces { u32 in_tile, from, to; };
    STEP bool mine(const Pieces& p, u32 t, u32 n) {
        const u32 i = t * p.in_tile + n / AT_ONCE;
        return n / AT_ONCE < p.in_tile && i >= p.from && i < p.to;
    }
    // This thread's first four results of a block in a tile whose first block is `first`. Four more
    // follow at each 4 · WORKERS, up to `at`.
    STEP float* part_at(const GemmArgs& args, u32 block, u32 first, u32 at) {
        return args.parts + (u64)(2 * block + (block == first)) * (BN * N) +
               (at * WORKERS + thread_id()) * 4;
    }
    // The blocks that share a tile: from `first` on, `others` beside this one, the `me`-th of them.
    struct Sharers { u32 first, others, me; };
    // Copies the others' parts of pieces from … to − 1 to the rings. Each thread copies the results
    // that it needs itself.
    STEP void copy_parts(const GemmArgs& args, const Pieces& p, const Sharers& s, u32 rings,
                         u32 from, u32 to) {
        u32 slot = rings + 16 * thread_id();
        NO_UNROLL for (u32 i = from; i < to; i++) {
            const u32 eight = i % p.in_tile * EIGHTS, at = i / p.in_tile * (N / 8) + eight;
            NO_UNROLL for (u32 o = 0; o < s.others; o++, slot += PIECE) {
                const float* part = part_at(args, s.first + o + (o >= s.me), s.first, at);
                UNROLL for (u32 j = 0; j < EIGHTS; j++)
                    if (N % AT_ONCE == 0 || eight + j < N / 8)
                        copy_to<16>(slot + j * 16 * WORKERS, part + j * 4 * WORKERS);
            }
        }
        copy_commit();
        copy_wait(0);
    }
    // Adds the others' parts of a piece to this block's, always in the order of the blocks.
    STEP void add_parts(const Sharers& s, u32 slot, float (&own)[EIGHTS][4]) {
        float sum[EIGHTS][4];
        UNROLL for (u32 j = 0; j < EIGHTS; j++)
            UNROLL for (u32 e = 0; e < 4; e++) sum[j][e] = 0.0f;
        NO_UNROLL for (u32 o = 0; o <= s.others; o++) {
            if (o == s.me) {
                UNROLL for (u32 j = 0; j < EIGHTS; j++)
                    UNROLL for (u32 e = 0; e < 4; e++) sum[j][e] += own[j][e];
                continue;
            }
            UNROLL for (u32 j = 0; j < EIGHTS; j++) {
                const u32x4 v = shared16(slot + j * 16 * WORKERS);
                sum[j][0] += as_f32(v.x), sum[j][1] += as_f32(v.y);
                sum[j][2] += as_f32(v.z), sum[j][3] += as_f32(v.w);
            }
            slot += PIECE;
        }
        UNROLL for (u32 j = 0; j < EIGHTS; j++)
            UNROLL for (u32 e = 0; e < 4; e++) own[j][e] = sum[j][e];
    }

    // Stores the results of the tile. Blocks that share a tile store their parts in `parts`. If all
    // of them have units of this tile only, they end together: each then sums an equal share of the
    // pieces. Otherwise the block with the first units sums all; it ends with this tile, and the
    // others began with it.
    STEP void finish(const GemmArgs& args, Share share, u32 rings, float* stage_out,
                     const float (&acc)[TILES][N / 2], u32 tile, bool whole) {
        const u32 group = thread_id() / 128, lane = thread_id() % 128;
        const u32 token0 = first_token(args, tile), here = min_u32(N, args.tokens - token0);
        Pieces pieces{CEIL_DIV(here, AT_ONCE), 0, ~0u};
        pieces.to = TILES * pieces.in_tile;
        Sharers sharers{0, 0, 0};
        bool together = false;
        u32* counter = args.counters + tile;
        if (!whole) {
            const u32 unit = tile * STEPS, last = block_of(args, unit + STEPS - 1);
            sharers.first = block_of(args, unit), sharers.others = last - sharers.first;
            sharers.me = share.x - sharers.first;
            together = first_unit(args, sharers.first) == unit &&
                       first_unit(args, last + 1) == unit + STEPS;
            const u32 all = pieces.to, n = sharers.others + 1;
            if (together)
                pieces.from = sharers.me * all / n, pieces.to = (sharers.me + 1) * all / n;
            else if (sharers.me != 0) pieces.to = 0;
            if (together || sharers.me != 0) {
                float* part = part_at(args, share.x, sharers.first, 0);
                UNROLL for (u32 t = 0; t < TILES; t++)
                    UNROLL for (u32 i = 0; i < N / 2; i += 4)
                        if (2 * i < here && !mine(pieces, t, 2 * i))
                            *(u32x4*)(part + (t * (N / 8) + i / 4) * (4 * WORKERS)) =
                                u32x4{as_u32(acc[t][i]), as_u32(acc[t][i + 1]),
                                      as_u32(acc[t][i + 2]), as_u32(acc[t][i + 3])};
            }
            // The barriers order all threads' writes before the first thread's addition, and its
            // reads before all threads' reads; and all products before the rings are overwritten.
            part_sync(GROUPS + 1, WORKERS);
            if (thread_id() == 0) {
                if (together || sharers.me != 0) atomic_add(counter, 1);
                if (together) while (atomic_load(counter) < n) {}
                else if (sharers.me == 0) {
                    while (atomic_load(counter) < n - 1) {}
                    atomic_store(counter, 0);
                }
            }
            if (pieces.from == pieces.to) {
                if (together && thread_id() == 0) left(counter, n);
                return;
            }
            part_sync(GROUPS + 1, WORKERS);
        }
        Part part = G::part_of(args, row_tile(args, tile));
        float* stage = stage_out + group * (AT_ONCE * WIDE);
        u32 copied = pieces.from, slot = 0;
        // The code of a piece exists once: it runs a few times in a launch, and is slow to fetch.
        NO_UNROLL for (u32 i = pieces.from; i < pieces.to; i++) {
            const u32 t = TILES == 1 ? 0 : i / pieces.in_tile,
                      n = (i - t * pieces.in_tile) * AT_ONCE,
                      m = N % AT_ONCE == 0 ? AT_ONCE : min_u32(N - n, AT_ONCE);
            float sum[EIGHTS][4];
            UNROLL for (u32 k = 0; k < TILES * CEIL_DIV(N, AT_ONCE); k++) {
                const u32 of = k / CEIL_DIV(N, AT_ONCE), first = k % CEIL_DIV(N, AT_ONCE) * EIGHTS;
                if (t == of && n == 8 * first)
                    UNROLL for (u32 j = 0; j < EIGHTS; j++)
                        UNROLL for (u32 e = 0; e < 4; e++)
                            sum[j][e] = first + j < N / 8 ? acc[of][4 * (first + j) + e] : 0;
            }
            if (!whole) {
                if (i == copied) {
                    copied = min_u32(i + FIT / sharers.others, pieces.to);
                    copy_parts(args, pieces, sharers, rings, i, copied);
                    slot = rings + 16 * thread_id();
                }
                add_parts(sharers, slot, sum);
                slot += sharers.others * PIECE;
            }
            UNROLL for (u32 j = 0; j < EIGHTS; j++)
                UNROLL for (u32 e = 0; e < 4; e++)
                    stage[(8 * j + 2 * (lane % 4) + e % 2) * WIDE + lane / 32 * 16 + lane % 32 / 4 +
                          8 * (e / 2)] = sum[j][e];
            part_sync(group + 1, 128);
            const u32 col0 = (group * TILES + t) * 64;
            if constexpr (S::TURNED)
                finish_turned(part, stage, m, col0, token0 + n, args.tokens, lane);
            else
                G::finish_rows(part, stage, WIDE, m, 64, col0, token0 + n, args.tokens,
                               args.residual, lane, 128);
            part_sync(group + 1, 128);
        }
        if (together) {
            part_sync(GROUPS + 1, WORKERS);
            if (thread_id() == 0) left(counter, sharers.others + 1);
        }
    }
    // The last of n blocks that meet leaves the counter at zero.
    STEP void left(u32* counter, u32 n) {
        if (atomic_add(counter, 1) == 2 * n - 1) atomic_store(counter, 0);
    }
};
