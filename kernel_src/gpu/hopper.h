// hopper.h: instructions of sm_90a: barriers in shared memory that count bytes, bulk copies, and
// matrix products of four warps (PTX ISA, "mbarrier", "cp.async.bulk", "wgmma").
#pragma once
#include "mma.h"

// --------------------------------------------------------------------------------------- barriers
STEP void barrier_init(u64* b, u32 arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals)
                 : "memory");
}
STEP void barrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
STEP void barrier_arrive(u64* b) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}
STEP void barrier_arrive_expect(u64* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_at(b)), "r"(bytes)
                 : "memory");
}
// Waits until the phase of this parity is complete.
STEP void barrier_wait(u64* b, u32 parity) {
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; "
        "@p bra done; bra again; "
        "done: }" ::"r"(shared_at(b)),
        "r"(parity)
        : "memory");
}
// Makes ordinary stores to shared memory visible to the copy engine and the tensor cores.
STEP void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Copies `bytes` (a multiple of 16) from device memory; the barrier counts the bytes that arrive.
STEP void bulk_copy(void* to, const void* from, u32 bytes, u64* b) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_at(to)),
        "l"(from), "r"(bytes), "r"(shared_at(b))
        : "memory");
}
// Dynamic shared memory that is aligned to lines of 128 bytes. A copy is fast if source and
// destination have the same offset within a line. On an H200 a ring with an offset of 16 or 32
// bytes reduced the tokens/s of F16 by a sixth.
#define LDS_DYNAMIC_LINES(name)                               \
    extern __shared__ __align__(128) u32x4 kj_dynamic_lds[]; \
    u8* name = (u8*)kj_dynamic_lds
// As bulk_copy, for data that is not read again soon: L2 evicts it first. The weights of a token
// are many times larger than L2, and would evict code and arguments.
STEP void bulk_copy_once(void* to, const void* from, u32 bytes, u64* b) {
    u64 first_out;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_out));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_at(to)),
        "l"(from), "r"(bytes), "r"(shared_at(b)), "l"(first_out)
        : "memory");
}
// The barrier counts this thread when all its asynchronous copies so far (copy16 in mma.h) have
// arrived.
STEP void barrier_arrive_copied(u64* b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_at(b)) : "memory");
}
// A barrier of `count` threads of the block, which all use the same id (1 to 15).
STEP void part_sync(u32 id, u32 count) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// ------------------------------------------------------------------------- products of four warps
// A tile of rows of 64 f16 with 128-byte swizzle (as in mma.h), at a multiple of 1024 bytes; `k` is
// a multiple of 16.
STEP u64 tile_descriptor(const u16* tile, u32 k) {
    return (u64)((shared_at(tile) + 2 * k) >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 |
           (u64)1 << 62;
}
STEP void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
STEP void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define products_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

#define D8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
        "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define D40 D32(0), D8(32)
#define D48 D32(0), D16(32)
#define D128 D64(0), D64(64)
// Names of the first N operands.
#define R8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define R16 R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define R32 R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R40 R32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define R48 R40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define R64 R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R128 \
    R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83" \
        ",%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100" \
        ",%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117" \
        ",%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// A product of width N: names and operands of its results, then the numbers of the following
// operands.
#define PRODUCT_IF_KEPT(n, names, KEEP) \
    "{ .reg .pred p; setp.ne.b32 p, %" #KEEP ", 0; " \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" names "}, "
#define PRODUCTS(n, names, results, A, B, KEEP) \
    asm volatile(PRODUCT_IF_KEPT(n, names, KEEP) "%" #A ", %" #B ", p, 1, 1, 0, 0; }" \
                 : results : "l"(a), "l"(b), "r"(keep))
#define PRODUCTS_HELD(n, names, results, A0, A1, A2, A3, B, KEEP) \
    asm volatile(PRODUCT_IF_KEPT(n, names, KEEP) \
                 "{%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, 1; }" \
                 : results : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))

// d[64 × N] = (keep ? d : 0) + A[64 × 16] · B[N × 16]ᵀ. Warp w of four has rows 16w …; d[4j + 2h +
// e] in lane l is row l/4 + 8h, column 8j + 2·(l % 4) + e.
template <u32 N> STEP void products(float (&d)[N / 2], u64 a, u64 b, u32 keep) {
    static_assert(N == 16 || N == 32 || N == 64 || N == 128 || N == 256,
                  "a width that is spelled out");
    if constexpr (N == 16) PRODUCTS(16, R8, D8(0), 8, 9, 10);
    else if constexpr (N == 32) PRODUCTS(32, R16, D16(0), 16, 17, 18);
    else if constexpr (N == 64) PRODUCTS(64, R32, D32(0), 32, 33, 34);
    else if constexpr (N == 128) PRODUCTS(128, R64, D64(0), 64, 65, 66);
    else PRODUCTS(256, R128, D128, 128, 129, 130);
}

// B from a transposed tile: rows k … k + 15 of a tile of `rows` rows, columns in blocks of 64 one
// after another.
STEP u64 transposed_descriptor(const u16* tile, u32 k, u32 rows) {
    return (u64)((shared_at(tile) + 128 * k) >> 4 & 0x3fff) | (u64)(rows * 128 >> 4) << 16 |
           (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// The product with A in registers (layout of mma.sync, sixteen rows per warp) and B transposed.
template <u32 N> STEP void products_held(float (&d)[N / 2], const u32 (&a)[4], u64 b, u32 keep) {
    static_assert(N == 64 || N == 80 || N == 96 || N == 128 || N == 256,
                  "a width that is spelled out");
    if constexpr (N == 64) PRODUCTS_HELD(64, R32, D32(0), 32, 33, 34, 35, 36, 37);
    else if constexpr (N == 80) PRODUCTS_HELD(80, R40, D40, 40, 41, 42, 43, 44, 45);
    else if constexpr (N == 96) PRODUCTS_HELD(96, R48, D48, 48, 49, 50, 51, 52, 53);
    else if constexpr (N == 128) PRODUCTS_HELD(128, R64, D64(0), 64, 65, 66, 67, 68, 69);
    else PRODUCTS_HELD(256, R128, D128, 128, 129, 130, 131, 132, 133);
}
