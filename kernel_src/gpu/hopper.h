// hopper.h: what only sm_90a has: barriers in shared memory that count bytes, bulk copies, and the matrix products of four warps
// (PTX ISA, "mbarrier", "cp.async.bulk", "wgmma").
#pragma once
#include "mma.h"

STEP u32 shared_at(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---------------------------------------------------------------------------------------------------------------- barriers
STEP void barrier_init(u64* b, u32 arrivals) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals) : "memory"); }
STEP void barrier_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
STEP void barrier_arrive(u64* b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_at(b)) : "memory"); }
STEP void barrier_arrive_expect(u64* b, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_at(b)), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is complete.
STEP void barrier_wait(u64* b, u32 parity) {
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra done; bra again; done: }" ::"r"(shared_at(b)), "r"(parity)
        : "memory");
}
// Shared memory written by ordinary stores is about to be read by the copy engine or the tensor cores.
STEP void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// `bytes` (a multiple of 16) from device memory, counted by the barrier when they are there.
STEP void bulk_copy(void* to, const void* from, u32 bytes, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from),
                 "r"(bytes), "r"(shared_at(b))
                 : "memory");
}
// The barrier counts this thread when the asynchronous copies (mma.h's copy16) that it has begun are there.
STEP void barrier_arrive_copied(u64* b) { asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_at(b)) : "memory"); }
// Some of the block's threads: `count` of them, all naming the same id (1–15).
STEP void part_sync(u32 id, u32 count) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory"); }

// -------------------------------------------------------------------------------------------------- products of four warps
// A tile of rows of 64 halves, 128-byte swizzle (mma.h's tile), at a multiple of 1024 bytes; `k` a multiple of 16.
STEP u64 tile_descriptor(const u16* tile, u32 k) {
    return (u64)((shared_at(tile) + 2 * k) >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
STEP void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
STEP void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define products_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)

// d[64 × N] = (keep ? d : 0) + A[64 × 16] · B[N × 16]ᵀ. Warp w of four has rows 16w …; lane l has in d[4j + 2h + e] row
// l/4 + 8h, column 8j + 2·(l % 4) + e.
template <u32 N> STEP void products(float (&d)[N / 2], u64 a, u64 b, u32 keep) {
    static_assert(N == 16 || N == 32 || N == 64 || N == 128 || N == 256, "a width that is spelled out");
    if constexpr (N == 16)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7}, "
            "%8, %9, p, 1, 1, 0, 0; }"
            : D8(0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (N == 32)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
            "%16, %17, p, 1, 1, 0, 0; }"
            : D16(0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (N == 64)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
            "%32, %33, p, 1, 1, 0, 0; }"
            : D32(0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (N == 128)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
            "%64, %65, p, 1, 1, 0, 0; }"
            : D64(0) : "l"(a), "l"(b), "r"(keep));
    else if constexpr (N == 256)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
            "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
            "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
            "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
            "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
            "%128, %129, p, 1, 1, 0, 0; }"
            : D64(0), D64(64) : "l"(a), "l"(b), "r"(keep));
}

// B from a tile that lies the other way: rows k … k + 15 of a tile of `rows` rows, columns in blocks of 64 one behind the other.
STEP u64 turned_descriptor(const u16* tile, u32 k, u32 rows) {
    return (u64)((shared_at(tile) + 128 * k) >> 4 & 0x3fff) | (u64)(rows * 128 >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// The same product with A in registers, laid out as mma.sync's (each warp its sixteen rows), and B turned.
template <u32 N> STEP void products_held(float (&d)[N / 2], const u32 (&a)[4], u64 b, u32 keep) {
    static_assert(N == 64 || N == 80 || N == 96 || N == 128 || N == 256, "a width that is spelled out");
    if constexpr (N == 64)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
            "{%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
            : D32(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    else if constexpr (N == 80)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %45, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
            "%32,%33,%34,%35,%36,%37,%38,%39}, "
            "{%40,%41,%42,%43}, %44, p, 1, 1, 1; }"
            : D32(0), D8(32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    else if constexpr (N == 96)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %53, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, "
            "{%48,%49,%50,%51}, %52, p, 1, 1, 1; }"
            : D32(0), D16(32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    else if constexpr (N == 128)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
            "{%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
            : D64(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
    else if constexpr (N == 256)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
            "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
            "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
            "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
            "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
            "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
            "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
            "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
            "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
            "{%128,%129,%130,%131}, %132, p, 1, 1, 1; }"
            : D64(0), D64(64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
