// gemm_wgmma: the product of gemm.h for sm_90a, on the asynchronous matrix units.
//
// A block is persistent and computes tiles of 128 rows × WG_N tokens one after another. FILLERS
// groups of four warps *fill* stages of 64 columns, in round-robin order: they expand weights,
// which were loaded AHEAD stages before, to f16, and start the bulk copies of X. Two other groups
// *multiply*, 64 rows each, with the weights as A. They store results while the next tile's stages
// are filled.
//
// Arguments as for gemm.h (parts, counters and splits unused), and: token_tiles =
// ⌈tokens / WG_N⌉, tiles = token_tiles · tiles of rows, blocks.
//
// S: WG_N, STAGES, AHEAD, FILLERS, FILL_REGS, MULTIPLY_REGS (setmaxnreg); the rest as for gemm.h,
// with BN 128. KJ_BLOCK is 128·(FILLERS + 2). Share: x of `blocks`, as many as the device has
// multiprocessors.
#pragma once
#include "dequant.h"
#include "gemm_common.h"
#include "hopper.h"

template <class S> struct GemmWgmma {
    using G = GemmCommon<S>;
    static constexpr u32 COLS = S::COLS, BN = S::BN, K_TILES = G::K_TILES;
    static constexpr u32 WG_N = S::WG_N, STAGES = S::STAGES, AHEAD = S::AHEAD, FILLERS = S::FILLERS;
    struct Shared { u64 full[STAGES], empty[STAGES]; };
    static_assert(BN == 128 && KJ_BLOCK == 128 * (FILLERS + 2), "roles");
    static constexpr u32 x_stage = WG_N * 64, w_stage = BN * 64;                     // f16
    // Number of tokens that four warps store together, and stride of results.
    static constexpr u32 at_once = WG_N < 32 ? WG_N : 32, wide = 64 + 4;
    static constexpr u32 x_blocks = CEIL_DIV(WG_N, 64),
                         x_block_bytes = (WG_N < 64 ? WG_N : 64) * 128;

    struct Stages {
        u16 *x, *w;
        u64 *full, *empty;  // barriers, one per stage
    };

    // Fills this filler's stages of the tile: those with number % FILLERS = filler. Returns the
    // number of the first stage of the next tile.
    template <class W>
    STEP u32 fill_tile(const Stages& st, const Part& part, const u16* x, u32 first, u32 expert) {
        const u32 filler = thread_id() / 128, t = thread_id() % 128;
        const u32 k_first = (filler + FILLERS - first % FILLERS) % FILLERS;
        // Waits until the stage of columns kt is free, and starts the copy of X to it.
        auto begin = [&](u32 kt) {
            u32 s = (first + kt) % STAGES;
            barrier_wait(st.empty + s, ((first + kt) / STAGES + 1) % 2);
            if (t == 0) {
                barrier_arrive_expect(st.full + s, x_stage * 2);
                UNROLL for (u32 b = 0; b < x_blocks; b++)
                    bulk_copy(st.x + s * x_stage + b * 4096, x + ((u64)b * K_TILES + kt) * 4096,
                              x_block_bytes, st.full + s);
            }
            return st.w + s * w_stage;
        };
        auto end = [&](u32 kt) {
            fence_async();
            barrier_arrive(st.full + (first + kt) % STAGES);
        };
        // f16 weights are copied directly; their arrival is signalled AHEAD stages later.
        if constexpr (W::ENCODING == Encoding::F16) {
            static_assert(AHEAD * FILLERS + 1 < STAGES,
                          "a stage is told before the products one behind need the next");
            // Eight threads per row: each copy of a warp has whole lines of 128 bytes. Otherwise it
            // would need twice as many requests to L2.
            const u32 chunk = t % 8;
            const u8* line[8];
            UNROLL for (u32 i = 0; i < 8; i++)
                line[i] = G::template part_row<W>(part, t / 8 + 16 * i, expert) + 16 * chunk;
            for (u32 kt = k_first; kt < K_TILES; kt += FILLERS) {
                u16* tile = begin(kt);
                bool there = COLS % 64 == 0 || 64 * kt + 8 * chunk < COLS;
                UNROLL for (u32 i = 0; i < 8; i++) {
                    u16* to = tile + tile_at(t / 8 + 16 * i, 8 * chunk);
                    if (there) copy16(to, line[i] + 128 * kt);
                    else *(u32x4*)to = u32x4{0, 0, 0, 0};
                }
                copy_commit();
                copy_wait(AHEAD);
                if (kt >= k_first + AHEAD * FILLERS) end(kt - AHEAD * FILLERS);
            }
            copy_wait(0);
            const u32 mine = K_TILES > k_first ? CEIL_DIV(K_TILES - k_first, FILLERS) : 0;
            for (u32 n = mine > AHEAD ? mine - AHEAD : 0; n < mine; n++) end(k_first + n * FILLERS);
        } else {
            // Threads that share 64 columns of a row: two with 32 each, or four with 16 for 8-bit
            // codes, so that a copy of a warp has whole sectors.
            constexpr u32 across = !PLAIN<W> && W::UNIT == 16 ? 4 : 2;
            const u8* row[across];
            UNROLL for (u32 i = 0; i < across; i++)
                row[i] = G::template part_row<W>(part, t / across + 128 / across * i, expert);
            auto inside = [&](u32 kt) {
                return kt < K_TILES &&
                       (COLS % 64 == 0 || 64 * kt + 64 / across * (t % across) < COLS);
            };
            Span<W> raw[AHEAD][2];
            auto fetch = [&](Span<W>(&q)[2], u32 kt) {
                if (!inside(kt)) return;
                UNROLL for (u32 i = 0; i < across; i++) {
                    if constexpr (across == 4)
                        q[i / 2].unit[i % 2] = load_unit<W>(row[i], 4 * kt + t % 4);
                    else fetch_span<W>(q[i], row[i], 2 * kt + t % 2);
                }
            };
            auto expand = [&](const Span<W>(&q)[2], u16* tile, u32 kt) {
                UNROLL for (u32 i = 0; i < across; i++) {
                    u32 r = t / across + 128 / across * i, first = 8 / across * (t % across);
                    if constexpr (across == 4) {
                        if (inside(kt)) expand_unit<W>(q[i / 2].unit[i % 2], tile, r, first);
                        else zero_chunks(tile, r, first, 2);
                    } else {
                        if (inside(kt)) expand_span<W>(q[i], tile, r, first);
                        else zero_chunks(tile, r, first, 4);
                    }
                }
            };
            UNROLL for (u32 a = 0; a < AHEAD; a++) fetch(raw[a], k_first + a * FILLERS);
            for (u32 k0 = k_first; k0 < K_TILES; k0 += AHEAD * FILLERS)
                UNROLL for (u32 a = 0; a < AHEAD; a++) {
                    u32 kt = k0 + a * FILLERS;
                    if (kt >= K_TILES) break;
                    u16* tile = begin(kt);
                    expand(raw[a], tile, kt);
                    fetch(raw[a], kt + AHEAD * FILLERS);
                    end(kt);
                }
        }
        return first + K_TILES;
    }

    STEP u32 fill(const Stages& st, const Part& part, const u16* x, u32 first, u32 expert,
                  u32 row_tile) {
        if (row_tile < G::RUN_1) return fill_tile<typename S::Run0>(st, part, x, first, expert);
        if constexpr (G::SECOND)
            if (row_tile < G::RUN_2) return fill_tile<typename S::Run1>(st, part, x, first, expert);
        if constexpr (G::THIRD) return fill_tile<typename S::Run2>(st, part, x, first, expert);
        return first;
    }

    // `pool`: bytes of shared memory, counted by GemmTuning::shared
    // (kernel_src/src/products/gemm/tuning.rs).
    template <class Before> STEP void step(GemmArgs args, Share share, u8* pool, Shared& lds) {
        Stages st;
        st.x = (u16*)(pool + (1024 - shared_at(pool) % 1024) % 1024);
        st.w = st.x + STAGES * x_stage;
        st.full = lds.full, st.empty = lds.empty;
        float* stage_out = (float*)(st.w + STAGES * w_stage);

        if (thread_id() == 0) {
            for (u32 s = 0; s < STAGES; s++)
                barrier_init(lds.full + s, 129), barrier_init(lds.empty + s, 8);
            barrier_fence_init();
        }
        block_sync();
        Before::release();
        Before::wait();

        u32 stage_no = 0;  // stages so far
        if (thread_id() < 128 * FILLERS) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::FILL_REGS));
            for (u32 tile = share.x; tile < args.tiles; tile += args.blocks) {
                u32 token_tile = tile % args.token_tiles, row_tile = tile / args.token_tiles;
                u32 expert = S::EXPERTS > 1 ? args.tile_expert[token_tile] : 0;
                if (expert == ~0u) continue;
                Part part = G::part_of(args, row_tile);
                const u16* xt = args.x + (u64)(token_tile * WG_N / 64) * K_TILES * 4096 +
                                token_tile * WG_N % 64 * 64;
                stage_no = fill(st, part, xt, stage_no, expert, row_tile);
            }
        } else {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::MULTIPLY_REGS));
            const u32 group = thread_id() / 128 - FILLERS, lane = thread_id() % 128;
            float* stage = stage_out + group * (at_once * wide);
            for (u32 tile = share.x; tile < args.tiles; tile += args.blocks) {
                u32 token_tile = tile % args.token_tiles;
                if (S::EXPERTS > 1 && args.tile_expert[token_tile] == ~0u) continue;
                float d[WG_N / 2];
                for (u32 kt = 0; kt < K_TILES; kt++) {
                    u32 s = stage_no % STAGES;
                    barrier_wait(lds.full + s, stage_no / STAGES % 2);
                    const u16* a = st.w + s * w_stage + group * 64 * 64;
                    const u16* b = st.x + s * x_stage;
                    products_fence();
                    UNROLL for (u32 k = 0; k < 64; k += 16)
                        products<WG_N>(d, tile_descriptor(a, k), tile_descriptor(b, k),
                                       kt > 0 || k > 0);
                    products_commit();
                    products_wait(1);
                    if (kt > 0 && lane % 32 == 0)
                        barrier_arrive(lds.empty + (stage_no - 1) % STAGES);
                    stage_no++;
                }
                products_wait(0);
                if (lane % 32 == 0) barrier_arrive(lds.empty + (stage_no - 1) % STAGES);

                Part part = G::part_of(args, tile / args.token_tiles);
                u32 token0 = token_tile * WG_N;
                UNROLL for (u32 n = 0; n < WG_N; n += at_once) {
                    if (token0 + n >= args.tokens) break;
                    UNROLL for (u32 j = 0; j < at_once / 8; j++)
                        UNROLL for (u32 e = 0; e < 4; e++)
                            stage[(8 * j + 2 * (lane % 4) + e % 2) * wide + lane / 32 * 16 +
                                  lane % 32 / 4 + 8 * (e / 2)] = d[4 * (n / 8 + j) + e];
                    part_sync(group + 1, 128);
                    G::finish_rows(part, stage, wide, at_once, 64, group * 64, token0 + n,
                                   args.tokens, args.residual, lane, 128);
                    part_sync(group + 1, 128);
                }
            }
        }
    }
};
