// persist.h: many steps in one launch. All blocks are resident. A grid barrier (*meeting*) between
// two steps makes the writes of all blocks visible to all blocks.
//
// A *program* is a list of instructions in device memory, WORDS words of 64 bits each:
//   - the number of the step; above its 32 bits one bit for a grid barrier after it, and the number
//     of its sum over several devices (sums.h; from 1, 0: no sum)
//   - the step's grid
//   - source and destinations of values that are sent between blocks (packets.h): packets, with the
//     weight of the next norm, and values one by one
//   - its arguments in the kernel's order
// The generated kernel (kernel_src/src/persistent.rs) has a case for each distinct step. A block
// takes the shares of a step's grid in round-robin order.
//
// Every wait has a time limit. A block that has waited for `limit` ns sets `late` and does not wait
// again. It executes the remaining instructions with wrong values, but with valid addresses,
// because all addresses come from arguments. So no launch hangs, and the host discards the results.
#pragma once
#include "kjit.h"

// In device memory, zero before the first launch. `arrived` and `left` are zero after each launch.
// With KJ_STAMPS four times per block and instruction follow.
struct MeetingWords { u32 arrived, left, launches, none; };

// Nanoseconds of a clock that runs independently of the block.
STEP u64 clock_ns() {
#if defined(KJ_NVIDIA)
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
#elif defined(KJ_AMD)
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_s_sendmsg_rtnl(0x83) * 10;  // the real-time counter of 100 MHz
#else
    return __builtin_amdgcn_s_memrealtime() * 10;
#endif
#else
    return kjsim::nanoseconds();
#endif
}

// The kernel's loop calls steps as functions. When they were inlined, the compiler computed all
// loop-invariant values of all steps before the loop: 123 registers spilled on gfx1100, 19 on
// sm_90.
#if defined(KJ_NVIDIA)
#define CALLED static __device__ __noinline__
#elif defined(KJ_AMD)
#define CALLED static __attribute__((device, noinline))
#else
#define CALLED STEP
#endif

// Dynamic LDS as an argument of a called function, and its pointer there. The compiler must not see
// that callers pass a constant. LLVM 19 would move the constant into the function, which then looks
// it up by a number in s15 that the kernel does not set: wrong addresses in all blocks but one.
#if defined(KJ_AMD)
typedef u32 LdsPlace;
STEP LdsPlace lds_place(u8* pool) {
    u32 at = (u32)(__attribute__((address_space(3))) u8*)pool;
    asm volatile("" : "+v"(at));
    return at;
}
STEP u8* lds_at(LdsPlace at) { return (u8*)(__attribute__((address_space(3))) u8*)at; }
#else
typedef u8* LdsPlace;
STEP LdsPlace lds_place(u8* pool) { return pool; }
STEP u8* lds_at(LdsPlace at) { return at; }
#endif

struct MeetingPlace {
    MeetingWords* at;
    // In host memory: 0, or 1 + the index of the instruction in which a wait timed out.
    u32* late;
    u64 limit;
    u32 blocks, count, dead;
    u32 epoch, step;  // number of this launch, from 1; index of the current instruction
    struct { const u32* of; u32 word; } kept[2];  // copies of a slot and a position
    // Per thread: barriers at which it arrived, and the last barrier for which it waited.
    u32 met[KJ_BLOCK], seen[KJ_BLOCK];
};

struct Meeting {
    STEP MeetingPlace& place() {
        LDS_ARRAY(MeetingPlace, only, 1);
        return only[0];
    }

    STEP void open(MeetingWords* at, u32* late, u64 limit, u32 blocks, u32 count) {
        MeetingPlace& m = place();
        if (thread_id() == 0) {
            m.at = at, m.late = late, m.limit = limit, m.blocks = blocks, m.count = count;
            m.dead = 0, m.step = 0, m.kept[0].of = m.kept[1].of = nullptr;
            m.epoch = atomic_load(&at->launches) + 1;
        }
        m.met[thread_id()] = m.seen[thread_id()] = 0;
        block_sync();
    }

    // Sets the instruction that `late` names if a wait times out.
    STEP void begin(u32 instruction) {
        if (thread_id() == 0) *(volatile u32*)&place().step = instruction;
    }

    // A sequence's slot or position. It is loaded once per launch, because no step writes it before
    // the last step that reads it. (A load in the attention of each layer would queue behind all
    // loads of the ring.) All threads of the block must call it, with a barrier before the next
    // call for the same word.
    STEP u32 kept(u32 which, const u32* at) {
        MeetingPlace& m = place();
        if (m.kept[which].of == at) return m.kept[which].word;
        const u32 there = *at;
        block_sync();
        if (thread_id() == 0) m.kept[which].of = at, m.kept[which].word = there;
        return there;
    }

    // KJ_STAMPS: stores the time at which this block starts an instruction, has its inputs, has
    // computed, ends it.
    STEP void stamp(u32 which) {
#ifdef KJ_STAMPS
        MeetingPlace& m = place();
        u64* stamps = (u64*)(m.at + 1) + ((u64)block_id() * m.count + m.step) * 4;
        if (thread_id() == 0) stamps[which] = clock_ns();
#endif
    }

    // KJ_DELAYS, for tests: delays one of eight waves by up to 8 µs, different waves in each
    // launch, to detect faults that depend on late waves.
    STEP void delay(u32 where) {
#ifdef KJ_DELAYS
        MeetingPlace& m = place();
        u32 h = m.epoch * 0x9e3779b9u + block_id() * 0x85ebca6bu +
                thread_id() / KJ_WAVE * 0xc2b2ae35u + *(volatile u32*)&m.step * 0x27d4eb2fu +
                where * 0x165667b1u;
        h = (h ^ h >> 15) * 0x2c1b3c6du;
        h = (h ^ h >> 12) * 0x297a2d39u;
        h ^= h >> 15;
        if (h % 8 != 0) return;
#ifdef KJ_SIMULATED  // threads are fibers: a waiting thread must yield
        for (u32 turns = h / 8 % 64; turns != 0; turns--) kjsim::yield();
#else
        for (u64 until = clock_ns() + h / 8 % 8192; clock_ns() < until;) {}
#endif
#endif
    }

    // Whether a wait has timed out. One thread calls it in each iteration; `turns` and `since`
    // start at 0.
    STEP bool over(u32& turns, u64& since) {
        if (++turns % 256 != 0) return false;
        MeetingPlace& m = place();
        if (*(volatile u32*)&m.dead) return true;
        u64 now = clock_ns();
        if (since == 0) since = now;
        if (now - since < m.limit) return false;
        // Only the first timeout is recorded, because it causes the others.
        if (atomic_load(m.late) == 0) atomic_store(m.late, *(volatile u32*)&m.step + 1);
        *(volatile u32*)&m.dead = 1;
        return true;
    }

    // Makes all writes of the block visible to the other blocks, and counts the block.
    STEP void arrive() {
        MeetingPlace& m = place();
        m.met[thread_id()]++;
        delay(0);
#if defined(KJ_AMD)
        // AMD's fence waits only for the stores of its own wave, so each wave has one. LLVM 19
        // omits the wait for the write-back of MI300's L2 caches (LLVM 178316), and the count below
        // would overtake it.
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
#if defined(__GFX9__)
        asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
#endif
        block_sync();
#ifdef KJ_STALL  // for tests: the last block never arrives at the first barrier
        if (block_id() == m.blocks - 1 && m.met[thread_id()] == 1) return;
#endif
        if (thread_id() == 0) {
#ifdef KJ_NVIDIA  // red: an atomic without a result does not wait
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&m.at->arrived)
                         : "memory");
#else
            atomic_add(&m.at->arrived, 1);
#endif
        }
    }

    // Returns when all blocks have arrived at this barrier. May be called repeatedly.
    STEP void wait() {
        MeetingPlace& m = place();
        u32 met = m.met[thread_id()];
        if (m.seen[thread_id()] == met) return;
        m.seen[thread_id()] = met;
        delay(1);
        if (thread_id() == 0) {
            u32 turns = 0;
            u64 since = 0;
            while (atomic_load(&m.at->arrived) < met * m.blocks && !over(turns, since)) {}
        }
        block_sync();
    }

    // Must be called after the last step. The last block resets the words to zero.
    STEP void leave() {
        arrive();
        wait();
        MeetingPlace& m = place();
        if (thread_id() == 0 && atomic_add(&m.at->left, 1) == m.blocks - 1) {
            atomic_store(&m.at->launches, m.epoch);
            atomic_store(&m.at->arrived, 0);
            atomic_store(&m.at->left, 0);
        }
    }
};

// The interface of steps that prefetch (LaunchBefore in kjit.h), for inputs from the previous step.
struct MetBefore {
    STEP void release() {}
    STEP void wait() { Meeting::wait(); }
};

// A word of an instruction, converted to a type.
template <class T> struct Word { STEP T of(u64 w) { return (T)w; } };
template <> struct Word<float> { STEP float of(u64 w) { return as_f32((u32)w); } };
// A value that is equal in all lanes. AMD's compilers cannot prove this for words in shared memory,
// and would use two vector registers for each pointer argument.
STEP u64 same_in_all(u64 w) {
#ifdef KJ_AMD
    const u32 low = (u32)__builtin_amdgcn_readfirstlane((i32)(u32)w),
              high = (u32)__builtin_amdgcn_readfirstlane((i32)(u32)(w >> 32));
    return (u64)high << 32 | low;
#else
    return w;
#endif
}
template <class T> STEP void take(T& field, u64 w) { field = Word<T>::of(same_in_all(w)); }

STEP bool meets_behind(const u64* c) { return (u32)(c[0] >> 32) & 1; }
STEP u32 sum_of(const u64* c) { return (u32)(same_in_all(c[0]) >> 33); }
STEP u32 shares_of(const u64* c) { return (u32)c[1] * (u32)c[2] * (u32)c[3]; }
STEP Share share_of(const u64* c, u32 i) {
    return Share{i % (u32)c[1], i / (u32)c[1] % (u32)c[2], i / (u32)c[1] / (u32)c[2]};
}
