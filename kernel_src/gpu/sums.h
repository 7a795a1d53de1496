// sums.h: sums over several devices (all-reduce) in a kernel of many steps (persist.h). One launch
// computes one token for the device's shard of the model. Inside the launch, the partial rows of
// all devices are summed, and every device gets the sum.
//
// The devices use the words and inboxes of reduce.h. Exchanges are numbered as there: a launch uses
// the next `count` numbers and adds `count` to the counter at its end. So prompts, which are
// ordinary launches, and tokens can follow each other in any order.
//
// The matvec that computes a partial row also sends it (stream.h). The thread that completes a row
// sends it to the other devices, waits for their rows, and then has the complete sum, so no grid
// barrier is needed. For other steps a sum is a separate step (Reduce<S>::inside).
//
// Even and odd exchanges use different halves of the inbox. A device sends for exchange n + 2 only
// after it has all sums of n + 1, and each device sends for n + 1 only after it has read all data
// of n. So the half of exchange n is free.
//
// Blocks that divide rows differently on two devices cannot deadlock: each sends a row before it
// waits for one, in the same order. 8b Q4_K_M on two H200: 1.3 µs for a sum.
#pragma once
#include "peer.h"

#ifndef KJ_RANKS
#define KJ_RANKS 1  // devices
#endif

struct SumsPlace {
    u32 *words, *late;  // as in reduce.h, like the fields below
    u64 *inbox, *to[KJ_RANKS];
    u64 room, limit;
    u32 rank, met, count;
};

struct Sums {
    STEP SumsPlace& place() {
        LDS_ARRAY(SumsPlace, only, 1);
        return only[0];
    }

    // Called by every block; a barrier must follow. At `p`: words, late, inbox, room, limit, rank,
    // number of sums in a launch, then the inboxes of the other KJ_RANKS − 1 devices.
    STEP void open(const u64* p) {
        SumsPlace& s = place();
        if (thread_id() != 0) return;
        s.words = (u32*)p[0], s.late = (u32*)p[1], s.inbox = (u64*)p[2];
        s.room = p[3], s.limit = p[4], s.rank = (u32)p[5], s.count = (u32)p[6];
        UNROLL for (u32 i = 0; i + 1 < KJ_RANKS; i++) s.to[i] = (u64*)p[7 + i];
        s.met = own_word(s.words);
    }

    // Number of exchanges before sum number `index` of the launch.
    STEP u32 met(u32 index) { return peer_behind(place().met, index); }

    // The sum of all devices' values at index `at` of the row, in the order of ranks; `v` is the
    // value of this device.
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

    // Must be called after the last step, when all blocks have arrived.
    STEP void close() {
        const SumsPlace& s = place();
        if (block_id() == 0 && thread_id() == 0) own_store(s.words, peer_behind(s.met, s.count));
    }
};
