// draw: a token drawn from each sequence's logits; and the sequence moves on by one.
//
//   logits    SEQUENCES × VOCAB f32; slots  SEQUENCES u32: the place of each (null: the same)
//   tokens    PLACES × capacity u32: position p + 1 gets the token; position  PLACES u32: +1
//   fractions PLACES × capacity f32 in [0, 1): the random number of the draw at each position, made by the host's generator
//   options   PLACES × (top_k u32, temperature, top_p, min_p f32), or null: the arguments hold for all
//
// The host's definition (model/src/sample.rs) in fixed point: top-k, then temperature, top-p, min-p, and a draw in the order of ids. A weight
// exp((logit − largest) / temperature) is an integer of 40 fractional bits, so sums do not depend on their order and the same seed gives
// the same token. One block a sequence. The logits are read from L2 once for each step: the extremes, where top-k cuts, where top-p
// cuts, the sums of parts of the vocabulary; then only the part that has the token.
//
// Constants: VOCAB.
#include "sample.h"

constexpr u32 BINS = 2048;
static_assert(kj_waves > 1 && kj_waves <= KJ_WAVE, "parts grow smaller, and a wave holds their sums");

struct Draw {
    u64 weights[BINS];
    u32 counts[BINS];
    u64 sums[kj_waves], last[KJ_WAVE];
};

// The logits of one sequence. Tokens farther than `span` below the largest weigh nothing; `scale` spreads the bins over what does.
struct Row {
    const float* x;
    float largest, inverse, scale;
    u32 key;  // of the largest
};

STEP u64 weight_of(const Row& row, float v) { return (u64)(exp_f32((v - row.largest) * row.inverse) * 1099511627776.0f); }
STEP float distance(const Row& row, float v) { return (row.largest - v) * row.scale; }
STEP float of_order(u32 key) { return as_f32(key & 0x80000000u ? key & 0x7fffffffu : ~key); }  // the logit with these order_bits

// The lowest key whose distance is below `limit`: distances fall as keys rise.
STEP u32 first_nearer(const Row& row, float limit) {
    u32 low = 0x007fffffu, high = row.key;  // −∞, and the largest, whose distance is 0
    NO_UNROLL while (low < high) {
        u32 middle = low + (high - low) / 2;
        if (distance(row, of_order(middle)) < limit) high = middle;
        else low = middle + 1;
    }
    return high;
}

// f(id, logit) for the ids from `from` up to `to`, by threads of which this is number `t`. Both ends are multiples of 4 where VOCAB is.
// Two loads of 16 bytes are on their way together: with 1024 threads as many as one unit's share of L2 wants. Four single ones: with eight
// ptxas spilled.
template <class F> STEP void each(const float* x, u32 from, u32 to, u32 t, u32 threads, F f) {
    constexpr u32 WIDE = VOCAB % 4 == 0 ? 4 : 1, AHEAD = WIDE == 4 ? 2 : 4;
    NO_UNROLL for (u32 base = from + t * WIDE; base < to; base += AHEAD * WIDE * threads) {
        float v[AHEAD][WIDE];
        UNROLL for (u32 a = 0; a < AHEAD; a++) {
            u32 i = base + a * WIDE * threads;
            if (i >= to) continue;
            if constexpr (WIDE == 4) {
                u32x4 four = load16(x + i);
                v[a][0] = as_f32(four.x), v[a][1] = as_f32(four.y), v[a][2] = as_f32(four.z), v[a][3] = as_f32(four.w);
            } else {
                v[a][0] = x[i];
            }
        }
        UNROLL for (u32 a = 0; a < AHEAD; a++) {
            u32 i = base + a * WIDE * threads;
            if (i >= to) continue;
            UNROLL for (u32 j = 0; j < WIDE; j++) f(i + j, v[a][j]);
        }
    }
}

STEP u64 wave_total(u64 v) {
    UNROLL for (u32 m = KJ_WAVE / 2; m > 0; m /= 2) v += wave_xor(v, m);
    return v;
}

// The first lane whose running sum exceeds `rest` (the total does), and what of it is left for that lane.
STEP u32 find_lane(u64 v, u64& rest) {
    auto from = [](u64 all, u32 lane) { return (u64)wave_get((u32)(all >> 32), lane) << 32 | wave_get((u32)all, lane); };
    UNROLL for (u32 d = 1; d < KJ_WAVE; d *= 2) {
        u64 below = from(v, lane_id() >= d ? lane_id() - d : 0);
        v += lane_id() >= d ? below : 0;
    }
    u32 lane = count_bits(wave_ballot(v <= rest));
    u64 before = from(v, lane > 0 ? lane - 1 : 0);
    rest -= lane > 0 ? before : 0;
    return lane;
}

// The first of `n` whose running sum exceeds a goal, and what of the goal is left for it; `n` where the total does not.
struct Found { u32 index; u64 rest; };

// `sum(a, b)` is this lane's share of those from a up to b, `one(i)` a single one, `goal(total)` the goal. Each wave sums a part; the part
// with the goal is divided again until a wave has one each.
template <class Sum, class One, class Goal> STEP Found find(Draw& lds, u32 n, Sum sum, One one, Goal goal) {
    u32 from = 0, size = n;
    u64 rest = 0;
    bool first = true;
    NO_UNROLL while (first || size > KJ_WAVE) {
        u32 part = CEIL_DIV(CEIL_DIV(size, kj_waves), KJ_WAVE) * KJ_WAVE;
        u32 a = from + min_u32(wave_id() * part, size), b = min_u32(a + part, from + size);
        u64 mine = wave_total(sum(a, b));
        if (lane_id() == 0) lds.sums[wave_id()] = mine;
        block_sync();
        if (first) {
            u64 total = 0;
            UNROLL for (u32 w = 0; w < kj_waves; w++) total += lds.sums[w];
            rest = goal(total);
            if (rest >= total) {
                block_sync();
                return Found{n, rest - total};
            }
        }
        u32 w = find_lane(lane_id() < kj_waves ? lds.sums[lane_id()] : 0, rest);
        from += w * part;
        size = min_u32(part, size - w * part);
        first = false;
        block_sync();
    }
    if (thread_id() < size) lds.last[thread_id()] = one(from + thread_id());
    block_sync();
    u32 i = find_lane(lane_id() < size ? lds.last[lane_id()] : 0, rest);
    block_sync();
    return Found{from + i, rest};
}

// The same over tokens; `measure(id, logit)`.
template <class Measure, class Goal> STEP Found find_token(Draw& lds, const Row& row, Measure measure, Goal goal) {
    auto sum = [&](u32 a, u32 b) {
        u64 s = 0;
        each(row.x, a, b, lane_id(), KJ_WAVE, [&](u32 i, float v) { s += measure(i, v); });
        return s;
    };
    return find(lds, VOCAB, sum, [&](u32 i) { return measure(i, row.x[i]); }, goal);
}

// The tokens that are kept: those with a key above `key`, and of those with that key the ones before id `until`.
struct Kept { u32 key, until; };
STEP bool is_kept(const Kept& k, u32 key, u32 id) { return key > k.key || (key == k.key && id < k.until); }

// Keeps the likeliest of those kept until they are `top_k`, or (weighted) until their weights reach `top_p` of all. The bins are at first
// in proportion to the distance from the largest: a few tokens each, where a float's leading bits would have put thousands into one and
// made its counter a queue (1.9 ms for 128,256 tokens on an H200, more than a whole 8b step). A bin that is cut through is looked at by
// key, and equals by id.
STEP Kept cut(Draw& lds, const Row& row, const Kept& kept, bool weighted, u32 top_k, float top_p) {
    u64 want = top_k;
    u32 low = 0, high = 0, shift = 32;  // 32: by distance; else bins of 2^shift keys from `high` down to `low`
    bool whole = false;
    NO_UNROLL do {
        for (u32 b = thread_id(); b < BINS; b += KJ_BLOCK) lds.weights[b] = 0, lds.counts[b] = 0;
        block_sync();
        each(row.x, 0, VOCAB, thread_id(), KJ_BLOCK, [&](u32 i, float v) {
            u32 key = order_bits(v);
            if (!is_kept(kept, key, i)) return;
            float far = distance(row, v);
            u32 bin = shift == 32 ? (far < (float)BINS ? (u32)far : BINS) : key >= low && key <= high ? (high - key) >> shift : BINS;
            if (bin >= BINS) return;
            lds_add(&lds.counts[bin], 1);
            u64 w = weighted ? weight_of(row, v) : 0;
            if (w > 0) lds_add(&lds.weights[bin], w);
        });
        block_sync();
        auto measure = [&](u32 b) { return weighted ? lds.weights[b] : (u64)lds.counts[b]; };
        auto sum = [&](u32 a, u32 b) {
            u64 s = 0;
            for (u32 i = a + lane_id(); i < b; i += KJ_WAVE) s += measure(i);
            return s;
        };
        Found bin = find(lds, BINS, sum, measure, [&](u64 total) {
            if (weighted && shift == 32) want = (u64)((double)total * (double)top_p);
            return want > 1 ? want - 1 : 0;
        });
        if (bin.index >= BINS) return kept;  // there are no more than that
        want = bin.rest + 1;                 // of this bin
        whole = lds.counts[bin.index] == 1 || want == measure(bin.index);
        if (shift == 32) {
            low = first_nearer(row, (float)(bin.index + 1));
            high = bin.index > 0 ? first_nearer(row, (float)bin.index) - 1 : row.key;
        } else {
            high -= bin.index << shift;
            low = max_u32(low, high - min_u32(high, (1u << shift) - 1));
        }
        shift = 0;
        NO_UNROLL while ((high - low) >> shift >= BINS) shift++;
        block_sync();  // before the bins are emptied
    } while (!whole && low < high);
    if (whole) return low <= kept.key ? kept : Kept{low, VOCAB};
    u64 each_has = weighted ? weight_of(row, of_order(low)) : 1;
    u64 wanted = each_has > 1 ? CEIL_DIV(want, each_has) : want;
    auto equal = [&](u32 i, float v) { return (u64)(order_bits(v) == low && is_kept(kept, low, i)); };
    return Kept{low, find_token(lds, row, equal, [&](u64) { return wanted - 1; }).index + 1};
}

KERNEL draw(const float* logits, const float* fractions, const u32x4* options, const u32* slots, u32* tokens, u32* position, u32 capacity,
            u32 top_k, float temperature, float top_p, float min_p) {
    LDS_ARRAY(Draw, all, 1);
    Draw& lds = all[0];
    launch_dependents();
    wait_for_producer();
    u32 place = place_of(slots, block_id()), t = thread_id();
    if (options) {
        u32x4 own = options[place];
        top_k = own.x, temperature = as_f32(own.y), top_p = as_f32(own.z), min_p = as_f32(own.w);
    }
    float fraction = fractions[(u64)place * capacity + min_u32(position[place], capacity - 1)];  // before the thread that finds the token moves on
    const float* x = logits + (u64)block_id() * VOCAB;
    u64 best = 0, least = 0;
    each(x, 0, VOCAB, t, KJ_BLOCK, [&](u32 i, float v) {
        u32 key = order_bits(v);
        u64 high = (u64)key << 32 | (0xffffffffu - i), low = key != 0 ? ~key : 0;
        best = high > best ? high : best;
        least = low > least ? low : least;
    });
    best = block_largest(best);
    least = block_largest(least);
    u32 likeliest = best >> 32 ? 0xffffffffu - (u32)best : 0;
    float largest = x[likeliest];
    if (top_k == 1 || !(abs_f32(largest) < as_f32(0x7f800000u))) {  // greedy, infinite, or nothing is a number
        if (t == 0) move_on(tokens, position, place, capacity, likeliest);
        return;
    }
    // exp(−28) is below 2^−40: no weight.
    float span = min_f32(largest - of_order(~(u32)least), 28.0f * temperature);
    float scale = (float)(BINS - 1) / max_f32(span, 1e-30f);
    float inverse = max_f32(min_f32(1.0f / temperature, 1e37f), 1.2e-38f);  // neither infinite nor 0: no weight is NaN
    Row row{x, largest, inverse, scale, (u32)(best >> 32)};
    Kept kept{0, 0};  // all that are numbers
    NO_UNROLL for (u32 weighted = 0; weighted < 2; weighted++) {
        bool cuts = weighted ? top_p < 1.0f : top_k > 0 && top_k < VOCAB;
        if (cuts) kept = cut(lds, row, kept, weighted, top_k, top_p);
    }
    u64 enough = (u64)(min_p * 1099511627776.0f);
    auto weight = [&](u32 i, float v) {
        u64 w = is_kept(kept, order_bits(v), i) ? weight_of(row, v) : 0;
        return w >= enough ? w : 0;
    };
    u32 token = find_token(lds, row, weight, [&](u64 total) { return (u64)((double)total * (double)fraction); }).index;
    if (t == 0) move_on(tokens, position, place, capacity, token < VOCAB ? token : likeliest);
}
