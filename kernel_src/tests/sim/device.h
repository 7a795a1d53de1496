// device.h: the simulated device. A kernel in the dialect of kjit.h runs on the CPU, one fiber per GPU thread.
//
// Strict where hardware is merely undefined: a barrier or a wave operation that not all threads reach is an error, so is an unaligned
// vector access (kjsim::aligned), and every buffer ends at an unmapped page. LDS starts as NaN. Several blocks are resident at once;
// fibers and blocks take turns in a seeded random order.
//
// Needs KJ_WAVE and KJ_BLOCK, as kjit.h does. x86-64 switches fibers in six pushes; other machines use ucontext.
#pragma once
#include <sys/mman.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define KJ_SIMULATED 1

namespace kjsim {

[[noreturn]] inline void fail(const char* what) {
    fprintf(stderr, "simulated device: %s\n", what);
    exit(3);
}

constexpr size_t STACK = 128 * 1024, LDS_BYTES = 256 * 1024;
enum Wait : int { RUNNING, SHUFFLE, BALLOT, WAVE_SYNC, BLOCK_SYNC, DONE };

struct Block;
struct Fiber {
#if defined(__x86_64__)
    void* sp;
#else
    ucontext_t context;
#endif
    std::unique_ptr<char[]> stack;
    Block* block;
    unsigned thread;
    Wait wait;
    uint64_t value;
};
struct Block {
    unsigned id[3];
    std::vector<Fiber> fibers;
    std::unique_ptr<char[]> lds;
    unsigned live;
};

inline Fiber* current;
inline void (*kernel)(void*);
inline void* kernel_arguments;
inline size_t dynamic_bytes;
inline size_t static_bytes = 0;
inline uint64_t random_state;

inline uint32_t random(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % below);
}

#if defined(__x86_64__)
inline void* scheduler;
extern "C" void kjsim_switch(void** from, void* to);
asm(R"(.text
.globl kjsim_switch
kjsim_switch: pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
 movq %rsp,(%rdi); movq %rsi,%rsp
 popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret
)");
inline void to_scheduler() { kjsim_switch(&current->sp, scheduler); }
inline void to_fiber(Fiber& f) { current = &f; kjsim_switch(&scheduler, f.sp); }
#else
inline ucontext_t scheduler;
inline void to_scheduler() { swapcontext(&current->context, &scheduler); }
inline void to_fiber(Fiber& f) { current = &f; swapcontext(&scheduler, &f.context); }
#endif

inline void enter() {
    kernel(kernel_arguments);
    current->wait = DONE;
    current->block->live--;
    to_scheduler();
    __builtin_unreachable();
}

inline void start(Fiber& f, Block* block, unsigned thread) {
    if (!f.stack) f.stack.reset(new char[STACK]);
    f.block = block, f.thread = thread, f.wait = RUNNING;
#if defined(__x86_64__)
    uintptr_t top = ((uintptr_t)f.stack.get() + STACK) & ~(uintptr_t)63;
    void** s = (void**)top;
    *--s = nullptr;  // keeps the stack aligned as after a call
    *--s = (void*)enter;
    for (int i = 0; i < 6; i++) *--s = nullptr;
    f.sp = s;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = STACK;
    makecontext(&f.context, enter, 0);
#endif
}

inline void wait(Wait kind) {
    current->wait = kind;
    to_scheduler();
}
inline void yield() { to_scheduler(); }

inline unsigned thread_id() { return current->thread; }
inline unsigned block_id(int axis) { return current->block->id[axis]; }
inline void block_sync() { wait(BLOCK_SYNC); }
inline void wave_sync() { wait(WAVE_SYNC); }

// Publishes, waits for the wave, reads, and waits again so that nobody publishes anew before all have read.
inline uint32_t shuffle(uint32_t v, unsigned lane) {
    Fiber* f = current;
    if (lane >= KJ_WAVE) fail("a shuffle reads a lane outside its wave");
    f->value = v;
    wait(SHUFFLE);
    uint32_t r = (uint32_t)f->block->fibers[f->thread / KJ_WAVE * KJ_WAVE + lane].value;
    wait(WAVE_SYNC);
    return r;
}
inline uint64_t ballot(bool p) {
    Fiber* f = current;
    f->value = p;
    wait(BALLOT);
    uint64_t r = 0;
    for (unsigned i = 0; i < KJ_WAVE; i++)
        if (f->block->fibers[f->thread / KJ_WAVE * KJ_WAVE + i].value) r |= 1ull << i;
    wait(WAVE_SYNC);
    return r;
}

// A declaration of LDS: one place in every block's memory.
struct Lds {
    size_t at;
    explicit Lds(size_t bytes) : at(static_bytes) {
        static_bytes += (bytes + 15) / 16 * 16;
        if (dynamic_bytes + static_bytes > LDS_BYTES) fail("out of LDS");
    }
    void* here() const { return current->block->lds.get() + dynamic_bytes + at; }
};
inline unsigned char* dynamic_lds() { return (unsigned char*)current->block->lds.get(); }

inline const void* aligned(const void* p, size_t to) {
    if ((uintptr_t)p % to != 0) fail("an unaligned vector access");
    return p;
}
inline void* aligned(void* p, size_t to) { return (void*)aligned((const void*)p, to); }

// Lets those go on who have all arrived. Says whether anybody could.
inline bool release(Block& b) {
    bool any = false, all_at_barrier = true, running = false;
    for (unsigned w = 0; w < KJ_BLOCK; w += KJ_WAVE) {
        unsigned waiting = 0, done = 0, kind = b.fibers[w].wait;
        bool same = true;
        for (unsigned i = w; i < w + KJ_WAVE; i++) {
            Wait k = b.fibers[i].wait;
            running |= k == RUNNING;
            done += k == DONE;
            waiting += k == SHUFFLE || k == BALLOT || k == WAVE_SYNC;
            same &= (unsigned)k == kind;
            all_at_barrier &= k == BLOCK_SYNC;
        }
        if (waiting == KJ_WAVE) {
            if (!same) fail("lanes of a wave are at different wave operations");
            for (unsigned i = w; i < w + KJ_WAVE; i++) b.fibers[i].wait = RUNNING;
            any = true;
        } else if (waiting && done) {
            fail("a wave operation that some lanes have left behind");
        }
    }
    if (all_at_barrier) {
        for (Fiber& f : b.fibers) f.wait = RUNNING;
        return true;
    }
    if (!any && !running && b.live) fail("a divergent barrier: not all threads of the block reach it");
    return any || running;
}

inline void launch(const unsigned (&grid)[3], uint64_t seed, void (*body)(void*), void* arguments) {
    kernel = body, kernel_arguments = arguments, random_state = seed * 2 + 1;
    uint64_t total = (uint64_t)grid[0] * grid[1] * grid[2], next = 0;
    constexpr unsigned resident = 4;
    std::vector<std::unique_ptr<Block>> free, busy;
    for (unsigned i = 0; i < resident; i++) free.emplace_back(new Block());
    uint64_t step = 1, offset = 0;  // blocks start in another order than their numbers
    if (total > 2) {
        auto gcd = [](uint64_t a, uint64_t b) { while (b) { uint64_t t = a % b; a = b, b = t; } return a; };
        do step = 1 + random(0x7fffffff) % total; while (gcd(step, total) != 1);
        offset = random(0x7fffffff) % total;
    }
    while (next < total || !busy.empty()) {
        while (next < total && !free.empty()) {
            std::unique_ptr<Block> b = std::move(free.back());
            free.pop_back();
            uint64_t n = (next++ * step + offset) % total;
            b->id[0] = n % grid[0], b->id[1] = n / grid[0] % grid[1], b->id[2] = n / grid[0] / grid[1];
            if (b->fibers.empty()) b->fibers.resize(KJ_BLOCK), b->lds.reset(new char[LDS_BYTES]);
            memset(b->lds.get(), 0xff, LDS_BYTES);
            b->live = KJ_BLOCK;
            for (unsigned i = 0; i < KJ_BLOCK; i++) start(b->fibers[i], b.get(), i);
            busy.push_back(std::move(b));
        }
        size_t which = random((uint32_t)busy.size());
        Block& b = *busy[which];
        unsigned first = random(KJ_BLOCK), stride = random(KJ_BLOCK) | 1;  // KJ_BLOCK is a power of two or the stride one
        if (KJ_BLOCK & (KJ_BLOCK - 1)) stride = 1;
        for (unsigned i = 0; i < KJ_BLOCK; i++) {
            Fiber& f = b.fibers[(first + i * stride) % KJ_BLOCK];
            if (f.wait == RUNNING) to_fiber(f);
        }
        if (b.live) {
            release(b);
        } else {
            free.push_back(std::move(busy[which]));
            busy.erase(busy.begin() + which);
        }
    }
}

// ------------------------------------------------------------------- arguments from a file, buffers back into another

// A buffer that ends at an unmapped page, so that reads and writes behind it stop the program.
struct Guarded {
    char* map;
    size_t mapped, bytes;
    char* data;
    explicit Guarded(size_t n) : bytes(n) {
        size_t page = 4096, body = (n + 15 + page - 1) / page * page;
        mapped = body + 2 * page;
        map = (char*)mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED || mprotect(map + page, body, PROT_READ | PROT_WRITE) != 0) fail("no memory");
        memset(map + page, 0xee, body);
        data = map + page + (body - n) / 16 * 16;
    }
    void check() const {
        for (char* p = data + bytes; p < map + mapped - 4096; p++)
            if ((unsigned char)*p != 0xee) fail("a write behind the end of a buffer");
        for (char* p = map + 4096; p < data; p++)
            if ((unsigned char)*p != 0xee) fail("a write before the start of a buffer");
    }
};

template <class T> T argument(const std::string& bytes) {
    T t;
    if (bytes.size() != sizeof(T)) fail("an argument has another size than the kernel's parameter");
    memcpy(&t, bytes.data(), sizeof(T));
    return t;
}

template <class... A, size_t... I> void call(void (*f)(A...), const std::vector<std::string>& raw, const unsigned (&grid)[3], uint64_t seed, std::index_sequence<I...>) {
    struct Bound { void (*f)(A...); std::tuple<A...> a; } bound{f, std::tuple<A...>(argument<A>(raw[I])...)};
    launch(grid, seed, [](void* p) { Bound* b = (Bound*)p; std::apply(b->f, b->a); }, &bound);
}

// File: u32 grid[3], u32 dynamic LDS, u64 seed, u32 count; then each: u32 kind (0 value, 1 buffer, 2 null), u64 bytes, the bytes.
template <class... A> int run(void (*f)(A...), const char* from, const char* to) {
    FILE* in = fopen(from, "rb");
    if (!in) fail("no argument file");
    auto get = [&](void* p, size_t n) { if (n && fread(p, 1, n, in) != n) fail("the argument file is too short"); };
    unsigned grid[3], shared, count;
    uint64_t seed;
    get(grid, 12), get(&shared, 4), get(&seed, 8), get(&count, 4);
    dynamic_bytes = (shared + 15) / 16 * 16;
    if (count != sizeof...(A)) fail("the number of arguments is not the kernel's");
    std::vector<std::string> raw(count);
    std::vector<Guarded> buffers;
    for (unsigned i = 0; i < count; i++) {
        unsigned kind;
        uint64_t n;
        get(&kind, 4), get(&n, 8);
        if (kind == 1) {
            buffers.emplace_back(n);
            get(buffers.back().data, n);
            raw[i].assign((char*)&buffers.back().data, 8);
        } else {
            raw[i].resize(kind == 2 ? 8 : n);
            if (kind != 2) get(&raw[i][0], n);
        }
    }
    fclose(in);
    call(f, raw, grid, seed, std::index_sequence_for<A...>());
    FILE* out = fopen(to, "wb");
    if (!out) fail("no output file");
    for (Guarded& b : buffers) {
        b.check();
        if (b.bytes && fwrite(b.data, 1, b.bytes, out) != b.bytes) fail("the output file cannot be written");
    }
    return fclose(out);
}

}  // namespace kjsim

#define KJSIM_MAIN(kernel) int main(int, char** argv) { return kjsim::run(kernel, argv[1], argv[2]); }
