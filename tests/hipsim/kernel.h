// kernel.h: what a kernel sees of the simulated device. Included in front of a kernel in the
// dialect of kjit.h, it makes of it a host program in which every GPU thread is a fiber; exec.h
// runs them.
//
// Lanes of a wave switch to each other directly: a lane that reaches a wave operation switches to
// the next lane, and the last lane to reach it continues. So an operation costs one switch a lane.
// Barriers and waiting for other blocks go through the scheduler.
//
// Needs KJ_WAVE and KJ_BLOCK, as kjit.h does. x86-64 switches fibers with six pushes, other
// machines with ucontext. Includes as little as it can: it is compiled with every kernel.
#pragma once
#include <time.h>
#include <cstddef>
#include <cstdint>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define KJ_SIMULATED 1

namespace kjsim {

constexpr size_t STACK = 64 * 1024;  // bytes of a fiber's stack, which starts at a multiple of it
constexpr unsigned LDS_ALIGN = 16, LDS_REDZONE = 32, LDS_MOST = 64;

enum Kind : uint32_t { SHUFFLE = 1, BALLOT, WAVE_SYNC };

struct Fiber;
struct Block;

struct Wave {
    // a bit for each slot; slots are the lanes in the order in which they take turns
    uint64_t all;
    uint64_t ready;       // can run
    uint64_t arrived;     // wait at a wave operation of this kind
    uint64_t at_barrier;  // wait for the block
    uint64_t done;
    uint32_t kind, phase;
    uint32_t value[2][64];  // by lane; two sets in turn, so that one rendezvous suffices
    Fiber* slot[64];
};

struct Block {
    unsigned id[3];
    unsigned waves;
    char* lds;       // dynamic memory first, the static arrays behind it
    size_t static_lds_at;
    Wave* wave;
    // Stops the launch and never comes back to the fiber. `address` and `bytes` of the access, or
    // zeros.
    void (*fault)(Fiber*, const char* what, uintptr_t address, size_t bytes);
    void* launch;
#if defined(__x86_64__)
    void* scheduler;
#else
    ucontext_t* scheduler;
#endif
};

// At the top of its own stack, so that the stack pointer identifies the running fiber: no
// thread-local variable that a compiler might keep over a switch to another thread.
struct alignas(64) Fiber {
#if defined(__x86_64__)
    void* sp;
#else
    ucontext_t context;
#endif
    Block* block;
    Wave* wave;
    unsigned thread, lane, slot;
};

// What the executor must know of a kernel library.
struct LdsArray { unsigned at, bytes; };
struct Entry {
    const char* name;
    void (*call)(const char* arguments);
    unsigned count, bytes;       // arguments, and the size of the whole block of them
    const unsigned* sizes;       // of each
    // in the block, as AMD's ABI lays it out: each at its natural alignment
    const unsigned* offsets;
    const unsigned char* pointers;  // whether it is one
};
struct Library {
    unsigned version, wave, block;
    const Entry* entries;
    unsigned entry_count;
    const LdsArray* lds;
    const unsigned* lds_count;
    const unsigned* lds_bytes;
};
constexpr unsigned LIBRARY_VERSION = 1;

#if defined(__x86_64__)
extern "C" __attribute__((visibility("hidden"))) void kjsim_switch(void** from, void* to);
asm(R"(.text
.local kjsim_switch
.type kjsim_switch, @function
kjsim_switch: pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi); movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret
.size kjsim_switch, .-kjsim_switch
)");
inline uintptr_t stack_pointer() {
    uintptr_t sp;
    asm("movq %%rsp, %0" : "=r"(sp));
    return sp;
}
inline void switch_fiber(Fiber* from, Fiber* to) { kjsim_switch(&from->sp, to->sp); }
inline void to_scheduler(Fiber* f) { kjsim_switch(&f->sp, f->block->scheduler); }
#else
inline uintptr_t stack_pointer() { return (uintptr_t)__builtin_frame_address(0); }
inline void switch_fiber(Fiber* from, Fiber* to) { swapcontext(&from->context, &to->context); }
inline void to_scheduler(Fiber* f) { swapcontext(&f->context, f->block->scheduler); }
#endif

inline Fiber* fiber_on(uintptr_t sp) { return (Fiber*)((sp | (STACK - 1)) + 1 - sizeof(Fiber)); }
inline Fiber* self() { return fiber_on(stack_pointer()); }

[[noreturn]] inline void fault(const char* what, uintptr_t address = 0, size_t bytes = 0) {
    Fiber* f = self();
    f->block->fault(f, what, address, bytes);
    __builtin_unreachable();
}

// Lets somebody else run: the next lane of the wave that can, else whomever the scheduler picks.
inline void rest(Fiber* f) {
    Wave* w = f->wave;
    if (!w->ready) return to_scheduler(f);
    unsigned turn = (f->slot + 1) & 63;
    uint64_t turned = turn ? w->ready >> turn | w->ready << (64 - turn) : w->ready;
    switch_fiber(f, w->slot[((unsigned)__builtin_ctzll(turned) + turn) & 63]);
}

#ifdef KJ_WAVE  // a kernel's part: the executor alone does not have it

static_assert(KJ_WAVE == 32 || KJ_WAVE == 64, "waves of 32 or 64");

inline void meet(Fiber* f, Kind kind) {
    Wave* w = f->wave;
    uint64_t bit = 1ull << f->slot;
    if (!w->arrived) w->kind = kind;
    else if (w->kind != kind) fault("lanes of a wave are at different wave operations");
    w->ready &= ~bit;
    w->arrived |= bit;
    if (w->arrived == w->all) {
        w->arrived = 0, w->ready = w->all, w->phase ^= 1;
        return;
    }
    if (!w->ready) fault("a wave operation that not all lanes reach: others wait at a barrier or have ended");
    rest(f);
}

inline unsigned thread_id() { return self()->thread; }
inline unsigned block_id(int axis) { return self()->block->id[axis]; }
inline void wave_sync() { meet(self(), WAVE_SYNC); }
inline void yield() { to_scheduler(self()); }
inline uint64_t nanoseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
inline void block_sync() {
    Fiber* f = self();
    Wave* w = f->wave;
    uint64_t bit = 1ull << f->slot;
    w->ready &= ~bit;
    w->at_barrier |= bit;
    if (!w->ready && w->arrived) fault("a wave operation that not all lanes reach: this one is at a barrier");
    rest(f);
}
inline uint32_t shuffle(uint32_t v, unsigned lane) {
    Fiber* f = self();
    if (lane >= KJ_WAVE) fault("a shuffle reads a lane outside its wave");
    uint32_t* values = f->wave->value[f->wave->phase];
    values[f->lane] = v;
    meet(f, SHUFFLE);
#if (defined(KJSIM_WRONG_exchange32) && KJ_WAVE == 32) || (defined(KJSIM_WRONG_exchange64) && KJ_WAVE == 64)
    return values[lane] ^ 0x00400000u;
#endif
    return values[lane];
}
// An instruction's result; of the one that HIPSIM_WRONG names (compile.cpp defines
// KJSIM_WRONG_ and its name) another.
inline int wrong(int right) { return right ^ 64; }
inline float wrong(float right) { return right * 1.5f + 1.0f; }
inline uint32_t wrong_half(uint32_t right) { return right ^ 0x02000200u; }  // one, or two in a word
inline uint64_t ballot(bool p) {
    Fiber* f = self();
    uint32_t* values = f->wave->value[f->wave->phase];
    values[f->lane] = p;
    meet(f, BALLOT);
    uint64_t r = 0;
    for (unsigned i = 0; i < KJ_WAVE; i++) r |= (uint64_t)values[i] << i;
    return r;
}
inline const void* aligned(const void* p, size_t to) {
    if ((uintptr_t)p % to != 0) fault("an unaligned vector access", (uintptr_t)p, to);
    return p;
}
inline void* aligned(void* p, size_t to) { return (void*)aligned((const void*)p, to); }

// What a matrix instruction does with a lane's own numbers. Half of the time of a model's prompt
// went there: optimised whatever the kernel is, and without a look at each access.
#define KJSIM_FAST __attribute__((noinline, optimize("O3"), no_sanitize("kernel-address", "bounds", "alignment")))
template <unsigned N> KJSIM_FAST void floats(const uint16_t* halves, float* to) {
#ifdef __F16C__
    typedef short Halves __attribute__((vector_size(16), aligned(2), may_alias));
    typedef float Floats __attribute__((vector_size(32), aligned(4), may_alias));
    static_assert(N % 8 == 0, "eight at a time");
    for (unsigned i = 0; i < N; i += 8)
        *(Floats*)(to + i) = __builtin_ia32_vcvtph2ps256(*(const Halves*)(halves + i));
#else
    for (unsigned i = 0; i < N; i++) to[i] = (float)__builtin_bit_cast(_Float16, halves[i]);
#endif
}
template <unsigned N> KJSIM_FAST float product(const float* a, const float* b, float sum) {
    for (unsigned i = 0; i < N; i++) sum = __builtin_fmaf(a[i], b[i], sum);
    return sum;
}

// --------------------------------------------------------------------------------------------- LDS
// Every declaration has its place, found when the library is loaded: no check at run time.
// Unnamed namespaces, because libraries of equally named kernels are loaded side by side.
namespace {
LdsArray lds_arrays[LDS_MOST];
unsigned lds_count = 0, lds_bytes = 0;
// Runs when the library is loaded, in a compiler's process too, which has no shadow to look at.
__attribute__((noinline, no_sanitize("kernel-address", "bounds", "alignment"))) unsigned lds_place(unsigned bytes) {
    unsigned at = lds_bytes;
    if (lds_count < LDS_MOST) lds_arrays[lds_count] = LdsArray{at, bytes};
    lds_count++;
    lds_bytes += (bytes + LDS_ALIGN - 1) / LDS_ALIGN * LDS_ALIGN + LDS_REDZONE;
    return at;
}
template <class Tag, unsigned BYTES> struct Lds { static const unsigned at; };
template <class Tag, unsigned BYTES> const unsigned Lds<Tag, BYTES>::at = lds_place(BYTES);
}  // namespace
#define KJSIM_LDS(type, name, count)                                                        \
    struct name##_lds {};                                                                   \
    type(&name)[count] =                                                                    \
        *(type(*)[count])(kjsim::self()->block->lds + kjsim::self()->block->static_lds_at + \
                          kjsim::Lds<name##_lds, sizeof(type) * (count)>::at)
inline unsigned char* dynamic_lds() { return (unsigned char*)self()->block->lds; }

// ------------------------------------------------------------------------------------ entry points
template <unsigned... I> struct Indices {};
template <class... A> struct Signature {
    static constexpr unsigned count = sizeof...(A);
    struct Layout {
        unsigned sizes[count + 1] = {(unsigned)sizeof(A)...},
                               aligns[count + 1] = {(unsigned)alignof(A)...},
                               offsets[count + 1] = {};
        unsigned char pointers[count + 1] = {(unsigned char)__is_pointer_of((A*)nullptr)...};
        template <class T> static constexpr bool __is_pointer_of(T**) { return true; }
        static constexpr bool __is_pointer_of(const volatile void*) { return false; }
        unsigned bytes = 0;
        constexpr Layout() {
            for (unsigned i = 0; i < count; i++) {
                offsets[i] = (bytes + aligns[i] - 1) / aligns[i] * aligns[i];
                bytes = offsets[i] + sizes[i];
            }
        }
    };
    static constexpr Layout layout{};
    template <unsigned... I> static void unpack(void (*f)(A...), const char* block, Indices<I...>) {
        f(*(const A*)(block + layout.offsets[I])...);
    }
    static void call(void (*f)(A...), const char* block) {
        unpack(f, block, Indices<__integer_pack(count)...>{});
    }
};
template <class... A> Signature<A...> signature_of(void (*)(A...));

// HIP's own words, for kernels that are not in the dialect of kjit.h. `__shared__` is not among
// them: an array must have its place.
struct Axis {
    unsigned (*at)();
    operator unsigned() const { return at(); }
};
inline unsigned zero() { return 0; }
template <int AXIS> inline unsigned block_on() { return block_id(AXIS); }
struct Index { Axis x, y, z; };

// A report of the compiler's instrumentation. Each is a line of its own, so that the message can
// say what it was.
#define KJSIM_HIDDEN extern "C" __attribute__((visibility("hidden"), used, noinline))
#define KJSIM_ACCESS(n)                                               \
    KJSIM_HIDDEN void __asan_report_load##n##_noabort(uintptr_t p) {  \
        fault("reads outside of what it was given", p, n);            \
    }                                                                 \
    KJSIM_HIDDEN void __asan_report_store##n##_noabort(uintptr_t p) { \
        fault("writes outside of what it was given", p, n);           \
    }
#define KJSIM_CHECKS                                                                            \
    namespace kjsim {                                                                           \
    KJSIM_ACCESS(1)                                                                             \
    KJSIM_ACCESS(2) KJSIM_ACCESS(4) KJSIM_ACCESS(8) KJSIM_ACCESS(16) KJSIM_HIDDEN               \
        void __asan_report_load_n_noabort(uintptr_t p, size_t n) {                              \
        fault("reads outside of what it was given", p, n);                                      \
    }                                                                                           \
    KJSIM_HIDDEN void __asan_report_store_n_noabort(uintptr_t p, size_t n) {                    \
        fault("writes outside of what it was given", p, n);                                     \
    }                                                                                           \
    KJSIM_HIDDEN void __asan_before_dynamic_init(const void*) {}                                \
    KJSIM_HIDDEN void __asan_after_dynamic_init() {}                                            \
    KJSIM_HIDDEN void __asan_handle_no_return() {}                                              \
    KJSIM_HIDDEN void __ubsan_handle_type_mismatch_v1_abort(void*, uintptr_t p) {               \
        fault("an unaligned access", p, 0);                                                     \
    }                                                                                           \
    KJSIM_HIDDEN void __ubsan_handle_out_of_bounds_abort(void*, uintptr_t i) {                  \
        fault("an index behind an array's end", i, 0);                                          \
    }                                                                                           \
    KJSIM_HIDDEN void __ubsan_handle_shift_out_of_bounds_abort(void*, uintptr_t, uintptr_t n) { \
        fault("a shift by too many bits", n, 0);                                                \
    }                                                                                           \
    }

#endif  // KJ_WAVE

}  // namespace kjsim

#ifdef KJ_WAVE
KJSIM_CHECKS
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __syncthreads() kjsim::block_sync()
namespace {
constexpr kjsim::Index threadIdx{{kjsim::thread_id}, {kjsim::zero}, {kjsim::zero}};
constexpr kjsim::Index blockIdx{{kjsim::block_on<0>}, {kjsim::block_on<1>}, {kjsim::block_on<2>}};
}  // namespace
#endif
// Behind the kernels: describes one, and all of them.
#define KJSIM_ENTRY(name)                                                              \
    static void kjsim_call_##name(const char* block) {                                 \
        decltype(kjsim::signature_of(&name))::call(&name, block);                      \
    }
#define KJSIM_DESCRIBE(name)                               \
    {#name,                                                \
     kjsim_call_##name,                                    \
     decltype(kjsim::signature_of(&name))::count,          \
     decltype(kjsim::signature_of(&name))::layout.bytes,   \
     decltype(kjsim::signature_of(&name))::layout.sizes,   \
     decltype(kjsim::signature_of(&name))::layout.offsets, \
     decltype(kjsim::signature_of(&name))::layout.pointers}
#define KJSIM_LIBRARY(...)                                                                  \
    static const kjsim::Entry kjsim_entries[] = {__VA_ARGS__};                              \
    extern "C" __attribute__((visibility("default")))                                       \
    const kjsim::Library kjsim_library = {kjsim::LIBRARY_VERSION,                           \
                                          KJ_WAVE,                                          \
                                          KJ_BLOCK,                                         \
                                          kjsim_entries,                                    \
                                          sizeof(kjsim_entries) / sizeof(kjsim_entries[0]), \
                                          kjsim::lds_arrays,                                \
                                          &kjsim::lds_count,                                \
                                          &kjsim::lds_bytes};
