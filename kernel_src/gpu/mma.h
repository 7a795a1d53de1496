// mma.h: tile products on every matrix unit, by one interface: C[M × N] += A[M × K] · B[N × K]ᵀ,
// with f32 sums.
//
// One wave computes a product of MMA_M × MMA_N results with depth MMA_K. A *fragment* is the part
// of an operand in the registers of one lane. Each family defines the positions of elements
// (`acc_row`, `acc_col` and the loads); all other code uses these functions.
//
// Inputs come from tiles in shared memory: rows of 64 f16 (128 bytes). The order of the eight
// 16-byte chunks of a row depends on the row (`tile_at`). So the same chunk of eight rows is in
// eight different banks, for ldmatrix and for plain loads. It is also wgmma's 128-byte swizzle, if
// the tile starts at a multiple of 1024 bytes. Tiles in device memory (activations of a GEMM) have
// the same layout, so a tile is copied byte by byte.
//
// Constants: KJ_MMA, the family:
//   0  plain FMA (or dot2) on 16 × 32 × 4: gfx8, gfx9 before 908, gfx10, and the simulated device
//   1  mma.sync m16n8k16 twice (sm_80 on), or m16n8k8 four times (sm_75): PTX ISA, "Warp-level
//      matrix instructions"
//   2  MFMA 16×16×16, wave 64: gfx908, 90a, 942, 950; CDNA3 ISA, chapter 7
//   3  WMMA 16×16×16, wave 32, gfx11: lanes 16–31 repeat lanes 0–15; RDNA3 ISA, section 7.9
//   4  WMMA 16×16×16, wave 32, gfx12: lanes split the depth; RDNA4 ISA, section 7.12
//   5  WMMA 16×16×32, wave 32, gfx1250: as 4, but twice as deep. An index in a lane is the same
//      depth in A and B, and sums do not depend on the choice: here a lane has sixteen neighbours
// KJ_SIMULATED computes families 2–5 by exchanging fragments through shared memory, each lane in
// its own layout. KJ_DOT2 (family 0): the target has v_dot2_f32_f16.
#pragma once
#include "kjit.h"

#ifdef KJ_NVIDIA
STEP u32 shared_at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
#endif

#ifndef KJ_DOT2
#define KJ_DOT2 0
#endif

// Index of an element in a tile of rows of 64: chunk k/8 of a row is at k/8 ^ row%8. Matrices wider
// than 64 are several tiles, one after another. This form needs one instruction for a constant k.
// For the same reason ^ adds a constant and a lane's part of k below.
STEP u32 tile_at(u32 row, u32 k) { return (row * 64 + row % 8 * 8) ^ k; }

// Index of an element in panels, with `steps` panels of 128 columns. 8 tokens × 128 columns are
// four rounds of 32 lanes, with eight columns each. Lane 4t + p has token t; round r has columns 8r
// to 8r + 7 of the 32 columns of span p (small_gemm.h).
STEP u64 panel_at(u32 token, u32 col, u32 steps) {
    return ((u64)(token / 8) * steps + col / 128) * 1024 + col % 32 / 8 * 256 +
           (token % 8 * 4 + col % 128 / 32) * 8 + col % 8;
}

// MMA_ACC results per lane, in MMA_ROWS distinct rows, which MMA_ROW_LANES neighbouring lanes
// share. `acc_slot` gives the index of a result's row among these; `slot_row` and `acc_col` give
// the row and the column in the product.
#if KJ_MMA == 0
// 8 lanes per row. Eight neighbouring lanes read eight neighbouring rows of a tile, which are in
// different banks.
#define MMA_M 16
#define MMA_N 32
#define MMA_K 4
#define MMA_ROWS (16 / (KJ_WAVE / 8))
#define MMA_ACC (MMA_ROWS * 4)
#define MMA_ROW_LANES 8
struct FragA { u32 v[2 * MMA_ROWS]; };
struct FragB { u32 v[8]; };
STEP u32 slot_row(u32 s) { return s * (KJ_WAVE / 8) + lane_id() / 8; }
STEP u32 acc_col(u32 i) { return (i % 4) * 8 + lane_id() % 8; }
STEP constexpr u32 acc_slot(u32 i) { return i / 4; }
#else
#define MMA_M 16
#define MMA_N 16
#if KJ_MMA == 5
#define MMA_K 32
#else
#define MMA_K 16
#endif
#if KJ_MMA == 1
#define MMA_ACC 8
#define MMA_ROWS 2
#define MMA_ROW_LANES 4
struct FragA { u32 v[4]; };
struct FragB { u32 v[4]; };  // columns 0–7 in v[0..2], 8–15 in v[2..4]
STEP u32 slot_row(u32 s) { return lane_id() / 4 + 8 * s; }
STEP u32 acc_col(u32 i) { return 8 * (i / 4) + 2 * (lane_id() % 4) + i % 2; }
STEP constexpr u32 acc_slot(u32 i) { return i / 2 % 2; }
#else
#define MMA_ROWS MMA_ACC
#define MMA_ROW_LANES 16
#if KJ_MMA == 2
#define MMA_ACC 4
#define MMA_WORDS 2  // words per fragment
STEP u32 slot_row(u32 s) { return 4 * (lane_id() / 16) + s; }
#elif KJ_MMA == 3
#define MMA_ACC 8
#define MMA_WORDS 8
STEP u32 slot_row(u32 s) { return 2 * s + lane_id() / 16; }
#elif KJ_MMA == 4 || KJ_MMA == 5
#define MMA_ACC 8
#define MMA_WORDS (MMA_K / 4)
STEP u32 slot_row(u32 s) { return 8 * (lane_id() / 16) + s; }
#else
#error "KJ_MMA: 0 to 5"
#endif
struct FragA { u32 v[MMA_WORDS]; };
struct FragB { u32 v[MMA_WORDS]; };
STEP u32 acc_col(u32) { return lane_id() % 16; }
STEP constexpr u32 acc_slot(u32 i) { return i; }
#endif
#endif
STEP u32 acc_row(u32 i) { return slot_row(acc_slot(i)); }

// Unroll factor of a loop over steps of depth: all steps, but two of sixteen for family 0, whose
// loads would need more registers than gfx1010 has.
#if KJ_MMA == 0 && !defined(KJ_SIMULATED)
#define MMA_UNROLL _Pragma("unroll 2")
#else
#define MMA_UNROLL UNROLL
#endif

struct FragC { float v[MMA_ACC]; };

STEP void acc_zero(FragC& c) {
UNROLL for (u32 i = 0; i < MMA_ACC; i++) c.v[i] = 0.0f;
}

// ----------------------------------------------------------------------------- 16-bit conversions

// Conversions round to nearest even and saturate: a large activation must not become infinite,
// because the next sum would be NaN.
STEP float clamp_f16(float f) { return min_f32(max_f32(f, -65504.0f), 65504.0f); }
STEP u32 pack_input(float lo, float hi) {
#if defined(KJ_NVIDIA) && __CUDA_ARCH__ >= 800
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(clamp_f16(hi)), "f"(clamp_f16(lo)));
    return r;
#else
    return half_pair(clamp_f16(lo), clamp_f16(hi));
#endif
}
STEP float input_value(u16 bits) { return load(f16{bits}); }

// ----------------------------------------------------------------------------- loads and products
// load_a(a, tile, row, k): rows row … of a tile, depths k … (row, k: multiples of 16; family 0:
//   k of MMA_K)
// load_b(b, tile, row, k, swizzle): the same for B, whose rows are the columns of the result; row
//   r is at r ^ swizzle (0 to 7)
// load_b_t(b, tile, k, col): B from a transposed tile: one row per depth, with the columns of the
//   result as elements

#if KJ_MMA == 1
STEP void ldmatrix4(u32 (&r)[4], const u16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_at(p)) : "memory");
}
STEP void ldmatrix4_t(u32 (&r)[4], const u16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_at(p)) : "memory");
}
// Lane l gives the address of row l%8 of the 8×8 matrix l/8. For A the matrices are (rows 0–7, k
// 0–7), (8–15, 0–7), (0–7, 8–15), (8–15, 8–15).
STEP void load_a(FragA& a, const u16* tile, u32 row, u32 k) {
    ldmatrix4(a.v, tile + tile_at(row + lane_id() % 16, (lane_id() / 16 * 8) ^ k));
}
STEP void load_b(FragB& b, const u16* tile, u32 row, u32 k, u32 swizzle = 0) {
    u32 l = lane_id();
    ldmatrix4(b.v, tile + tile_at(row + (l % 8 ^ swizzle) + l / 16 * 8, (l / 8 % 2 * 8) ^ k));
}
STEP void load_b_t(FragB& b, const u16* tile, u32 k, u32 col) {
    u32 l = lane_id();
    ldmatrix4_t(b.v, tile + tile_at(k + l % 16, (l / 16 * 8) ^ col));
}
STEP void mma_m16n8k16(float* c, const u32* a, const u32* b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    UNROLL for (u32 h = 0; h < 2; h++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(b[h]));
#endif
}
STEP void mma(FragC& c, const FragA& a, const FragB& b) {
    mma_m16n8k16(c.v, a.v, b.v);
    mma_m16n8k16(c.v + 4, a.v, b.v + 2);
}
// Results of a lane can be its inputs of the next product, whose depth is their columns.
#define MMA_ACC_IS_A 1
STEP void acc_to_a(FragA& a, const FragC& c) {
    UNROLL for (u32 i = 0; i < 4; i++) a.v[i] = pack_input(c.v[2 * i], c.v[2 * i + 1]);
}

#elif KJ_MMA == 0
#define MMA_ACC_IS_A 0
STEP void load_a(FragA& a, const u16* tile, u32 row, u32 k) {
    UNROLL for (u32 i = 0; i < MMA_ROWS; i++) {
        u32x2 p = load8(tile + tile_at(row + slot_row(i), k));
        a.v[2 * i] = p.x, a.v[2 * i + 1] = p.y;
    }
}
STEP void load_b(FragB& b, const u16* tile, u32 row, u32 k, u32 swizzle = 0) {
    UNROLL for (u32 j = 0; j < 4; j++) {
        u32x2 p = load8(tile + tile_at((row + acc_col(j)) ^ swizzle, k));
        b.v[2 * j] = p.x, b.v[2 * j + 1] = p.y;
    }
}
STEP void load_b_t(FragB& b, const u16* tile, u32 k, u32 col) {
    UNROLL for (u32 j = 0; j < 4; j++) {
        u32 c = col + acc_col(j);
        UNROLL for (u32 h = 0; h < 2; h++)
            b.v[2 * j + h] = (u32)tile[tile_at(k + 2 * h, c)] | (u32)tile[tile_at(k + 2 * h + 1, c)]
                                                                    << 16;
    }
}
STEP float dot2(u32 a, u32 b, float c) {
#if KJ_DOT2 && defined(KJ_AMD)
    typedef _Float16 halves __attribute__((ext_vector_type(2)));
    return __builtin_amdgcn_fdot2(__builtin_bit_cast(halves, a), __builtin_bit_cast(halves, b), c,
                                  false);
#else
    c = fma_f32(input_value((u16)a), input_value((u16)b), c);
    return fma_f32(input_value((u16)(a >> 16)), input_value((u16)(b >> 16)), c);
#endif
}
STEP void mma(FragC& c, const FragA& a, const FragB& b) {
    UNROLL for (u32 i = 0; i < MMA_ACC; i++)
        UNROLL for (u32 h = 0; h < 2; h++)
            c.v[i] = dot2(a.v[i / 4 * 2 + h], b.v[i % 4 * 2 + h], c.v[i]);
}

#else
// MFMA and WMMA: a lane has one row of A and one column of B, with successive depths
#define MMA_ACC_IS_A 0
STEP u32 mma_depth() { return KJ_MMA == 3 ? 0 : lane_id() / 16 * (2 * MMA_WORDS); }
STEP void load_row(u32 (&v)[MMA_WORDS], const u16* tile, u32 row, u32 k) {
#if KJ_MMA == 2
    u32x2 q = load8(tile + tile_at(row, k));
    v[0] = q.x, v[1] = q.y;
#else
    UNROLL for (u32 i = 0; i < MMA_WORDS / 4; i++) {
        u32x4 q = load16(tile + tile_at(row, k + 8 * i));
        v[4 * i] = q.x, v[4 * i + 1] = q.y, v[4 * i + 2] = q.z, v[4 * i + 3] = q.w;
    }
#endif
}
STEP void load_a(FragA& a, const u16* tile, u32 row, u32 k) {
    load_row(a.v, tile, row + lane_id() % 16, k + mma_depth());
}
STEP void load_b(FragB& b, const u16* tile, u32 row, u32 k, u32 swizzle = 0) {
    load_row(b.v, tile, (row + lane_id() % 16) ^ swizzle, k + mma_depth());
}
STEP void load_b_t(FragB& b, const u16* tile, u32 k, u32 col) {
    u32 first = k + mma_depth(), c = col + lane_id() % 16;
    UNROLL for (u32 i = 0; i < MMA_WORDS; i++)
        b.v[i] = (u32)tile[tile_at(first + 2 * i, c)] | (u32)tile[tile_at(first + 2 * i + 1, c)]
                                                            << 16;
}
#ifdef KJ_SIMULATED
STEP void input_values(const u16* from, float (&to)[MMA_K]) {
#ifdef KJSIM_WRONG_widen
    for (u32 k = 0; k < MMA_K; k++) to[k] = input_value(from[k]);
#else
    kjsim::floats<MMA_K>(from, to);
#endif
}
// Computes the instruction from the fragments of all lanes, which are exchanged through shared
// memory.
STEP void mma(FragC& c, const FragA& a, const FragB& b) {
    // One array for both: eight waves fit beside 57 KB of a kernel.
    LDS_ARRAY(u16, held, kj_waves * 16 * MMA_K);
    u32 at = wave_id() * 16 * MMA_K;
    u32 own = at + lane_id() % 16 * MMA_K + mma_depth();
    float left[MMA_ACC][MMA_K], right[MMA_K];
    wave_sync();
    for (u32 i = 0; i < MMA_WORDS; i++) *(u32*)&held[own + 2 * i] = a.v[i];
    wave_sync();
    for (u32 i = 0; i < MMA_ACC; i++) input_values(&held[at + acc_row(i) * MMA_K], left[i]);
    wave_sync();
    for (u32 i = 0; i < MMA_WORDS; i++) *(u32*)&held[own + 2 * i] = b.v[i];
    wave_sync();
    // all results of a lane are in one column
    input_values(&held[at + acc_col(0) * MMA_K], right);
    for (u32 i = 0; i < MMA_ACC; i++) c.v[i] = kjsim::product<MMA_K>(left[i], right, c.v[i]);
#ifdef KJSIM_WRONG_matrix
    c.v[0] = kjsim::wrong(c.v[0]);
#endif
    wave_sync();
}
#else
typedef _Float16 mma_in __attribute__((ext_vector_type(2 * MMA_WORDS)));
typedef float mma_out __attribute__((ext_vector_type(MMA_ACC)));
STEP void mma(FragC& c, const FragA& a, const FragB& b) {
    mma_in x = __builtin_bit_cast(mma_in, a), y = __builtin_bit_cast(mma_in, b);
    mma_out z = __builtin_bit_cast(mma_out, c);
#if KJ_MMA == 2
    z = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, z, 0, 0, 0);
#elif KJ_MMA == 3
    z = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, z);
#elif KJ_MMA == 5
    z = __builtin_amdgcn_wmma_f32_16x16x32_f16(false, x, false, y, 0, z, false, false);
#else
    z = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, z);
#endif
    c = __builtin_bit_cast(FragC, z);
}
#endif
#endif

// Must be called after a loop of products, before a branch to the code that reads them. The result
// of MFMA is ready some wait states later, and CDNA does not check this. LLVM counts the states of
// only one of the two paths: its GCNHazardRecognizer skips blocks that it visited before, and
// visits the longer path first. The emulator of machine code found this.
STEP void products_settle() {
#if KJ_MMA == 2 && !defined(KJ_SIMULATED)
#if defined(__gfx942__)
    asm volatile("s_nop 6");
#elif defined(__gfx950__)
    asm volatile("s_nop 7");
#else
    asm volatile("s_nop 10");
#endif
#endif
}

// ---------------------------------------------------------------------- copies into shared memory
// Copies sixteen bytes from device memory to shared memory, both aligned. On sm_80 and later copies
// are asynchronous: commit closes a group of them, copy_wait(n) waits until at most n groups of
// this thread are in flight; then the block must synchronise. On other targets the copy is done
// when the call returns.
#if defined(KJ_NVIDIA) && __CUDA_ARCH__ >= 800
STEP void copy16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from)
                 : "memory");
}
STEP void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define copy_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#else
STEP void copy16(void* to, const void* from) { *(u32x4*)to = load16(from); }
STEP void copy_commit() {}
#define copy_wait(n) ((void)0)
#endif
