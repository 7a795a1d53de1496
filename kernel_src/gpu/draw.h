// draw: a token drawn from each sequence's logits; and the sequence moves on by one.
//
//   logits    SEQUENCES × VOCAB f32; slots  SEQUENCES u32: the slot of each (null: the same)
//   tokens    SLOTS × capacity u32: position p + 1 gets the token; position  SLOTS u32: +1
//   fractions SLOTS × capacity f32 in [0, 1): the random number of the draw at each position, made by the
//     host's generator
//   options   SLOTS × (top_k u32, temperature, top_p, min_p f32), or null: the arguments hold for all
//   work      SEQUENCES × Meeting, zero before the first launch and after every one; said  SEQUENCES × Said
//
// The host's definition (model/src/sample.rs) in fixed point: top-k, then temperature, top-p, min-p, and a
// draw in the order of ids. A weight exp((logit − largest) / temperature) is an integer of 40 fractional
// bits, so sums do not depend on their order and the same seed gives the same token, however many blocks
// share a sequence.
//
// Share: x of `blocks`, up to MOST_BLOCKS, y the sequence. Each block has a range of the ids. Among at most
// DRAW_FEW of the likeliest draw_few.h draws. Else the first TEAM blocks do it together: each reads its
// logits once for each step: the extremes, where top-k cuts, where top-p cuts, the weights that are left;
// then the block that has the token looks for it. Between the steps the blocks of a sequence meet in `work`:
// a launch of more than one block is cooperative, so they are all resident. On an H200 one block took 64 µs
// for 49,152 logits and 134 for 128,256; sixteen take 44 and 54. In waves of 64 one block draws and the
// others leave at once: there 6 to 39 scalar registers spilled.
//
// S: VOCAB, FEW (whether draw_few.h is used).
#pragma once
#include "draw_few.h"

constexpr u32 DRAW_BINS = 2048, DRAW_MOST_BLOCKS = 32, DRAW_TEAM = 16;

// Where the blocks of a sequence meet. Three sets of bins: while one is filled, the one before may still be
// read.
constexpr u32 DRAW_SETS = 3;
struct DrawMeeting {
    u64 weights[DRAW_SETS][DRAW_BINS];
    u32 counts[DRAW_SETS][DRAW_BINS];
    u32 arrived, left;  // blocks, over all meetings; and those that are done
};

// What each block says to the others.
struct DrawSaid {
    u64 few[DRAW_MOST_BLOCKS * DRAW_FEW];  // the likeliest of each block's range
    u64 extremes[DRAW_TEAM][2], sums[DRAW_TEAM];
    u32 id, none;  // a token that one found for all
};

struct DrawArgs {
    const float *logits, *fractions;
    const u32x4* options;
    const u32* slots;
    u32 *tokens, *position;
    DrawMeeting* work;
    DrawSaid* said;
    u32 capacity, top_k;
    float temperature, top_p, min_p;
    u32 blocks;
};

template <class S> struct Draw {
    static constexpr u32 BINS = DRAW_BINS, SETS = DRAW_SETS;
    static_assert(kj_waves > 1 && kj_waves <= KJ_WAVE, "parts grow smaller, and a wave holds their sums");
    static_assert(DRAW_TEAM <= KJ_WAVE, "a wave holds the blocks' sums");

    using Few = DrawFew<S>;
    struct Shared {
        u64 weights[BINS];
        u32 counts[BINS];
        u64 sums[kj_waves], last[KJ_WAVE];
        // What is wanted again at the end: on sm_120 three registers were spilled for them.
        u32 slot, likeliest;
        float fraction;
    };

    // This block among those of its sequence: `meetings` so far, and which set of bins is next.
    struct Team {
        DrawMeeting* at;
        DrawSaid* said;
        u32 block, blocks, meetings, set;
        u32 from, to;  // its ids
    };

    // Every block of the sequence arrives, and sees what the others wrote before.
    STEP void meet(Team& team) {
        if (team.blocks == 1) {
            block_sync();
            return;
        }
        team.meetings++;
        device_fence();
        block_sync();
        if (thread_id() == 0) {
            atomic_add(&team.at->arrived, 1);
            while (atomic_load(&team.at->arrived) < team.meetings * team.blocks) {}
        }
        block_sync();
    }

    // This block's share of a set of bins is emptied.
    STEP void empty_set(const Team& team, u32 set) {
        for (u32 b = team.block * KJ_BLOCK + thread_id(); b < BINS; b += team.blocks * KJ_BLOCK)
            team.at->weights[set][b] = 0, team.at->counts[set][b] = 0;
    }

    // The last block to leave makes the counters zero again.
    STEP void leave(const Team& team) {
        if (team.blocks == 1) return;
        block_sync();
        if (thread_id() == 0 && atomic_add(&team.at->left, 1) == team.blocks - 1) {
            team.at->arrived = 0;
            team.at->left = 0;
        }
    }

    // The logits of one sequence. Tokens farther than `span` below the largest weigh nothing; `scale` spreads
    // the bins over what does.
    struct Row {
        const float* x;
        float largest, inverse, scale;
        u32 key;  // of the largest
    };

    STEP u64 weight(float v, float largest, float inverse) {
        return (u64)(exp_f32((v - largest) * inverse) * 1099511627776.0f);
    }
    STEP u64 weight_of(const Row& row, float v) { return weight(v, row.largest, row.inverse); }
    STEP float distance(const Row& row, float v) { return (row.largest - v) * row.scale; }

    // The lowest key whose distance is below `limit`: distances fall as keys rise.
    STEP u32 first_nearer(const Row& row, float limit) {
        u32 low = 0x007fffffu, high = row.key;  // −∞, and the largest, whose distance is 0
        NO_UNROLL while (low < high) {
            u32 middle = low + (high - low) / 2;
            if (distance(row, logit_of_order(middle)) < limit) high = middle;
            else low = middle + 1;
        }
        return high;
    }

    // f(id, logit) for the ids from `from` up to `to`, by threads of which this is number `t`. Both ends are
    // multiples of 4 where VOCAB is. Two loads of 16 bytes are on their way together: with a thousand threads
    // as many as one unit's share of L2 wants. Four single ones: with eight ptxas spilled.
    template <class F> STEP void each(const float* x, u32 from, u32 to, u32 t, u32 threads, F f) {
        constexpr u32 WIDE = S::VOCAB % 4 == 0 ? 4 : 1, AHEAD = WIDE == 4 ? 2 : 4;
        NO_UNROLL for (u32 base = from + t * WIDE; base < to; base += AHEAD * WIDE * threads) {
            float v[AHEAD][WIDE];
            UNROLL for (u32 a = 0; a < AHEAD; a++) {
                u32 i = base + a * WIDE * threads;
                if (i >= to) continue;
                if constexpr (WIDE == 4) {
                    u32x4 four = load16(x + i);
                    v[a][0] = as_f32(four.x), v[a][1] = as_f32(four.y), v[a][2] = as_f32(four.z),
                    v[a][3] = as_f32(four.w);
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
        auto from = [](u64 all, u32 lane) {
            return (u64)wave_get((u32)(all >> 32), lane) << 32 | wave_get((u32)all, lane);
        };
        UNROLL for (u32 d = 1; d < KJ_WAVE; d *= 2) {
            u64 below = from(v, lane_id() >= d ? lane_id() - d : 0);
            v += lane_id() >= d ? below : 0;
        }
        u32 lane = count_bits(wave_ballot(v <= rest));
        u64 before = from(v, lane > 0 ? lane - 1 : 0);
        rest -= lane > 0 ? before : 0;
        return lane;
    }

    // The first of `n` whose running sum exceeds a goal, and what of the goal is left for it; `n` where the
    // total does not.
    struct Found { u32 index; u64 rest; };

    // `sum(a, b)` is this lane's share of those from a up to b, `one(i)` a single one, `goal(total)` the
    // goal. Each wave sums a part; the part with the goal is divided again until a wave has one each.
    template <class Sum, class One, class Goal>
    STEP Found find(Shared& lds, u32 n, Sum sum, One one, Goal goal) {
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

    static constexpr u32 ELSEWHERE = 0xffffffffu;

    // The same over the tokens of all blocks; `measure(id, logit)`. The block that has it gets its id, the
    // others ELSEWHERE; all get VOCAB where the total does not reach the goal.
    template <class Measure, class Goal>
    STEP u32 find_token(Shared& lds, Team& team, const Row& row, Measure measure, Goal goal) {
        auto sum = [&](u32 a, u32 b) {
            u64 s = 0;
            each(row.x, team.from + a, team.from + b, lane_id(), KJ_WAVE,
                 [&](u32 i, float v) { s += measure(i, v); });
            return s;
        };
        u32 n = team.to - team.from;
        u64 rest = 0;
        if (team.blocks > 1) {
            u64 mine = 0;
            each(row.x, team.from, team.to, thread_id(), KJ_BLOCK,
                 [&](u32 i, float v) { mine += measure(i, v); });
            mine = wave_total(mine);
            if (lane_id() == 0) lds.sums[wave_id()] = mine;
            block_sync();
            if (thread_id() == 0) {
                u64 all = 0;
                UNROLL for (u32 w = 0; w < kj_waves; w++) all += lds.sums[w];
                team.said->sums[team.block] = all;
            }
            meet(team);
            u64 share = lane_id() < team.blocks ? team.said->sums[lane_id()] : 0, total = wave_total(share);
            rest = goal(total);
            if (rest >= total) return S::VOCAB;
            if (find_lane(share, rest) != team.block) return ELSEWHERE;
        }
        auto one = [&](u32 i) { return measure(team.from + i, row.x[team.from + i]); };
        Found found = find(lds, n, sum, one, [&](u64 total) { return team.blocks > 1 ? rest : goal(total); });
        return found.index < n ? team.from + found.index : S::VOCAB;
    }

    // The same, known to all blocks.
    template <class Measure, class Goal>
    STEP u32 find_token_for_all(Shared& lds, Team& team, const Row& row, Measure measure, Goal goal) {
        u32 id = find_token(lds, team, row, measure, goal);
        if (team.blocks == 1) return id;
        if (id != ELSEWHERE && thread_id() == 0) team.said->id = id;  // all write VOCAB, or one its id
        meet(team);
        return team.said->id;
    }

    // The tokens that are kept: those with a key above `key`, and of those with that key the ones before id
    // `until`.
    struct Kept { u32 key, until; };
    STEP bool is_kept(const Kept& k, u32 key, u32 id) {
        return key > k.key || (key == k.key && id < k.until);
    }

    // The bins of all blocks, in every block.
    STEP void add_bins(Shared& lds, Team& team) {
        if (team.blocks == 1) return;
        u32 set = team.set;
        for (u32 b = thread_id(); b < BINS; b += KJ_BLOCK) {
            if (lds.counts[b] == 0) continue;
            global_add(&team.at->counts[set][b], lds.counts[b]);
            if (lds.weights[b] > 0) global_add(&team.at->weights[set][b], lds.weights[b]);
        }
        meet(team);
        for (u32 b = thread_id(); b < BINS; b += KJ_BLOCK)
            lds.counts[b] = team.at->counts[set][b], lds.weights[b] = team.at->weights[set][b];
        empty_set(team, (set + SETS - 1) % SETS);  // all blocks have read it: they were at this meeting
        team.set = (set + 1) % SETS;
        block_sync();
    }

    // Keeps the likeliest of those kept until they are `top_k`, or (weighted) until their weights reach
    // `top_p` of all. The bins are at first in proportion to the distance from the largest: a few tokens
    // each, where a float's leading bits would have put thousands into one and made its counter a queue (1.9
    // ms for 128,256 tokens on an H200, more than a whole 8b step). A bin that is cut through is looked at by
    // key, and equals by id.
    STEP Kept cut(Shared& lds, Team& team, const Row& row, const Kept& kept, bool weighted, u32 top_k,
                  float top_p) {
        u64 want = top_k;
        // 32: by distance; else bins of 2^shift keys from `high` down to `low`.
        u32 low = 0, high = 0, shift = 32;
        bool whole = false;
        NO_UNROLL do {
            for (u32 b = thread_id(); b < BINS; b += KJ_BLOCK) lds.weights[b] = 0, lds.counts[b] = 0;
            block_sync();
            each(row.x, team.from, team.to, thread_id(), KJ_BLOCK, [&](u32 i, float v) {
                u32 key = order_bits(v);
                if (!is_kept(kept, key, i)) return;
                float far = distance(row, v);
                u32 bin = shift == 32                 ? (far < (float)BINS ? (u32)far : BINS)
                          : key >= low && key <= high ? (high - key) >> shift
                                                      : BINS;
                if (bin >= BINS) return;
                lds_add(&lds.counts[bin], 1);
                u64 w = weighted ? weight_of(row, v) : 0;
                if (w > 0) lds_add(&lds.weights[bin], w);
            });
            block_sync();
            add_bins(lds, team);
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
        if (whole) return low <= kept.key ? kept : Kept{low, S::VOCAB};
        u64 each_has = weighted ? weight_of(row, logit_of_order(low)) : 1;
        u64 wanted = each_has > 1 ? CEIL_DIV(want, each_has) : want;
        auto equal = [&](u32 i, float v) { return (u64)(order_bits(v) == low && is_kept(kept, low, i)); };
        return Kept{low, find_token_for_all(lds, team, row, equal, [&](u64) { return wanted - 1; }) + 1};
    }

    // The first id of a block's range.
    STEP u32 range_start(u32 block, u32 blocks) {
        return min_u32(block * (CEIL_DIV(CEIL_DIV(S::VOCAB, blocks), 4) * 4), S::VOCAB);
    }

    union Memory {
        Shared all;
        typename Few::Shared few;
    };

    using Options = DrawOptions;
    // All but the random number.
    STEP Options options_of(const DrawArgs& a, u32 slot) {
        u32x4 own{a.top_k, as_u32(a.temperature), as_u32(a.top_p), as_u32(a.min_p)};
        if (a.options) own = a.options[slot];
        return Options{own.x, as_f32(own.y), as_f32(own.z), as_f32(own.w), 0.0f};
    }
    STEP float fraction_of(const DrawArgs& a, u32 slot) {
        return a.fractions[(u64)slot * a.capacity + min_u32(a.position[slot], a.capacity - 1)];
    }
    // Neither infinite nor 0: no weight is NaN.
    STEP float inverse_of(float temperature) { return max_f32(min_f32(1.0f / temperature, 1e37f), 1.2e-38f); }

    STEP void step(DrawArgs a, Share share, Memory& memory) {
        u32 sequence = share.y, slot = slot_of(a.slots, sequence), t = thread_id();
        const float* x = a.logits + (u64)sequence * S::VOCAB;
        // On their way together with what says how many are asked for; in waves of 64 behind that: held over
        // it, scalar registers spilled on gfx906.
        constexpr bool AHEAD = S::FEW && KJ_WAVE == 32;
        typename Few::Some some;
        if constexpr (AHEAD)
            some = Few::read_logits(x, range_start(share.x, a.blocks), range_start(share.x + 1, a.blocks));
        Options o = options_of(a, slot);
        // Before the block that finds the token moves on.
        if constexpr (!AHEAD) o.fraction = fraction_of(a, slot);
        u32 top_k = o.top_k;
        if (S::FEW && top_k >= 1 && top_k <= DRAW_FEW) {
            // Where the last block finds them.
            if (!AHEAD && t == 0) memory.few.options = o;
            u64* said = a.said[sequence].few;
            const u32 first = range_start(share.x, a.blocks), end = range_start(share.x + 1, a.blocks);
            if constexpr (!AHEAD) some = Few::read_logits(x, first, end);
            Few::keep_logits(memory.few, top_k, x, first, end, some);
            Few::say(memory.few, top_k, said, share.x, a.blocks);
            if (!last_block(&a.work[sequence].left, a.blocks)) return;
            // Nobody else moves on: the random number comes while the others' likeliest do.
            if constexpr (AHEAD) o.fraction = fraction_of(a, slot);
            if (a.blocks > 1) Few::keep_said(memory.few, top_k, said, a.blocks * top_k);
            if (!AHEAD) o = memory.few.options;
            float inverse = inverse_of(o.temperature);
            u32 token = Few::choose(memory.few, top_k, o, [&](float v, float largest) {
                return weight(v, largest, inverse);
            });
            block_sync();  // all have read the position, which one of them moves on
            if (token != Few::NONE) move_on(a.tokens, a.position, slot, a.capacity, token);
            return;
        }
        float temperature = o.temperature, top_p = o.top_p, min_p = o.min_p;
        float inverse = inverse_of(temperature);
        // A constant where nobody meets: less code, and no scalar register is spilled for it.
        u32 blocks = KJ_WAVE == 32 ? min_u32(a.blocks, DRAW_TEAM) : 1;
        if (share.x >= blocks) return;
        u32 from = range_start(share.x, blocks), to = range_start(share.x + 1, blocks);
        Shared& lds = memory.all;
        if (t == 0) lds.slot = slot, lds.fraction = AHEAD ? fraction_of(a, slot) : o.fraction;
        Team team{a.work + sequence, a.said + sequence, share.x, blocks, 0, 0, from, to};
        u64 best = 0, least = 0;
        each(x, team.from, team.to, t, KJ_BLOCK, [&](u32 i, float v) {
            u32 key = order_bits(v);
            u64 high = (u64)key << 32 | (0xffffffffu - i), low = key != 0 ? ~key : 0;
            best = high > best ? high : best;
            least = low > least ? low : least;
        });
        best = block_largest(best);
        least = block_largest(least);
        if (blocks > 1) {
            if (t == 0) team.said->extremes[team.block][0] = best, team.said->extremes[team.block][1] = least;
            meet(team);
            NO_UNROLL for (u32 b = 0; b < blocks; b++) {
                u64 high = team.said->extremes[b][0], low = team.said->extremes[b][1];
                best = high > best ? high : best;
                least = low > least ? low : least;
            }
        }
        u32 likeliest = best >> 32 ? 0xffffffffu - (u32)best : 0;
        if (t == 0) lds.likeliest = likeliest;
        float largest = x[likeliest];
        // Infinite, or nothing is a number.
        if (!(abs_f32(largest) < as_f32(0x7f800000u))) {
            if (t == 0 && team.block == 0) move_on(a.tokens, a.position, lds.slot, a.capacity, likeliest);
            leave(team);
            return;
        }
        // exp(−28) is below 2^−40: no weight.
        float span = min_f32(largest - logit_of_order(~(u32)least), 28.0f * temperature);
        float scale = (float)(BINS - 1) / max_f32(span, 1e-30f);
        Row row{x, largest, inverse, scale, (u32)(best >> 32)};
        Kept kept{0, 0};  // all that are numbers
        NO_UNROLL for (u32 weighted = 0; weighted < 2; weighted++) {
            bool cuts = weighted ? top_p < 1.0f : top_k > 0 && top_k < S::VOCAB;
            if (cuts) kept = cut(lds, team, row, kept, weighted, top_k, top_p);
        }
        u64 enough = (u64)(min_p * 1099511627776.0f);
        auto weight = [&](u32 i, float v) {
            u64 w = is_kept(kept, order_bits(v), i) ? weight_of(row, v) : 0;
            return w >= enough ? w : 0;
        };
        u32 token = find_token(lds, team, row, weight,
                               [&](u64 total) { return (u64)((double)total * (double)lds.fraction); });
        // The last one filled, if any: all have read it.
        if (blocks > 1) empty_set(team, (team.set + SETS - 1) % SETS);
        bool mine = token == S::VOCAB ? team.block == 0 : token != ELSEWHERE;
        if (mine && t == 0)
            move_on(a.tokens, a.position, lds.slot, a.capacity, token < S::VOCAB ? token : lds.likeliest);
        leave(team);
    }
};
