// peer.h: words in memory that another device of the machine reads or writes while both compute.
//
// A value and the number of the meeting that it is for go as one word of 64 bits, which no device tears: who
// sees the number has the value, whatever else is on its way. So nothing is ordered by a fence, and a word
// takes one way over the link. Loads and stores are of the system's scope, which a device's own caches do not
// answer; AMD's runtime is asked for fine-grained memory besides.
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
