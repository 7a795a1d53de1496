// product_mma.h: the product of product.h on matrix units (mma.h), for f16 and bf16 with sums in
// f32. Shared memory has STAGES tiles of 64 depths, which are loaded STAGES − 1 steps before their
// use.
#pragma once
#include "mma.h"
#include "product.h"

#if defined(KJ_NVIDIA) && __CUDA_ARCH__ >= 800
constexpr bool product_async = true;
STEP void mma_bf16_half(float* c, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
STEP void mma_of(FragC& c, const FragA& a, const FragB& b, bf16) {
    mma_bf16_half(c.v, a.v, b.v);
    mma_bf16_half(c.v + 4, a.v, b.v + 2);
}
#else
constexpr bool product_async = false;
#endif
STEP void mma_of(FragC& c, const FragA& a, const FragB& b, f16) { mma(c, a, b); }

// Loads A from a transposed tile, which has one row per depth; its elements are the rows of the
// result.
STEP void load_a_t(FragA& a, const u16* tile, u32 k, u32 row) {
#if KJ_MMA == 1
    const u32 l = lane_id();
    ldmatrix4_t(a.v, tile + tile_at(k + l / 16 * 8 + l % 8, (l / 8 % 2 * 8) ^ row));
#elif KJ_MMA >= 2
    const u32 first = k + mma_depth(), c = row + lane_id() % 16;
    UNROLL for (u32 i = 0; i < MMA_WORDS; i++)
        a.v[i] = (u32)tile[tile_at(first + 2 * i, c)] | (u32)tile[tile_at(first + 2 * i + 1, c)]
                                                            << 16;
#else
#error "product_mma.h needs a matrix unit"
#endif
}

template <class S> struct ProductMma {
    using Left = typename S::Left;
    using Right = typename S::Right;
    static constexpr u32 BM = S::BM, BN = S::BN, STAGES = S::STAGES;
    static constexpr u32 MI = BM / S::WAVES_M / MMA_M, NI = BN / S::WAVES_N / MMA_N;
    static_assert(MI * S::WAVES_M * MMA_M == BM && NI * S::WAVES_N * MMA_N == BN &&
                      S::WAVES_M * S::WAVES_N == kj_waves && BM % 64 == 0 && BN % 64 == 0,
                  "waves tile the block");
    static constexpr u32 WIDE = BN + 4;  // stride of results in shared memory
    static_assert(BM * BN % (8 * KJ_BLOCK) == 0, "eight results of a thread at a time");
    static_assert(BM * WIDE * 4 <= STAGES * (BM + BN) * 128, "results fit where the tiles were");

    // One operand: B rows of 64 depths in a tile. With LIE_ROWS the tile has one row per depth, as
    // blocks of 64 columns.
    template <class Side, u32 B> struct Operand {
        static constexpr u32 LIE = Side::LIE, EACH = B * 8 / KJ_BLOCK;  // chunks per thread
        static constexpr bool ASYNC = product_async && LIE < LIE_ACROSS;
        static_assert(EACH * KJ_BLOCK == B * 8 && KJ_BLOCK % B == 0, "threads share a tile evenly");
        const u16* from;
        u32 first, rows, depth;
        i64 own[LIE == LIE_DEPTHS ? EACH : 1];
        u32 held[ASYNC ? 1 : 4 * EACH];

        STEP Operand at(const Numbers& p, const void* base, u32 z, u32 first, u32 rows) {
            Operand o;
            o.from = (const u16*)base + Side::batch(p, z);
            o.first = first, o.rows = rows, o.depth = (u32)p.n[2];
            UNROLL for (u32 i = 0; i < (LIE == LIE_DEPTHS ? EACH : 1); i++) {
                const u32 c = thread_id() + i * KJ_BLOCK;
                const u32 row = LIE == LIE_DEPTHS ? c / 8 : c % B;
                o.own[i] = LIE == LIE_DEPTHS || LIE == LIE_ACROSS
                               ? Side::own(p, min_u32(first + row, rows - 1))
                               : 0;
            }
            return o;
        }
        // Writes the offsets of a tile's depths. After the end of the depth, the last one is
        // repeated.
        STEP void table(const Numbers& p, i64* to, u32 k0, u32 depth) {
            if (LIE == LIE_ACROSS && thread_id() < 64)
                to[thread_id()] = Side::depth(p, min_u32(k0 + thread_id(), depth - 1));
        }
    };

    // Starts to load the tile of depths k0 … into shared memory or registers.
    template <class Side, u32 B>
    STEP void begin(const Numbers& p, Operand<Side, B>& o, u16* tile, u32 k0, const i64* table) {
        using O = Operand<Side, B>;
        // All chunks of a thread have the same depths.
        static_assert(KJ_BLOCK % 8 == 0, "a row of a tile has eight chunks");
        const u32 own_k = k0 + thread_id() % 8 * 8;
        const i64 deep =
            O::LIE == LIE_DEPTHS ? Side::depth(p, min_u32(own_k, o.depth - 1)) : 0;
        UNROLL for (u32 i = 0; i < O::EACH; i++) {
            const u32 c = thread_id() + i * KJ_BLOCK;
            if constexpr (O::LIE < LIE_ACROSS) {
                const u32 row = O::LIE == LIE_DEPTHS ? c / 8 : c % (B / 8) * 8;
                const u32 k = O::LIE == LIE_DEPTHS ? c % 8 * 8 : c / (B / 8);
                const bool inside = o.first + row < o.rows && k0 + k < o.depth;
                const u16* at = o.from;
                if (inside)
                    at += O::LIE == LIE_DEPTHS
                              ? o.own[i] + deep
                              : Side::own(p, o.first + row) + Side::depth(p, k0 + k);
                if constexpr (O::ASYNC) {
                    u16* to = tile + spot<O::LIE>(row, k);
                    if (inside) copy16(to, at);
                    else *(u32x4*)to = u32x4{0, 0, 0, 0};
                } else {
                    const u32x4 v = inside ? load16(at) : u32x4{0, 0, 0, 0};
                    o.held[4 * i] = v.x, o.held[4 * i + 1] = v.y;
                    o.held[4 * i + 2] = v.z, o.held[4 * i + 3] = v.w;
                }
            } else if constexpr (O::LIE == LIE_ACROSS) {
                // All loads are within the tensor and without branches, so that they overlap.
                const u32 few = o.first + c % B < o.rows ? o.depth - min_u32(o.depth, k0) : 0;
                const u32 first = c / B * 8;
                u32 v[8];
                UNROLL for (u32 j = 0; j < 8; j++) v[j] = o.from[o.own[0] + table[first + j]];
                UNROLL for (u32 j = 0; j < 8; j += 2)
                    o.held[4 * i + j / 2] = (first + j < few ? v[j] : 0) |
                                            (first + j + 1 < few ? v[j + 1] << 16 : 0);
            } else {
                const u32 k = k0 + thread_id() % 32 * 2;
                const i64 here = Side::depth(p, min_u32(k, o.depth - 1));
                const i64 next = Side::depth(p, min_u32(k + 1, o.depth - 1));
                u32 v[8];
                UNROLL for (u32 j = 0; j < 4; j++) {
                    const u32 row = o.first + (thread_id() + (4 * i + j) * KJ_BLOCK) / 32;
                    const u16* at = o.from + Side::own(p, min_u32(row, o.rows - 1));
                    v[2 * j] = at[here], v[2 * j + 1] = at[next];
                }
                UNROLL for (u32 j = 0; j < 4; j++) {
                    const u32 row = o.first + (thread_id() + (4 * i + j) * KJ_BLOCK) / 32;
                    const bool there = row < o.rows;
                    o.held[4 * i + j] = (there && k < o.depth ? v[2 * j] : 0) |
                                        (there && k + 1 < o.depth ? v[2 * j + 1] << 16 : 0);
                }
            }
        }
    }

    template <u32 LIE> STEP u32 spot(u32 row, u32 k) {
        return LIE == LIE_ROWS ? row / 64 * 4096 + tile_at(k, row % 64) : tile_at(row, k);
    }

    // Writes to shared memory what `begin` loaded into registers.
    template <class Side, u32 B> STEP void end(const Operand<Side, B>& o, u16* tile) {
        using O = Operand<Side, B>;
        if constexpr (!O::ASYNC) {
            UNROLL for (u32 i = 0; i < O::EACH; i++) {
                const u32 c = thread_id() + i * KJ_BLOCK;
                if constexpr (O::LIE == LIE_ALONG) {
                    UNROLL for (u32 j = 0; j < 4; j++) {
                        const u32 w = thread_id() + (4 * i + j) * KJ_BLOCK;
                        *(u32*)(tile + tile_at(w / 32, w % 32 * 2)) = o.held[4 * i + j];
                    }
                } else {
                    const u32 row = O::LIE == LIE_DEPTHS ? c / 8
                                    : O::LIE == LIE_ROWS ? c % (B / 8) * 8
                                                         : c % B;
                    const u32 k = O::LIE == LIE_DEPTHS ? c % 8 * 8
                                  : O::LIE == LIE_ROWS ? c / (B / 8)
                                                       : c / B * 8;
                    *(u32x4*)(tile + spot<O::LIE>(row, k)) =
                        u32x4{o.held[4 * i], o.held[4 * i + 1], o.held[4 * i + 2],
                              o.held[4 * i + 3]};
                }
            }
        }
    }

    template <class Out, class Give>
    STEP void run(const Numbers& p, const void* left, const void* right, u8* pool, Out* to,
                  Give give) {
        LDS_ARRAY(i64, tables, 256);
        const u32 m = (u32)p.n[0], n = (u32)p.n[1], depth = (u32)p.n[2];
        const u32 steps = CEIL_DIV(depth, 64);
        const ProductTile tile = product_tile<S>(p, block_id());
        auto x = Operand<Left, BM>::at(p, left, tile.batch, tile.row, m);
        auto y = Operand<Right, BN>::at(p, right, tile.batch, tile.col, n);
        u16* xs = (u16*)pool;
        u16* ys = xs + STAGES * BM * 64;
        auto tables_of = [&](u32 step) {
            x.table(p, tables + step % 2 * 128, step * 64, depth);
            y.table(p, tables + step % 2 * 128 + 64, step * 64, depth);
        };
        auto begin_both = [&](u32 step) {
            const u32 stage = step % STAGES;
            begin(p, x, xs + stage * BM * 64, step * 64, tables + step % 2 * 128);
            begin(p, y, ys + stage * BN * 64, step * 64, tables + step % 2 * 128 + 64);
            tables_of(step + 1);
        };
        auto end_both = [&](u32 step) {
            end(x, xs + step % STAGES * BM * 64);
            end(y, ys + step % STAGES * BN * 64);
        };
        const u32 wave_m = wave_id() / S::WAVES_N * MI * MMA_M;
        const u32 wave_n = wave_id() % S::WAVES_N * NI * MMA_N;
        FragC sum[MI][NI];
        UNROLL for (u32 i = 0; i < MI; i++)
            UNROLL for (u32 j = 0; j < NI; j++) acc_zero(sum[i][j]);
        tables_of(0);
        for (u32 step = 0; step + 1 < STAGES; step++) {
            block_sync();
            begin_both(step);  // depths after the last are zeros
            end_both(step);
            copy_commit();
        }
        for (u32 step = 0; step < steps; step++) {
            copy_wait(STAGES - 2);
            block_sync();
            const bool more = step + STAGES - 1 < steps;
            if (more) begin_both(step + STAGES - 1);
            copy_commit();
            const u16* a_tile = xs + step % STAGES * BM * 64;
            const u16* b_tile = ys + step % STAGES * BN * 64;
            DEPTH_UNROLL for (u32 k = 0; k < 64; k += MMA_K) {
                FragA a[MI];
                FragB b[NI];
                UNROLL for (u32 i = 0; i < MI; i++) {
                    const u32 row = wave_m + i * MMA_M;
                    if constexpr (Left::LIE == LIE_ROWS)
                        load_a_t(a[i], a_tile + row / 64 * 4096, k, row % 64);
                    else load_a(a[i], a_tile, row, k);
                }
                UNROLL for (u32 j = 0; j < NI; j++) {
                    const u32 col = wave_n + j * MMA_N;
                    if constexpr (Right::LIE == LIE_ROWS)
                        load_b_t(b[j], b_tile + col / 64 * 4096, k, col % 64);
                    else load_b(b[j], b_tile, col, k);
                }
                UNROLL for (u32 i = 0; i < MI; i++)
                    UNROLL for (u32 j = 0; j < NI; j++)
                        mma_of(sum[i][j], a[i], b[j], typename S::In{});
            }
            if (more) end_both(step + STAGES - 1);
        }
        products_settle();
        copy_wait(0);
        block_sync();
        float* out = (float*)pool;
        UNROLL for (u32 i = 0; i < MI; i++)
            UNROLL for (u32 j = 0; j < NI; j++)
                UNROLL for (u32 e = 0; e < MMA_ACC; e++)
                    out[(wave_m + i * MMA_M + acc_row(e)) * WIDE + wave_n + j * MMA_N +
                        acc_col(e)] = sum[i][j].v[e];
        block_sync();
        for (u32 first = thread_id(); first < BM * BN; first += 8 * KJ_BLOCK) {
            Out v[8];
            UNROLL for (u32 i = 0; i < 8; i++) {
                const u32 e = first + i * KJ_BLOCK;
                v[i] = give(tile.batch, min_u32(tile.row + e / BN, m - 1),
                            min_u32(tile.col + e % BN, n - 1), out[e / BN * WIDE + e % BN]);
            }
            UNROLL for (u32 i = 0; i < 8; i++) {
                const u32 e = first + i * KJ_BLOCK, row = tile.row + e / BN;
                const u32 col = tile.col + e % BN;
                if (row < m && col < n) to[result_at(p, tile.batch, row, col)] = v[i];
            }
        }
    }
};
