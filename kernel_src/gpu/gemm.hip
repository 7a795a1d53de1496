// gemm: Y[t, r] = Σ_k X[t, k] · W[r, k] for all tokens of a prompt or a batch, W in any block format, products on the matrix
// units, sums in f32; then bias, residual or a gated unit.
//
//   x    tokens × COLS halves in *tiles*: blocks of 64 tokens × 64 columns (mma.h's tile: 8 KiB), K_TILES = ⌈COLS/64⌉ blocks
//        for each 64 tokens; columns past COLS are zero, rows past `tokens` are allocated but may hold anything
//   w0…  row records (layout.rs), one matrix a segment; with EXPERTS > 1 that many matrices one after the other
//   y0…  OUT_F16 = 0: f32, tokens × rows; OUT_F16 = 1: tiles as x, of the segment's rows
//   residual   f32, tokens × rows, added (may be y0)             b0…   f32, rows
//   parts, counters   with splits > 1: f32[tiles · splits · BM · BN], and a zeroed u32 a tile, zero again afterwards
//   tile_expert   with EXPERTS > 1: the expert of each block of BM tokens, or ~0: nothing to do
//
//   tokens, splits   the last three arguments are gemm_wgmma's, whose arguments are the same
//
// A block makes BM tokens × BN rows. Weights travel AHEAD steps of 64·KB columns ahead in registers, are expanded to halves in
// shared memory one step ahead of the products; X travels X_STAGES − 1 steps ahead. Blocks that share weights are neighbours in
// x, so weights come from device memory once. GLU: sixteen rows of the gate, then the same of the other, and so on, so that one
// block has both.
//
// Constants: KJ_MMA, BM, BN, WM, WN (waves over tokens, over rows), KB, AHEAD, X_STAGES, COLS, SEGMENTS, ROWS_0 … ROWS_2, RUN_1,
// RUN_2 (segment at which another layout begins, or SEGMENTS), BIASES (a bit a segment), RESIDUAL, GLU (0, 1 SiLU, 2 GELU by tanh),
// OUT_F16, EXPERTS; structs Run0 … Run2 (weights.h) in weights_gen.h.
// Grid: (tokens ÷ BM, Σ rows ÷ BN, splits).
#include "dequant.h"
#include "gemm.h"
#include "weights_gen.h"

constexpr u32 MI = BM / WM / MMA_M, NI = BN / WN / MMA_N;       // products of a wave
constexpr u32 STEPS = CEIL_DIV(K_TILES, KB), PIECES = 2 * KB;  // pieces of 32 weights of a row each step
constexpr u32 each = BN * PIECES / KJ_BLOCK;                    // … that a thread expands
static_assert(MI * WM * MMA_M == BM && NI * WN * MMA_N == BN && WM * WN == kj_waves, "waves tile the block");
static_assert(each * KJ_BLOCK == BN * PIECES, "threads share the weights evenly");
static_assert(!GLU || BN / WN % 32 == 0, "a wave has both rows of a gated unit");

template <class W> STEP void gemm_part(const u16* x, Part part, const float* residual, float* parts, u32* counters, u32 expert,
                                       u32 tokens, u32 splits) {
    LDS_DYNAMIC(pool);
    u16* xs = (u16*)pool;                    // X_STAGES × KB × BM × 64
    u16* ws = xs + X_STAGES * KB * BM * 64;  // 2 × KB × BN × 64

    u32 token0 = block_id() * BM;
    u32 per = CEIL_DIV(STEPS, splits), from = min_u32(block_id_z() * per, STEPS), to = min_u32(from + per, STEPS);

    const u8* row[each];
    Piece<W> raw[AHEAD][each];
    UNROLL for (u32 i = 0; i < each; i++) row[i] = part_row<W>(part, (thread_id() + i * KJ_BLOCK) / PIECES, expert);
    const u16* xt = x + (u64)(token0 / 64) * K_TILES * 4096 + token0 % 64 * 64;

    // Piece i of this thread: PIECES neighbours share a row, so that a row is read in pieces as long as possible.
    auto piece = [&](u32 i) { return (thread_id() + i * KJ_BLOCK) % PIECES; };
    auto inside = [&](u32 p) { return COLS % (64 * KB) == 0 || 32 * p < COLS; };
    auto fetch = [&](Piece<W>(&q)[each], u32 step) {
        if (step < to)
            UNROLL for (u32 i = 0; i < each; i++)
                if (inside(PIECES * step + piece(i))) fetch_piece<W>(q[i], row[i], PIECES * step + piece(i));
    };
    // Rows of tile b of a step lie at row ^ b (within eight), so that neighbours' stores go to different banks.
    auto expand = [&](const Piece<W>(&q)[each], u32 step) {
        UNROLL for (u32 i = 0; i < each; i++) {
            u32 p = piece(i), r = (thread_id() + i * KJ_BLOCK) / PIECES ^ (KB > 1 ? p / 2 : 0);
            u16* tile = ws + (step % 2 * KB + p / 2) * (BN * 64);
            if (inside(PIECES * step + p)) expand_piece<W>(q[i], tile, r, p % 2 * 4);
            else zero_piece(tile, r, p % 2 * 4);
        }
    };
    auto copy_x = [&](u32 step, u32 slot) {
        if (step < to) {
            u16* dest = xs + slot * (KB * BM * 64);
            UNROLL for (u32 c = thread_id(); c < KB * BM * 8; c += KJ_BLOCK) {
                u32 kt = min_u32(step * KB + c / (BM * 8), K_TILES - 1), chunk = c % (BM * 8);
                copy16(dest + c * 8, xt + ((u64)(chunk / 512) * K_TILES + kt) * 4096 + chunk % 512 * 8);
            }
        }
        copy_commit();
    };

    FragC acc[MI][NI];
    UNROLL for (u32 i = 0; i < MI; i++)
        UNROLL for (u32 j = 0; j < NI; j++) acc_zero(acc[i][j]);
    UNROLL for (u32 a = 0; a < AHEAD; a++) fetch(raw[a], from + a);
    UNROLL for (u32 s = 0; s + 1 < X_STAGES; s++) copy_x(from + s, s);
    if (from < to) expand(raw[0], from);
    fetch(raw[0], from + AHEAD);

    u32 wave_row = wave_id() % WM * (BM / WM), wave_col = wave_id() / WM * (BN / WN), slot = 0;
    for (u32 first = from; first < to; first += AHEAD)
        UNROLL for (u32 a = 0; a < AHEAD; a++) {
            u32 step = first + a;
            if (step >= to) break;
            copy_wait(X_STAGES - 2);
            block_sync();  // this step is there; everybody is through with the one before
            copy_x(step + X_STAGES - 1, slot == 0 ? X_STAGES - 1 : slot - 1);
            if (step + 1 < to) {
                expand(raw[(a + 1) % AHEAD], step + 1);
                fetch(raw[(a + 1) % AHEAD], step + 1 + AHEAD);
            }
            UNROLL for (u32 b = 0; b < KB; b++) {
                const u16* xa = xs + (slot * KB + b) * (BM * 64);
                const u16* wb = ws + (step % 2 * KB + b) * (BN * 64);
                MMA_UNROLL for (u32 k = 0; k < 64; k += MMA_K) {
                    FragA fa[MI];
                    UNROLL for (u32 i = 0; i < MI; i++) load_a(fa[i], xa, wave_row + i * MMA_M, k);
                    UNROLL for (u32 j = 0; j < NI; j++) {
                        FragB fb;
                        load_b(fb, wb, wave_col + j * MMA_N, k, b);
                        UNROLL for (u32 i = 0; i < MI; i++) mma(acc[i][j], fa[i], fb);
                    }
                }
            }
            slot = slot + 1 == X_STAGES ? 0 : slot + 1;
        }
    copy_wait(0);

    if (splits > 1) {  // sums of parts, always in the same order
        u32 tiles = (tokens + BM - 1) / BM, tile = block_id_y() * tiles + block_id();
        constexpr u32 block_acc = MI * NI * MMA_ACC * KJ_BLOCK;
        float* mine = parts + ((u64)tile * splits + block_id_z()) * block_acc + thread_id();
        UNROLL for (u32 i = 0; i < MI; i++)
            UNROLL for (u32 j = 0; j < NI; j++)
                UNROLL for (u32 e = 0; e < MMA_ACC; e++) mine[((i * NI + j) * MMA_ACC + e) * KJ_BLOCK] = acc[i][j].v[e];
        if (!last_block(counters + tile, splits)) return;
        UNROLL for (u32 i = 0; i < MI; i++)
            UNROLL for (u32 j = 0; j < NI; j++) acc_zero(acc[i][j]);
        for (u32 s = 0; s < splits; s++) {
            const float* p = parts + ((u64)tile * splits + s) * block_acc + thread_id();
            UNROLL for (u32 i = 0; i < MI; i++)
                UNROLL for (u32 j = 0; j < NI; j++)
                    UNROLL for (u32 e = 0; e < MMA_ACC; e++) acc[i][j].v[e] += p[((i * NI + j) * MMA_ACC + e) * KJ_BLOCK];
        }
    }

    // Results go through shared memory, sixteen tokens of a wave at a time, so that they leave in whole lines.
    constexpr u32 wide = BN / WN + 4;
    block_sync();  // the tiles have been read
    float* stage = (float*)pool + wave_id() * (MMA_M * wide);
    UNROLL for (u32 i = 0; i < MI; i++) {
        wave_sync();
        UNROLL for (u32 j = 0; j < NI; j++)
            UNROLL for (u32 e = 0; e < MMA_ACC; e++) stage[acc_row(e) * wide + j * MMA_N + acc_col(e)] = acc[i][j].v[e];
        wave_sync();
        finish_rows(part, stage, wide, MMA_M, BN / WN, wave_col, token0 + wave_row + i * MMA_M, tokens, residual, lane_id(), KJ_WAVE);
    }
}

KERNEL gemm(const u16* x, const float* residual, const u8* RESTRICT w0, const float* RESTRICT b0, void* y0, const u8* RESTRICT w1,
            const float* RESTRICT b1, void* y1, const u8* RESTRICT w2, const float* RESTRICT b2, void* y2, float* parts, u32* counters,
            const u32* tile_expert, u32 tokens, u32 splits, u32, u32, u32) {
    Segments s{w0, w1, w2, b0, b1, b2, y0, y1, y2};
    launch_dependents();
    wait_for_producer();
    u32 expert = EXPERTS > 1 ? tile_expert[block_id()] : 0, tile = block_id_y();
    if (expert == ~0u) return;
    Part part = part_of(s, tile);
    if (tile < TILES_UNTIL(RUN_1)) gemm_part<Run0>(x, part, residual, parts, counters, expert, tokens, splits);
#if RUN_1 < SEGMENTS
    else if (tile < TILES_UNTIL(RUN_2)) gemm_part<Run1>(x, part, residual, parts, counters, expert, tokens, splits);
#endif
#if RUN_2 < SEGMENTS
    else gemm_part<Run2>(x, part, residual, parts, counters, expert, tokens, splits);
#endif
}
