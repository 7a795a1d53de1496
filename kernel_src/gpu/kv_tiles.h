// kv_tiles.h: loads keys and values of one head from the cache (kv.h) into f16 tiles (mma.h) in
// shared memory.
//
// Positions j0 … j0 + ROWS − 1 are loaded into tiles k and v. From `end` on, position end − 1 is
// repeated; the scores mask it. f16 is copied directly (asynchronously if the device supports it).
// 8-bit elements are in registers between load and store, so products hide their latency. f32 is
// rounded to f16. `thread` is one of THREADS that share the work. With pages, j0 is a multiple of
// ROWS, so a tile is in one page. SIDES 1: only k is written. With KJ_CHOSEN (chosen.h) positions
// are indices of the list.
//
// S: as for kv.h.
#pragma once
#include "chosen.h"
#include "dequant.h"
#include "kv.h"

struct KvHead {
    const u8 *k, *v;
    u64 rows, first;
    Pages pages;
    Chosen chosen;
};

STEP u32 kv_tile_at(u32 rows, u32 row, u32 col) {
    return col / 64 * rows * 64 + tile_at(row, col % 64);
}

template <class S, u32 ROWS, u32 THREADS, u32 SIDES = 2> struct KvTiles {
    using K = Kv<S>;
    static constexpr u32 HEAD_DIM = S::HEAD_DIM;
    // Vectors of 16 codes: in a tile, and per thread.
    static constexpr u32 PARTS = ROWS * (HEAD_DIM / 16), EACH = CEIL_DIV(PARTS, THREADS);
    struct Codes {
        u32x4 code[SIDES][EACH];
        u16 scale[SIDES][EACH];
    };
    struct None {};
    template <bool BYTES, class> struct Held { using type = None; };
    template <class Codes> struct Held<true, Codes> { using type = Codes; };
    using Fetched = typename Held<K::BYTES, Codes>::type;

    STEP void fetch(Fetched& f, const KvHead& h, u32 thread, u32 j0, u32 end, u16* k, u16* v) {
        if constexpr (kj_page != 0) {
            static_assert(kj_page % ROWS == 0 && kj_chosen == 0, "a tile lies in one page");
            const u32 start = j0 - within(j0);
            const KvHead page{K::page(h.k, h.pages, j0), K::page(h.v, h.pages, j0), h.rows, h.first,
                              h.pages};
            fetch_here(f, page, thread, j0 - start, end - start, k, v);
        } else {
            fetch_here(f, h, thread, j0, end, k, v);
        }
    }
    STEP void fetch_here(Fetched& f, const KvHead& h, u32 thread, u32 j0, u32 end, u16* k, u16* v) {
        if constexpr (K::BYTES) fetch_codes(f, h, thread, j0, end);
        else copy(h, thread, j0, end, k, v);
    }
    STEP void store(const Fetched& f, u32 thread, u16* k, u16* v) {
        if constexpr (K::BYTES) store_codes(f, thread, k, v);
    }

    STEP void copy(const KvHead& h, u32 thread, u32 j0, u32 end, u16* k, u16* v) {
        UNROLL for (u32 c = thread; c < ROWS * (HEAD_DIM / 8); c += THREADS) {
            u32 row = c / (HEAD_DIM / 8), chunk = c % (HEAD_DIM / 8),
                to = kv_tile_at(ROWS, row, 8 * chunk);
            u64 from = h.first + chosen_at(h.chosen, min_u32(j0 + row, end - 1));
            if constexpr (K::STORAGE == KvStorage::F16) {
                copy16(k + to, h.k + from * K::ROW + 16 * chunk);
                if (SIDES == 2) copy16(v + to, h.v + from * K::ROW + 16 * chunk);
            } else {
                float x[8];
                UNROLL for (u32 s = 0; s < SIDES; s++) {
                    K::values(K::load(s ? h.v : h.k, h.rows, from, chunk), x);
                    *(u32x4*)((s ? v : k) + to) =
                        u32x4{pack_input(x[0], x[1]), pack_input(x[2], x[3]),
                              pack_input(x[4], x[5]), pack_input(x[6], x[7])};
                }
            }
        }
    }

    STEP void fetch_codes(Codes& f, const KvHead& h, u32 thread, u32 j0, u32 end) {
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 c = thread + i * THREADS, part = c % (HEAD_DIM / 16);
            if (PARTS % THREADS != 0 && c >= PARTS) break;
            u64 row = h.first + chosen_at(h.chosen, min_u32(j0 + c / (HEAD_DIM / 16), end - 1));
            UNROLL for (u32 s = 0; s < SIDES; s++) {
                const u8* cache = s ? h.v : h.k;
                f.code[s][i] = load16(cache + row * K::ROW + 16 * part);
                f.scale[s][i] = *(const u16*)(cache + K::scales_at(h.rows) +
                                              (row * K::SCALES + 16 * part / K::GROUP) * 2);
            }
        }
    }
    STEP void store_codes(const Codes& f, u32 thread, u16* k, u16* v) {
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 c = thread + i * THREADS, row = c / (HEAD_DIM / 16), col = c % (HEAD_DIM / 16) * 16;
            if (PARTS % THREADS != 0 && c >= PARTS) break;
            UNROLL for (u32 s = 0; s < SIDES; s++) {
                const u32 w[4] = {f.code[s][i].x, f.code[s][i].y, f.code[s][i].z, f.code[s][i].w};
                u32 scale = f.scale[s][i] | (u32)f.scale[s][i] << 16, pair[8];
                UNROLL for (u32 j = 0; j < 4; j++) {
                    // 1024 + 128 + code
                    bytes_to_halves(w[j] ^ 0x80808080u, pair[2 * j], pair[2 * j + 1]);
                    UNROLL for (u32 e = 0; e < 2; e++)
                        pair[2 * j + e] = h2_mul(h2_sub(pair[2 * j + e], 0x64806480u), scale);
                }
                u16* tile = s ? v : k;
                *(u32x4*)(tile + kv_tile_at(ROWS, row, col)) =
                    u32x4{pair[0], pair[1], pair[2], pair[3]};
                *(u32x4*)(tile + kv_tile_at(ROWS, row, col + 8)) =
                    u32x4{pair[4], pair[5], pair[6], pair[7]};
            }
        }
    }
};
