// peer.h: words in memory that another device of the machine reads or writes while kernels run.
//
// A value and the number of its exchange are one 64-bit word, which devices transfer as a whole. A
// reader that sees the number also has the value. So no fence is needed, and a word takes one trip
// over the link.
//
// Many values are sent without numbers, in vectors of 16 bytes (peer_store16). The block completes
// the stores of all its threads (peer_settle), then publishes a number. A reader that sees the
// number sees the values.
//
// Loads and stores have system scope: a device's caches do not serve them. On AMD the memory is
// fine-grained.
#pragma once
#include "persist.h"

STEP void peer_store(u64* p, u64 v) {
#if defined(KJ_NVIDIA)
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#elif defined(KJ_AMD)
    __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}
STEP u64 peer_load(const u64* p) {
#if defined(KJ_NVIDIA)
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
#elif defined(KJ_AMD)
    return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    kjsim::yield();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

// Stores four words, without ordering. `p` is a multiple of 16.
STEP void peer_store16(void* p, u32x4 v) {
#if defined(KJ_NVIDIA)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
#elif defined(KJ_AMD)
    u64* to = (u64*)p;
    __hip_atomic_store(to, (u64)v.y << 32 | v.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    __hip_atomic_store(to + 1, (u64)v.w << 32 | v.z, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    *(u32x4*)kjsim::aligned(p, 16) = v;
#endif
}
STEP u32x4 peer_load16(const void* p) {
#if defined(KJ_NVIDIA)
    u32x4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
#elif defined(KJ_AMD)
    const u64* from = (const u64*)p;
    const u64 low = __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    const u64 high = __hip_atomic_load(from + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    return u32x4{(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
#else
    return *(const u32x4*)kjsim::aligned(p, 16);
#endif
}

// All threads of a block must call it. A reader that sees the number published next by one of them
// then sees the stores of all of them. In PTX a fence is cumulative, so the publisher's fence is
// enough. On AMD a fence waits only for stores of its own wave, so each wave executes one.
STEP void peer_settle() {
#if defined(KJ_AMD)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
#endif
    block_sync();
}
STEP void peer_publish(u32* p, u32 number) {
#if defined(KJ_NVIDIA)
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(number) : "memory");
#elif defined(KJ_AMD)
    __hip_atomic_store(p, number, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    __atomic_store_n(p, number, __ATOMIC_RELEASE);
#endif
}
STEP u32 peer_published(const u32* p) {
#if defined(KJ_NVIDIA)
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#elif defined(KJ_AMD)
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    kjsim::yield();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

// Access to words of this device only, without ordering, so that several loads may be in flight
// together.
STEP u32 own_word(const u32* p) {
#if defined(KJ_NVIDIA)
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#elif defined(KJ_AMD)
    return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}
STEP void own_store(u32* p, u32 v) {
#if defined(KJ_NVIDIA)
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#elif defined(KJ_AMD)
    __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}
STEP u32 own_count(u32* p) {
#if defined(KJ_NVIDIA)
    u32 old;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(p) : "memory");
    return old;
#elif defined(KJ_AMD)
    return __hip_atomic_fetch_add(p, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED);
#endif
}

// The number of an exchange that is `by` later. It is never 0, the content of memory that was never
// written. Even and odd numbers alternate.
STEP u32 peer_behind(u32 met, u32 by) {
    const u32 sum = met + by;
    return sum < met || sum == 0xffffffffu ? sum - 0xfffffffeu : sum;
}

// State of a thread's wait for another device: iterations, the first time read from the clock,
// whether the wait has timed out.
struct PeerWaiting {
    u64 since;
    u32 turns;
    bool over;
};
// Must be called after an unsuccessful poll. If a wait times out, sets `over` on this device and
// `late` in host memory.
STEP void peer_wait_on(PeerWaiting& w, u32* over, u32* late, u64 limit) {
    if (++w.turns % 256 != 0) return;
    w.over = atomic_load(over) != 0;
    const u64 now = clock_ns();
    if (w.since == 0) w.since = now;
    if (!w.over && now - w.since >= limit) {
        w.over = true;
        atomic_store(over, 1);
        atomic_store(late, 1);
    }
}
// Waits for the packet of this exchange and returns its value, or 0 after a timeout.
STEP float peer_take(const u64* slot, u32 number, PeerWaiting& w, u32* over, u32* late, u64 limit) {
    for (;;) {
        const u64 packet = peer_load(slot);
        if ((u32)(packet >> 32) == number) return as_f32((u32)packet);
        if (w.over) return 0.0f;
        peer_wait_on(w, over, late, limit);
    }
}
