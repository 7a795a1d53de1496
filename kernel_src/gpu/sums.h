// sums.h: sums over several devices in a kernel of many steps (persist.h). A token of each device's
// share of a model is one launch there; inside it the parts of a row become one row on all devices.
//
// The devices meet by the words and inboxes of reduce.h, and count the same meetings: the launch's
// first meeting has the next number, and the launch adds all of them at its end. So prompts, which
// are launches, and tokens can follow each other in any order.
//
// A product that makes a part also hands it over (stream.h): the thread that completes a row sends
// it to the other devices, waits for theirs, and has the sum, so blocks do not meet for it. Two
// halves of an inbox are enough: a sender for the meeting after the next has a whole vector that
// was made of the next meeting's sums, so all that the other devices sent for that meeting had
// arrived, and its senders had read all of this one. In other steps a sum is a step of its own
// (Reduce<S>::inside).
//
// Blocks that deal rows differently on two devices do not wait for each other in a circle: each
// sends a row before it waits for one, in the same order. 8b Q4_K_M on two H200: 1.3 µs for a sum.
#pragma once
#include "peer.h"

#ifndef KJ_RANKS
#define KJ_RANKS 1  // devices
#endif

struct SumsPlace {
    u32 *words, *late;  // as in reduce.h, also below
    u64 *inbox, *to[KJ_RANKS];
    u64 room, limit;
    u32 rank, met, count;
};

struct Sums {
    STEP SumsPlace& place() {
        LDS_ARRAY(SumsPlace, only, 1);
        return only[0];
    }

    // By a block, with a barrier after it. At `p`: words, late, inbox, room, limit, rank, sums of a
    // launch, then the other KJ_RANKS − 1 inboxes.
    STEP void open(const u64* p) {
        SumsPlace& s = place();
        if (thread_id() != 0) return;
        s.words = (u32*)p[0], s.late = (u32*)p[1], s.inbox = (u64*)p[2];
        s.room = p[3], s.limit = p[4], s.rank = (u32)p[5], s.count = (u32)p[6];
        UNROLL for (u32 i = 0; i + 1 < KJ_RANKS; i++) s.to[i] = (u64*)p[7 + i];
        s.met = own_word(s.words);
    }

    // Meetings before sum number `index` of the launch.
    STEP u32 met(u32 index) { return peer_behind(place().met, index); }

    // The sum, in the order of ranks, of each device's value at this place of its row; `v` is this
    // device's.
    STEP float sum(u32 index, u32 at, float v) {
        Meeting::delay(105);
        const SumsPlace& s = place();
        const u32 before = met(index), number = before + 1;
        const u64 half = (u64)(before & 1) * KJ_RANKS * s.room;
        const u64 packet = (u64)number << 32 | as_u32(v);
        UNROLL for (u32 i = 0; i + 1 < KJ_RANKS; i++)
            peer_store(s.to[i] + half + s.rank * s.room + at, packet);
        PeerWaiting waiting = {0, 0, false};
        float sum = 0;
        NO_UNROLL for (u32 r = 0; r < KJ_RANKS; r++) {
            const u64* slot = s.inbox + half + r * s.room + at;
            const float part =
                r == s.rank ? v : peer_take(slot, number, waiting, s.words + 2, s.late, s.limit);
            sum = r == 0 ? part : sum + part;
        }
        return sum;
    }

    // After the last step, when all blocks have arrived.
    STEP void close() {
        const SumsPlace& s = place();
        if (block_id() == 0 && thread_id() == 0) own_store(s.words, peer_behind(s.met, s.count));
    }
};
