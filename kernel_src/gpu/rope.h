// rope.h: prepares a head of queries or keys: optional RMS norm over the head, then rotation by
// position (RoPE).
//
// S: HEAD_DIM, QK_NORM, ROPE_DIMS (elements that are rotated, from the head's start; 0: none),
// ROPE_HALVES (true: elements i and i + ROPE_DIMS/2 are a pair; false: 2i and 2i + 1). The table,
// made by the host, has ROPE_DIMS/2 pairs (cos, sin) of f32 per position.
#pragma once
#include "kjit.h"

template <class S> struct Rope {
    static constexpr u32 HEAD_DIM = S::HEAD_DIM, PAIRS = S::ROPE_DIMS / 2;
    static constexpr u32 EACH = CEIL_DIV(HEAD_DIM, KJ_WAVE),
                         TURNS = PAIRS > 0 ? CEIL_DIV(PAIRS, KJ_WAVE) : 1;

    STEP void rotate(float* row, u32 i, u32x2 t) {
        float c = as_f32(t.x), s = as_f32(t.y);
        u32 first = S::ROPE_HALVES ? i : 2 * i, second = S::ROPE_HALVES ? i + PAIRS : 2 * i + 1;
        float a = row[first], b = row[second];
        row[first] = a * c - b * s;
        row[second] = a * s + b * c;
    }

    // Stores the normalised and rotated head `x` in row[0 … HEAD_DIM), which is in shared memory.
    // `angles` is a row of the table. Called by one wave.
    STEP void ready_head(float* row, const float* x, const float* norm, float eps,
                         const u32x2* angles) {
        float v[EACH];
        float squares = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            v[i] = e < HEAD_DIM ? x[e] : 0.0f;
            squares += v[i] * v[i];
        }
        if (S::QK_NORM) {
            float scale = rsqrt_f32(wave_sum(squares) / HEAD_DIM + eps);
            UNROLL for (u32 i = 0; i < EACH; i++) {
                u32 e = lane_id() + i * KJ_WAVE;
                if (e < HEAD_DIM) v[i] = v[i] * scale * norm[e];
            }
        }
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            if (e < HEAD_DIM) row[e] = v[i];
        }
        wave_sync();
        for (u32 i = lane_id(); i < PAIRS; i += KJ_WAVE) rotate(row, i, angles[i]);
        wave_sync();
    }

    // The norm's weights and the angles of a head, in a wave's registers, loaded before the head
    // arrives.
    struct Asked {
        float weights[S::QK_NORM ? EACH : 1];
        u32x2 angles[TURNS];
    };
    STEP Asked ask(const float* norm, const u32x2* angles) {
        Asked a;
        // (Without braces nvrtc 13.5 omits all following code if the condition is false.)
        if constexpr (S::QK_NORM) {
            UNROLL for (u32 i = 0; i < EACH; i++) {
                u32 e = lane_id() + i * KJ_WAVE;
                a.weights[i] = e < HEAD_DIM ? norm[e] : 0.0f;
            }
        }
        UNROLL for (u32 turn = 0; turn < TURNS; turn++) {
            u32 pair = lane_id() + turn * KJ_WAVE;
            a.angles[turn] = pair < PAIRS ? angles[pair] : u32x2{0, 0};
        }
        return a;
    }
    // As `ready_head`, with loaded weights and angles. The head is in `row` or at `x`.
    STEP void ready_asked(float* row, const float* x, float eps, const Asked& by) {
        float v[EACH];
        float squares = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            v[i] = e < HEAD_DIM ? x[e] : 0.0f;
            squares += v[i] * v[i];
        }
        if constexpr (S::QK_NORM) {
            float scale = rsqrt_f32(wave_sum(squares) / HEAD_DIM + eps);
            UNROLL for (u32 i = 0; i < EACH; i++) v[i] = v[i] * scale * by.weights[i];
        }
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            if (e < HEAD_DIM) row[e] = v[i];
        }
        wave_sync();
        UNROLL for (u32 turn = 0; turn < TURNS; turn++) {
            u32 i = lane_id() + turn * KJ_WAVE;
            if (i < PAIRS) rotate(row, i, by.angles[turn]);
        }
        wave_sync();
    }
};
