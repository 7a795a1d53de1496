// reduce: all-reduce of rows over RANKS devices. Partial rows are added in the order of ranks, so
// all devices have bit-identical sums. With JOIN they are concatenated (all-gather).
//
//   x         rows of COLS f32: the partial rows of this device
//   residual  rows as in y, added; or null; may be y
//   y         rows of COLS f32; with JOIN of RANKS × COLS
//   words     u32, of this device: number of exchanges so far; blocks that have read that number
//             (zero before and after a launch); 1 after a timeout: then no block waits again
//   late      u32 in host memory: 1 after a wait of more than `limit` ns
//   inbox     on this device, written by the others. 2 × RANKS × `room` packets; with STRETCHES:
//             as many f32, then a u32 for each stretch
//   to0 …     the inboxes of ranks rank + 1, rank + 2 … (modulo RANKS); null beyond RANKS
//
// A packet has a value in its low word and the number of the exchange in its high word (peer.h):
// one trip over the link, for few values. Many values are sent in STRETCHES of plain f32 (half the
// bytes), each followed by one number. Packets and stretches have separate inboxes: values of one
// must not be read as numbers of the other.
//
// Exchanges alternate between the two halves of an inbox. A device that writes for exchange n + 2
// has received all data of exchange n + 1, which each device sends after its launch for n has
// ended. So the half of exchange n is free. Each block sends its whole share before it waits, and
// all blocks of a launch are resident. So devices cannot deadlock.
//
// GATHERED (devices of several processes): NCCL or RCCL has gathered the partial rows, RANKS ×
// `count` f32, in `inbox`. The kernel neither sends nor waits. It stores the number of sums so far
// in `late`, by which the host sees progress.
//
// S: RANKS, COLS, JOIN, RESIDUAL, STRETCHES, GATHERED. Share: x a block of `blocks`.
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
    // Values of a stretch.
    static constexpr u32 EACH = 4, QUADS = KJ_BLOCK * EACH, STRETCH = 4 * QUADS;
    static_assert(!S::STRETCHES || (S::COLS % 4 == 0 && !S::JOIN),
                  "stretches are of quads, and added");
    struct Shared { u32 there[2]; };

    STEP u64* peer(const ReduceArgs& a, u32 i) {
        u64* const low = i == 0 ? a.to0 : i == 1 ? a.to1 : i == 2 ? a.to2 : a.to3;
        return i < 4 ? low : i == 4 ? a.to4 : i == 5 ? a.to5 : a.to6;
    }

    // Counts this block, after all its threads have read the number of the exchange. The last block
    // increments that number. No memory order is needed.
    STEP void counted(const ReduceArgs& a, u32 before, u32 met) {
        if (before != a.blocks - 1) return;
        own_store(a.words + 1, 0);
        own_store(a.words, peer_behind(met, 1));
    }

    // COUNTS: a separate launch, which reads and increments the number of exchanges. Otherwise that
    // number is `met`.
    template <bool COUNTS>
    STEP void packets(const ReduceArgs& a, Share share, u32 met) {
        const u64 first = (u64)share.x * KJ_BLOCK + thread_id(), stride = (u64)a.blocks * KJ_BLOCK;
        // All loads of a thread from this device are issued together: with one value per thread,
        // dependent memory accesses would take as long as the exchange.
        float x0 = 0, residual0 = 0;
        if (first < a.count) x0 = a.x[first];
        if constexpr (S::RESIDUAL && !S::JOIN)
            if (first < a.count) residual0 = a.residual[first];
        if constexpr (COUNTS) met = own_word(a.words);
        const u32 over = own_word(a.words + 2), number = met + 1;
        const u64 half = (u64)(met & 1) * S::RANKS * a.room;
        for (u64 i = first; i < a.count; i += stride) {
            const u64 packet = (u64)number << 32 | as_u32(i == first ? x0 : a.x[i]);
            const u64 at = half + a.rank * a.room + i;
            for (u32 p = 0; p + 1 < S::RANKS; p++) peer_store(peer(a, p) + at, packet);
        }
        u32 before = 0;
        if constexpr (COUNTS) {
            block_sync();  // all threads of the block have read the number
            // tested last, so that no other instruction waits for it
            if (thread_id() == 0) before = own_count(a.words + 1);
        }
        PeerWaiting waiting = {0, 0, over != 0};
        for (u64 i = first; i < a.count; i += stride) {
            const float own = i == first ? x0 : a.x[i];
            float added = 0, sum = 0;
            if constexpr (S::RESIDUAL && !S::JOIN) added = i == first ? residual0 : a.residual[i];
            for (u32 r = 0; r < S::RANKS; r++) {
                const u64* slot = a.inbox + half + r * a.room + i;
                const float part =
                    r == a.rank ? own
                                : peer_take(slot, number, waiting, a.words + 2, a.late, a.limit);
                if constexpr (S::JOIN) {
                    const u64 at = (i / S::COLS * S::RANKS + r) * S::COLS + i % S::COLS;
                    if constexpr (S::RESIDUAL) a.y[at] = a.residual[at] + part;
                    else a.y[at] = part;
                } else {
                    sum = r == 0 ? part : sum + part;
                }
            }
            if constexpr (!S::JOIN) a.y[i] = S::RESIDUAL ? added + sum : sum;
        }
        if constexpr (COUNTS)
            if (thread_id() == 0) counted(a, before, met);
    }

    // Addresses in an inbox: a rank's values in this half, and the numbers of its stretches.
    STEP float* values(const ReduceArgs& a, u64* inbox, u32 half, u32 rank) {
        return (float*)inbox + (u64)(half * S::RANKS + rank) * a.room;
    }
    STEP u32* numbers(const ReduceArgs& a, u64* inbox, u32 half, u32 rank) {
        return (u32*)inbox + 2 * S::RANKS * a.room +
               (u64)(half * S::RANKS + rank) * (a.room / STRETCH);
    }

    // Index of quad k of this thread in a stretch.
    STEP u64 quad(u64 stretch, u32 k) { return stretch * QUADS + k * KJ_BLOCK + thread_id(); }

    STEP void send(const ReduceArgs& a, u32 half, u64 stretch) {
        u32x4 v[EACH] = {};
        UNROLL for (u32 k = 0; k < EACH; k++)
            if (quad(stretch, k) < a.count / 4) v[k] = load16(a.x + 4 * quad(stretch, k));
        for (u32 p = 0; p + 1 < S::RANKS; p++) {
            float* to = values(a, peer(a, p), half, a.rank);
            UNROLL for (u32 k = 0; k < EACH; k++)
                if (quad(stretch, k) < a.count / 4) peer_store16(to + 4 * quad(stretch, k), v[k]);
        }
    }

    STEP bool there(const ReduceArgs& a, u32 half, u32 rank, u64 stretch, u32 number) {
        return rank == a.rank ||
               peer_published(numbers(a, a.inbox, half, rank) + stretch) == number;
    }

    // Adds a stretch that has arrived from all ranks.
    STEP void add(const ReduceArgs& a, u32 half, u64 stretch) {
        float sum[EACH][4];
        u32x4 r0[EACH] = {};
        if constexpr (S::RESIDUAL) {
            UNROLL for (u32 k = 0; k < EACH; k++)
                if (quad(stretch, k) < a.count / 4)
                    r0[k] = load16(a.residual + 4 * quad(stretch, k));
        }
        for (u32 r = 0; r < S::RANKS; r++) {
            const float* from = values(a, a.inbox, half, r);
            u32x4 v[EACH] = {};
            UNROLL for (u32 k = 0; k < EACH; k++) {
                const u64 q = quad(stretch, k);
                if (q < a.count / 4)
                    v[k] = r == a.rank ? load16(a.x + 4 * q) : peer_load16(from + 4 * q);
            }
            UNROLL for (u32 k = 0; k < EACH; k++) {
                float part[4];
                unpack(part, v[k]);
                UNROLL for (u32 e = 0; e < 4; e++)
                    sum[k][e] = r == 0 ? part[e] : sum[k][e] + part[e];
            }
        }
        UNROLL for (u32 k = 0; k < EACH; k++) {
            if constexpr (S::RESIDUAL) {
                float added[4];
                unpack(added, r0[k]);
                UNROLL for (u32 e = 0; e < 4; e++) sum[k][e] = added[e] + sum[k][e];
            }
            if (quad(stretch, k) < a.count / 4)
                *(u32x4*)(a.y + 4 * quad(stretch, k)) = u32x4{as_u32(sum[k][0]), as_u32(sum[k][1]),
                                                              as_u32(sum[k][2]), as_u32(sum[k][3])};
        }
    }
    STEP void unpack(float (&to)[4], u32x4 v) {
        to[0] = as_f32(v.x), to[1] = as_f32(v.y), to[2] = as_f32(v.z), to[3] = as_f32(v.w);
    }

    STEP void stretches(const ReduceArgs& a, Share share, Shared& lds) {
        const u32 met = own_word(a.words), over = own_word(a.words + 2), number = met + 1,
                  half = met & 1;
        const u64 all = CEIL_DIV(a.count, STRETCH);
        u64 next = share.x;  // the next stretch to add
        u32 turn = 0;
        for (u64 s = share.x; s < all; s += a.blocks, turn ^= 1) {
            // After a stretch is sent, earlier stretches that have arrived are added. There is no
            // wait here.
            if (thread_id() == 0) {
                bool came = next < s;
                for (u32 r = 0; r < S::RANKS; r++) came = came && there(a, half, r, next, number);
                lds.there[turn] = came;
            }
            send(a, half, s);
            peer_settle();
            // A constant peer: an index that is not one puts the addresses in scratch memory.
            UNROLL for (u32 p = 0; p + 1 < S::RANKS; p++)
                if (thread_id() == p)
                    peer_publish(numbers(a, peer(a, p), half, a.rank) + s, number);
            if (lds.there[turn]) {
                add(a, half, next);
                next += a.blocks;
            }
        }
        PeerWaiting waiting = {0, 0, over != 0};
        for (; next < all; next += a.blocks) {
            for (u32 r = 0; r < S::RANKS; r++)
                while (!there(a, half, r, next, number) && !waiting.over)
                    peer_wait_on(waiting, a.words + 2, a.late, a.limit);
            add(a, half, next);
        }
        block_sync();  // all threads of the block have the number
        if (thread_id() == 0) counted(a, own_count(a.words + 1), met);
    }

    STEP void gathered(const ReduceArgs& a, Share share) {
        const float* const parts = (const float*)a.inbox;
        const u64 first = (u64)share.x * KJ_BLOCK + thread_id(), stride = (u64)a.blocks * KJ_BLOCK;
        for (u64 i = first; i < a.count; i += stride) {
            float added = 0, sum = 0;
            if constexpr (S::RESIDUAL && !S::JOIN) added = a.residual[i];
            for (u32 r = 0; r < S::RANKS; r++) {
                const float part = parts[r * a.count + i];
                if constexpr (S::JOIN) {
                    const u64 at = (i / S::COLS * S::RANKS + r) * S::COLS + i % S::COLS;
                    if constexpr (S::RESIDUAL) a.y[at] = a.residual[at] + part;
                    else a.y[at] = part;
                } else {
                    sum = r == 0 ? part : sum + part;
                }
            }
            if constexpr (!S::JOIN) a.y[i] = S::RESIDUAL ? added + sum : sum;
        }
        if (first == 0) {
            const u32 number = own_word(a.words) + 1;
            own_store(a.words, number);
            atomic_store(a.late, number);
        }
    }

    STEP void step(ReduceArgs a, Share share, Shared& lds) {
        if constexpr (S::GATHERED) gathered(a, share);
        else if constexpr (S::STRETCHES) stretches(a, share, lds);
        else packets<true>(a, share, 0);
    }

    // For a kernel of many steps (sums.h). All blocks must call it, after `met` exchanges.
    STEP void inside(const ReduceArgs& a, Share share, u32 met) { packets<false>(a, share, met); }
};
