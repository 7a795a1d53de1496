// draw: draws a token from each sequence's logits and advances the sequence by one token.
//
//   logits    SEQUENCES × VOCAB f32
//   slots     SEQUENCES u32: the slot of each sequence; null: sequence s has slot s
//   tokens    SLOTS × capacity u32: position p + 1 gets the token
//   position  SLOTS u32: + 1
//   seeds     SLOTS u64: the seed of noise.h, with the token's position and id
//   options   SLOTS × (top_k u32, inverse, top_p, min_p f32); null: the arguments apply to all
//             slots. inverse: 1 / temperature, computed by the host: compilers divide differently
//   work      SEQUENCES × Meeting: barrier state, zero before the first launch and after each one
//   said      SEQUENCES × Said: results of the blocks for each other
//
// The reference is model/src/sample.rs. Order: top-k, temperature, top-p, min-p. The remaining
// token with the greatest score (noise.h) is drawn. A weight exp((logit − largest) / temperature)
// is an integer with 40 fractional bits. So sums do not depend on their order, and a seed gives the
// same token for any number of blocks.
//
// Share: x of `blocks`, up to MOST_BLOCKS; y is the sequence. Each block has a range of ids. If
// top-k is at most DRAW_FEW, draw_few.h draws. Otherwise the first TEAM blocks draw together in
// four passes over the logits: extremes, cut by top-k, cut by top-p, scores of the remaining
// tokens. Between the passes the blocks of a sequence wait at a barrier in `work`. A launch of
// several blocks is cooperative, so all blocks are resident. On an H200 one block took 64 µs for
// 49,152 logits and 134 µs for 128,256; sixteen blocks take 44 and 54. With waves of 64 one block
// draws and the others exit immediately: the code for several blocks spilled 6 to 39 scalar
// registers.
//
// S: VOCAB, FEW (whether draw_few.h is used).
#pragma once
#include "draw_few.h"

constexpr u32 DRAW_BINS = 2048, DRAW_MOST_BLOCKS = 32, DRAW_TEAM = 16;

// Barrier state and bins of the blocks of a sequence. There are three sets of bins: one is filled,
// one may still be read, one is cleared.
constexpr u32 DRAW_SETS = 3;
struct DrawMeeting {
    u64 weights[DRAW_SETS][DRAW_BINS];
    u32 counts[DRAW_SETS][DRAW_BINS];
    u32 arrived, left;  // arrivals over all barriers; blocks that have finished
};

// Results of each block for the others.
struct DrawSaid {
    u64 few[DRAW_MOST_BLOCKS * DRAW_FEW];  // the most likely tokens of each range
    u64 extremes[DRAW_TEAM][2], sums[DRAW_TEAM];
    u32 id, none;  // the token that one block found
};

struct DrawArgs {
    const float* logits;
    const u64* seeds;
    const u32x4* options;
    const u32* slots;
    u32 *tokens, *position;
    DrawMeeting* work;
    DrawSaid* said;
    u32 capacity, top_k;
    float inverse, top_p, min_p;
    u32 blocks;
};

template <class S> struct Draw {
    static constexpr u32 BINS = DRAW_BINS, SETS = DRAW_SETS;
    static_assert(kj_waves > 1 && kj_waves <= KJ_WAVE,
                  "parts grow smaller, and a wave holds their sums");
    static_assert(DRAW_TEAM <= KJ_WAVE, "a wave holds the blocks' sums");

    using Few = DrawFew<S>;
    struct Shared {
        u64 weights[BINS];
        u32 counts[BINS];
        u64 sums[kj_waves], last[KJ_WAVE];
        // In shared memory: in registers, three of them spilled on sm_120.
        u32 slot, likeliest, position;
        u64 seed;
    };

    // State of this block: barriers passed so far, and the next set of bins.
    struct Team {
        DrawMeeting* at;
        DrawSaid* said;
        u32 block, blocks, meetings, set;
        u32 from, to;  // the range of its ids
    };

    // Barrier of all blocks of the sequence. It makes their earlier writes visible to all of them.
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

    // Clears this block's share of a set of bins.
    STEP void empty_set(const Team& team, u32 set) {
        for (u32 b = team.block * KJ_BLOCK + thread_id(); b < BINS; b += team.blocks * KJ_BLOCK)
            team.at->weights[set][b] = 0, team.at->counts[set][b] = 0;
    }

    // The last block that leaves resets the counters to zero.
    STEP void leave(const Team& team) {
        if (team.blocks == 1) return;
        block_sync();
        if (thread_id() == 0 && atomic_add(&team.at->left, 1) == team.blocks - 1) {
            team.at->arrived = 0;
            team.at->left = 0;
        }
    }

    // The logits of one sequence. Tokens more than `span` below the largest logit have weight 0.
    // `scale` spreads the bins over the other tokens.
    struct Row {
        const float* x;
        float largest, inverse, scale;
        u32 key;  // key of the largest logit
    };

    STEP u64 weight(float v, float largest, float inverse) {
        return (u64)(exp_f32((v - largest) * inverse) * 1099511627776.0f);
    }
    STEP u64 weight_of(const Row& row, float v) { return weight(v, row.largest, row.inverse); }
    STEP float distance(const Row& row, float v) { return (row.largest - v) * row.scale; }

    // The lowest key whose distance from the largest logit is below `limit`.
    STEP u32 first_nearer(const Row& row, float limit) {
        u32 low = 0x007fffffu, high = row.key;  // keys of −∞ and of the largest logit
        NO_UNROLL while (low < high) {
            u32 middle = low + (high - low) / 2;
            if (distance(row, logit_of_order(middle)) < limit) high = middle;
            else low = middle + 1;
        }
        return high;
    }

    // Calls f(id, logit) for ids `from` to `to` − 1; `t` is the number of this thread. Both ends
    // are multiples of 4 if VOCAB is. Two 16-byte loads are in flight: with 1024 threads this uses
    // one multiprocessor's share of the L2 bandwidth. Otherwise four single loads are in flight:
    // with eight, ptxas spilled.
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

    // The first lane whose cumulative sum exceeds `rest` (the total must exceed it). Subtracts the
    // sum of the earlier lanes from `rest`.
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

    // index: the first of `n` elements whose cumulative sum exceeds the goal, or `n` if the total
    // does not. rest: the goal minus the sum of the earlier elements.
    struct Found { u32 index; u64 rest; };

    // `sum(a, b)`: this lane's share of elements a to b − 1; `one(i)`: a single element;
    // `goal(total)`: the goal. Each wave sums a part. The part with the goal is divided again until
    // each lane has one element.
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

    // Searches the tokens of all blocks; `measure(id, logit)` is the value of a token. All blocks
    // get the id, or VOCAB if the total does not exceed the goal.
    template <class Measure>
    STEP u32 find_token(Shared& lds, Team& team, const Row& row, Measure measure, u64 goal) {
        auto sum = [&](u32 a, u32 b) {
            u64 s = 0;
            each(row.x, team.from + a, team.from + b, lane_id(), KJ_WAVE,
                 [&](u32 i, float v) { s += measure(i, v); });
            return s;
        };
        auto one = [&](u32 i) { return measure(team.from + i, row.x[team.from + i]); };
        u32 n = team.to - team.from;
        u64 rest = goal;
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
                // The result if no block finds the token.
                if (team.block == 0) team.said->id = S::VOCAB;
            }
            meet(team);
            u64 share = lane_id() < team.blocks ? team.said->sums[lane_id()] : 0;
            bool here = rest < wave_total(share) && find_lane(share, rest) == team.block;
            if (here) {
                Found found = find(lds, n, sum, one, [&](u64) { return rest; });
                if (thread_id() == 0 && found.index < n) team.said->id = team.from + found.index;
            }
            meet(team);
            return team.said->id;
        }
        Found found = find(lds, n, sum, one, [&](u64) { return rest; });
        return found.index < n ? team.from + found.index : S::VOCAB;
    }

    // The remaining tokens: those with a key above `key`, and those with this key and an id below
    // `until`.
    struct Kept { u32 key, until; };
    STEP bool is_kept(const Kept& k, u32 key, u32 id) {
        return key > k.key || (key == k.key && id < k.until);
    }

    // Adds the bins of all blocks; every block has the sums.
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
        // All blocks have passed the barrier, so all have read this set.
        empty_set(team, (set + SETS - 1) % SETS);
        team.set = (set + 1) % SETS;
        block_sync();
    }

    // Keeps the `top_k` most likely tokens, or (weighted) the most likely ones whose weights reach
    // `top_p` of the total. The first bins are proportional to the distance from the largest logit,
    // with a few tokens each. The bin with the cut is divided again by key, and equal keys by id.
    // (If bins were leading bits of a float, thousands of tokens would share one bin, and their
    // atomic additions would be serial: 1.9 ms for 128,256 tokens on an H200.)
    STEP Kept cut(Shared& lds, Team& team, const Row& row, const Kept& kept, bool weighted,
                  u32 top_k, float top_p) {
        u64 want = top_k;
        // shift 32: bins by distance. Smaller: bins of 2^shift keys, from `high` down to `low`.
        u32 low = 0, high = 0, shift = 32;
        bool whole = false;
        NO_UNROLL do {
            for (u32 b = thread_id(); b < BINS; b += KJ_BLOCK)
                lds.weights[b] = 0, lds.counts[b] = 0;
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
            if (bin.index >= BINS) return kept;  // fewer tokens remain than requested
            want = bin.rest + 1;                 // number of tokens wanted from this bin
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
            block_sync();  // the bins are cleared next
        } while (!whole && low < high);
        if (whole) return low <= kept.key ? kept : Kept{low, S::VOCAB};
        u64 each_has = weighted ? weight_of(row, logit_of_order(low)) : 1;
        u64 wanted = each_has > 1 ? CEIL_DIV(want, each_has) : want;
        auto equal = [&](u32 i, float v) {
            return (u64)(order_bits(v) == low && is_kept(kept, low, i));
        };
        return Kept{low, find_token(lds, team, row, equal, wanted - 1) + 1};
    }

    // The first id in the range of a block.
    STEP u32 range_start(u32 block, u32 blocks) {
        return min_u32(block * (CEIL_DIV(CEIL_DIV(S::VOCAB, blocks), 4) * 4), S::VOCAB);
    }

    union Memory {
        Shared all;
        typename Few::Shared few;
    };

    using Options = DrawOptions;
    // The options without seed and position (the inputs of the noise).
    STEP Options options_of(const DrawArgs& a, u32 slot) {
        u32x4 own{a.top_k, as_u32(a.inverse), as_u32(a.top_p), as_u32(a.min_p)};
        if (a.options) own = a.options[slot];
        return Options{own.x, as_f32(own.y), as_f32(own.z), as_f32(own.w), 0, 0};
    }
    // Must be called before the sequence advances.
    STEP void set_noise(Options& o, const DrawArgs& a, u32 slot) {
        o.seed = a.seeds[slot], o.position = a.position[slot] + 1;
    }

    // The greatest score among this block's tokens for which `takes(id, logit)` is true, and the
    // most likely token. A bound of the noise from its leading bits rules out most tokens, so no
    // logarithm is computed for them.
    template <class Takes>
    STEP u64 race(const Shared& lds, const Team& team, const Row& row, Takes takes) {
        block_sync();  // one thread has written it
        const u64 seed = lds.seed;
        const u32 position = lds.position, likeliest = lds.likeliest;
        const u32 first = noise_word(seed, position, likeliest);
        u64 best = draw_key(row.largest, row.largest, row.inverse, first, likeliest);
        NO_UNROLL for (u32 base = team.from + thread_id() * 4; base < team.to;
                       base += KJ_BLOCK * 4) {
            float v[4];
            if constexpr (S::VOCAB % 4 == 0) {
                const u32x4 four = load16(row.x + base);
                v[0] = as_f32(four.x), v[1] = as_f32(four.y), v[2] = as_f32(four.z),
                v[3] = as_f32(four.w);
            } else {
                UNROLL for (u32 j = 0; j < 4; j++)
                    v[j] = base + j < team.to ? row.x[base + j] : as_f32(0xff800000u);
            }
            const u32x4 words = noise_words(seed, position, base / 4);
            const u32 word[4] = {words.x, words.y, words.z, words.w};
            UNROLL for (u32 j = 0; j < 4; j++) {
                float far = (v[j] - row.largest) * row.inverse;
                if (far + noise_bound(word[j]) <= logit_of_order(best >> 32)) continue;
                if (!takes(base + j, v[j])) continue;
                u64 key = draw_key(v[j], row.largest, row.inverse, word[j], base + j);
                best = key > best ? key : best;
            }
        }
        return best;
    }

    STEP void step(DrawArgs a, Share share, Memory& memory) {
        u32 sequence = share.y, slot = slot_of(a.slots, sequence), t = thread_id();
        const float* x = a.logits + (u64)sequence * S::VOCAB;
        // With waves of 32 all options are loaded together with top_k. With waves of 64 they are
        // loaded later, because scalar registers spilled on gfx906.
        constexpr bool AHEAD = S::FEW && KJ_WAVE == 32;
        typename Few::Some some;
        if constexpr (AHEAD)
            some = Few::read_logits(x, range_start(share.x, a.blocks),
                                    range_start(share.x + 1, a.blocks));
        Options o = options_of(a, slot);
        u32 top_k = o.top_k;
        if (S::FEW && top_k >= 1 && top_k <= DRAW_FEW) {
            // Stored for the last block of the sequence.
            if (!AHEAD && t == 0) {
                set_noise(o, a, slot);
                memory.few.options = o;
            }
            u64* said = a.said[sequence].few;
            const u32 first = range_start(share.x, a.blocks),
                      end = range_start(share.x + 1, a.blocks);
            if constexpr (!AHEAD) some = Few::read_logits(x, first, end);
            Few::keep_logits(memory.few, top_k, x, first, end, some);
            Few::say(memory.few, top_k, said, share.x, a.blocks);
            if (!last_block(&a.work[sequence].left, a.blocks)) return;
            // Only this block advances the sequence, so the seed can be loaded together with the
            // other blocks' tokens.
            if constexpr (AHEAD) set_noise(o, a, slot);
            if (a.blocks > 1) Few::keep_said(memory.few, top_k, said, a.blocks * top_k);
            if (!AHEAD) o = memory.few.options;
            u32 token = Few::choose(memory.few, top_k, o, [&](float v, float largest) {
                return weight(v, largest, o.inverse);
            });
            block_sync();  // all threads have read the position
            if (token != Few::NONE) move_on(a.tokens, a.position, slot, a.capacity, token);
            return;
        }
        float inverse = o.inverse, top_p = o.top_p, min_p = o.min_p;
        // With waves of 64 a constant: less code, and no scalar register is spilled.
        u32 blocks = KJ_WAVE == 32 ? min_u32(a.blocks, DRAW_TEAM) : 1;
        if (share.x >= blocks) return;
        u32 from = range_start(share.x, blocks), to = range_start(share.x + 1, blocks);
        Shared& lds = memory.all;
        if (t == 0) {
            set_noise(o, a, slot);
            lds.slot = slot, lds.seed = o.seed, lds.position = o.position;
        }
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
            if (t == 0)
                team.said->extremes[team.block][0] = best,
                team.said->extremes[team.block][1] = least;
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
        // The largest logit is infinite, or all logits are NaN.
        if (!(abs_f32(largest) < as_f32(0x7f800000u))) {
            if (t == 0 && team.block == 0)
                move_on(a.tokens, a.position, lds.slot, a.capacity, likeliest);
            leave(team);
            return;
        }
        // exp(−28) is below 2^−40: weight 0.
        float span = min_f32(largest - logit_of_order(~(u32)least), 28.0f / inverse);
        float scale = (float)(BINS - 1) / max_f32(span, 1e-30f);
        Row row{x, largest, inverse, scale, (u32)(best >> 32)};
        Kept kept{0, 0};  // all tokens whose logit is not NaN
        NO_UNROLL for (u32 weighted = 0; weighted < 2; weighted++) {
            bool cuts = weighted ? top_p < 1.0f : top_k > 0 && top_k < S::VOCAB;
            if (cuts) kept = cut(lds, team, row, kept, weighted, top_k, top_p);
        }
        u64 enough = (u64)(min_p * 1099511627776.0f);
        best = race(lds, team, row, [&](u32 i, float v) {
            return is_kept(kept, order_bits(v), i) && weight_of(row, v) >= enough;
        });
        best = block_largest(best);
        if (blocks > 1) {
            if (t == 0) team.said->sums[team.block] = best;
            meet(team);
            NO_UNROLL for (u32 b = 0; b < blocks; b++)
                best = team.said->sums[b] > best ? team.said->sums[b] : best;
            // The last set that was filled, if any. All blocks have read it.
            empty_set(team, (team.set + SETS - 1) % SETS);
        }
        if (t == 0 && team.block == 0)
            move_on(a.tokens, a.position, lds.slot, a.capacity, 0xffffffffu - (u32)best);
        leave(team);
    }
};
