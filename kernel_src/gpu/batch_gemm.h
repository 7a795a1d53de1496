// batch_gemm: Y[t, r] = Σ_k X[t, k] · W[r, k] for one token of each of 2 to 256 sequences, or for
// the tokens of a prompt, W in any block format, on the asynchronous matrix units of sm_90a.
// Weights are unpacked into registers as the first operand; the tokens are the second, in shared
// memory. Then bias, residual or gated unit, as in gemm.h.
//
//   x    tokens × COLS f16 in *turned tiles*: the tiles of gemm.h, ⌈COLS/128⌉ pairs of them for
//        each 64 tokens, each 128 columns in the order of turned_at; columns past COLS are zero,
//        tokens past `tokens` may hold anything
//   w0…, b0…, residual   as in gemm.h
//   y0…  f32, tokens × rows; if TURNED: turned tiles of the first segment's rows
//   parts, counters   f32[2 · blocks · BN · N], and a u32 for each tile, zero before and after a
//        launch
//
// A product may sum its columns in any order, if both operands have the same order. Lane l of a
// warp takes a span of 32 neighbouring weights (one 16-byte load of 4-bit codes) of rows l/4 and
// l/4 + 8. The four lanes of a row take adjacent spans. Quad j of a lane's span is its share of
// product j of eight. The weights of a quad form the pairs (0, 2) and (1, 3): one instruction
// converts two nibbles to two f16.
//
// A *tile* is BN rows × N tokens, a *unit* 128 columns of a tile. The units of all tiles are
// numbered one after the other, and each block takes an equal range of them. The results of a tile
// that several blocks share are summed always in the order of the blocks. Weights are requested
// AHEAD units before their use (span_ring.h), and read while the previous unit is multiplied. One
// thread loads X, STAGES units ahead. DEEP products are started together, as a *batch*; the weights
// of one batch are unpacked while FLIGHT others run.
//
// Blocks of a tile wait for each other (batch_tiles.h). They are neighbours, and blocks start in
// order, so the others of a tile run or have ended as soon as the device has room for them. Fewer
// blocks share a tile than the smallest part of a card of sm_90a runs at a time, sixteen.
//
// S: as for gemm.h without BM, WM, WN, KB, X_STAGES and EXPERTS (there are no experts); N (tokens
// of the products: the widths in held.h), MANY (more than N tokens can be launched), GROUPS (of
// four warps, that multiply), TILES (of 64 rows, for each group), AHEAD, STAGES, DEEP, FLIGHT,
// TURNED, SPAN_BYTES (SpanRing's BYTES of the widest format). OUT is Results::Singles, BN
// 64 · GROUPS · TILES, KJ_BLOCK 128 · (GROUPS + 1). Share: x of `blocks`.
#pragma once
#include "batch_tiles.h"
#include "held.h"

// Barriers and copies as in hopper.h, with addresses in shared memory.
STEP void wait_at(u32 barrier, u32 parity) {
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; "
        "@p bra done; bra again; done: }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
STEP void arrive_at(u32 barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
STEP void expect_at(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
STEP void bulk_copy_at(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
// A value that the compiler keeps in a register instead of computing it again.
STEP u32 kept(u32 v) {
    u32 r;
    asm volatile("mov.b32 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}
STEP u64 descriptor_at(u32 tile) {
    return (u64)(tile >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

template <class S> struct BatchGemm {
    using G = GemmCommon<S>;
    using T = BatchTiles<S>;
    static constexpr u32 COLS = S::COLS, BN = S::BN, N = S::N, GROUPS = S::GROUPS, TILES = S::TILES,
                         AHEAD = S::AHEAD, STAGES = S::STAGES, DEEP = S::DEEP,
                         FLIGHT = S::FLIGHT;
    static constexpr u32 STEPS = CEIL_DIV(COLS, 128), SPANS = COLS / 32, LANE_ROWS = 2 * TILES;
    static constexpr u32 WORKERS = 128 * GROUPS;
    static_assert(BN == 64 * GROUPS * TILES && KJ_BLOCK == WORKERS + 128, "roles");
    // Registers of a thread that loads X, and of one that multiplies: a quarter of a multiprocessor
    // has 512 for one warp of each group.
    static constexpr u32 BRING_REGS = 24,
                         ALL_REGS = 65536 / (KJ_MIN_BLOCKS * KJ_BLOCK) / 8 * 8 * (GROUPS + 1),
                         SHARE_REGS = (ALL_REGS - BRING_REGS) / GROUPS / 8 * 8,
                         MULTIPLY_REGS = SHARE_REGS < 240 ? SHARE_REGS : 240;
    // Blocks of 64 tokens, and f16 elements of a tile of 64 columns.
    static constexpr u32 BLOCKS_64 = CEIL_DIV(N, 64), TILE = N * 64;
    static_assert(!S::MANY || N % 64 == 0, "tiles of X have 64 tokens");
    // A stage of X has two parts of 64 columns, each with barriers for `full` and `empty`.
    struct Shared { u64 full[2 * STAGES], empty[2 * STAGES]; };
    static constexpr u32 HALF = 2 * TILE, X_STAGE = 2 * HALF;  // bytes

    // The weights of DEEP quads of a span from quad `from` on, as pairs (0, 2) and (1, 3): a code
    // in each f16 of `magic`, 1024 + code, and the rounding of span_pairs.
    struct Scales { u32 scale[2], offset[2]; };
    template <class W> STEP Scales scales_of(const Span<W>& q) {
        Scales s{};
        if constexpr (!PLAIN<W>) {
            Factors f = unit_factors<W>(q.unit[0]);
            UNROLL for (u32 h = 0; h < 2; h++) {
                s.scale[h] = h2_both(f.scale[SIXTEENS<W> ? h : 0]);
                s.offset[h] = h2_both(f.offset[SIXTEENS<W> ? h : 0]);
            }
        }
        return s;
    }
    template <class W>
    STEP void quads_of(const Span<W>& q, const Scales& s, u32 magic, u32 from,
                       u32 (&pair)[2 * DEEP]) {
        const u32 h = from / 4;
        if constexpr (PLAIN<W>) {
            u32 all[16];
            span_pairs<W>(q, all);
            UNROLL for (u32 j = 0; j < DEEP; j++) {
                u32 low = all[2 * (from + j)], high = all[2 * (from + j) + 1];
                pair[2 * j] = kj_prmt(low, high, 0x5410);
                pair[2 * j + 1] = kj_prmt(low, high, 0x7632);
            }
        } else {
            auto scaled = [&](u32 v) {
                return W::OFFSET != Offset::None ? h2_fma(v, s.scale[h], s.offset[h])
                                                 : h2_mul(v, s.scale[h]);
            };
            constexpr bool nibbles = W::C4 != NONE && W::C2 == NONE && W::C1 == NONE &&
                                     W::C8 == NONE && !W::LOOKUP && !CODEBOOK<W>;
            if constexpr (nibbles) {
                // A nibble in bits 4 to 7 of an f16 counts sixteen times: this is undone exactly.
                const u32 zero = h2_both((float)(1024 + W::BIAS)), sixteenth = h2_both(0.0625f),
                          high_zero = h2_both(-(float)(64 + W::BIAS));
                UNROLL for (u32 j = 0; j < DEEP; j++) {
                    const u32 word = q.unit[0].big[(from + j) / 2];
                    UNROLL for (u32 o = 0; o < 2; o++) {
                        const u32 codes = word >> (8 * o), low = (codes & 0x000f000fu) | magic,
                                  high = (codes & 0x00f000f0u) | magic;
                        pair[2 * j + o] = scaled((from + j) % 2 == 0
                                                     ? h2_sub(low, zero)
                                                     : h2_fma(high, sixteenth, high_zero));
                    }
                }
            } else {
                // A signed byte with its top bit flipped is an unsigned byte that is 128 too large.
                constexpr bool sign = SIGNED_CODES<W>;
                const u32 zero = h2_both((float)(1024 + W::BIAS + (sign ? 128 : 0)));
                constexpr u32 quads = W::UNIT / 4;
                u32 quad[quads];
                unit_codes<W>(q.unit[from / quads], quad);
                UNROLL for (u32 j = 0; j < DEEP; j++) {
                    u32 v = quad[from % quads + j];
                    if (sign) v ^= 0x80808080u;
                    pair[2 * j] = scaled(h2_sub((v & 0x00ff00ffu) | magic, zero));
                    pair[2 * j + 1] = scaled(h2_sub((v >> 8 & 0x00ff00ffu) | magic, zero));
                }
            }
        }
    }

    // The ring of X: its memory, its barriers, and the counters of stages and phases.
    struct Stages { u32 x, full, empty; };
    struct Place {
        u32 stage, phase;
        STEP void pass(Place& p) {
            p.stage++;
            if (p.stage == STAGES) p.stage = 0, p.phase ^= 1;
        }
    };

    // One thread loads X: two tiles of 64 columns for each unit. With MANY, 64 tokens that are all
    // past the last token are left out: their results are not stored.
    STEP void bring(const Stages& st, const GemmArgs& args, u32 from, u32 to) {
        if (thread_id() != WORKERS) return;
        Place place{0, 1};
        u32 step = from % STEPS, blocks = BLOCKS_64;
        const u16* x = args.x;
        for (u32 unit = from; unit < to; unit++) {
            if (S::MANY && (unit == from || step == 0)) {
                const u32 token = T::first_token(args, unit / STEPS);
                x = args.x + (u64)(token / 64) * (2 * STEPS) * 4096;
                blocks = min_u32(BLOCKS_64, CEIL_DIV(args.tokens - token, 64));
            }
            UNROLL for (u32 h = 0; h < 2; h++) {
                const u32 full = st.full + 16 * place.stage + 8 * h,
                          at = st.x + place.stage * X_STAGE + h * HALF;
                wait_at(st.empty + 16 * place.stage + 8 * h, place.phase);
                expect_at(full, S::MANY ? blocks * 8192 : HALF);
                UNROLL for (u32 b = 0; b < BLOCKS_64; b++)
                    if (!S::MANY || b < blocks)
                        bulk_copy_at(at + b * 8192,
                                     x + ((u64)b * (2 * STEPS) + 2 * step + h) * 4096,
                                     (N - 64 * b < 64 ? N - 64 * b : 64) * 128, full);
            }
            Place::pass(place);
            step = step + 1 == STEPS ? 0 : step + 1;
        }
    }

    // Units from … to − 1, all of one format; `place` is the position in the ring of X.
    template <class W, class Before>
    STEP void multiply(const GemmArgs& args, Share share, const Stages& st, u32 ring,
                       float* stage_out, u32 from, u32 to, Place& place, bool wait) {
        using Ring = SpanRing<W>;
        constexpr u32 SPAN_BYTES = Ring::BYTES * WORKERS, SLOT = LANE_ROWS * SPAN_BYTES;
        static_assert(Ring::BYTES <= S::SPAN_BYTES,
                      "a slot of the ring holds a unit of each format");
        const u32 me = thread_id(), lane = lane_id();
        const u32 warp_row = me / 128 * (64 * TILES) + me % 128 / 32 * 16 + lane / 4;
        auto inside = [&](u32 step) { return COLS % 128 == 0 || 4 * step + lane % 4 < SPANS; };
        auto span = [&](u32 step) { return inside(step) ? 4 * step + lane % 4 : 0; };
        auto after = [&](u32 step) { return step + 1 == STEPS ? 0 : step + 1; };
        const u8* row[LANE_ROWS];
        u32 next = from, next_step = from % STEPS;
        auto fetch = [&](u32 slot) {
            if (next < to) {
                if (next == from || next_step == 0) {
                    Part part = G::part_of(args, T::row_tile(args, next / STEPS));
                    UNROLL for (u32 r = 0; r < LANE_ROWS; r++) {
                        const u32 n = warp_row + r / 2 * 64 + r % 2 * 8;
                        row[r] = G::template part_row<W>(part, n, 0);
                    }
                }
                const bool block = next == from || next_step % Ring::BLOCK_UNITS == 0;
                UNROLL for (u32 r = 0; r < LANE_ROWS; r++)
                    Ring::fetch(ring + slot * SLOT + r * SPAN_BYTES, me, WORKERS, row[r],
                                span(next_step), block);
                next++, next_step = after(next_step);
            }
            copy_commit();
        };
        NO_UNROLL for (u32 slot = 0; slot < AHEAD; slot++) fetch(slot);
        if (wait) Before::wait();

        // 1024 as f16, twice. The compiler must not know the value: an instruction takes one
        // constant, and that must be the mask (there are two masks).
        const u32 magic = 0x64006400u | args.tokens >> 31;
        // Batches of a unit: half by half, and tile by tile in a half.
        constexpr u32 BATCHES = 8 * TILES / DEEP, HALF_BATCHES = BATCHES / 2,
                      BUFFERS = FLIGHT == 1 ? 2 : 4;
        static_assert(BATCHES % BUFFERS == 0 && BATCHES > BUFFERS && FLIGHT < BUFFERS,
                      "a buffer comes twice in a unit: else ptxas has all products wait");
        // The first product of a tile overwrites these registers. But if a kernel has two formats
        // and the registers start undefined, ptxas makes all products wait for each other.
        float acc[TILES][N / 2];
        UNROLL for (u32 t = 0; t < TILES; t++)
            UNROLL for (u32 i = 0; i < N / 2; i++) acc[t][i] = 0.0f;
        u32 held[BUFFERS][DEEP][4];
        u32 slot = 0, step = from % STEPS;
        // The weights of a unit are read from the ring while the previous unit is multiplied.
        Span<W> raw[LANE_ROWS], coming[LANE_ROWS];
        UNROLL for (u32 r = 0; r < LANE_ROWS; r++) coming[r].unit[0].block = 0;
        auto take = [&](u32 from_slot, u32 of, bool block) {
            UNROLL for (u32 r = 0; r < LANE_ROWS; r++)
                Ring::take(coming[r], ring + from_slot * SLOT + r * SPAN_BYTES, me, WORKERS,
                           span(of), block);
        };
        copy_wait(AHEAD - 1);
        take(0, step, true);
        // A half is released FLIGHT + 1 batches after the last that reads it, perhaps when batches
        // of the next unit have started.
        static_assert(AHEAD >= 2, "one unit is taken while another is on its way");
        for (u32 unit = from; unit < to;) {
            const u32 begun = unit, tile = unit / STEPS, end = min_u32(unit - step + STEPS, to);
            u32 keep = 0, before = 0;  // the stage of the previous unit: its barriers
            NO_UNROLL for (; unit < end; unit++) {
                const u64 x = descriptor_at(st.x + place.stage * X_STAGE);
                const u32 barriers = 16 * place.stage;
                const bool there = inside(step);
                Scales scales[LANE_ROWS];
                UNROLL for (u32 r = 0; r < LANE_ROWS; r++) {
                    raw[r] = coming[r];
                    scales[r] = scales_of<W>(raw[r]);
                }
                UNROLL for (u32 q = 0; q < BATCHES; q++) {
                    const u32 h = q / HALF_BATCHES, t = q % HALF_BATCHES / (4 / DEEP),
                              first = 4 * h + q % (4 / DEEP) * DEEP;
                    if (q % HALF_BATCHES == 0) wait_at(st.full + barriers + 8 * h, place.phase);
                    // The products that read these registers have ended; FLIGHT batches may still
                    // run.
                    products_wait(FLIGHT);
                    constexpr u32 freed[2] = {HALF_BATCHES + FLIGHT, BATCHES + FLIGHT};
                    if (lane == 0) UNROLL
                        for (u32 f = 0; f < 2; f++) {
                            if (freed[f] < BATCHES && q == freed[f])
                                arrive_at(st.empty + barriers + 8 * f);
                            if (freed[f] >= BATCHES && q == freed[f] - BATCHES && keep)
                                arrive_at(st.empty + before + 8 * f);
                        }
                    u32(&a)[DEEP][4] = held[q % BUFFERS];
                    UNROLL for (u32 r = 0; r < 2; r++) {
                        u32 pair[2 * DEEP];
                        quads_of<W>(raw[2 * t + r], scales[2 * t + r], magic, first, pair);
                        UNROLL for (u32 j = 0; j < DEEP; j++)
                            UNROLL for (u32 o = 0; o < 2; o++)
                                a[j][r + 2 * o] = there ? pair[2 * j + o] : 0;
                    }
                    products_fence();
                    UNROLL for (u32 j = 0; j < DEEP; j++)
                        held_products<N>(acc[t], a[j], x + (h * HALF + 32 * ((first + j) % 4) >> 4),
                                         keep || first + j > 0);
                    products_commit();
                    if (q == 0) {
                        fetch(slot);
                        slot = slot + 1 == AHEAD ? 0 : slot + 1;
                        // The newest AHEAD − 1 copies may be in flight: the next unit has arrived.
                        copy_wait(AHEAD - 1);
                        take(slot, after(step), after(step) % Ring::BLOCK_UNITS == 0);
                    }
                }
                before = barriers, keep = 1, step++;
                Place::pass(place);
            }
            products_wait(0);
            if (lane == 0) {
                if (HALF_BATCHES + FLIGHT >= BATCHES) arrive_at(st.empty + before);
                arrive_at(st.empty + before + 8);
            }
            if (step == STEPS) step = 0;
            T::finish(args, share, st.x, stage_out, acc, tile, unit - begun == STEPS);
        }
    }

    // `pool`: bytes of shared memory as BatchGemmTuning::shared (batch_gemm.rs) counts them.
    template <class Before> STEP void step(GemmArgs args, Share share, u8* pool, Shared& lds) {
        const u32 skip = (1024 - shared_at(pool) % 1024) % 1024;
        Stages st;
        st.x = kept(shared_at(pool) + skip);
        st.full = kept(shared_at(lds.full)), st.empty = st.full + 16 * STAGES;
        const u32 ring = st.x + STAGES * X_STAGE;
        float* stage_out =
            (float*)(pool + skip + STAGES * X_STAGE + AHEAD * LANE_ROWS * WORKERS * S::SPAN_BYTES);
        if (thread_id() == WORKERS) {
            for (u32 s = 0; s < 2 * STAGES; s++)
                barrier_init(lds.full + s, 1), barrier_init(lds.empty + s, 4 * GROUPS);
            barrier_fence_init();
        }
        block_sync();
        Before::release();
        u32 from = T::first_unit(args, share.x), to = T::first_unit(args, share.x + 1);
        if (thread_id() < WORKERS) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLY_REGS));
            Place place{0, 0};
            u32 end = G::SECOND ? min_u32(to, G::RUN_1 * STEPS * T::token_tiles(args)) : to;
            bool wait = true;
            if (from < end) {
                multiply<typename S::Run0, Before>(args, share, st, ring, stage_out, from, end,
                                                   place, wait);
                wait = false, from = end;
            }
            if constexpr (G::SECOND) {
                end = G::THIRD ? min_u32(to, G::RUN_2 * STEPS * T::token_tiles(args)) : to;
                if (from < end) {
                    multiply<typename S::Run1, Before>(args, share, st, ring, stage_out, from,
                                                       end, place, wait);
                    wait = false, from = end;
                }
            }
            if constexpr (G::THIRD)
                if (from < to)
                    multiply<typename S::Run2, Before>(args, share, st, ring, stage_out, from,
                                                       to, place, wait);
        } else {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(BRING_REGS));
            Before::wait();
            bring(st, args, from, to);
        }
    }
};
