// route: the TOP experts of each token by their gated scores, the largest first; among equal scores
// the lower index first.
//
//   Gating::Softmax  shares are the softmax over EXPERTS scores
//   Gating::Sigmoid  shares are the sigmoid of each score
//   Gating::Chosen   shares are the softmax of only the chosen scores
//
//   scores   tokens × EXPERTS f32
//   experts  tokens × TOP u32
//   shares   tokens × TOP f32
//   bias     EXPERTS f32 if BIAS: added for the choice, not to the shares
//   factors  EXPERTS f32 if FACTORS: one factor for each expert's share
//
//   GROUPS       runs of experts (0: none): the score of a run is the sum of its two best experts;
//                the GROUPS_USED best runs stay in the choice
//   ALIKE        number of successive scores for one expert: the expert is the chosen index /
//                ALIKE, so it may be chosen several times, with different shares (and factors)
//   RENORMALISE  shares of the chosen experts sum to one; then all are multiplied by `scale`
//
// S: EXPERTS (scores), TOP, GATING, BIAS, FACTORS, GROUPS, GROUPS_USED, ALIKE, RENORMALISE. Share:
// x the token; a block is one wave.
#pragma once
#include "kjit.h"
#include "row_enums.h"

struct RouteArgs {
    const float *scores, *bias, *factors;
    u32* experts;
    float* shares;
    float scale;
};

template <class S> struct Route {
    static constexpr u32 EXPERTS = S::EXPERTS, TOP = S::TOP, EACH = CEIL_DIV(EXPERTS, KJ_WAVE);

    // A key that orders floats: NaN is the lowest, and among equals the lower index is first.
    STEP u64 order_key(float x, u32 index) {
        u32 bits = as_u32(x + 0.0f);  // −0 equals 0
        u32 key = x != x ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        return (u64)key << 32 | (0xffffffffu - index);
    }

    // Removes the keys of experts outside the GROUPS_USED best groups. `choice` has the scores of
    // the keys.
    STEP void leave_groups(u64 (&key)[EACH], const float (&choice)[EACH]) {
        constexpr u32 GROUPS = S::GROUPS > 0 ? S::GROUPS : 1, SIZE = EXPERTS / GROUPS;
        u64 worth = 0;  // lane n has the score of group n: GROUPS ≤ KJ_WAVE
        NO_UNROLL for (u32 g = 0; g < GROUPS; g++) {
            u64 first = 0;
            float sum = 0.0f;
            UNROLL for (u32 n = 0; n < (SIZE > 1 ? 2 : 1); n++) {
                u64 best = 0;
                UNROLL for (u32 i = 0; i < EACH; i++) {
                    bool mine =
                        (lane_id() + i * KJ_WAVE) / SIZE == g && (n == 0 || key[i] != first);
                    best = mine && key[i] > best ? key[i] : best;
                }
                first = wave_largest(best);
                float value = 0.0f;
                UNROLL for (u32 i = 0; i < EACH; i++) value += key[i] == first ? choice[i] : 0.0f;
                sum += wave_sum(value);
            }
            if (lane_id() == g) worth = order_key(sum, g);
        }
        u64 stay = 0;
        NO_UNROLL for (u32 n = 0; n < S::GROUPS_USED; n++) {
            u64 best = wave_largest(worth);
            if (worth == best) worth = 0;
            stay |= (u64)1 << (0xffffffffu - (u32)best);
        }
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            if (e < EXPERTS && (stay >> (e / SIZE) & 1) == 0) key[i] = 0;
        }
    }

    STEP void step(RouteArgs a, Share share) {
        float scores[EACH];
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            scores[i] = e < EXPERTS ? a.scores[(u64)share.x * EXPERTS + e] : 0.0f;
        }
        choose(a, share.x, scores);
    }

    // Chooses experts. A lane has every KJ_WAVE-th score.
    STEP void choose(const RouteArgs& a, u64 token, const float (&scores)[EACH]) {
        constexpr bool SOFTMAX = S::GATING == Gating::Softmax;
        float v[EACH];
        u64 key[EACH];
        float most = as_f32(0xff800000u), sum = SOFTMAX ? 0.0f : 1.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            v[i] = e < EXPERTS ? scores[i] : as_f32(0xff800000u);
            key[i] = e < EXPERTS ? order_key(v[i], e) : 0;
            most = max_f32(most, v[i]);
        }
        if constexpr (SOFTMAX) {
            most = wave_max(most);
            UNROLL for (u32 i = 0; i < EACH; i++) sum += v[i] = exp_f32(v[i] - most);
            sum = wave_sum(sum);
        }
        if constexpr (S::GATING == Gating::Sigmoid) {
            UNROLL for (u32 i = 0; i < EACH; i++) v[i] = sigmoid(v[i]);
        }
        if constexpr (S::BIAS || S::GROUPS > 0 || S::GATING == Gating::Sigmoid) {
            float choice[EACH];
            UNROLL for (u32 i = 0; i < EACH; i++) {
                u32 e = lane_id() + i * KJ_WAVE;
                choice[i] = v[i] / sum;
                if (S::BIAS) choice[i] += e < EXPERTS ? a.bias[e] : 0.0f;
                key[i] = e < EXPERTS ? order_key(choice[i], e) : 0;
            }
            if constexpr (S::GROUPS > 0) leave_groups(key, choice);
        }

        u32 mine = 0;  // lane n has the n-th chosen expert: TOP ≤ KJ_WAVE
        NO_UNROLL for (u32 n = 0; n < TOP; n++) {
            u64 best = 0;
            UNROLL for (u32 i = 0; i < EACH; i++) best = key[i] > best ? key[i] : best;
            best = wave_largest(best);
            UNROLL for (u32 i = 0; i < EACH; i++) key[i] = key[i] == best ? 0 : key[i];
            if (lane_id() == n) mine = (0xffffffffu - (u32)best) / S::ALIKE;
        }
        float part = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            const float there = wave_get(v[i], mine % KJ_WAVE);
            if (mine / KJ_WAVE == i) part = there;
        }
        part = lane_id() < TOP ? part / sum : 0.0f;
        if constexpr (S::GATING == Gating::Chosen) {
            float largest = wave_max(lane_id() < TOP ? part : as_f32(0xff800000u));
            part = lane_id() < TOP ? exp_f32(part - largest) : 0.0f;
            part /= wave_sum(part);
        }
        float chosen = wave_sum(part);
        if (lane_id() < TOP) {
            float share_of = (S::RENORMALISE ? part / chosen : part) * a.scale;
            if (S::FACTORS) share_of *= a.factors[mine];
            a.experts[token * TOP + lane_id()] = mine;
            a.shares[token * TOP + lane_id()] = share_of;
        }
    }

    // The first and the last part of `choose`, for stream_experts.h, which chooses in a different
    // way. `gate` applies GATING to the scores, of which a lane has every KJ_WAVE-th, and returns
    // their divisor.
    STEP float gate(float (&v)[EACH], const float (&scores)[EACH]) {
        constexpr bool SOFTMAX = S::GATING == Gating::Softmax;
        float most = as_f32(0xff800000u), sum = SOFTMAX ? 0.0f : 1.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            v[i] = e < EXPERTS ? scores[i] : as_f32(0xff800000u);
            most = max_f32(most, v[i]);
        }
        if constexpr (SOFTMAX) {
            most = wave_max(most);
            UNROLL for (u32 i = 0; i < EACH; i++) sum += v[i] = exp_f32(v[i] - most);
            sum = wave_sum(sum);
        }
        if constexpr (S::GATING == Gating::Sigmoid) {
            UNROLL for (u32 i = 0; i < EACH; i++) v[i] = sigmoid(v[i]);
        }
        return sum;
    }

    // Stores the shares of the chosen experts as `choose` does. Lane n has the n-th expert.
    STEP void share_out(const RouteArgs& a, u64 token, const float (&v)[EACH], float sum,
                        u32 mine) {
        float part = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            const float there = wave_get(v[i], mine % KJ_WAVE);
            if (mine / KJ_WAVE == i) part = there;
        }
        part = lane_id() < TOP ? part / sum : 0.0f;
        if constexpr (S::GATING == Gating::Chosen) {
            float largest = wave_max(lane_id() < TOP ? part : as_f32(0xff800000u));
            part = lane_id() < TOP ? exp_f32(part - largest) : 0.0f;
            part /= wave_sum(part);
        }
        float chosen = wave_sum(part);
        if (lane_id() < TOP) {
            float share_of = (S::RENORMALISE ? part / chosen : part) * a.scale;
            if (S::FACTORS) share_of *= a.factors[mine];
            a.shares[token * TOP + lane_id()] = share_of;
        }
    }
};
