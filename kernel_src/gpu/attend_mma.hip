// attend_mma: attend.hip's attention of one new token, same arguments, on mma.sync (sm_80 and later), keys and values in halves or bytes.
// (`part` is SEQS × HEADS × splits × (HEAD_DIM + 4) f32.)
//
// What bounds it is reading keys and values once, so everything else has to stay small beside 35 bytes a nanosecond and SM: a wave takes
// sixteen positions at a time from a ring of its own in shared memory, filled by asynchronous copies (no register waits for memory, no
// barrier in the loop), and GROUP heads share two products of the matrix units. Those have sixteen rows, twice the heads: row h is the
// half nearest to a query, row h + 8 the half nearest to what is left of it, so that scores keep 22 bits of the query; likewise the
// result of a probability with values in halves. Both rows of a head are in one lane. 8-bit keys are multiplied as they are, by queries of
// 15 bits in two bytes, a product for each scale; a value's scale goes to its probability, the half of which suffices beside 8 bits.
//
// Old positions are read before the wait for the kernel before: no kernel of this replay writes them (kept tokens come from replays and
// prompts before), nor the position. The new token's row is put into the ring by hand.
//
// A tile of ROWS positions starts at a multiple of ROWS. Tiles are dealt round: as even as can be at any length.
// Constants: those of attend.hip without LANES, TILE and GROUP_P; KJ_MMA 1; STAGES (tiles on their way to each wave), LEAST (tiles worth a
// block), HOLD_Q (queries stay in registers).
#include "dequant.h"
#include "kv.h"
#include "rope.h"

constexpr u32 ROWS = 16;
constexpr u32 HEAD_PARTS = HEADS / KV_HEADS / GROUP;
constexpr u32 Q_TILES = CEIL_DIV(HEAD_DIM, 64);
static_assert(KJ_WAVE == 32 && KJ_MMA == 1 && GROUP <= 8 && GROUP * HEAD_PARTS * KV_HEADS == HEADS && KV_TYPE > 0, "what is covered");
constexpr float CAP = SOFT_CAP != 0.0f ? SOFT_CAP : 1.0f;
constexpr float NEVER = -1e30f;  // a maximum before any score
// Probabilities are 2^SHIFT times as large, above the halves that lose bits: many positions with small shares are a large share together. What
// they are multiplied by (scales of codes, at most 65504 / 127) keeps them finite.
constexpr float SHIFT = KV_TYPE == 1 ? 10.0f : 6.0f;

// A tile of keys or of values: rows as they are in memory, chunks of 16 bytes turned within their 128, so that eight rows' same chunk lies in
// different banks (`place`); then the scales of ROWS rows, from one half further on where the first lies in the upper half of a word.
// 128 bytes of memory have to stay 128 of shared memory: with 16 more behind each row copies had 93 % of this rate, in tiles of 64 columns 75 %.
constexpr u32 SCALES_AT = ROWS * KV_ROW;
constexpr u32 SCALE_WORDS = KV_TYPE == 2 ? CEIL_DIV(ROWS * KV_SCALES + KV_SCALES % 2, 2) : 0;
constexpr u32 SIDE = CEIL_DIV(SCALES_AT + 4 * SCALE_WORDS, 128) * 128;
constexpr u32 RING = STAGES * 2 * SIDE;  // bytes of a wave
// Parts of a result that are summed at once: the waves', then those of the slices, four elements a thread.
constexpr u32 PART_THREADS = HEAD_DIM / 4, PART_TEAMS = KJ_BLOCK / PART_THREADS;
constexpr u32 PARTS = PART_TEAMS > kj_waves ? PART_TEAMS : kj_waves;
static_assert(PARTS * GROUP * HEAD_DIM * 4 <= kj_waves * RING, "results have room where the rings were");

struct Shared {
    float head[GROUP + 1][HEAD_DIM];                       // queries, key
    u32x4 fresh[2][CEIL_DIV(KV_ROW + 2 * KV_SCALES, 16)];  // the new key and value as they are stored
    u32x2 turn[ROPE_DIMS > 0 ? ROPE_DIMS / 2 : 1];
    float unit[GROUP];  // of queries in bytes
    float most[PARTS][GROUP], sum[PARTS][GROUP];
};

STEP u32 place(u32 row, u32 byte) {
    u32 at = row * KV_ROW + byte;
    return at ^ (KV_ROW % 128 == 0 ? row : at / 128) % 8 * 16;
}

// Sixteen, or four, bytes to shared memory, zeros if they are not there. All travel through the second cache.
STEP void copy16_or_zero(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}

#if KV_TYPE == 2
STEP void copy4_or_zero(void* to, const void* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_at(to)), "l"(from), "r"(there ? 4 : 0) : "memory");
}
STEP u32 skew_of(u64 row) { return KV_SCALES % 2 ? (u32)row & 1 : 0; }

// The scales of a row of a tile, two in a word.
struct Scales { u32 pair[CEIL_DIV(KV_SCALES, 2)]; };
STEP Scales scales_of(const u8* tile, u32 row, u32 skew) {
    Scales s;
    const u8* at = tile + SCALES_AT + 2 * (row * KV_SCALES + skew);
    if (KV_SCALES % 4 == 0) {
        UNROLL for (u32 i = 0; i < KV_SCALES / 4; i++) {
            u32x2 p = load8(at + 8 * i);
            s.pair[2 * i] = p.x, s.pair[2 * i + 1] = p.y;
        }
    } else {
        UNROLL for (u32 i = 0; i < CEIL_DIV(KV_SCALES, 2); i++) {
            const u16* h = (const u16*)at + 2 * i;
            s.pair[i] = KV_SCALES % 2 == 0 ? *(const u32*)h : (u32)h[0] | (2 * i + 1 < KV_SCALES ? (u32)h[1] << 16 : 0);
        }
    }
    return s;
}
// The scales of group g of two rows, in a word.
STEP u32 scale_pair(const Scales& a, const Scales& b, u32 g) { return kj_prmt(a.pair[g / 2], b.pair[g / 2], g % 2 ? 0x7632 : 0x5410); }
// Signed bytes 0 and 2 of a word as halves.
STEP u32 codes_to_halves(u32 w) { return h2_sub((w & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u); }  // 1024 + 128 + code
#endif

// The first `old` rows of the cache from `row` on to a tile, by a wave; zeros behind them.
STEP void fetch(u8* to, const u8* cache, u64 rows, u64 row, u32 old) {
    constexpr u32 chunks = KV_ROW / 16;
    UNROLL for (u32 i = 0; i < CEIL_DIV(ROWS * chunks, KJ_WAVE); i++) {
        u32 c = lane_id() + i * KJ_WAVE, r = c / chunks, k = c % chunks;
        if (ROWS * chunks % KJ_WAVE != 0 && c >= ROWS * chunks) break;
        copy16_or_zero(to + place(r, 16 * k), cache + (row + r) * KV_ROW + 16 * k, r < old);
    }
#if KV_TYPE == 2
    u32 skew = skew_of(row);
    const u8* scales = cache + kv_scales_at(rows) + (row * KV_SCALES - skew) * 2;
    UNROLL for (u32 i = 0; i < CEIL_DIV(SCALE_WORDS, KJ_WAVE); i++) {
        u32 w = lane_id() + i * KJ_WAVE;
        if (w < SCALE_WORDS) copy4_or_zero(to + SCALES_AT + 4 * w, scales + 4 * w, 2 * w < old * KV_SCALES + skew);
    }
#endif
}

// A row as it is stored to its place in the cache, and in a tile, by a wave.
STEP void keep_row(u8* cache, u64 rows, u64 row, const u32x4* from) {
    for (u32 k = lane_id(); k < KV_ROW / 16; k += KJ_WAVE) *(u32x4*)(cache + row * KV_ROW + 16 * k) = from[k];
#if KV_TYPE == 2
    if (lane_id() < KV_SCALES) ((u16*)(cache + kv_scales_at(rows)))[row * KV_SCALES + lane_id()] = ((const u16*)((const u8*)from + KV_ROW))[lane_id()];
#endif
}
STEP void put_row(u8* to, u32 r, const u32x4* from, u32 skew) {
    for (u32 k = lane_id(); k < KV_ROW / 16; k += KJ_WAVE) *(u32x4*)(to + place(r, 16 * k)) = from[k];
#if KV_TYPE == 2
    if (lane_id() < KV_SCALES) ((u16*)(to + SCALES_AT))[r * KV_SCALES + lane_id() + skew] = ((const u16*)((const u8*)from + KV_ROW))[lane_id()];
#endif
}

#if KV_TYPE == 1
STEP u32 query_at(u32 row, u32 col) { return col / 64 * (ROWS * 64) + tile_at(row, col % 64); }  // in mma.h's tiles of queries

// A product's input in two halves: rows of heads, and eight rows on what their rounding lost.
STEP void split_pair(u32& nearest, u32& rest, float a, float b) {
    nearest = pack_input(a, b);
    rest = pack_input(a - half_low(nearest), b - half_high(nearest));
}
#endif

// The queries as a lane multiplies them.
#if KV_TYPE == 1
constexpr u32 DK = HEAD_DIM / MMA_K;
struct Queries { FragA held[HOLD_Q ? DK : 1]; };
#else
constexpr u32 WORDS = KV_GROUP / 16;  // neighbouring codes that a lane takes of each group, in words
struct Queries { u32 word[KV_SCALES][2 * WORDS]; float unit; };

// Results of bytes' products as floats: with this in the sum before, they are its bits' last (below 2^22: 32 products of 127 · 127).
constexpr u32 MAGIC = 0x4b400000u;
STEP void mma_bytes(u32 (&d)[4], const u32 (&a)[2 * WORDS], const u32 (&b)[WORDS]) {
#if HEAD_DIM % 32 == 0
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(MAGIC));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(MAGIC));
#endif
}
STEP void load_words(u32 (&w)[WORDS], const u8* at) {
    if (WORDS == 2) {
        u32x2 two = load8(at);
        w[0] = two.x, w[WORDS - 1] = two.y;
    } else {
        w[0] = *(const u32*)at;
    }
}
#endif
STEP void load_queries(Queries& q, const u8* tile, const float* unit) {
#if KV_TYPE == 1
    if (HOLD_Q)
        UNROLL for (u32 d = 0; d < DK; d++) load_a(q.held[HOLD_Q ? d : 0], (const u16*)tile + d * MMA_K / 64 * (ROWS * 64), 0, d * MMA_K % 64);
#else
    UNROLL for (u32 g = 0; g < KV_SCALES; g++)
        UNROLL for (u32 r = 0; r < 2; r++) {
            u32 w[WORDS];
            load_words(w, tile + (lane_id() / 4 + 8 * r) * HEAD_DIM + g * KV_GROUP + lane_id() % 4 * (4 * WORDS));
            UNROLL for (u32 i = 0; i < WORDS; i++) q.word[g][2 * i + r] = w[i];
        }
    q.unit = lane_id() / 4 < GROUP ? unit[lane_id() / 4] : 0.0f;
#endif
}
// A ready query to rows h and h + 8 of the tile, by a wave.
STEP void put_query(u8* tile, u32 h, const float* row, float scale, float* unit) {
#if KV_TYPE == 1
    for (u32 e = 2 * lane_id(); e < HEAD_DIM; e += 2 * KJ_WAVE) {
        u32 nearest, rest;
        split_pair(nearest, rest, row[e] * scale, row[e + 1] * scale);
        *(u32*)(tile + 2 * query_at(h, e)) = nearest;
        *(u32*)(tile + 2 * query_at(h + 8, e)) = rest;
    }
#else
    float most = 0.0f, none = 0.0f;  // what is no number, or infinite, makes all scores no numbers
    for (u32 e = lane_id(); e < HEAD_DIM; e += KJ_WAVE) most = max_f32(most, abs_f32(row[e] * scale)), none += row[e] * 0.0f;
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
#endif
}

// Four scores of this lane's head (lane / 4): of positions 2c, 2c + 1, 2c + 8, 2c + 9 of the tile, c = lane % 4.
STEP void scores(float (&s)[4], const u8* keys, const u8* tile, const Queries& q, u32 skew) {
#if KV_TYPE == 1
    FragC c;
    acc_zero(c);
    UNROLL for (u32 d = 0; d < DK; d++) {
        FragA a;
        FragB b;
        if (HOLD_Q) a = q.held[HOLD_Q ? d : 0];
        else load_a(a, (const u16*)tile + d * MMA_K / 64 * (ROWS * 64), 0, d * MMA_K % 64);
        ldmatrix4(b.v, (const u16*)(keys + place(lane_id() % 8 + lane_id() / 16 * 8, 2 * d * MMA_K + lane_id() / 8 % 2 * 16)));
        mma(c, a, b);
    }
    UNROLL for (u32 e = 0; e < 4; e++) s[e] = c.v[e / 2 * 4 + e % 2] + c.v[e / 2 * 4 + 2 + e % 2];
#else
    UNROLL for (u32 r = 0; r < 2; r++) {
        const u32 row = 8 * r + lane_id() % 4 * 2;
        const Scales scale[2] = {scales_of(keys, row, skew), scales_of(keys, row + 1, skew)};
        s[2 * r] = s[2 * r + 1] = 0.0f;
        UNROLL for (u32 g = 0; g < KV_SCALES; g++) {
            u32 w[WORDS], d[4];
            load_words(w, keys + place(lane_id() / 4 + 8 * r, g * KV_GROUP + lane_id() % 4 * (4 * WORDS)));
            mma_bytes(d, q.word[g], w);
            UNROLL for (u32 e = 0; e < 2; e++) {
                float dot = fma_f32(as_f32(d[e]) - as_f32(MAGIC), 128.0f, as_f32(d[2 + e]) - as_f32(MAGIC));
                u32 pair = scale[e].pair[g / 2];
                s[2 * r + e] = fma_f32(g % 2 ? half_high(pair) : half_low(pair), dot, s[2 * r + e]);
            }
        }
    }
    UNROLL for (u32 e = 0; e < 4; e++) s[e] *= q.unit;
#endif
}

// out += probabilities · values. out[n][0..2] (and [2..4], of the rests, if there are) are columns 2c, 2c + 1 of the n-th eight, those of `out_dim`.
STEP void mix(float (&out)[HEAD_DIM / 8][4], const float (&p)[4], const u8* values, u32 skew) {
#if KV_TYPE == 1
    FragA a;
    split_pair(a.v[0], a.v[1], p[0], p[1]);
    split_pair(a.v[2], a.v[3], p[2], p[3]);
    UNROLL for (u32 n = 0; n < DK; n++) {
        FragB b;
        ldmatrix4_t(b.v, (const u16*)(values + place(lane_id() % 16, 32 * n + lane_id() / 16 * 16)));
        mma_m16n8k16(out[2 * n], a.v, b.v);
        mma_m16n8k16(out[2 * n + 1], a.v, b.v + 2);
    }
#else
    constexpr u32 each = KV_GROUP / 8;  // codes of a row that a lane takes: four, or two
    u32 row = lane_id() % 4 * 2;
    Scales scale[4];
    UNROLL for (u32 e = 0; e < 4; e++) scale[e] = scales_of(values, row + e % 2 + e / 2 * 8, skew);
    const u32 share[2] = {pack_input(p[0], p[1]), pack_input(p[2], p[3])};
    UNROLL for (u32 g = 0; g < KV_SCALES; g++) {
        FragA a{{h2_mul(share[0], scale_pair(scale[0], scale[1], g)), 0, h2_mul(share[1], scale_pair(scale[2], scale[3], g)), 0}};
        u32 w[4];
        UNROLL for (u32 e = 0; e < 4; e++) {
            const u8* at = values + place(row + e % 2 + e / 2 * 8, g * KV_GROUP + lane_id() / 4 * each);
            w[e] = each == 4 ? *(const u32*)at : (u32)*(const u16*)at;
        }
        UNROLL for (u32 i = 0; i < each; i++) {
            u32 b[2];
            UNROLL for (u32 h = 0; h < 2; h++) b[h] = codes_to_halves(kj_prmt(w[2 * h], w[2 * h + 1], i * 0x11 + (4 + i) * 0x1100));
            mma_m16n8k16(out[g * each + i], a.v, b);
        }
    }
#endif
}
// The element of the head in column 2c + e of the n-th eight.
STEP u32 out_dim(u32 n, u32 e) {
#if KV_TYPE == 1
    return 8 * n + lane_id() % 4 * 2 + e;
#else
    constexpr u32 each = KV_GROUP / 8;
    return n / each * KV_GROUP + (lane_id() % 4 * 2 + e) * each + n % each;
#endif
}

// Element i of GROUP × HEAD_DIM from `n` parts in LDS: the sum weighted by the maxima, that maximum, and the sum of shares.
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

// last_block (kjit.h) with one thread's release and acquire for all of the block's: the fence of every thread was half of a µs.
STEP bool last_slice(u32* counter, u32 blocks) {
    LDS_ARRAY(u32, is_last, 1);
    block_sync();
    if (thread_id() == 0) {
        is_last[0] = atomic_add(counter, 1) == blocks - 1;
        if (is_last[0]) atomic_store(counter, 0);
    }
    block_sync();
    return is_last[0];
}

KERNEL attend_mma(const float* q, const float* k, const float* v, const float* RESTRICT q_norm, const float* RESTRICT k_norm,
                  const u32x2* RESTRICT angles, const u32* slots, const u32* position, u8* keys, u8* values, float* part, u32* counters, float* out,
                  float scale, float eps, u32 capacity, u32 splits, u64 sequence_bytes) {
    LDS_DYNAMIC(dynamic);
    u8* pool = dynamic + (128 - shared_at(dynamic) % 128) % 128;
    LDS_ARRAY(Shared, all, 1);
    Shared& lds = all[0];
    u8* queries = pool + kj_waves * RING;
    launch_dependents();
    u32 sequence = block_id_z(), kv_head = block_id_y() / HEAD_PARTS, head = kv_head * (HEADS / KV_HEADS) + block_id_y() % HEAD_PARTS * GROUP;
    u32 slot = slots ? slots[sequence] : sequence, here = position[slot], end = here + 1;
    u32 first = WINDOW != 0 && end > WINDOW ? end - WINDOW : 0, base = first / ROWS * ROWS;
    // Summing slices costs as much as a few tiles: a short past is one block's.
    u32 tiles = CEIL_DIV(end - base, ROWS), busy = tiles < 3 * LEAST ? 1 : min_u32(splits, tiles / LEAST);
    if (block_id() >= busy) return;  // the blocks that stay do wait, so this launch ends after the one before
    const u32 mine = block_id() + wave_id() * busy, round = busy * kj_waves;  // this wave's first tile, tiles from one to the next
    keys += slot * sequence_bytes;
    values += slot * sequence_bytes;
    const u64 rows = (u64)KV_HEADS * capacity, head_row = (u64)kv_head * capacity;

    u8* ring = pool + wave_id() * RING;
    auto fetch_one = [&](u8* to, const u8* cache, u32 t) {
        if (t < tiles) fetch(to, cache, rows, head_row + base + t * ROWS, min_u32(ROWS, here - (base + t * ROWS)));
        copy_commit();
    };
    NO_UNROLL for (u32 s = 0; s < 2 * STAGES; s++) fetch_one(ring + s * SIDE, s % 2 ? values : keys, mine + s / 2 * round);
    for (u32 i = thread_id(); i < ROPE_DIMS / 2; i += KJ_BLOCK) lds.turn[i] = angles[(u64)here * (ROPE_DIMS / 2) + i];
    for (u32 i = thread_id(); i < Q_TILES * ROWS * 8; i += KJ_BLOCK) ((u32x4*)queries)[i] = u32x4{0, 0, 0, 0};
    block_sync();
    wait_for_producer();

    bool owner = (tiles - 1) % busy == block_id();  // of the new position
    if (SOFT_CAP == 0.0f) scale *= 1.44269504f;
    for (u32 h = wave_id(); h < GROUP + (owner ? 2 : 0); h += kj_waves) {
        u64 kv_at = ((u64)sequence * KV_HEADS + kv_head) * HEAD_DIM;
        float* row = lds.head[h];
        if (h < GROUP) {
            ready_head(row, q + ((u64)sequence * HEADS + head + h) * HEAD_DIM, QK_NORM, q_norm, eps, lds.turn);
            put_query(queries, h, row, scale, lds.unit);
        } else {
            u32x4* fresh = lds.fresh[h - GROUP];
            if (h == GROUP) ready_head(row, k + kv_at, QK_NORM, k_norm, eps, lds.turn);
            kv_store_row((u8*)fresh, 1, 0, h == GROUP ? row : v + kv_at);
            wave_sync();
            keep_row(h == GROUP ? keys : values, rows, head_row + here, fresh);
        }
    }
    block_sync();

    Queries held;
    load_queries(held, queries, lds.unit);
    float acc[HEAD_DIM / 8][4], most = NEVER, sum = 0.0f;  // of head lane / 4
    UNROLL for (u32 n = 0; n < HEAD_DIM / 8; n++)
        UNROLL for (u32 e = 0; e < 4; e++) acc[n][e] = 0.0f;
    u32 stage = 0;
    NO_UNROLL for (u32 t = mine; t < tiles; t += round) {
        u8 *kt = ring + stage * 2 * SIDE, *vt = kt + SIDE;
        u32 at = base + t * ROWS, skew = 0;
#if KV_TYPE == 2
        skew = skew_of(head_row + at);
#endif
        copy_wait(2 * STAGES - 1);
        wave_sync();
        if (t == tiles - 1) {
            copy_wait(0);
            wave_sync();
            put_row(kt, here - at, lds.fresh[0], skew);
            put_row(vt, here - at, lds.fresh[1], skew);
            wave_sync();
        }
        float p[4];
        scores(p, kt, queries, held, skew);
        wave_sync();
        fetch_one(kt, keys, t + STAGES * round);

        float high = most;
        if (SOFT_CAP != 0.0f)
            UNROLL for (u32 e = 0; e < 4; e++) p[e] = CAP * 1.44269504f * tanh_f32(p[e] / CAP);
        if (t == tiles - 1 || (WINDOW != 0 && at < first))
            UNROLL for (u32 e = 0; e < 4; e++) {
                u32 j = at + lane_id() % 4 * 2 + e % 2 + e / 2 * 8;
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

    // The waves' parts, where the rings were.
    float* parts = (float*)pool;
    copy_wait(0);
    block_sync();
    if (lane_id() / 4 < GROUP) {
        u32 h = lane_id() / 4;
        UNROLL for (u32 n = 0; n < HEAD_DIM / 8; n++)
            UNROLL for (u32 e = 0; e < 2; e++) parts[(wave_id() * GROUP + h) * HEAD_DIM + out_dim(n, e)] = acc[n][e] + acc[n][2 + e];
        if (lane_id() % 4 == 0) lds.most[wave_id()][h] = most, lds.sum[wave_id()][h] = sum;
    }
    block_sync();
    // In device memory, of each head: values of all slices, then (maximum, sum) of all slices.
    float* out_row = out + ((u64)sequence * HEADS + head) * HEAD_DIM;
    const u64 head_part = (u64)splits * (HEAD_DIM + 4);
    part += ((u64)sequence * HEADS + head) * head_part;
    for (u32 i = thread_id(); i < GROUP * HEAD_DIM; i += KJ_BLOCK) {
        float value = merge(lds, parts, kj_waves, i, most, sum);
        if (busy == 1) {
            out_row[i] = value / sum;
        } else {
            float* p = part + i / HEAD_DIM * head_part;
            p[block_id() * HEAD_DIM + i % HEAD_DIM] = value;
            if (i % HEAD_DIM == 0) *(u32x2*)(p + splits * HEAD_DIM + 2 * block_id()) = u32x2{as_u32(most), as_u32(sum)};
        }
    }
    if (busy == 1) return;
    if (!last_slice(counters + (u64)sequence * KV_HEADS * HEAD_PARTS + block_id_y(), busy)) return;

    // Teams of threads take slices in turn, four elements a thread, all heads; then as above.
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
                y[h] = load8(part + h * head_part + splits * HEAD_DIM + 2 * s);
            }
            UNROLL for (u32 h = 0; h < GROUP; h++) {
                float now = max_f32(team_most[h], as_f32(y[h].x));
                float old = exp2_hw(team_most[h] - now), by = exp2_hw(as_f32(y[h].x) - now);
                const float part_of[4] = {as_f32(x[h].x), as_f32(x[h].y), as_f32(x[h].z), as_f32(x[h].w)};
                team_most[h] = now;
                team_sum[h] = fma_f32(as_f32(y[h].y), by, team_sum[h] * old);
                UNROLL for (u32 e = 0; e < 4; e++) value[h][e] = fma_f32(part_of[e], by, value[h][e] * old);
            }
        }
        UNROLL for (u32 h = 0; h < GROUP; h++) {
            UNROLL for (u32 e = 0; e < 4; e++) parts[(team * GROUP + h) * HEAD_DIM + four + e] = value[h][e];
            if (four == 0) lds.most[team][h] = team_most[h], lds.sum[team][h] = team_sum[h];
        }
    }
    block_sync();
    for (u32 i = thread_id(); i < GROUP * HEAD_DIM; i += KJ_BLOCK) {
        float value = merge(lds, parts, PART_TEAMS, i, most, sum);
        out_row[i] = value / sum;
    }
}
