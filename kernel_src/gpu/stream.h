// stream.h: matrix × vector products in a kernel of many steps (persist.h), with streamed weights.
// One extra warp loads the weights of the block, in the order in which all steps use them. It never
// waits for a step to end. So memory is busy even while blocks wait or compute attention.
//
// The *ring* is SLOTS slots of shared memory, each with two barriers: full (its bytes have arrived)
// and empty (it was read). A slot has as many whole rows as fit, at most four per lane. The rows
// are contiguous in device memory, so one copy is enough. A slot always belongs to the same *team*
// of SHARE waves. So a team never waits for a slot that another team has not yet read in the
// previous lap (copies complete in any order, and a parity does not distinguish laps). While one
// team waits for bytes or sums, others multiply. A lane processes units of all rows of the slot
// together, so it reads the activations in shared memory once for all of them. (If all waves share
// each row, all of them wait for every slot: without copies, 8b Q4_K_M reached 651 tokens/s in that
// form, and 827 in this one.)
//
// AHEAD bytes are in flight: enough to keep memory busy, and less than the ring, because all other
// reads of a multiprocessor queue behind them. With the whole ring in flight 8b Q4_K_M reached 490
// tokens/s on an H100, with 28 KB 526; Q8_0 321 and 351.
//
// A block's rows of a step are contiguous, and all blocks have nearly equal shares. If results are
// sent as packets (packets.h), shares are whole groups. Otherwise shares are equal in bytes over
// all matrices of the step.
//
// Several sequences are COLUMNS columns, which are contiguous in all vectors and in packets. A
// row's weights are read and decoded once for all columns.
//
// S: as for matvec.h without TEAM, ROWS, BATCH and X_GLOBAL. R: SLOT (bytes, a multiple of 128),
// SHARE (a power of two), SLOTS (a multiple of the teams), AHEAD. The block has KJ_BLOCK threads
// and one extra warp.
#pragma once
#include "dots.h"
#include "hopper.h"
#include "matvec.h"
#include "packets.h"
#include "sums.h"

// An address in shared memory as a number, in a register. The compiler would recompute a pointer in
// each iteration of a loop, with five dependent instructions.
STEP u32 kept_place(const void* p) {
    u32 at = shared_at(p);
    asm volatile("" : "+r"(at));
    return at;
}
template <class T> STEP T* at_place(u32 at) { return (T*)__cvta_shared_to_generic(at); }

// A position in the ring, and the index of the next buffer of sums (0 or 1). Passed and returned by
// value: a reference would be in local memory.
struct RingAt {
    u32 slot, phase, buffer;
};

template <class R> struct Ring {
    struct Shared { u64 full[R::SLOTS], empty[R::SLOTS]; };
    static constexpr u32 BYTES = R::SLOTS * R::SLOT, LINE = 128;

    STEP void open(Shared& s) {
        for (u32 i = 0; i < R::SLOTS; i++)
            barrier_init(s.full + i, 1), barrier_init(s.empty + i, R::SHARE);
        barrier_fence_init();
        fence_async();
    }
    STEP void next(RingAt& at) {
        if (++at.slot == R::SLOTS) at.slot = 0, at.phase ^= 1;
    }
    // Advances by `n` slots; `n` may exceed the number of slots.
    STEP void skip(RingAt& at, u32 slots) {
        at.slot += slots;
        if (at.slot >= R::SLOTS) at.slot -= R::SLOTS, at.phase ^= 1;
    }
    STEP void skip_all(RingAt& at, u32 slots) {
        const u32 to = at.slot + slots, laps = to / R::SLOTS;
        at.slot = to - laps * R::SLOTS, at.phase ^= laps & 1;
    }

    // Returns when the phase of this parity is complete, or after a timeout.
    STEP void await(u32 barrier, u32 parity) {
        u32 turns = 0;
        u64 since = 0;
        while (!barrier_try(barrier, parity) && !Meeting::over(turns, since)) {}
    }
    STEP bool barrier_try(u32 barrier, u32 parity) {
        u32 done;
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
        return done;
    }

    // Loads the bytes of a slot; called by one thread. Bytes have the same offset in their 128-byte
    // line in the slot as in memory. All earlier loads except the last `ahead` − 1 must be
    // complete.
    STEP void fill(Shared& s, u8* memory, RingAt& at, const u8* from, u32 bytes, u32 ahead) {
        Meeting::delay(2);
        await(shared_at(s.empty + at.slot), at.phase ^ 1);
        const bool lap = at.slot < ahead;  // that load is in the previous lap
        await(shared_at(s.full + (at.slot + (lap ? R::SLOTS : 0) - ahead)),
              at.phase ^ (lap ? 1 : 0));
        barrier_arrive_expect(s.full + at.slot, bytes);
        bulk_copy_once(memory + at.slot * R::SLOT + ((u64)from % LINE), from, bytes,
                       s.full + at.slot);
        next(at);
    }
    // Waits for a slot; returns its address. `barriers`, `slots`: addresses (kept_place) of the
    // ring's barriers and memory.
    STEP u32 wait(u32 barriers, u32 slots, const RingAt& at) {
        await(barriers + 8 * at.slot, at.phase);
        Meeting::delay(3 + at.slot);
        return slots + at.slot * R::SLOT;
    }
    // Signals that this wave has read the slot.
    STEP void release(u32 barriers, const RingAt& at) {
        wave_sync();
        const u32 empty = barriers + 8 * (R::SLOTS + at.slot);
        if (lane_id() == 0)
            asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(empty) : "memory");
    }
};

// Offsets of the parts of a unit in a row record.
struct UnitPlace { u32 big, c2, c1, group, block; };
template <class W> STEP UnitPlace place_of(u32 u) {
    const u32 g = W::UNIT == 16 ? u / 2 : u, b = g / W::BLOCK_32;
    UnitPlace p{};
    p.big = (PLAIN<W> ? 0 : W::C8 != NONE ? W::C8 : W::C4 != NONE ? W::C4 : 0) + 16 * u;
    if (W::C2 != NONE) p.c2 = W::C2 + 8 * u;
    if (W::C1 != NONE) p.c1 = W::C1 + 4 * u;
    p.group = W::GROUPS_AT + (W::GROUPS == Groups::Signed32 ? 1 : 2) * g;
    p.block = W::BLOCKS_AT + (W::BLOCKS == Blocks::HalfPair ? 4
                              : W::BLOCKS == Blocks::Half   ? 2
                                                            : 1) *
                                 b;
    return p;
}
// Loads the unit at these offsets of a row record in shared memory.
template <class W> STEP Unit<W> kept_unit(const u8* row, const UnitPlace& p) {
    Unit<W> t = zero_unit<W>();
    if constexpr (PLAIN<W> || W::C8 != NONE || W::C4 != NONE) {
        u32x4 v = load16(row + p.big);
        t.big[0] = v.x, t.big[1] = v.y, t.big[2] = v.z, t.big[3] = v.w;
    }
    if constexpr (!PLAIN<W>) {
        if constexpr (W::C2 != NONE) {
            u32x2 v = load8(row + p.c2);
            t.c2[0] = v.x, t.c2[1] = v.y;
        }
        if constexpr (W::C1 != NONE) t.c1 = *(const u32*)(row + p.c1);
        if constexpr (W::GROUPS == Groups::Signed32) t.group = row[p.group];
        else if constexpr (W::GROUPS != Groups::None) t.group = *(const u16*)(row + p.group);
        if constexpr (W::BLOCKS == Blocks::Half) t.block = *(const u16*)(row + p.block);
        if constexpr (W::BLOCKS == Blocks::HalfPair) t.block = *(const u32*)(row + p.block);
        if constexpr (W::BLOCKS == Blocks::HalfE8M0) t.block = row[p.block];
    }
    return t;
}

// A format as a type. It is the same type for all steps with that format, so they share code.
template <u32 UNIT_, u32 UNITS_, u32 ROW_BYTES_, u32 GROUPS_AT_, u32 BLOCKS_AT_, Groups GROUPS_,
          Blocks BLOCKS_, u32 BLOCK_32_, Encoding ENCODING_, u32 C1_, u32 C2_, u32 C4_, u32 C8_,
          u32 C1_LOW_, u32 C2_LOW_, bool LOOKUP_, u32 T0_, u32 T1_, u32 T2_, u32 T3_,
          Offset OFFSET_, i32 BIAS_>
struct StreamFormat {
    static constexpr u32 UNIT = UNIT_, UNITS = UNITS_, ROW_BYTES = ROW_BYTES_,
                         GROUPS_AT = GROUPS_AT_, BLOCKS_AT = BLOCKS_AT_, BLOCK_32 = BLOCK_32_;
    static constexpr u32 C1 = C1_, C2 = C2_, C4 = C4_, C8 = C8_, C1_LOW = C1_LOW_, C2_LOW = C2_LOW_,
                         T0 = T0_, T1 = T1_, T2 = T2_, T3 = T3_;
    static constexpr Groups GROUPS = GROUPS_;
    static constexpr Blocks BLOCKS = BLOCKS_;
    static constexpr Encoding ENCODING = ENCODING_;
    static constexpr Offset OFFSET = OFFSET_;
    static constexpr bool LOOKUP = LOOKUP_;
    static constexpr i32 BIAS = BIAS_;
};
template <class W>
using StreamFormatOf =
    StreamFormat<W::UNIT, W::UNITS, W::ROW_BYTES, W::GROUPS_AT, W::BLOCKS_AT, W::GROUPS, W::BLOCKS,
                 W::BLOCK_32, W::ENCODING, W::C1, W::C2, W::C4, W::C8, W::C1_LOW, W::C2_LOW,
                 W::LOOKUP, W::T0, W::T1, W::T2, W::T3, W::OFFSET, W::BIAS>;

template <bool B, class X, class Y> struct StreamPick { using type = X; };
template <class X, class Y> struct StreamPick<false, X, Y> { using type = Y; };

// Makes a column in the layout of activations.h (scales: packets.h), for steps whose values do not
// arrive as packets. The code is small, because the steps of a layer exceed the instruction caches:
// code that runs once per step comes from L2 each time (H200: qkv of 8b took 14 µs, its weights 3.6
// µs).
struct StreamColumn {
    const float *x, *aux;
    float eps;
    u32 cols, prologue;  // 0 none, 1 a norm, 2 silu, 3 gelu
};
// Loads the weights of a norm, waits for the previous step, and makes the column. A thread has up
// to EIGHT quads in flight.
template <bool SPLIT> CALLED void stream_quantise(StreamColumn a, u32x4* column) {
    constexpr u32 EIGHT = 8;
    const u32 quads = a.cols / 4, groups = a.cols / 32;
    const bool normed = a.prologue == 1, two = a.prologue > 0;
    u32x4 x[EIGHT], g[EIGHT];
    UNROLL for (u32 i = 0; i < EIGHT; i++) {
        const u32 q = i * KJ_BLOCK + thread_id();
        g[i] = normed && q < quads ? load16(a.aux + 4 * q) : u32x4{0, 0, 0, 0};
    }
    Meeting::wait();
    float scale = 1.0f;
    // All lanes of a wave must take part: eight lanes share a group.
    NO_UNROLL for (u32 from = 0; from < quads; from += EIGHT * KJ_BLOCK) {
        UNROLL for (u32 i = 0; i < EIGHT; i++) {
            const u32 q = from + i * KJ_BLOCK + thread_id();
            x[i] = q < quads ? load16(a.x + 4 * q) : u32x4{0, 0, 0, 0};
            if ((!normed || from > 0) && two)
                g[i] = q < quads ? load16(a.aux + 4 * q) : u32x4{0, 0, 0, 0};
        }
        if (normed && from == 0) {
            float squares = 0.0f;
            UNROLL for (u32 i = 0; i < EIGHT; i++)
                squares += as_f32(x[i].x) * as_f32(x[i].x) + as_f32(x[i].y) * as_f32(x[i].y) +
                           as_f32(x[i].z) * as_f32(x[i].z) + as_f32(x[i].w) * as_f32(x[i].w);
            NO_UNROLL for (u32 q = EIGHT * KJ_BLOCK + thread_id(); q < quads; q += KJ_BLOCK) {
                const u32x4 w = load16(a.x + 4 * q);
                squares += as_f32(w.x) * as_f32(w.x) + as_f32(w.y) * as_f32(w.y) +
                           as_f32(w.z) * as_f32(w.z) + as_f32(w.w) * as_f32(w.w);
            }
            scale = rsqrt_f32(block_sum(squares) / (float)a.cols + a.eps);
        }
        UNROLL for (u32 i = 0; i < EIGHT; i++) {
            const u32 q = from + i * KJ_BLOCK + thread_id();
            if (from + i * KJ_BLOCK >= quads) break;
            float v[4] = {as_f32(x[i].x), as_f32(x[i].y), as_f32(x[i].z), as_f32(x[i].w)};
            const float up[4] = {as_f32(g[i].x), as_f32(g[i].y), as_f32(g[i].z), as_f32(g[i].w)};
            if (normed) {
                UNROLL for (u32 e = 0; e < 4; e++) v[e] = v[e] * scale * up[e];
            } else if (two) {
                NO_UNROLL for (u32 e = 0; e < 4; e++) v[e] =
                    (a.prologue == 2 ? silu(v[e]) : gelu(v[e])) * up[e];
            }
            float most = max_f32(max_f32(abs_f32(v[0]), abs_f32(v[1])),
                                 max_f32(abs_f32(v[2]), abs_f32(v[3])));
            most = group_max(most, 8);
            float inverse = most > 0.0f ? 32639.0f / most : 0.0f;
            if (inverse > 3.0e38f) inverse = 3.0e38f;
            u32 high = 0, low = 0;
            i32 sum = 0;
            float bad = 0.0f;
            UNROLL for (u32 e = 0; e < 4; e++) {
                i32 whole = round_int(v[e] * inverse);
                sum += whole;
                low |= (u32)(u8)whole << (8 * e);
                high |= (u32)(u8)((whole + 128) >> 8) << (8 * e);
                bad += v[e] * 0.0f;
            }
            bad = group_sum(bad, 8);
            const i32 half = group_sum(sum, 4), other = wave_xor(half, 4);
            const u32 group = q / 8, vector = q / 4 % 2,
                      at = SPLIT ? vector * groups + group : 2 * group + vector;
            if (q < quads) {
                ((u32*)(column + at))[q % 4] = high;
                ((u32*)(column + 2 * groups + at))[q % 4] = low;
                const float one = most / 32639.0f + bad;
                if (q % 8 == 0)
                    column[4 * groups + group] =
                        u32x4{as_u32(one), as_u32(one), as_u32(rounded_product(one, half)),
                              as_u32(rounded_product(one, other))};
            }
        }
    }
    block_sync();
}

// Sums each value over the block; all threads get the sums.
template <u32 N> STEP void block_sums(float (&v)[N]) {
    if constexpr (N == 1) {
        v[0] = block_sum(v[0]);
    } else {
        LDS_ARRAY(float, part, N * kj_waves);
        UNROLL for (u32 n = 0; n < N; n++) {
            v[n] = wave_sum(v[n]);
            if (lane_id() == 0) part[n * kj_waves + wave_id()] = v[n];
        }
        block_sync();
        UNROLL for (u32 n = 0; n < N; n++) {
            v[n] = 0.0f;
            UNROLL for (u32 w = 0; w < kj_waves; w++) v[n] += part[n * kj_waves + w];
        }
        block_sync();  // all threads have read `part`
    }
}

// A segment of a step: the input of the code that all steps of one format share.
template <u32 COLUMNS> struct StreamSegment {
    const float *bias, *second, *residual;  // null: none
    float* y;                               // null: readers get the results as packets
    u32 rows, first, end;  // rows of the matrix; first and end row of this block
    // Values sent one by one: index of the first row, and length of a column.
    u32 values_at, values;
    u32 gate;               // 0 none, 1 silu, 2 gelu; a gate needs two matrices
    float factor[COLUMNS];  // one factor for all rows
};

// Products with rows of one format and length, for all steps with such rows. W: StreamFormat; COLS,
// SPLIT, FORM: as for a column. FULL: a slot has as many rows as fit; otherwise as many as its
// lanes process together.
template <class W, u32 COLS, u32 COLUMNS, bool PLAIN_X, bool SPLIT, class R, bool FULL = false>
struct StreamRows {
    using K = Ring<R>;
    using Segment = StreamSegment<COLUMNS>;
    static constexpr u32 MOST = 128;  // rows in a round
    static constexpr u32 TEAMS = kj_waves / R::SHARE;
    static constexpr u32 XGROUPS = COLS / 32, XUNITS = CEIL_DIV(COLS, W::UNIT),
                         HALVES = W::UNIT / 16;
    static constexpr u32 VECTORS = PLAIN_X ? XUNITS * (W::UNIT / 4) : 5 * XGROUPS;  // per column
    struct Shared { float sum[2][2][COLUMNS][R::SHARE][MOST]; };
    static constexpr u32 SUM_BYTES = COLUMNS * R::SHARE * MOST * 4;  // sums of one matrix
    static_assert((TEAMS & (TEAMS - 1)) == 0 && R::SLOTS % TEAMS == 0, "a slot has one team");

    // Division of rows: a wave has EACH units of a row, which LANES lanes process in DEEP
    // iterations. It processes SIDE · TIMES rows together: SIDE by different lanes, TIMES by the
    // same lanes. A slot has ROWS rows.
    STEP constexpr u32 power_of_two(u32 n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }
    static constexpr u32 EACH = CEIL_DIV(W::UNITS, R::SHARE);
    static constexpr u32 WIDE = EACH >= KJ_WAVE ? KJ_WAVE : power_of_two(EACH);
    // Half as many lanes, if otherwise more than a third of them would be idle in the last
    // iteration.
    static constexpr u32 LANES = WIDE > 8 && 3 * EACH <= 2 * CEIL_DIV(EACH, WIDE) * WIDE ? WIDE / 2
                                                                                         : WIDE;
    static constexpr u32 DEEP = CEIL_DIV(EACH, LANES), SIDE = KJ_WAVE / LANES;
    // If the length of a row is not a multiple of a line, rows begin at any multiple of 16 bytes.
    static constexpr bool ANYWHERE = W::ROW_BYTES % K::LINE != 0;
    static constexpr u32 FIT = (R::SLOT - (ANYWHERE ? K::LINE - 16 : 0)) / W::ROW_BYTES;
    STEP constexpr u32 least(u32 a, u32 b) { return a < b ? a : b; }
    static constexpr u32 TIMES = FIT < SIDE ? 1 : least(FIT / SIDE, least(4, LANES));
    static constexpr u32 SUMS = TIMES == 3 ? 4 : TIMES;  // a power of two
    // Rows that are processed together.
    static constexpr u32 BATCH = FIT < TIMES * SIDE ? FIT : TIMES * SIDE;
    static constexpr u32 ROWS = FULL ? least(FIT / BATCH * BATCH, MOST) : BATCH;
    // Units of a row whose loads are in flight together: eight over all rows and columns, if eight
    // divides the total.
    STEP constexpr u32 divisor(u32 n, u32 most) {
        return n % most == 0 ? most : divisor(n, most - 1);
    }
    static constexpr u32 TOGETHER = divisor(DEEP, COLUMNS * SUMS < 8 ? 8 / SUMS / COLUMNS : 1);
    // Slots whose loads are in flight together.
    static constexpr u32 ASKED = (R::AHEAD + ROWS * W::ROW_BYTES / 2) / (ROWS * W::ROW_BYTES);
    static constexpr u32 AHEAD = ASKED < 2 ? 2 : ASKED < R::SLOTS ? ASKED : R::SLOTS;
    static_assert(ROWS > 0 && ROWS <= MOST && LANES % SUMS == 0, "a slot has room for a row");
    static_assert(W::UNITS <= R::SHARE * EACH && EACH <= LANES * DEEP, "every unit has a lane");

    // Loads rows first … end − 1 of one matrix, or of two matrices in alternation, round by round.
    CALLED RingAt feed(const u8* w0, const u8* w1, u32 first, u32 end, typename K::Shared& ring,
                       u8* memory, RingAt at) {
        NO_UNROLL for (u32 r = first; r < end; r += MOST)
            NO_UNROLL for (u32 l = 0; l < (w1 ? 2 : 1); l++) {
                const u32 n = min_u32(MOST, end - r);
                const u8* from = (l ? w1 : w0) + (u64)r * W::ROW_BYTES;
                NO_UNROLL for (u32 q = 0; q < n; q += ROWS)
                    K::fill(ring, memory, at, from + (u64)q * W::ROW_BYTES,
                            min_u32(ROWS, n - q) * W::ROW_BYTES, AHEAD);
            }
        return at;
    }

    STEP i32 dot16(u32x4 codes, u32x4 x) {
        return dot4(codes.x, x.x, dot4(codes.y, x.y, dot4(codes.z, x.z, dot4(codes.w, x.w, 0))));
    }
    // The activations of a unit in registers.
    struct Activated {
        u32x4 high[HALVES], low[HALVES];
        float scale[HALVES], sum[HALVES];
    };
    STEP void load_activated(Activated& v, const u32x4* x, u32 u, bool inside) {
        const u32 group = HALVES == 2 ? u : u / 2;
        const u32x4 last = x[4 * XGROUPS + group];
        UNROLL for (u32 i = 0; i < HALVES; i++) {
            const u32 vector = HALVES == 2 ? i : u % 2;
            const u32 place = SPLIT ? vector * XGROUPS + group : 2 * group + vector;
            v.high[i] = x[place], v.low[i] = x[2 * XGROUPS + place];
            v.scale[i] = inside ? as_f32(vector ? last.y : last.x) : 0.0f;
            v.sum[i] = inside ? as_f32(vector ? last.w : last.z) : 0.0f;
        }
    }
    STEP void dot_codes(float& acc, const u32 (&codes)[W::UNIT / 4], const Factors& f,
                        const Activated& v) {
        constexpr bool sixteens = SIXTEENS<W>, offset = W::OFFSET != Offset::None;
        float dot[HALVES];
        UNROLL for (u32 i = 0; i < HALVES; i++) {
            const u32x4 c{codes[4 * i], codes[4 * i + 1], codes[4 * i + 2], codes[4 * i + 3]};
            dot[i] = rounded_product(v.scale[i], dot16(c, v.high[i]) * 256 + dot16(c, v.low[i]));
        }
        if constexpr (HALVES == 1) {
            acc = fma_f32(f.scale[0], dot[0], acc);
        } else if constexpr (sixteens) {
            UNROLL for (u32 i = 0; i < HALVES; i++) {
                // Not multiplied by 0, because the value may be NaN.
                if constexpr (W::BIAS != 0) dot[i] = fma_f32(-(float)W::BIAS, v.sum[i], dot[i]);
                acc = fma_f32(f.scale[i], dot[i], acc);
                if constexpr (offset) acc = fma_f32(f.offset[i], v.sum[i], acc);
            }
        } else {
            const float all = v.sum[0] + v.sum[1];
            float both = dot[0] + dot[1];
            if constexpr (W::BIAS != 0) both = fma_f32(-(float)W::BIAS, all, both);
            acc = fma_f32(f.scale[0], both, acc);
            if constexpr (offset) acc = fma_f32(f.offset[0], all, acc);
        }
    }
    // Adds the products of unit u of TIMES rows (distance `apart` bytes) with its activations. If
    // `inside` is false it adds nothing.
    STEP void dot_unit(const u8* row, u32 apart, u32 u, bool inside, const u32x4* x,
                       float (&acc)[COLUMNS][SUMS]) {
        const UnitPlace at = place_of<W>(u);
        if constexpr (PLAIN_X) {
            float v[COLUMNS][W::UNIT];
            UNROLL for (u32 c = 0; c < COLUMNS; c++)
                UNROLL for (u32 i = 0; i < W::UNIT / 4; i++) {
                    const u32x4 q = x[c * VECTORS + i * XUNITS + u];
                    v[c][4 * i] = inside ? as_f32(q.x) : 0.0f,
                             v[c][4 * i + 1] = inside ? as_f32(q.y) : 0.0f;
                    v[c][4 * i + 2] = inside ? as_f32(q.z) : 0.0f;
                    v[c][4 * i + 3] = inside ? as_f32(q.w) : 0.0f;
                }
            UNROLL for (u32 t = 0; t < TIMES; t++) {
                float w[W::UNIT];
                unit_values<W>(kept_unit<W>(row + t * apart, at), w);
                UNROLL for (u32 c = 0; c < COLUMNS; c++)
                    UNROLL for (u32 i = 0; i < W::UNIT; i++)
                        acc[c][t] = fma_f32(w[i], v[c][i], acc[c][t]);
            }
        } else {
            Activated v[COLUMNS];
            UNROLL for (u32 c = 0; c < COLUMNS; c++)
                load_activated(v[c], x + c * VECTORS, u, inside);
            UNROLL for (u32 t = 0; t < TIMES; t++) {
                const Unit<W> b = kept_unit<W>(row + t * apart, at);
                u32 codes[W::UNIT / 4];
                unit_codes<W>(b, codes);
                const Factors f = unit_factors<W>(b);
                UNROLL for (u32 c = 0; c < COLUMNS; c++) dot_codes(acc[c][t], codes, f, v[c]);
            }
        }
    }

    // Multiplies the first n rows at `rows`. Stores their sums, or this wave's partial sums, in
    // `sums`; column c starts at SHARE · MOST · c. Rows after the n-th have old contents of the
    // slot; their results are not used.
    STEP void take_slot(const u8* rows, u32 n, const u32x4* x, float* sums) {
        if constexpr (FULL) {
            NO_UNROLL for (u32 q = 0; q < n; q += BATCH)
                take_batch(rows + q * W::ROW_BYTES, min_u32(BATCH, n - q), x, sums + q);
        } else {
            take_batch(rows, n, x, sums);
        }
    }
    STEP void take_batch(const u8* rows, u32 n, const u32x4* x, float* sums) {
        float acc[COLUMNS][SUMS] = {};
        const u32 side = lane_id() / LANES, member = R::SHARE == 1 ? 0 : wave_id() % R::SHARE;
        // The last row must not be beyond the slot: shared memory may end there.
        const u8* row = rows + (BATCH < SIDE ? min_u32(side, BATCH - 1) : side) * W::ROW_BYTES;
        NO_UNROLL for (u32 d = 0; d < DEEP; d += TOGETHER) {
            UNROLL for (u32 i = 0; i < TOGETHER; i++) {
                const u32 local = (d + i) * LANES + lane_id() % LANES, u = member * EACH + local;
                const bool inside = (EACH == LANES * DEEP || local < EACH) &&
                                    (W::UNITS == R::SHARE * EACH || u < W::UNITS);
                dot_unit(row, SIDE * W::ROW_BYTES, inside ? u : 0, inside, x, acc);
            }
        }
        constexpr u32 each = LANES / SUMS;
        const u32 which = lane_id() % LANES / each * SIDE + side;
        UNROLL for (u32 c = 0; c < COLUMNS; c++) {
            const float sum = add_up(acc[c]);
            if (lane_id() % each == 0 && which < n) sums[c * (R::SHARE * MOST) + which] = sum;
        }
    }
    // Sums over the lanes of a row: lane l gets sum number (l % LANES) / (LANES / SUMS).
    STEP float add_up(float (&acc)[SUMS]) {
        UNROLL for (u32 m = LANES / 2, k = SUMS; m > 0; m /= 2) {
            if (k > 1) {
                k /= 2;
                const bool up = lane_id() & m;
                UNROLL for (u32 i = 0; i < SUMS / 2; i++)
                    if (i < k) {
                        float keep = up ? acc[i + k] : acc[i], give = up ? acc[i] : acc[i + k];
                        acc[i] = keep + wave_xor(give, m);
                    }
            } else {
                acc[0] += wave_xor(acc[0], m);
            }
        }
        return acc[0];
    }

    // Offset of the row in its slot. Matrices begin at whole lines.
    STEP u32 off(u32 row) { return ANYWHERE ? row * W::ROW_BYTES % K::LINE : 0; }

    // Calls `take(index, place)` for each of the next `all` slots that belongs to this wave's team.
    template <class Take> STEP RingAt walk(u32 barriers, u32 slots, u32 all, RingAt at, Take take) {
        RingAt mine = at;
        const u32 turn = (wave_id() / R::SHARE - at.slot) % TEAMS;
        K::skip(mine, turn);
        NO_UNROLL for (u32 i = turn; i < all; i += TEAMS) {
            take(i, K::wait(barriers, slots, mine));
            K::release(barriers, mine);
            K::skip(mine, TEAMS);
        }
        K::skip_all(at, all);
        return at;
    }

    CALLED RingAt take(Segment s, const u64* instruction, const u32x4* x, typename K::Shared& ring,
                       const u8* memory, RingAt at, Shared& lds) {
        // Number of results of a round that a thread completes.
        constexpr u32 ALL = COLUMNS * MOST, EACH_ENDS = CEIL_DIV(ALL, KJ_BLOCK);
        // If a thread waited for one sum before it sends its next row, devices could deadlock
        // (sums.h).
        static_assert(KJ_RANKS == 1 || EACH_ENDS == 1,
                      "a thread sends what it ends before it waits");
        const Links links = links_of(instruction);
        const u32 barriers = kept_place(&ring), slots = kept_place(memory);
        const u32 sums = kept_place(lds.sum) + wave_id() % R::SHARE * MOST * 4;
        const u32 lists = s.gate ? 2 : 1;
        NO_UNROLL for (u32 r = s.first; r < s.end; r += MOST) {
            const u32 n = min_u32(MOST, s.end - r);
            float add[EACH_ENDS], first[EACH_ENDS], second[EACH_ENDS], weight[EACH_ENDS];
            // These loads overlap the multiplication.
            UNROLL for (u32 k = 0; k < EACH_ENDS; k++) {
                const u32 e = thread_id() + k * KJ_BLOCK, row = r + e % MOST;
                const bool ends = e < ALL && e % MOST < n;
                add[k] = ends && s.residual ? s.residual[e / MOST * s.rows + row] : 0.0f;
                first[k] = ends && s.bias ? s.bias[row] : 0.0f;
                second[k] = ends && s.second ? s.second[row] : 0.0f;
                weight[k] = ends && links.weigh ? links.weigh[row] : 1.0f;
            }
            const u32 each = (n + ROWS - 1) / ROWS;  // slots of a matrix in the round
            at = walk(barriers, slots, lists * each, at, [&](u32 i, u32 slot) {
                const u32 l = i >= each ? 1 : 0, q = (l ? i - each : i) * ROWS;
                take_slot(at_place<const u8>(slot + off(r + q)), min_u32(ROWS, n - q), x,
                          at_place<float>(sums + (at.buffer * 2 + l) * SUM_BYTES) + q);
            });
            block_sync();
            UNROLL for (u32 k = 0; k < EACH_ENDS; k++) {
                const u32 e = thread_id() + k * KJ_BLOCK, column = COLUMNS == 1 ? 0 : e / MOST,
                          o = e % MOST;
                if (e >= ALL) break;
                float v = 0.0f;
                if (o < n) {
                    float factor = s.factor[0];
                    UNROLL for (u32 c = 1; c < COLUMNS; c++)
                        factor = column == c ? s.factor[c] : factor;
                    UNROLL for (u32 w = 0; w < R::SHARE; w++)
                        v += lds.sum[at.buffer][0][column][w][o];
                    v = fma_f32(v, factor, first[k]);
                    if (lists == 2) {
                        float up = 0.0f;
                        UNROLL for (u32 w = 0; w < R::SHARE; w++)
                            up += lds.sum[at.buffer][1][column][w][o];
                        v = (s.gate == 1 ? silu(v) : gelu(v)) * fma_f32(up, factor, second[k]);
                    }
                    if constexpr (KJ_RANKS > 1)
                        if (links.sum) v = Sums::sum(links.sum - 1, column * s.rows + r + o, v);
                    v += add[k];
                    if (links.values)
                        Packets::give_value(links.values, links.epoch,
                                            column * s.values + s.values_at + r + o, v);
                    if (s.y) s.y[column * s.rows + r + o] = v;
                }
                if (links.out)
                    Packets::give(links, COLUMNS * s.rows / Packets::GROUP,
                                  (column * s.rows + r + o) / Packets::GROUP, o < n, v, weight[k]);
            }
            at.buffer ^= 1;
        }
        return at;
    }
};

template <class S, class R> struct Stream {
    using X = Activations<S>;
    using K = Ring<R>;
    static constexpr u32 LISTS = S::GATE != Gate::None ? 2 : 1,
                         SEGMENTS = LISTS == 2 ? 1 : S::SEGMENTS;
    static constexpr u32 COLUMNS = S::COLUMNS;
    // The format of segment I, and the code for it.
    template <u32 I>
    using Format = typename StreamPick<
        (I >= S::RUN_2), typename S::Run2,
        typename StreamPick<(I >= S::RUN_1), typename S::Run1, typename S::Run0>::type>::type;
    template <u32 I>
    using Rows = StreamRows<StreamFormatOf<Format<I>>, S::COLS, COLUMNS, X::PLAIN, S::X_SPLIT, R>;
    using Segment = StreamSegment<COLUMNS>;
    using Shared = typename Rows<0>::Shared;
    template <u32 I> static constexpr u32 ALL = I == 0 ? S::ROWS_0 : I == 1 ? S::ROWS_1 : S::ROWS_2;

    // This block's rows of a segment, contiguous. If results are sent as packets, they are whole
    // groups. Otherwise all blocks have nearly equal shares of the bytes of all segments, so most
    // blocks have rows of one segment. Divisions have 32 bits: the hardware has no 64-bit division,
    // and two of them took 0.25 µs per segment.
    struct Dealt { u32 first, end; };
    template <u32 I> STEP constexpr u32 rows_before() {
        if constexpr (I == 0) return 0;
        else return rows_before<I - 1>() + ALL<I - 1>;
    }
    // 16-byte units of a row
    template <u32 I> static constexpr u32 WEIGHT = StreamFormatOf<Format<I>>::ROW_BYTES / 16;
    template <u32 I> STEP constexpr u32 before() {
        if constexpr (I == 0) return 0;
        else return before<I - 1>() + ALL<I - 1> * WEIGHT<I - 1>;
    }
    STEP u32 start_of(u32 all, u32 block, u32 blocks) {
        const u32 some = all / blocks, more = all - some * blocks;
        return some * block + min_u32(block, more);
    }
    template <u32 I> STEP u32 row_at(u32 place) {
        constexpr u32 from = before<I>();
        const u32 into = place > from ? place - from : 0;
        return min_u32(ALL<I>, (into + WEIGHT<I> / 2) / WEIGHT<I>);
    }
    template <u32 I> STEP Dealt dealt(u32 block, u32 blocks, bool handed) {
        if constexpr (SEGMENTS == 1) {
            const u32 each = handed ? Packets::GROUP : 1, all = ALL<I> / each;
            return Dealt{start_of(all, block, blocks) * each,
                         start_of(all, block + 1, blocks) * each};
        } else {
            constexpr u32 all = before<SEGMENTS>();
            return Dealt{row_at<I>(start_of(all, block, blocks)),
                         row_at<I>(start_of(all, block + 1, blocks))};
        }
    }

    // ---------------------------------------------------------------------------- the loading warp
    template <u32 I>
    STEP void feed_segment(const u8* w0, const u8* w1, u32 block, u32 blocks, bool handed,
                           typename K::Shared& ring, u8* memory, RingAt& at) {
        const Dealt d = dealt<I>(block, blocks, handed);
        at = Rows<I>::feed(w0, w1, d.first, d.end, ring, memory, at);
    }
    STEP void feed(const MatvecArgs& a, u32 block, u32 blocks, bool handed,
                   typename K::Shared& ring, u8* memory, RingAt& at) {
        feed_segment<0>(a.w0, LISTS == 2 ? a.w1 : nullptr, block, blocks, handed, ring, memory, at);
        if constexpr (SEGMENTS > 1)
            feed_segment<1>(a.w1, nullptr, block, blocks, handed, ring, memory, at);
        if constexpr (SEGMENTS > 2)
            feed_segment<2>(a.w2, nullptr, block, blocks, handed, ring, memory, at);
    }

    // ----------------------------------------------------------------------------------- the waves
    template <u32 I>
    STEP void take_segment(const MatvecArgs& a, float* y, const float* bias, u32 block, u32 blocks,
                           const Links& links, const float (&factor)[COLUMNS], const u32x4* x,
                           typename K::Shared& ring, const u8* memory, RingAt& at, Shared& lds) {
        constexpr u32 gate = S::GATE == Gate::None ? 0 : S::GATE == Gate::Silu ? 1 : 2;
        const Dealt d = dealt<I>(block, blocks, links.out != nullptr);
        Segment s{S::BIASES >> I & 1 ? bias : nullptr,
                  LISTS == 2 && (S::BIASES & 2) ? a.b1 : nullptr,
                  S::RESIDUAL ? a.residual : nullptr,
                  y,
                  ALL<I>,
                  d.first,
                  d.end,
                  rows_before<I>(),
                  rows_before<SEGMENTS>(),
                  gate};
        UNROLL for (u32 c = 0; c < COLUMNS; c++) s.factor[c] = factor[c];
        at = Rows<I>::take(s, links.instruction, x, ring, memory, at,
                           (typename Rows<I>::Shared&)lds);
    }

    // Computes the factor of the results from the threads' sums of squares.
    STEP void factors_of(float (&factor)[COLUMNS], float eps) {
        block_sums(factor);
        UNROLL for (u32 c = 0; c < COLUMNS; c++)
            factor[c] = rsqrt_f32(factor[c] / (float)S::COLS + eps);
    }

    // Makes columns whose values do not arrive as packets. `factor`: factor of the results, if it
    // is not 1.
    STEP void plain_columns(const MatvecArgs& a, const Links& links, u32x4* columns,
                            float (&factor)[COLUMNS]) {
        if constexpr (S::COLS % S::X_UNIT == 0 && !X::GATED) {
            if (links.in != nullptr) {
                constexpr u32 each = CEIL_DIV(S::COLS / 4, KJ_BLOCK), few = each < 2 ? each : 2;
                UNROLL for (u32 c = 0; c < COLUMNS; c++) {
                    const float squares = Packets::take_plain<S::COLS, S::X_UNIT, few>(
                        links.in + c * Packets::values_bytes(S::COLS), links.epoch,
                        X::NORMED ? a.aux : nullptr, columns + c * X::VECTORS);
                    if constexpr (X::NORMED) factor[c] = squares;
                }
                if constexpr (X::NORMED) factors_of(factor, a.eps);
                else block_sync();
                return;
            }
        }
        typename X::Norm norm;
        X::load_norm(norm, a.aux);
        Meeting::wait();
        X::template make<COLUMNS>(a.x, a.aux, norm, a.eps, columns);
        block_sync();
    }

    // `pool`: shared memory of all columns.
    STEP void step(MatvecArgs a, u32 block, u32 blocks, const Links& links,
                   typename K::Shared& ring, const u8* memory, RingAt& at, u8* pool, Shared& lds) {
        u32x4* x = (u32x4*)pool;
        float factor[COLUMNS];
        UNROLL for (u32 c = 0; c < COLUMNS; c++) factor[c] = 1.0f;
        if constexpr (X::PLAIN) {
            plain_columns(a, links, x, factor);
        } else {
            constexpr u32 first = X::NORMED                       ? 1
                                  : S::PROLOGUE == Prologue::Silu ? 2
                                  : S::PROLOGUE == Prologue::Gelu ? 3
                                                                  : 0;
            if (links.in == nullptr) {
                NO_UNROLL for (u32 c = 0; c < COLUMNS; c++) {
                    const float* aux = X::GATED ? a.aux + c * S::COLS : a.aux;
                    stream_quantise<S::X_SPLIT>(
                        StreamColumn{a.x + c * S::COLS, aux, a.eps, S::COLS, first},
                        x + c * X::VECTORS);
                }
            } else {
                // A thread polls up to four groups together (8b Q4_K_M: 642 tokens/s; with two
                // 631).
                constexpr u32 groups = COLUMNS * S::COLS / Packets::GROUP,
                              each = CEIL_DIV(groups, KJ_BLOCK);
                constexpr u32 few = each < 3 ? each : 4;
                const Squares<COLUMNS> squares = Packets::take<S::X_SPLIT, few, COLUMNS, COLUMNS>(
                    links.in, groups, links.epoch, X::NORMED, x);
                if constexpr (X::NORMED) {
                    UNROLL for (u32 c = 0; c < COLUMNS; c++) factor[c] = squares.of[c];
                    factors_of(factor, a.eps);
                } else {
                    block_sync();
                }
            }
        }
        Meeting::stamp(1);
        take_segment<0>(a, a.y0, a.b0, block, blocks, links, factor, x, ring, memory, at, lds);
        if constexpr (SEGMENTS > 1)
            take_segment<1>(a, a.y1, a.b1, block, blocks, links, factor, x, ring, memory, at, lds);
        if constexpr (SEGMENTS > 2)
            take_segment<2>(a, a.y2, a.b2, block, blocks, links, factor, x, ring, memory, at, lds);
    }
};
