// order.h: cumulative sums and products, sorting, scattering. Results are deterministic: they do
// not depend on the order of blocks or atomics.
#pragma once
#include "ops.h"

// Converts an element to the type of the accumulator; `Narrow` converts back.
STEP f64 wide_of(float v) { return v; }
STEP f64 wide_of(f64 v) { return v; }
STEP f64 wide_of(f16 v) { return load(v); }
STEP f64 wide_of(bf16 v) { return load(v); }
template <class T> STEP T wide_of(T v) { return v; }
template <class T, class A> struct Narrow { STEP T of(A v) { return (T)v; } };
template <> struct Narrow<f16, f64> { STEP f16 of(f64 v) { return round_f16((float)v); } };
template <> struct Narrow<bf16, f64> { STEP bf16 of(f64 v) { return round_bf16((float)v); } };

// ----------------------------------------------------------------------- cumulative sums, products
constexpr u32 SCAN_ITEMS = 8;  // elements per thread
constexpr u32 SCAN_TILE = KJ_BLOCK * SCAN_ITEMS;

template <class T, class A, bool PRODUCT> struct Scan {
    STEP A join(A a, A b) { return PRODUCT ? op_multiply(a, b) : op_add(a, b); }
    STEP A none() { return PRODUCT ? (A)1 : (A)0; }

    // Reduces the values of a block; all threads get the result.
    STEP A all(A* lanes, A own) {
        const u32 t = thread_id();
        lanes[t] = own;
        block_sync();
        for (u32 n = KJ_BLOCK / 2; n > 0; n /= 2) {
            if (t < n) lanes[t] = join(lanes[t], lanes[t + n]);
            block_sync();
        }
        own = lanes[0];
        block_sync();
        return own;
    }

    // chunks 0: a thread scans a row. 1: a block scans a row. Otherwise a block scans a chunk of a
    // row, in a second launch (`finish`); the first launch writes the sums of the chunks.
    STEP void step(T* to, A* sums, const T* from, i64 rows, i64 row, i64 chunk, u32 chunks,
                   bool finish) {
        const u32 t = thread_id();
        if (chunks == 0) {
            const i64 own = (i64)block_id() * KJ_BLOCK + t;
            if (own >= rows) return;
            A sum = none();
            for (i64 k = own * row; k < (own + 1) * row; k++) {
                sum = join(sum, wide_of(from[k]));
                to[k] = Narrow<T, A>::of(sum);
            }
            return;
        }
        LDS_ARRAY(A, items, SCAN_TILE);
        LDS_ARRAY(A, lanes, KJ_BLOCK);
        const i64 own = block_id() / chunks;
        const u32 part = block_id() % chunks;
        const i64 begin = part * chunk, end = begin + chunk < row ? begin + chunk : row;
        const T* in = from + own * row;
        T* out = to + own * row;
        A carry = none();
        if (!finish && chunks > 1) {
            for (i64 k = begin + t; k < end; k += KJ_BLOCK) carry = join(carry, wide_of(in[k]));
            carry = all(lanes, carry);
            if (t == 0) sums[own * chunks + part] = carry;
            return;
        }
        for (u32 c = t; c < part; c += KJ_BLOCK) carry = join(carry, sums[own * chunks + c]);
        carry = all(lanes, carry);
        for (i64 tile = begin; tile < end; tile += SCAN_TILE) {
            for (u32 i = 0; i < SCAN_ITEMS; i++) {
                const i64 k = tile + i * KJ_BLOCK + t;
                items[i * KJ_BLOCK + t] = k < end ? (A)wide_of(in[k]) : none();
            }
            block_sync();
            A sums_of[SCAN_ITEMS], sum = none();
            for (u32 i = 0; i < SCAN_ITEMS; i++) {
                sum = join(sum, items[t * SCAN_ITEMS + i]);
                sums_of[i] = sum;
            }
            lanes[t] = sum;
            block_sync();
            for (u32 n = 1; n < KJ_BLOCK; n *= 2) {
                const A before = t >= n ? lanes[t - n] : none();
                block_sync();
                lanes[t] = join(before, lanes[t]);
                block_sync();
            }
            const A before = join(carry, t > 0 ? lanes[t - 1] : none());
            carry = join(carry, lanes[KJ_BLOCK - 1]);
            for (u32 i = 0; i < SCAN_ITEMS; i++)
                items[t * SCAN_ITEMS + i] = join(before, sums_of[i]);
            block_sync();
            for (u32 i = 0; i < SCAN_ITEMS; i++) {
                const i64 k = tile + i * KJ_BLOCK + t;
                if (k < end) out[k] = Narrow<T, A>::of(items[i * KJ_BLOCK + t]);
            }
            block_sync();
        }
    }
};

// ----------------------------------------------------------------------------------------- sorting
// Integer keys in the order of the elements: NaN last, -0 equal to 0.
STEP u32 sort_half(u32 bits, u32 infinity) {
    if ((bits & 0x7fffu) > infinity) return 0xffffu;
    if (bits == 0x8000u) bits = 0;
    return (bits & 0x8000u) != 0 ? ~bits & 0xffffu : bits | 0x8000u;
}
STEP u32 sort_key(f16 v) { return sort_half(v.bits, 0x7c00u); }
STEP u32 sort_key(bf16 v) { return sort_half(v.bits, 0x7f80u); }
STEP u32 sort_key(float v) {
    u32 bits = as_u32(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return ~0u;
    if (bits == 0x80000000u) bits = 0;
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
STEP u64 sort_key(f64 v) {
    u64 bits = m_bits(v);
    if ((bits & ~M_SIGN) > 0x7ff0000000000000ull) return ~0ull;
    if (bits == M_SIGN) bits = 0;
    return (bits & M_SIGN) != 0 ? ~bits : bits | M_SIGN;
}
STEP u32 sort_key(i8 v) { return (u32)(u8)v ^ 0x80u; }
STEP u32 sort_key(i16 v) { return (u32)(u16)v ^ 0x8000u; }
STEP u32 sort_key(i32 v) { return (u32)v ^ 0x80000000u; }
STEP u64 sort_key(i64 v) { return (u64)v ^ M_SIGN; }
STEP u32 sort_key(u8 v) { return v; }
STEP u32 sort_key(u16 v) { return v; }
STEP u32 sort_key(u32 v) { return v; }
STEP u64 sort_key(u64 v) { return v; }

constexpr u32 SORT_SMALL = 2048;  // elements that a block sorts in shared memory
constexpr u32 SORT_ROUNDS = 16;
constexpr u32 SORT_TILE = KJ_BLOCK * SORT_ROUNDS;
static_assert(KJ_BLOCK == 256, "a thread has a digit of eight bits");

// `flip`: all bits of the key for descending order, otherwise 0.
template <class T, class K> struct Sort {
    // Bitonic sort of pairs (key, index), for rows of at most SORT_SMALL elements. `wide` is the
    // length of a row rounded up to a power of two.
    STEP void small(i64* to, const T* from, i64 rows, u32 row, u32 wide, K flip) {
        LDS_ARRAY(K, keys, SORT_SMALL);
        LDS_ARRAY(u32, ids, SORT_SMALL);
        const u32 t = thread_id();
        const i64 first = (i64)block_id() * (SORT_SMALL / wide);
        for (u32 s = t; s < SORT_SMALL; s += KJ_BLOCK) {
            const i64 own = first + s / wide;
            const u32 k = s % wide;
            keys[s] = own < rows && k < row ? (K)(sort_key(from[own * row + k]) ^ flip) : ~(K)0;
            ids[s] = k;
        }
        block_sync();
        for (u32 size = 2; size <= wide; size *= 2) {
            for (u32 step = size / 2; step > 0; step /= 2) {
                for (u32 p = t; p < SORT_SMALL / 2; p += KJ_BLOCK) {
                    const u32 a = 2 * p - (p & (step - 1)), b = a + step;
                    const bool up = (a & (wide - 1) & size) == 0;
                    const K x = keys[a], y = keys[b];
                    const u32 i = ids[a], j = ids[b];
                    if ((x > y || (x == y && i > j)) == up) {
                        keys[a] = y;
                        keys[b] = x;
                        ids[a] = j;
                        ids[b] = i;
                    }
                }
                block_sync();
            }
        }
        for (u32 s = t; s < SORT_SMALL; s += KJ_BLOCK) {
            const i64 own = first + s / wide;
            const u32 k = s % wide;
            if (own < rows && k < row) to[own * row + k] = ids[s];
        }
    }

    // First part of a radix-sort pass of eight bits: counts each digit in each tile.
    STEP void count(u32* counts, const T* from, const K* keys, i64 row, u32 tiles, u32 shift,
                    K flip, bool first) {
        LDS_ARRAY(u32, bins, 256);
        const u32 t = thread_id(), tile = block_id() % tiles;
        const i64 own = block_id() / tiles, start = own * row;
        bins[t] = 0;
        block_sync();
        for (u32 round = 0; round < SORT_ROUNDS; round++) {
            const i64 k = (i64)tile * SORT_TILE + round * KJ_BLOCK + t;
            if (k >= row) break;
            const K key = first ? (K)(sort_key(from[start + k]) ^ flip) : keys[start + k];
            lds_add(&bins[(u32)(key >> shift) & 255u], 1);
        }
        block_sync();
        counts[(own * 256 + t) * tiles + tile] = bins[t];
    }

    // Second part: moves the elements, in stable order. `ends`: cumulative sums of `counts` over
    // digits and tiles.
    STEP void move(i64* to, K* keys_to, u32* ids_to, const T* from, const K* keys, const u32* ids,
                   const u32* counts, const u32* ends, i64 row, u32 tiles, u32 shift, K flip,
                   bool first, bool last) {
        LDS_ARRAY(u32, base, 256);
        LDS_ARRAY(u32, waves, kj_waves * 256);
        const u32 t = thread_id(), tile = block_id() % tiles;
        const i64 own = block_id() / tiles, start = own * row;
        const i64 bin = (own * 256 + t) * tiles + tile;
        base[t] = ends[bin] - counts[bin];
        for (u32 round = 0; round < SORT_ROUNDS; round++) {
            for (u32 w = 0; w < kj_waves; w++) waves[w * 256 + t] = 0;
            block_sync();
            const i64 k = (i64)tile * SORT_TILE + round * KJ_BLOCK + t;
            const bool inside = k < row;
            K key = 0;
            u32 id = (u32)k;
            if (inside) {
                key = first ? (K)(sort_key(from[start + k]) ^ flip) : keys[start + k];
                if (!first) id = ids[start + k];
            }
            // Finds the lanes of the wave that have this digit.
            const u32 digit = (u32)(key >> shift) & 255u;
            u64 equal = wave_ballot(inside);
            for (u32 bit = 0; bit < 8; bit++) {
                const bool set = (digit >> bit & 1u) != 0;
                const u64 with = wave_ballot(set);
                equal &= set ? with : ~with;
            }
            const u32 rank = count_bits(equal & (((u64)1 << lane_id()) - 1));
            if (inside && rank == 0) waves[wave_id() * 256 + digit] = count_bits(equal);
            block_sync();
            u32 sum = base[t];
            for (u32 w = 0; w < kj_waves; w++) {
                const u32 n = waves[w * 256 + t];
                waves[w * 256 + t] = sum;
                sum += n;
            }
            base[t] = sum;
            block_sync();
            if (inside) {
                const i64 place = start + waves[wave_id() * 256 + digit] + rank;
                if (last) {
                    to[place] = id;
                } else {
                    keys_to[place] = key;
                    ids_to[place] = id;
                }
            }
            block_sync();
        }
    }
};

// -------------------------------------------------------------------------------------- scattering
#if defined(KJ_NVIDIA)
STEP void global_max(u32* p, u32 v) { atomicMax(p, v); }
#elif defined(KJ_AMD)
STEP void global_max(u32* p, u32 v) {
    __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
#else
STEP void global_max(u32* p, u32 v) {
    u32 old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED,
                                                   __ATOMIC_RELAXED)) {}
}
#endif

STEP f16 scatter_sum(f16 a, f16 b) { return round_f16(load(a) + load(b)); }
STEP bf16 scatter_sum(bf16 a, bf16 b) { return round_bf16(load(a) + load(b)); }
template <class T> STEP T scatter_sum(T a, T b) { return op_add(a, b); }
