// product.h: C[m, n] = Σ_k left[m, k] · right[n, k], for each batch. Index functions give the
// offsets of elements, so operands may be transposed, broadcast, or windows of a convolution. The
// generated source before this file defines:
//   Numbers                      arguments of a launch: n[0] rows, n[1] columns, n[2] depth
//   Shape::BM, BN                rows and columns of a block
//   Shape::WAVES_M, WAVES_N, STAGES  (ProductMma) waves of a block, tiles in shared memory
//   Shape::In                    the element type of both operands
//   Shape::Left, Right           the operands: LIE, and batch(p, z) + own(p, i) + depth(p, k), the
//                                offset of an element (i: row or column of C)
// `give(z, row, col, v)` converts a result v of batch z to the stored element. It is called only
// for elements inside C, and for several elements before their stores, so that its loads overlap.
//
// LIE, the layout of an operand:
//   LIE_DEPTHS  16 bytes along the depth are contiguous and aligned
//   LIE_ROWS    16 bytes along the other axis are contiguous and aligned
//   LIE_ACROSS  single elements; neighbouring threads read successive rows
//   LIE_ALONG   single elements; neighbouring threads read successive depths
#pragma once

constexpr u32 LIE_DEPTHS = 0, LIE_ROWS = 1, LIE_ACROSS = 2, LIE_ALONG = 3;

// Unroll factors of loops over the depth of a tile. If they are fully unrolled, LLVM hoists all
// loads: up to 188 registers spilled on gfx1100.
#ifdef KJ_AMD
#define DEPTH_UNROLL NO_UNROLL
#define FMA_UNROLL _Pragma("unroll 2")
#else
#define DEPTH_UNROLL UNROLL
#define FMA_UNROLL UNROLL
#endif

STEP bf16 narrow_bf16(float v) {
#if defined(KJ_NVIDIA) && __CUDA_ARCH__ >= 800
    bf16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(v));
    return h;
#else
    return round_bf16(v);
#endif
}

// The batch, row tile and column tile of a block. Blocks that run concurrently have eight row tiles
// of one column tile, so that their operands are in the L2 cache.
struct ProductTile {
    u32 batch, row, col;
};
// Row-major index of a result in (batch, m, n).
STEP i64 result_at(const Numbers& p, u32 z, u32 row, u32 col) {
    return ((i64)z * (u32)p.n[0] + row) * (u32)p.n[1] + col;
}
template <class S> STEP ProductTile product_tile(const Numbers& p, u32 block) {
    const u32 rows = CEIL_DIV((u32)p.n[0], S::BM), cols = CEIL_DIV((u32)p.n[1], S::BN);
    const u32 batch = block / (rows * cols), at = block % (rows * cols);
    const u32 first = at / (8 * cols) * 8, few = min_u32(rows - first, 8), rest = at % (8 * cols);
    return ProductTile{batch, (first + rest % few) * S::BM, rest / few * S::BN};
}

// The type of sums for each element type.
template <class In> struct SumOf { typedef float Type; };
template <> struct SumOf<f64> { typedef f64 Type; };
STEP f64 load(f64 v) { return v; }
STEP float fma_of(float a, float b, float c) { return fma_f32(a, b, c); }
STEP f64 fma_of(f64 a, f64 b, f64 c) { return m_fma(a, b, c); }

// --------------------------------------------------------------------- f32 and f64, without units
// A block has 256 threads and BM × BM results (BN = BM). In shared memory a tile has one row per
// depth, for DEPTH depths. A thread has T × T sums. For tiles of 32, four groups of 64 threads have
// a quarter of the depths each, and are summed at the end: the latency of loads limits small
// products.
template <class S> struct ProductFma {
    using Left = typename S::Left;
    using Right = typename S::Right;
    using Sum = typename SumOf<typename S::In>::Type;
    static constexpr u32 B = S::BM, T = B == 128 ? 8 : 4, GROUPS = 256 * T * T / (B * B);
    static constexpr u32 DEPTH = (B == 32 ? 64 : B == 64 ? 32 : 16) * 4 / sizeof(Sum);
    static constexpr u32 EACH = B * DEPTH / 256, WIDE = B + 4, TILE = DEPTH * WIDE;
    static_assert(S::BM == S::BN && (B == 32 || B == 64 || B == 128) && KJ_BLOCK == 256,
                  "squares of a block of 256 threads");
    static_assert(sizeof(Sum) == 4 || B == 64, "tiles of f64 fit shared memory");
    static_assert(GROUPS * B * B <= 2 * TILE || GROUPS == 1, "sums fit where the tiles were");
    struct alignas(16) Four { Sum v[4]; };

    template <class Side> struct Operand {
        static constexpr u32 LIE = Side::LIE;
        const typename S::In* from;
        u32 first, rows, depth;
        i64 own;  // LIE_ACROSS: offset of this thread's row
        Sum held[EACH];

        STEP Operand at(const Numbers& p, const typename S::In* base, u32 z, u32 first, u32 rows) {
            Operand o;
            o.from = base + Side::batch(p, z);
            o.first = first, o.rows = rows, o.depth = (u32)p.n[2];
            const u32 row = min_u32(first + thread_id() % B, rows - 1);
            o.own = LIE == LIE_ACROSS ? Side::own(p, row) : 0;
            return o;
        }
        // Writes the offsets of a tile's depths. After the end of the depth, the last one is
        // repeated.
        STEP void table(const Numbers& p, i64* to, u32 k0, u32 depth) {
            if (LIE == LIE_ACROSS && thread_id() < DEPTH)
                to[thread_id()] = Side::depth(p, min_u32(k0 + thread_id(), depth - 1));
        }
    };

    // Row (and depth, below) in a tile of the i-th element, or group of four elements, of a thread.
    template <u32 LIE> STEP u32 row_of(u32 i) {
        const u32 c = thread_id() + i * 256;
        return LIE == LIE_DEPTHS ? c / (DEPTH / 4)
               : LIE == LIE_ROWS ? c % (B / 4) * 4
               : LIE == LIE_ACROSS ? c % B
                                   : c / DEPTH;
    }
    template <u32 LIE> STEP u32 depth_of(u32 i) {
        const u32 c = thread_id() + i * 256;
        return LIE == LIE_DEPTHS ? c % (DEPTH / 4) * 4
               : LIE == LIE_ROWS ? c / (B / 4)
               : LIE == LIE_ACROSS ? c / B
                                   : c % DEPTH;
    }

    template <class Side>
    STEP void fetch(const Numbers& p, Operand<Side>& o, u32 k0, const i64* table) {
        constexpr u32 LIE = Side::LIE;
        if constexpr (LIE == LIE_DEPTHS || LIE == LIE_ROWS) {
            UNROLL for (u32 i = 0; i < EACH / 4; i++) {
                const u32 row = o.first + row_of<LIE>(i), k = k0 + depth_of<LIE>(i);
                Four four = {{0, 0, 0, 0}};
                if (row < o.rows && k < o.depth)
                    four = *(const Four*)(o.from + Side::own(p, row) + Side::depth(p, k));
                UNROLL for (u32 j = 0; j < 4; j++) o.held[4 * i + j] = four.v[j];
            }
        } else {
            UNROLL for (u32 i = 0; i < EACH; i++) {
                const u32 row = o.first + row_of<LIE>(i), k = depth_of<LIE>(i);
                // All loads are within the tensor and without branches, so that they overlap.
                i64 at;
                if constexpr (LIE == LIE_ACROSS) at = o.own + table[k];
                else
                    at = Side::own(p, min_u32(row, o.rows - 1)) +
                         Side::depth(p, min_u32(k0 + k, o.depth - 1));
                const Sum v = load(o.from[at]);
                o.held[i] = row < o.rows && k0 + k < o.depth ? v : 0;
            }
        }
    }

    template <class Side> STEP void put(const Operand<Side>& o, Sum* to) {
        constexpr u32 LIE = Side::LIE;
        if constexpr (LIE == LIE_DEPTHS || LIE == LIE_ROWS) {
            UNROLL for (u32 i = 0; i < EACH / 4; i++) {
                const u32 row = row_of<LIE>(i), k = depth_of<LIE>(i);
                if constexpr (LIE == LIE_DEPTHS) {
                    UNROLL for (u32 j = 0; j < 4; j++)
                        to[(k + j) * WIDE + row] = o.held[4 * i + j];
                } else {
                    *(Four*)(to + k * WIDE + row) =
                        Four{{o.held[4 * i], o.held[4 * i + 1], o.held[4 * i + 2],
                              o.held[4 * i + 3]}};
                }
            }
        } else {
            UNROLL for (u32 i = 0; i < EACH; i++)
                to[depth_of<LIE>(i) * WIDE + row_of<LIE>(i)] = o.held[i];
        }
    }

    // Index in a tile of a thread's i-th row or column.
    STEP u32 place(u32 thread, u32 i) { return i / 4 * 64 + thread * 4 + i % 4; }
    STEP void take(Sum (&v)[T], const Sum* from, u32 thread) {
        UNROLL for (u32 i = 0; i < T; i += 4) {
            const Four four = *(const Four*)(from + place(thread, i));
            UNROLL for (u32 j = 0; j < 4; j++) v[i + j] = four.v[j];
        }
    }

    template <class Out, class Give>
    STEP void run(const Numbers& p, const typename S::In* left, const typename S::In* right,
                  Out* to, Give give) {
        LDS_ARRAY(Sum, xs, 2 * TILE);
        LDS_ARRAY(Sum, ys, 2 * TILE);
        LDS_ARRAY(i64, tables, 4 * DEPTH);
        const u32 m = (u32)p.n[0], n = (u32)p.n[1], depth = (u32)p.n[2];
        const u32 steps = CEIL_DIV(depth, DEPTH), t = thread_id();
        const ProductTile tile = product_tile<S>(p, block_id());
        auto x = Operand<Left>::at(p, left, tile.batch, tile.row, m);
        auto y = Operand<Right>::at(p, right, tile.batch, tile.col, n);
        auto tables_of = [&](u32 step) {
            x.table(p, tables + step % 2 * 2 * DEPTH, step * DEPTH, depth);
            y.table(p, tables + (step % 2 * 2 + 1) * DEPTH, step * DEPTH, depth);
        };
        auto fetch_both = [&](u32 step) {
            fetch(p, x, step * DEPTH, tables + step % 2 * 2 * DEPTH);
            fetch(p, y, step * DEPTH, tables + (step % 2 * 2 + 1) * DEPTH);
        };
        auto put_both = [&](u32 step) {
            put(x, xs + step % 2 * TILE);
            put(y, ys + step % 2 * TILE);
        };
        // 32 threads are arranged as four rows of eight.
        const u32 group = GROUPS == 1 ? 0 : t / (256 / GROUPS), g = t % (256 / GROUPS);
        const u32 down = B == 32 ? g / 8 : g / 64 * 4 + g % 32 / 8;
        const u32 across = B == 32 ? g % 8 : g / 32 % 2 * 8 + g % 8;
        Sum sum[T][T];
        UNROLL for (u32 i = 0; i < T; i++)
            UNROLL for (u32 j = 0; j < T; j++) sum[i][j] = 0;
        tables_of(0);
        block_sync();
        fetch_both(0);
        put_both(0);
        tables_of(1);
        block_sync();
        for (u32 step = 0; step < steps; step++) {
            const bool more = step + 1 < steps;
            if (more) fetch_both(step + 1);
            const Sum* a = xs + step % 2 * TILE;
            const Sum* b = ys + step % 2 * TILE;
            FMA_UNROLL for (u32 k = 0; k < DEPTH; k += GROUPS) {
                Sum u[T], v[T];
                take(u, a + (k + group) * WIDE, down);
                take(v, b + (k + group) * WIDE, across);
                UNROLL for (u32 i = 0; i < T; i++)
                    UNROLL for (u32 j = 0; j < T; j++) sum[i][j] = fma_of(u[i], v[j], sum[i][j]);
            }
            if (more) put_both(step + 1);
            tables_of(step + 2);
            block_sync();
        }
        if constexpr (GROUPS > 1) {
            UNROLL for (u32 i = 0; i < T; i++)
                UNROLL for (u32 j = 0; j < T; j++)
                    xs[group * (B * B) + place(down, i) * B + place(across, j)] = sum[i][j];
            block_sync();
            UNROLL for (u32 i = 0; i < B * B / 256; i++) {
                const u32 c = t + i * 256, row = tile.row + c / B, col = tile.col + c % B;
                Sum all = 0;
                UNROLL for (u32 q = 0; q < GROUPS; q++) all += xs[q * (B * B) + c];
                if (row < m && col < n)
                    to[result_at(p, tile.batch, row, col)] = give(tile.batch, row, col, all);
            }
        } else {
            UNROLL for (u32 i = 0; i < T; i++) {
                const u32 row = tile.row + place(down, i);
                Out v[T];
                UNROLL for (u32 j = 0; j < T; j++)
                    v[j] = give(tile.batch, min_u32(row, m - 1),
                                min_u32(tile.col + place(across, j), n - 1), sum[i][j]);
                UNROLL for (u32 j = 0; j < T; j++) {
                    const u32 col = tile.col + place(across, j);
                    if (row < m && col < n) to[result_at(p, tile.batch, row, col)] = v[j];
                }
            }
        }
    }
};
