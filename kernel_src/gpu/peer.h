// peer.h: words in memory that another device of the machine reads or writes while both compute.
//
// A value and the number of the meeting that it is for go as one word of 64 bits, which no device
// tears: who sees the number has the value, whatever else is on its way. So nothing is ordered by a
// fence, and a word takes one way over the link.
//
// Many values go without a number each, in vectors of 16 bytes (peer_store16): a block *settles*
// what all of its threads have stored, and then *publishes* a number behind it. Who has seen that
// number sees the values.
//
// Loads and stores are of the system's scope, which a device's own caches do not answer; AMD's
// runtime is asked for fine-grained memory besides.
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

// Four words, `p` a multiple of 16: ordered by nothing but what follows.
STEP void peer_store16(void* p, u32x4 v) {
#if defined(KJ_NVIDIA)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
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

// All threads of a block arrive: what they have stored is there for whoever sees what one of them
// publishes next. To PTX a fence is cumulative, so that the publisher's is enough; AMD's waits for
// the stores of its own wave alone, so that each wave has one.
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

// Words of this device alone, order free: several may be asked for before one of them is waited
// for, and a count is asked for by who needs it later.
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

// The number of meetings behind so many by `by`. It never goes back to 0, which memory that nobody
// wrote to has; even and odd go on in turn.
STEP u32 peer_behind(u32 met, u32 by) {
    const u32 sum = met + by;
    return sum < met || sum == 0xffffffffu ? sum - 0xfffffffeu : sum;
}

// A thread's waiting for another device: turns of its loop, when it began to look at the clock,
// whether it has an end.
struct PeerWaiting {
    u64 since;
    u32 turns;
    bool over;
};
// After a look that found nothing. `over`, of this device: whether somebody has waited in vain;
// `late`, of the host, says so, too.
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
// What a packet of this meeting holds; 0 where it has not come.
STEP float peer_take(const u64* slot, u32 number, PeerWaiting& w, u32* over, u32* late, u64 limit) {
    for (;;) {
        const u64 packet = peer_load(slot);
        if ((u32)(packet >> 32) == number) return as_f32((u32)packet);
        if (w.over) return 0.0f;
        peer_wait_on(w, over, late, limit);
    }
}
