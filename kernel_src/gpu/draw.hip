// draw: a token drawn from each sequence's logits; and the sequence moves on by one.
//
//   logits    SEQUENCES × VOCAB f32; slots  SEQUENCES u32: the place of each (null: the same)
//   tokens    PLACES × capacity u32: position p + 1 gets the token; position  PLACES u32: +1
//   fractions PLACES × capacity f32 in [0, 1): the random number of the draw at each position, made by the host's generator
//   options   PLACES × (top_k u32, temperature, top_p, min_p f32), or null: the arguments hold for all
//
// The host's definition (model/src/sample.rs) in fixed point: top-k, then temperature, top-p, min-p, and a draw in the order of ids. A weight
// exp((logit − largest) / temperature) is an integer of 40 fractional bits, so sums do not depend on their order and the same seed gives
// the same token. One block a sequence, a thread a contiguous part of the vocabulary where order matters.
//
// Constants: VOCAB.
#include "sample.h"

constexpr u32 EACH = CEIL_DIV(VOCAB, KJ_BLOCK);  // of a thread's part

struct Draw {
    u64 bins[256];
    u64 sums[KJ_BLOCK];
    u32 prefix, chosen;
    u64 left;
};

STEP u64 weight_of(float x, float largest, float inverse) { return (u64)(exp_f32((x - largest) * inverse) * 1099511627776.0f); }

// Exclusive sum over the threads, in their order; the total in `total`.
STEP u64 block_scan(Draw& lds, u64 v, u64& total) {
    u32 t = thread_id();
    lds.sums[t] = v;
    block_sync();
    NO_UNROLL for (u32 d = 1; d < KJ_BLOCK; d *= 2) {
        u64 add = t >= d ? lds.sums[t - d] : 0;
        block_sync();
        lds.sums[t] += add;
        block_sync();
    }
    total = lds.sums[KJ_BLOCK - 1];
    u64 before = t > 0 ? lds.sums[t - 1] : 0;
    block_sync();
    return before;
}

// The tokens that are kept: those with a key above `key`, and of those with that key the ones before id `until`.
struct Kept { u32 key, until; };
STEP bool is_kept(const Kept& k, u32 key, u32 id) { return key > k.key || (key == k.key && id < k.until); }

// Keeps the likeliest of those kept until their measures (1, or the weight) reach `want`: finds the key by its bytes, high ones first,
// then the id among equals.
STEP Kept keep_until(Draw& lds, const float* x, const Kept& kept, bool weighted, u64 want, float largest, float inverse) {
    u32 t = thread_id(), prefix = 0;
    u64 left = want;
    NO_UNROLL for (u32 shift = 32; shift > 0;) {
        shift -= 8;
        for (u32 b = t; b < 256; b += KJ_BLOCK) lds.bins[b] = 0;
        block_sync();
        for (u32 i = t; i < VOCAB; i += KJ_BLOCK) {
            u32 key = order_bits(x[i]);
            bool same = shift == 24 || key >> (shift + 8) == prefix >> (shift + 8);
            if (same && key != 0 && is_kept(kept, key, i)) lds_add(&lds.bins[key >> shift & 255], weighted ? weight_of(x[i], largest, inverse) : 1);
        }
        block_sync();
        if (t == 0) {
            u32 b = 255;
            while (b > 0 && lds.bins[b] < left) left -= lds.bins[b], b--;
            lds.prefix = prefix | b << shift;
            lds.left = left;
        }
        block_sync();
        prefix = lds.prefix;
        left = lds.left;
    }
    // Of those with exactly this key, in the order of ids, as many as are still wanted.
    u32 from = min_u32(t * EACH, VOCAB), to = min_u32(from + EACH, VOCAB);
    u64 mine = 0, total;
    for (u32 i = from; i < to; i++)
        if (order_bits(x[i]) == prefix && is_kept(kept, prefix, i)) mine += weighted ? weight_of(x[i], largest, inverse) : 1;
    u64 before = block_scan(lds, mine, total);
    if (t == 0) lds.chosen = VOCAB;
    block_sync();
    if (before < left && left <= before + mine) {
        u32 i = from;
        for (; i < to && before < left; i++)
            if (order_bits(x[i]) == prefix && is_kept(kept, prefix, i)) before += weighted ? weight_of(x[i], largest, inverse) : 1;
        lds.chosen = i;
    }
    block_sync();
    Kept r{prefix, lds.chosen};
    block_sync();
    return r;
}

KERNEL draw(const float* logits, const float* fractions, const u32x4* options, const u32* slots, u32* tokens, u32* position, u32 capacity,
            u32 top_k, float temperature, float top_p, float min_p) {
    LDS_ARRAY(Draw, all, 1);
    Draw& lds = all[0];
    launch_dependents();
    wait_for_producer();
    u32 place = place_of(slots, block_id()), t = thread_id();
    const float* x = logits + (u64)block_id() * VOCAB;
    if (options) {
        u32x4 own = options[place];
        top_k = own.x, temperature = as_f32(own.y), top_p = as_f32(own.z), min_p = as_f32(own.w);
    }
    float fraction = fractions[(u64)place * capacity + min_u32(position[place], capacity - 1)];  // before the thread that finds the token moves on
    u64 best = 0;
    for (u32 i = t; i < VOCAB; i += KJ_BLOCK) {
        u64 key = (u64)order_bits(x[i]) << 32 | (0xffffffffu - i);
        best = key > best ? key : best;
    }
    best = block_largest(best);
    u32 likeliest = best >> 32 ? 0xffffffffu - (u32)best : 0;
    float largest = x[likeliest], inverse = 1.0f / temperature;
    if (top_k == 1 || !(abs_f32(largest) < as_f32(0x7f800000u))) {  // greedy, infinite, or nothing is a number
        if (t == 0) move_on(tokens, position, place, capacity, likeliest);
        return;
    }
    Kept kept{0, 0};  // all that are numbers
    if (top_k > 0 && top_k < VOCAB) kept = keep_until(lds, x, kept, false, top_k, largest, inverse);
    u32 from = min_u32(t * EACH, VOCAB), to = min_u32(from + EACH, VOCAB);
    u64 total;
    if (top_p < 1.0f) {
        u64 sum = 0;
        for (u32 i = from; i < to; i++)
            if (is_kept(kept, order_bits(x[i]), i)) sum += weight_of(x[i], largest, inverse);
        block_scan(lds, sum, total);
        u64 want = (u64)((double)total * (double)top_p);
        kept = keep_until(lds, x, kept, true, want < 1 ? 1 : want, largest, inverse);
    }
    u64 least = (u64)(min_p * 1099511627776.0f), mine = 0;
    for (u32 i = from; i < to; i++) {
        u64 w = is_kept(kept, order_bits(x[i]), i) ? weight_of(x[i], largest, inverse) : 0;
        if (w >= least) mine += w;
    }
    u64 before = block_scan(lds, mine, total);
    u64 at = (u64)((double)total * (double)fraction);
    if (before <= at && at < before + mine) {  // in exactly one thread, as at < total
        for (u32 i = from; i < to; i++) {
            u64 w = is_kept(kept, order_bits(x[i]), i) ? weight_of(x[i], largest, inverse) : 0;
            if (w >= least) before += w;
            if (before > at) {
                move_on(tokens, position, place, capacity, i);
                break;
            }
        }
    }
}
