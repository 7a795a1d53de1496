// reduce: what each of RANKS devices has made of a row becomes one row on all of them: the sum of their
// parts, in the order of their ranks, so that all have the same bits; or, JOIN, one part behind the other.
//
//   x         rows of COLS f32: this device's part
//   residual  rows as those of y, or null: added; may be y
//   y         rows of COLS f32; JOIN: of RANKS × COLS
//   words     u32, of this device: meetings so far, blocks that have read that (zero before and after), and
//             whether somebody has waited in vain: then nobody waits any more
//   late      u32 of the host: 1 once somebody has waited longer than `limit` ns
//   inbox     u64: two times RANKS times `room` packets, of this device; the others write theirs there
//   to0 …     the inboxes of ranks rank + 1, rank + 2 … (in turn); null beyond RANKS
//
// A packet is a value below and the meeting's number above (peer.h). Meetings take the two halves of an inbox
// in turn: who writes for meeting n + 2 has seen all packets of n + 1, which each device sends after its
// launch for n has ended. Each block sends all of its share before it waits, and no more blocks are launched
// than the device holds: so no order in which blocks begin makes two devices wait for each other.
//
// S: RANKS, COLS, JOIN, RESIDUAL. Share: x a block of `blocks`.
#pragma once
#include "peer.h"

struct ReduceArgs {
    const float *x, *residual;
    float* y;
    u32 *words, *late;
    u64 *inbox, *to0, *to1, *to2, *to3, *to4, *to5, *to6;
    u64 count, room, limit;
    u32 rank, blocks;
};

template <class S> struct Reduce {
    // A thread's waiting: turns of its loop, when it began to look at the clock, whether it has an end.
    struct Waiting {
        u64 since;
        u32 turns;
        bool over;
    };

    STEP float take(const ReduceArgs& a, const u64* slot, u32 number, Waiting& w) {
        for (;;) {
            const u64 packet = peer_load(slot);
            if ((u32)(packet >> 32) == number) return as_f32((u32)packet);
            if (w.over) return 0.0f;
            if (++w.turns % 256 != 0) continue;
            w.over = atomic_load(a.words + 2) != 0;
            const u64 now = clock_ns();
            if (w.since == 0) w.since = now;
            if (!w.over && now - w.since >= a.limit) {
                w.over = true;
                atomic_store(a.words + 2, 1);
                atomic_store(a.late, 1);
            }
        }
    }

    STEP u64* peer(const ReduceArgs& a, u32 i) {
        u64* const low = i == 0 ? a.to0 : i == 1 ? a.to1 : i == 2 ? a.to2 : a.to3;
        return i < 4 ? low : i == 4 ? a.to4 : i == 5 ? a.to5 : a.to6;
    }

    STEP void step(ReduceArgs a, Share share) {
        const u64 first = (u64)share.x * KJ_BLOCK + thread_id(), stride = (u64)a.blocks * KJ_BLOCK;
        const u32 met = atomic_load(a.words), number = met + 1;
        Waiting waiting = {0, 0, atomic_load(a.words + 2) != 0};
        const u64 half = (u64)(met & 1) * S::RANKS * a.room;
        for (u64 i = first; i < a.count; i += stride) {
            const u64 packet = (u64)number << 32 | as_u32(a.x[i]);
            const u64 at = half + a.rank * a.room + i;
            for (u32 p = 0; p + 1 < S::RANKS; p++) peer_store(peer(a, p) + at, packet);
        }
        block_sync();  // all of the block have read the number
        if (thread_id() == 0 && atomic_add(a.words + 1, 1) == a.blocks - 1) {
            atomic_store(a.words + 1, 0);
            // Never back to 0, which memory that nobody wrote to has; even and odd go on in turn.
            atomic_store(a.words, number == 0xffffffffu ? 1 : number);
        }
        for (u64 i = first; i < a.count; i += stride) {
            float sum = 0;
            for (u32 r = 0; r < S::RANKS; r++) {
                const u64* slot = a.inbox + half + r * a.room + i;
                const float part = r == a.rank ? a.x[i] : take(a, slot, number, waiting);
                if constexpr (S::JOIN) {
                    const u64 at = (i / S::COLS * S::RANKS + r) * S::COLS + i % S::COLS;
                    if constexpr (S::RESIDUAL) a.y[at] = a.residual[at] + part;
                    else a.y[at] = part;
                } else {
                    sum = r == 0 ? part : sum + part;
                }
            }
            if constexpr (!S::JOIN) {
                if constexpr (S::RESIDUAL) a.y[i] = a.residual[i] + sum;
                else a.y[i] = sum;
            }
        }
    }
};
