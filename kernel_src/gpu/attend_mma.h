// attend_mma: the attention of attend.h, with the same arguments, on mma.sync (sm_80 and later).
// Keys and values are f16 or bytes. `part` is SEQS × HEADS × splits × (HEAD_DIM + 4) f32.
//
// The limit is the rate at which keys and values are read: 35 bytes per ns and multiprocessor. Each
// wave takes sixteen positions at a time from its own ring in shared memory, which asynchronous
// copies fill: no register waits for memory, and the loop has no barrier. Each head has two of the
// sixteen rows of a matrix product: row h is the query rounded to f16, row h + 8 is the rounding
// error as f16. So scores keep 22 bits of the query. Probabilities are split in the same way for
// the product with f16 values. Both rows of a head are in one lane. 8-bit keys are multiplied
// directly by queries of 15 bits in two bytes, one product for each scale. A value's scale
// multiplies its probability, which is then one f16: the values have only 8 bits.
//
// Old positions are read before the wait for the previous kernel: no kernel of this graph launch
// writes them or the position. The new token's row is stored directly into the ring.
//
// A tile has ROWS positions and starts at a multiple of ROWS. Tiles are assigned to waves in
// round-robin order, which balances contexts of any length.
//
// S: as for attend.h without LANES, TILE and GROUP_P; STAGES (tiles in flight for each wave), LEAST
// (tiles that justify one more block), HOLD_Q (queries stay in registers), BLOCKS (blocks that
// divide a group's heads if one block has the whole past, and its slices if not; 1 in a launch).
// KJ_MMA is 1. Share: as for attend.h, but y of KV_HEADS · HEAD_PARTS · BLOCKS.
#pragma once
#include "attend_args.h"
#include "dequant.h"
#include "kv.h"
#include "rope.h"
#include "scores.h"

// Copies 16 (or 4) bytes to shared memory, or writes zeros if `there` is false. Copies bypass L1.
STEP void copy16_or_zero(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}
// Copies the first `bytes` of 4 bytes, and writes zeros after them.
STEP void copy4_or_zero(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_at(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
}
// Bytes 0 and 2 of a word, signed, as f16: 1024 + 128 + code, minus 1024 + 128.
STEP u32 codes_to_halves(u32 w) { return h2_sub((w & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u); }

// Two values as f16, and their rounding errors as f16: the inputs of rows h and h + 8.
STEP void split_pair(u32& nearest, u32& rest, float a, float b) {
    nearest = pack_input(a, b);
    rest = pack_input(a - half_low(nearest), b - half_high(nearest));
}

template <class S> struct AttendMma {
    using K = Kv<S>;
    static constexpr u32 HEADS = S::HEADS, KV_HEADS = S::KV_HEADS, HEAD_DIM = S::HEAD_DIM,
                         GROUP = S::GROUP, STAGES = S::STAGES;
    static constexpr u32 ROWS = 16;
    static constexpr u32 HEAD_PARTS = HEADS / KV_HEADS / GROUP, BLOCKS = S::BLOCKS;
    static constexpr u32 Q_TILES = CEIL_DIV(HEAD_DIM, 64);
    static_assert(KJ_WAVE == 32 && KJ_MMA == 1 && K::STORAGE != KvStorage::F32, "what is covered");
    static_assert(GROUP <= 8 && GROUP * HEAD_PARTS * KV_HEADS == HEADS && GROUP % BLOCKS == 0,
                  "two rows of a product for each head");
    static constexpr float CAP = S::SOFT_CAP != 0.0f ? S::SOFT_CAP : 1.0f;
    static constexpr float NEVER = -1e30f;  // a maximum before any score
    // Probabilities are multiplied by 2^SHIFT, so that small ones are not subnormal in f16: the sum
    // over many positions may be large. Products stay finite: scales of codes are at most 65504 /
    // 127.
    static constexpr float SHIFT = K::BYTES ? 6.0f : 10.0f;

    // A tile of keys or values: rows as in memory, 16-byte chunks swizzled within 128 bytes, so
    // that the same chunk of eight rows is in different banks (`swizzled`). The scales of ROWS rows
    // follow, one f16 later if the first one is in the upper half of a word. 128 bytes of memory
    // are 128 contiguous bytes of shared memory. Padding of 16 bytes per row reduced the rate of
    // copies to 93 %, tiles of 64 columns to 75 %.
    static constexpr u32 SCALES_AT = ROWS * K::ROW;
    static constexpr u32 SCALE_WORDS = K::BYTES ? CEIL_DIV(ROWS * K::SCALES + K::SCALES % 2, 2) : 0;
    static constexpr u32 SIDE = CEIL_DIV(SCALES_AT + 4 * SCALE_WORDS, 128) * 128;
    static constexpr u32 RING = STAGES * 2 * SIDE;  // bytes per wave
    // Bytes of dynamic shared memory.
    static constexpr u32 POOL = 128 + kj_waves * RING + Q_TILES * ROWS * 128;
    // Threads that sum one set of partial results (of the waves, then of the slices), four elements
    // each.
    static constexpr u32 PART_THREADS = HEAD_DIM / 4, PART_TEAMS = KJ_BLOCK / PART_THREADS;
    static constexpr u32 PARTS = PART_TEAMS > kj_waves ? PART_TEAMS : kj_waves;
    static_assert(PARTS * GROUP * HEAD_DIM * 4 <= kj_waves * RING,
                  "results have room where the rings were");

    struct Shared {
        // Queries and key, and the value if it arrives as packets.
        float head[GROUP + 2][HEAD_DIM];
        // The new key and value as stored in the cache.
        u32x4 fresh[2][CEIL_DIV(K::ROW + 2 * K::SCALES, 16)];
        float unit[GROUP];  // scale of a query that is stored as bytes
        float most[PARTS][GROUP], sum[PARTS][GROUP];
        u32 is_last;
    };

    STEP u32 swizzled(u32 row, u32 byte) {
        u32 index = row * K::ROW + byte;
        return index ^ (K::ROW % 128 == 0 ? row : index / 128) % 8 * 16;
    }
    STEP u32 skew_of(u64 row) { return K::BYTES && K::SCALES % 2 ? (u32)row & 1 : 0; }

    // The scales of a row, two f16 per word.
    struct Scales { u32 pair[CEIL_DIV(K::SCALES, 2)]; };
    STEP Scales scales_of(const u8* tile, u32 row, u32 skew) {
        Scales s;
        const u8* from = tile + SCALES_AT + 2 * (row * K::SCALES + skew);
        if constexpr (K::SCALES % 4 == 0) {
            UNROLL for (u32 i = 0; i < K::SCALES / 4; i++) {
                u32x2 p = load8(from + 8 * i);
                s.pair[2 * i] = p.x, s.pair[2 * i + 1] = p.y;
            }
        } else {
            UNROLL for (u32 i = 0; i < CEIL_DIV(K::SCALES, 2); i++) {
                const u16* h = (const u16*)from + 2 * i;
                s.pair[i] = K::SCALES % 2 == 0
                                ? *(const u32*)h
                                : (u32)h[0] | (2 * i + 1 < K::SCALES ? (u32)h[1] << 16 : 0);
            }
        }
        return s;
    }
    // The scales of group g of two rows, as one word.
    STEP u32 scale_pair(const Scales& a, const Scales& b, u32 g) {
        return kj_prmt(a.pair[g / 2], b.pair[g / 2], g % 2 ? 0x7632 : 0x5410);
    }

    // Copies `old` rows of the cache, from `row` on, to a tile, and writes zeros after them. Called
    // by one wave.
    STEP void fetch(u8* to, const u8* cache, u64 rows, u64 row, u32 old) {
        constexpr u32 chunks = K::ROW / 16;
        UNROLL for (u32 i = 0; i < CEIL_DIV(ROWS * chunks, KJ_WAVE); i++) {
            u32 c = lane_id() + i * KJ_WAVE, r = c / chunks, k = c % chunks;
            if (ROWS * chunks % KJ_WAVE != 0 && c >= ROWS * chunks) break;
            copy16_or_zero(to + swizzled(r, 16 * k), cache + (row + r) * K::ROW + 16 * k, r < old);
        }
        if constexpr (K::BYTES) {
            u32 skew = skew_of(row);
            const u8* scales = cache + K::scales_at(rows) + (row * K::SCALES - skew) * 2;
            u32 n = old * K::SCALES + skew;
            UNROLL for (u32 i = 0; i < CEIL_DIV(SCALE_WORDS, KJ_WAVE); i++) {
                u32 w = lane_id() + i * KJ_WAVE;
                // With an odd number of scales, half of the last word belongs to a row that was
                // never written. It may be NaN, and 0 · NaN is NaN, so it becomes zero.
                u32 bytes = 2 * w >= n ? 0 : K::SCALES % 2 != 0 && 2 * w + 1 == n ? 2 : 4;
                if (w < SCALE_WORDS) copy4_or_zero(to + SCALES_AT + 4 * w, scales + 4 * w, bytes);
            }
        }
    }

    // Stores a row to the cache and to a tile. Called by one wave.
    STEP void keep_row(u8* cache, u64 rows, u64 row, const u32x4* from) {
        for (u32 k = lane_id(); k < K::ROW / 16; k += KJ_WAVE)
            *(u32x4*)(cache + row * K::ROW + 16 * k) = from[k];
        if constexpr (K::BYTES)
            if (lane_id() < K::SCALES)
                ((u16*)(cache + K::scales_at(rows)))[row * K::SCALES + lane_id()] =
                    scales_behind(from)[lane_id()];
    }
    STEP void put_row(u8* to, u32 r, const u32x4* from, u32 skew) {
        for (u32 k = lane_id(); k < K::ROW / 16; k += KJ_WAVE)
            *(u32x4*)(to + swizzled(r, 16 * k)) = from[k];
        if constexpr (K::BYTES)
            if (lane_id() < K::SCALES)
                ((u16*)(to + SCALES_AT))[r * K::SCALES + lane_id() + skew] =
                    scales_behind(from)[lane_id()];
    }
    STEP const u16* scales_behind(const u32x4* row) {
        return (const u16*)((const u8*)row + K::ROW);
    }

    // Offset of an element of the queries, which are tiles of mma.h.
    STEP u32 query_at(u32 row, u32 col) { return col / 64 * (ROWS * 64) + tile_at(row, col % 64); }

    // The queries in registers: fragments of f16, or codes and their scales.
    static constexpr u32 DK = HEAD_DIM / MMA_K;
    // Words of neighbouring codes that a lane has of each group.
    static constexpr u32 WORDS = K::GROUP / 16;
    struct Fragments { FragA held[S::HOLD_Q ? DK : 1]; };
    struct Codes { u32 word[K::SCALES][2 * WORDS]; float unit; };
    template <bool BYTES, class A, class B> struct Either { using type = A; };
    template <class A, class B> struct Either<true, A, B> { using type = B; };
    using Queries = typename Either<K::BYTES, Fragments, Codes>::type;

    // MAGIC is the bits of 1.5 · 2^23. An integer added to them is the mantissa of a float, which
    // converts results of byte products. They are below 2^22: 32 products of 127 · 127.
    static constexpr u32 MAGIC = 0x4b400000u;
    STEP void mma_bytes(u32 (&d)[4], const u32 (&a)[2 * WORDS], const u32 (&b)[WORDS]) {
        if constexpr (WORDS == 2)
            asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                "{%8,%9}, {%10,%10,%10,%10};"
                : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(MAGIC));
        else
            asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                "{%7,%7,%7,%7};"
                : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(MAGIC));
    }
    STEP void load_words(u32 (&w)[WORDS], const u8* from) {
        if constexpr (WORDS == 2) {
            u32x2 two = load8(from);
            w[0] = two.x, w[1] = two.y;
        } else {
            w[0] = *(const u32*)from;
        }
    }
    STEP void load_queries(Queries& q, const u8* tile, const float* unit) {
        if constexpr (!K::BYTES) {
            if constexpr (S::HOLD_Q)
                UNROLL for (u32 d = 0; d < DK; d++)
                    load_a(q.held[d], (const u16*)tile + d * MMA_K / 64 * (ROWS * 64), 0,
                           d * MMA_K % 64);
        } else {
            UNROLL for (u32 g = 0; g < K::SCALES; g++)
                UNROLL for (u32 r = 0; r < 2; r++) {
                    u32 w[WORDS];
                    load_words(w, tile + (lane_id() / 4 + 8 * r) * HEAD_DIM + g * K::GROUP +
                                      lane_id() % 4 * (4 * WORDS));
                    UNROLL for (u32 i = 0; i < WORDS; i++) q.word[g][2 * i + r] = w[i];
                }
            q.unit = lane_id() / 4 < GROUP ? unit[lane_id() / 4] : 0.0f;
        }
    }
    // Stores a query to rows h and h + 8 of the tile. Called by one wave.
    STEP void put_query(u8* tile, u32 h, const float* row, float scale, float* unit) {
        if constexpr (!K::BYTES) {
            for (u32 e = 2 * lane_id(); e < HEAD_DIM; e += 2 * KJ_WAVE) {
                u32 nearest, rest;
                split_pair(nearest, rest, row[e] * scale, row[e + 1] * scale);
                *(u32*)(tile + 2 * query_at(h, e)) = nearest;
                *(u32*)(tile + 2 * query_at(h + 8, e)) = rest;
            }
        } else {
            // A NaN or an infinity in the query makes all its scores NaN.
            float most = 0.0f, none = 0.0f;
            for (u32 e = lane_id(); e < HEAD_DIM; e += KJ_WAVE)
                most = max_f32(most, abs_f32(row[e] * scale)), none += row[e] * 0.0f;
            most = wave_max(most), none = wave_sum(none);
            float inverse = most > 0.0f ? 16256.0f / most : 0.0f;  // 127 · 128
            for (u32 e = 4 * lane_id(); e < HEAD_DIM; e += 4 * KJ_WAVE) {
                u32 high = 0, low = 0;
                UNROLL for (u32 i = 0; i < 4; i++) {
                    i32 x = round_int(row[e + i] * scale * inverse), h128 = (x + 64) >> 7;
                    high |= (u32)(u8)h128 << (8 * i);
                    low |= (u32)(u8)(x - h128 * 128) << (8 * i);
                }
                *(u32*)(tile + h * HEAD_DIM + e) = high;
                *(u32*)(tile + (h + 8) * HEAD_DIM + e) = low;
            }
            if (lane_id() == 0) unit[h] = most / 16256.0f + none;
        }
    }

    // Four scores of this lane's head (lane / 4), at positions 2c, 2c + 1, 2c + 8, 2c + 9 of the
    // tile; c = lane % 4.
    STEP void scores(float (&s)[4], const u8* keys, const u8* tile, const Queries& q, u32 skew) {
        if constexpr (!K::BYTES) {
            FragC c;
            acc_zero(c);
            UNROLL for (u32 d = 0; d < DK; d++) {
                FragA a;
                FragB b;
                if (S::HOLD_Q) a = q.held[S::HOLD_Q ? d : 0];
                else load_a(a, (const u16*)tile + d * MMA_K / 64 * (ROWS * 64), 0, d * MMA_K % 64);
                ldmatrix4(b.v,
                          (const u16*)(keys + swizzled(lane_id() % 8 + lane_id() / 16 * 8,
                                                       2 * d * MMA_K + lane_id() / 8 % 2 * 16)));
                mma(c, a, b);
            }
            UNROLL for (u32 e = 0; e < 4; e++)
                s[e] = c.v[e / 2 * 4 + e % 2] + c.v[e / 2 * 4 + 2 + e % 2];
        } else {
            UNROLL for (u32 r = 0; r < 2; r++) {
                const u32 row = 8 * r + lane_id() % 4 * 2;
                const Scales scale[2] = {scales_of(keys, row, skew),
                                         scales_of(keys, row + 1, skew)};
                s[2 * r] = s[2 * r + 1] = 0.0f;
                UNROLL for (u32 g = 0; g < K::SCALES; g++) {
                    u32 w[WORDS], d[4];
                    load_words(w, keys + swizzled(lane_id() / 4 + 8 * r,
                                                  g * K::GROUP + lane_id() % 4 * (4 * WORDS)));
                    mma_bytes(d, q.word[g], w);
                    UNROLL for (u32 e = 0; e < 2; e++) {
                        float dot = fma_f32(as_f32(d[e]) - as_f32(MAGIC), 128.0f,
                                            as_f32(d[2 + e]) - as_f32(MAGIC));
                        u32 pair = scale[e].pair[g / 2];
                        s[2 * r + e] =
                            fma_f32(g % 2 ? half_high(pair) : half_low(pair), dot, s[2 * r + e]);
                    }
                }
            }
            UNROLL for (u32 e = 0; e < 4; e++) s[e] *= q.unit;
        }
    }

    // out += probabilities · values. out[n][0..2] are columns 2c and 2c + 1 of group n of eight
    // columns (`out_dim`); out[n][2..4] are the same columns for the rounding errors, if there are
    // any.
    STEP void mix(float (&out)[HEAD_DIM / 8][4], const float (&p)[4], const u8* values, u32 skew) {
        if constexpr (!K::BYTES) {
            FragA a;
            split_pair(a.v[0], a.v[1], p[0], p[1]);
            split_pair(a.v[2], a.v[3], p[2], p[3]);
            UNROLL for (u32 n = 0; n < DK; n++) {
                FragB b;
                ldmatrix4_t(b.v, (const u16*)(values + swizzled(lane_id() % 16,
                                                                32 * n + lane_id() / 16 * 16)));
                mma_m16n8k16(out[2 * n], a.v, b.v);
                mma_m16n8k16(out[2 * n + 1], a.v, b.v + 2);
            }
        } else {
            constexpr u32 each = K::GROUP / 8;  // codes of a row per lane: 4 or 2
            u32 row = lane_id() % 4 * 2;
            Scales scale[4];
            UNROLL for (u32 e = 0; e < 4; e++)
                scale[e] = scales_of(values, row + e % 2 + e / 2 * 8, skew);
            const u32 share[2] = {pack_input(p[0], p[1]), pack_input(p[2], p[3])};
            UNROLL for (u32 g = 0; g < K::SCALES; g++) {
                FragA a{{h2_mul(share[0], scale_pair(scale[0], scale[1], g)), 0,
                         h2_mul(share[1], scale_pair(scale[2], scale[3], g)), 0}};
                u32 w[4];
                UNROLL for (u32 e = 0; e < 4; e++) {
                    const u8* from = values + swizzled(row + e % 2 + e / 2 * 8,
                                                       g * K::GROUP + lane_id() / 4 * each);
                    w[e] = each == 4 ? *(const u32*)from : (u32)*(const u16*)from;
                }
                UNROLL for (u32 i = 0; i < each; i++) {
                    u32 b[2];
                    UNROLL for (u32 h = 0; h < 2; h++)
                        b[h] = codes_to_halves(
                            kj_prmt(w[2 * h], w[2 * h + 1], i * 0x11 + (4 + i) * 0x1100));
                    mma_m16n8k16(out[g * each + i], a.v, b);
                }
            }
        }
    }
    // The head's element in column 2c + e of group n of eight columns.
    STEP u32 out_dim(u32 n, u32 e) {
        constexpr u32 each = K::GROUP / 8;
        if constexpr (K::BYTES)
            return n / each * K::GROUP + (lane_id() % 4 * 2 + e) * each + n % each;
        else return 8 * n + lane_id() % 4 * 2 + e;
    }

    // Combines element i of GROUP × HEAD_DIM of `n` partial results in shared memory. Returns the
    // weighted sum, and sets the maximum and the sum of probabilities.
    STEP float merge(const Shared& lds, const float* parts, u32 n, u32 i, float& most, float& sum) {
        u32 h = i / HEAD_DIM;
        most = NEVER, sum = 0.0f;
        UNROLL for (u32 w = 0; w < PARTS; w++) if (w < n) most = max_f32(most, lds.most[w][h]);
        float value = 0.0f;
        UNROLL for (u32 w = 0; w < PARTS; w++)
            if (w < n) {
                float by = exp2_hw(lds.most[w][h] - most);
                sum = fma_f32(by, lds.sum[w][h], sum);
                value = fma_f32(by, parts[w * (GROUP * HEAD_DIM) + i], value);
            }
        return value;
    }

    // As last_block (kjit.h), but one thread releases and acquires for the whole block: a fence in
    // every thread took 0.5 µs. The operation that counts the last block also resets the counter to
    // 0: a separate store would not be ordered before the additions of the next layer in the same
    // launch.
    STEP bool last_slice(u32* counter, u32 blocks, u32& is_last) {
        block_sync();
        if (thread_id() == 0) {
            u32 before;
            asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                         : "=r"(before)
                         : "l"(counter), "r"(blocks - 1)
                         : "memory");
            is_last = before == blocks - 1;
        }
        block_sync();
        return is_last;
    }

    // `dynamic`: POOL bytes of shared memory.
    template <class Before>
    STEP void step(AttendArgs a, Share share, u8* dynamic, Shared& lds, Before before = Before{}) {
        u8* pool = dynamic + (128 - shared_at(dynamic) % 128) % 128;
        u8* queries = pool + kj_waves * RING;
        before.release();
        const u32 group = share.y / BLOCKS, member = share.y % BLOCKS, slices = a.splits * BLOCKS;
        u32 sequence = share.z, kv_head = group / HEAD_PARTS;
        u32 head = kv_head * (HEADS / KV_HEADS) + group % HEAD_PARTS * GROUP;
        u32 slot = a.slots ? before.slot(a.slots + sequence) : sequence,
            here = before.position(a.position + slot);
        u32 end = here + 1;
        u32 first = Scores<S>::seen_from(here), base = first / ROWS * ROWS;
        // Combining slices takes as long as a few tiles, so a short context stays in one block.
        u32 tiles = CEIL_DIV(end - base, ROWS),
            busy = tiles < 3 * S::LEAST ? 1 : min_u32(slices, tiles / S::LEAST);
        const u32 slice = busy == 1 ? share.x : share.x * BLOCKS + member;
        // Blocks without work wait for the previous launch, so that this launch does not end before
        // it.
        if (slice >= busy) return;
        // This block's heads.
        const u32 own = busy == 1 ? GROUP / BLOCKS : GROUP,
                  from_head = busy == 1 ? member * own : 0;
        // This wave's first tile, and the distance to its next.
        const u32 mine = slice + wave_id() * busy, round = busy * kj_waves;
        u8 *keys = a.keys + slot * a.sequence_bytes, *values = a.values + slot * a.sequence_bytes;
        const u32 each = stretch(a.capacity);
        const u64 rows = (u64)KV_HEADS * each, head_row = (u64)kv_head * each;
        const Pages pages{PAGED(pages_of(a.table, slot, a.capacity).table)};

        if constexpr (S::KEPT_BEFORE) before.wait();  // its kernels wrote the last row
        u8* ring = pool + wave_id() * RING;
        auto fetch_one = [&](u8* to, const u8* cache, u32 t) {
            if (t < tiles)
                fetch(to, K::page(cache, pages, base + t * ROWS), rows,
                      head_row + within(base + t * ROWS),
                      min_u32(ROWS, (S::KEPT_BEFORE ? end : here) - (base + t * ROWS)));
            copy_commit();
        };
        NO_UNROLL for (u32 s = 0; s < 2 * STAGES; s++)
            fetch_one(ring + s * SIDE, s % 2 ? values : keys, mine + s / 2 * round);
        // The norm's weights and angles of this wave's first head, if it has one. Keys that are
        // already in the cache need no norm.
        auto asks = [&](u32 h) {
            const float* norm = h == own && !S::KEPT_BEFORE ? a.k_norm : a.q_norm;
            return Rope<S>::ask(norm, a.angles + (u64)here * Rope<S>::PAIRS);
        };
        typename Rope<S>::Asked asked = asks(wave_id());
        for (u32 i = thread_id(); i < Q_TILES * ROWS * 8; i += KJ_BLOCK)
            ((u32x4*)queries)[i] = u32x4{0, 0, 0, 0};
        block_sync();
        if constexpr (!S::KEPT_BEFORE) before.wait();

        bool owner = (tiles - 1) % busy == slice;  // this block has the new position
        const float scale = S::SOFT_CAP == 0.0f ? a.scale * 1.44269504f : a.scale;
        for (u32 h = wave_id(); h < own + (owner && !S::KEPT_BEFORE ? 2 : 0); h += kj_waves) {
            const u32 q_at = (head + from_head + h) * HEAD_DIM, kv_at = kv_head * HEAD_DIM;
            // In packets, a sequence's keys follow its queries, and its values follow its keys.
            constexpr u32 KEYS_AT = HEADS * HEAD_DIM, VALUES_AT = KEYS_AT + KV_HEADS * HEAD_DIM,
                          ALL = VALUES_AT + KV_HEADS * HEAD_DIM;
            float* row = lds.head[h < own ? from_head + h : GROUP + h - own];
            if (h != wave_id()) asked = asks(h);
            if (h < own) {
                const float* x = before.template head<HEAD_DIM>(
                    row, a.q + sequence * (HEADS * HEAD_DIM) + q_at, sequence * ALL + q_at);
                Rope<S>::ready_asked(row, x, a.eps, asked);
                put_query(queries, from_head + h, row, scale, lds.unit);
            } else {
                u32x4* fresh = lds.fresh[h - own];
                const float* x = (h == own ? a.k : a.v) + sequence * (KV_HEADS * HEAD_DIM) + kv_at;
                x = before.template head<HEAD_DIM>(
                    row, x, sequence * ALL + (h == own ? KEYS_AT : VALUES_AT) + kv_at);
                if (h == own) Rope<S>::ready_asked(row, x, a.eps, asked);
                K::store_row((u8*)fresh, 1, 0, h == own ? row : x);
                wave_sync();
                keep_row(K::page(h == own ? keys : values, pages, here), rows,
                         head_row + within(here), fresh);
            }
        }
        block_sync();

        Queries held;
        load_queries(held, queries, lds.unit);
        float acc[HEAD_DIM / 8][4], most = NEVER, sum = 0.0f;  // for head lane / 4
        UNROLL for (u32 n = 0; n < HEAD_DIM / 8; n++)
            UNROLL for (u32 e = 0; e < 4; e++) acc[n][e] = 0.0f;
        float slope = 0.0f;
        if constexpr (S::ALIBI != 0.0f) slope = Scores<S>::slope(head + lane_id() / 4);
        u32 stage = 0;
        NO_UNROLL for (u32 t = mine; t < tiles; t += round) {
            u8 *kt = ring + stage * 2 * SIDE, *vt = kt + SIDE;
            u32 from = base + t * ROWS, skew = skew_of(head_row + within(from));
            copy_wait(2 * STAGES - 1);
            wave_sync();
            if (!S::KEPT_BEFORE && t == tiles - 1) {
                copy_wait(0);
                wave_sync();
                put_row(kt, here - from, lds.fresh[0], skew);
                put_row(vt, here - from, lds.fresh[1], skew);
                wave_sync();
            }
            float p[4];
            scores(p, kt, queries, held, skew);
            wave_sync();
            fetch_one(kt, keys, t + STAGES * round);

            float high = most;
            if (S::SOFT_CAP != 0.0f)
                UNROLL for (u32 e = 0; e < 4; e++) p[e] = CAP * 1.44269504f * tanh_f32(p[e] / CAP);
            if constexpr (S::ALIBI != 0.0f)
                UNROLL for (u32 e = 0; e < 4; e++)
                    p[e] -=
                        Scores<S>::lost(slope, here, from + lane_id() % 4 * 2 + e % 2 + e / 2 * 8);
            if (t == tiles - 1 || ((S::WINDOW != 0 || S::CHUNK != 0) && from < first))
                UNROLL for (u32 e = 0; e < 4; e++) {
                    u32 j = from + lane_id() % 4 * 2 + e % 2 + e / 2 * 8;
                    if (j >= end || j < first) p[e] = as_f32(0xff800000u);
                }
            UNROLL for (u32 e = 0; e < 4; e++) high = max_f32(high, p[e]);
            high = max_f32(high, wave_xor(high, 1));
            high = max_f32(high, wave_xor(high, 2));
            float shrink = exp2_hw(most - high);
            if (wave_ballot(high > most) != 0)
                UNROLL for (u32 n = 0; n < HEAD_DIM / 8; n++)
                    UNROLL for (u32 e = 0; e < 4; e++) acc[n][e] *= shrink;
            most = high;
            sum *= shrink;
            UNROLL for (u32 e = 0; e < 4; e++) p[e] = exp2_hw(p[e] - (high - SHIFT)), sum += p[e];

            copy_wait(2 * STAGES - 1);
            wave_sync();
            mix(acc, p, vt, skew);
            wave_sync();
            fetch_one(vt, values, t + STAGES * round);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        sum += wave_xor(sum, 1);
        sum += wave_xor(sum, 2);

        // The partial results of the waves use the memory of the rings.
        float* parts = (float*)pool;
        copy_wait(0);
        block_sync();
        if (lane_id() / 4 < GROUP) {
            u32 h = lane_id() / 4;
            UNROLL for (u32 n = 0; n < HEAD_DIM / 8; n++) UNROLL
                for (u32 e = 0; e < 2; e++)
                    parts[(wave_id() * GROUP + h) * HEAD_DIM + out_dim(n, e)] =
                        acc[n][e] + acc[n][2 + e];
            if (lane_id() % 4 == 0) lds.most[wave_id()][h] = most, lds.sum[wave_id()][h] = sum;
        }
        block_sync();
        // In device memory, for each head: values of all slices, then (maximum, sum) of all slices.
        const u32 made = (sequence * HEADS + head) * HEAD_DIM;  // index of the first result
        const u64 head_part = (u64)slices * (HEAD_DIM + 4);
        float* part = a.part + ((u64)sequence * HEADS + head) * head_part;
        // Rounded up to whole waves, because the lanes of a wave send packets together.
        for (u32 n = thread_id(); n < CEIL_DIV(own * HEAD_DIM, KJ_WAVE) * KJ_WAVE; n += KJ_BLOCK) {
            const bool inside = n < own * HEAD_DIM;
            const u32 i = from_head * HEAD_DIM + (inside ? n : 0);
            float value = merge(lds, parts, kj_waves, i, most, sum);
            if (busy == 1) {
                const float all =
                    Scores<S>::all_shares(most, sum, a.sinks, head + i / HEAD_DIM, SHIFT);
                before.made(a.out, made + from_head * HEAD_DIM + n, inside, value / all);
            } else if (inside) {
                float* p = part + i / HEAD_DIM * head_part;
                p[slice * HEAD_DIM + i % HEAD_DIM] = value;
                if (i % HEAD_DIM == 0)
                    *(u32x2*)(p + slices * HEAD_DIM + 2 * slice) = u32x2{as_u32(most), as_u32(sum)};
            }
        }
        if (busy == 1) return;
        if (!last_slice(a.counters + (u64)sequence * KV_HEADS * HEAD_PARTS + group, busy,
                        lds.is_last))
            return;

        // Teams of threads add slices in round-robin order, four elements per thread, for all
        // heads. Then the teams are combined as above.
        u32 team = thread_id() / PART_THREADS, four = thread_id() % PART_THREADS * 4;
        if (team < PART_TEAMS) {
            float team_most[GROUP], team_sum[GROUP], value[GROUP][4];
            UNROLL for (u32 h = 0; h < GROUP; h++) {
                team_most[h] = NEVER, team_sum[h] = 0.0f;
                UNROLL for (u32 e = 0; e < 4; e++) value[h][e] = 0.0f;
            }
            for (u32 s = team; s < busy; s += PART_TEAMS) {
                u32x4 x[GROUP];
                u32x2 y[GROUP];
                UNROLL for (u32 h = 0; h < GROUP; h++) {
                    x[h] = load16(part + h * head_part + s * HEAD_DIM + four);
                    y[h] = load8(part + h * head_part + slices * HEAD_DIM + 2 * s);
                }
                UNROLL for (u32 h = 0; h < GROUP; h++) {
                    float now = max_f32(team_most[h], as_f32(y[h].x));
                    float old = exp2_hw(team_most[h] - now), by = exp2_hw(as_f32(y[h].x) - now);
                    const float part_of[4] = {as_f32(x[h].x), as_f32(x[h].y), as_f32(x[h].z),
                                              as_f32(x[h].w)};
                    team_most[h] = now;
                    team_sum[h] = fma_f32(as_f32(y[h].y), by, team_sum[h] * old);
                    UNROLL for (u32 e = 0; e < 4; e++)
                        value[h][e] = fma_f32(part_of[e], by, value[h][e] * old);
                }
            }
            UNROLL for (u32 h = 0; h < GROUP; h++) {
                UNROLL for (u32 e = 0; e < 4; e++)
                    parts[(team * GROUP + h) * HEAD_DIM + four + e] = value[h][e];
                if (four == 0) lds.most[team][h] = team_most[h], lds.sum[team][h] = team_sum[h];
            }
        }
        block_sync();
        for (u32 n = thread_id(); n < CEIL_DIV(GROUP * HEAD_DIM, KJ_WAVE) * KJ_WAVE;
             n += KJ_BLOCK) {
            const bool inside = n < GROUP * HEAD_DIM;
            const u32 i = inside ? n : 0;
            float value = merge(lds, parts, PART_TEAMS, i, most, sum);
            const float all = Scores<S>::all_shares(most, sum, a.sinks, head + i / HEAD_DIM, SHIFT);
            before.made(a.out, made + n, inside, value / all);
        }
    }
};
