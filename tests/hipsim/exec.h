// exec.h: runs a launch on the CPU. Each of a few threads keeps several blocks resident. Blocks,
// waves and lanes run in a seeded random order, and LDS is poisoned. Each fault is reported as one
// line.
#pragma once
#include "kernel.h"
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kjsim {

// ------------------------------------------------------------------------------------------ shadow
// One byte for each eight bytes of memory, as in AddressSanitizer: 0 allows all eight, 1–7 the
// first 1–7, and other values none. The kernels' loads and stores are compiled with a check
// (-fsanitize=kernel-address) at AddressSanitizer's address on x86-64.
//
// Kernels may access no memory at first. A part of the shadow is allocated at its first access,
// with all bytes marked as inaccessible. So a kernel can access only the memory of its launch, the
// LDS of its block, its stacks and its own constants.
constexpr uintptr_t SHADOW = 0x7fff8000, SHADOW_BYTES = 1ull << 44;
constexpr uintptr_t PIECE = 1 << 20;  // bytes of shadow, for 8 MiB of memory
constexpr uint8_t REDZONE = 0xfa;
constexpr size_t PAGE = 4096;

struct Pieces {
    // A file with PIECE bytes of REDZONE; each part of the shadow is a private copy-on-write
    // mapping of it.
    int file = -1;
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    std::atomic<uint64_t> made[SHADOW_BYTES / PIECE / 64 + 1];
};
inline Pieces pieces;

inline bool map_shadow() {
    static const bool mapped = [] {
        void* p = mmap((void*)SHADOW, SHADOW_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (p != (void*)SHADOW) return false;
        madvise(p, SHADOW_BYTES, MADV_DONTDUMP);
        std::string none(PIECE, (char)REDZONE);
        pieces.file = memfd_create("hipsim shadow", MFD_CLOEXEC);
        return pieces.file >= 0 &&
               write(pieces.file, none.data(), none.size()) == (ssize_t)none.size();
    }();
    return mapped;
}
// Allocates the part of the shadow that contains `at`. Returns false if `at` is outside of the
// shadow, or if no memory is left. Also called from the signal handler.
inline bool make_piece(uintptr_t at) {
    if (at < SHADOW || at - SHADOW >= SHADOW_BYTES || pieces.file < 0) return false;
    uintptr_t n = (at - SHADOW) / PIECE;
    std::atomic<uint64_t>& word = pieces.made[n / 64];
    uint64_t bit = 1ull << n % 64;
    if (word.load(std::memory_order_acquire) & bit) return true;
    while (pieces.busy.test_and_set(std::memory_order_acquire)) {}
    bool fine = word.load() & bit;
    if (!fine) {
        void* place = (void*)(SHADOW + n * PIECE);
        fine = mmap(place, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pieces.file, 0) == place;
        if (fine) word.fetch_or(bit, std::memory_order_release);
    }
    pieces.busy.clear(std::memory_order_release);
    return fine;
}
inline uint8_t* shadow(uintptr_t p) { return (uint8_t*)((p >> 3) + SHADOW); }
inline void set_shadow(uintptr_t from, size_t bytes, uint8_t to) {
    uintptr_t at = (uintptr_t)shadow(from);
    if (!bytes) return;
    for (uintptr_t p = at; p < at + bytes; p += PIECE) make_piece(p);
    make_piece(at + bytes - 1);
    memset((void*)at, to, bytes);
}
// `from` must be a multiple of 8. An allowed region may end anywhere.
inline void forbid(uintptr_t from, uintptr_t to) { set_shadow(from, (to - from + 7) / 8, REDZONE); }
inline void allow(uintptr_t from, uintptr_t to) {
    set_shadow(from, (to - from) / 8, 0);
    if ((to - from) % 8) set_shadow(to, 1, (to - from) % 8);
}

// Memory between two inaccessible pages. It starts at a multiple of 256, like allocations of GPUs,
// and ends less than 256 bytes before the second page.
struct Guarded {
    char* map = nullptr;
    char* data = nullptr;
    size_t mapped = 0, bytes = 0;
    static Guarded make(size_t n, int poison) {
        Guarded g;
        size_t body = (n + 255) / 256 * 256, pages = (body + PAGE - 1) / PAGE * PAGE;
        void* map = mmap(nullptr, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED || !map_shadow()) return g;
        if (mprotect((char*)map + PAGE, pages, PROT_READ | PROT_WRITE) != 0) return munmap(map, pages + 2 * PAGE), g;
        g.map = (char*)map, g.mapped = pages + 2 * PAGE, g.bytes = n,
        g.data = g.map + PAGE + (pages - body);
        memset(g.map + PAGE, poison, pages);
        return g;
    }
    void release() {
        if (!map) return;
        munmap(map, mapped);
        map = nullptr;
    }
};

// ------------------------------------------------------------------------------------------ launch
// Maximum bytes of a kernel's arguments on AMD GPUs; maximum waves of a block
constexpr unsigned MOST_ARGUMENTS = 4096, MOST_WAVES = 32;

// The allocation that a pointer argument points into.
struct Given {
    unsigned argument;
    uintptr_t start;
    size_t bytes;
};

struct Launch {
    const Library* library = nullptr;
    const Entry* entry = nullptr;
    const char* arguments = nullptr;
    std::vector<Given> given;  // for messages
    unsigned grid[3] = {1, 1, 1};
    size_t dynamic_lds = 0;
    uint64_t seed = 0;
    unsigned resident = 4;  // blocks at a time on each thread
    double seconds = 120;  // timeout, after which the launch counts as hanging

    std::atomic<uint64_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::string error;
    uint64_t total = 0, step = 1, offset = 0;  // the order of blocks
    std::chrono::steady_clock::time_point deadline;

    void fail(const std::string& why) {
        std::lock_guard<std::mutex> hold(mutex);
        if (error.empty()) error = why;
        failed = true;
    }
};

struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 2 + 1) { (*this)(2), (*this)(2); }
    uint32_t operator()(uint32_t below) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return below ? (uint32_t)((state >> 33) % below) : 0;
    }
};

// State that fibers use. It is in one allocation, which is accessible to kernels.
struct Shared {
    Block block;
    Wave waves[MOST_WAVES];
    char arguments[MOST_ARGUMENTS];
};

// The fibers and the memory of a resident block. They are reused by later launches.
struct Slot {
    Guarded home = Guarded::make(sizeof(Shared), 0);
    Shared* shared = (Shared*)home.data;
    char* stacks = nullptr;
    unsigned threads = 0;
    Guarded lds;
    ~Slot() {
        free_stacks();
        free_lds();
        if (shared) forbid((uintptr_t)shared, (uintptr_t)(shared + 1));
        home.release();
    }
    void free_stacks() {
        if (!stacks) return;
        forbid((uintptr_t)stacks, (uintptr_t)stacks + threads * STACK);
        munmap(stacks, threads * STACK);
        stacks = nullptr;
    }
    void free_lds() {
        if (lds.map) forbid((uintptr_t)lds.data, (uintptr_t)lds.data + lds.bytes);
        lds.release();
    }
    bool prepare(unsigned n, unsigned wave, size_t lds_bytes, const Launch& l) {
        if (!shared || n / wave > MOST_WAVES || l.entry->bytes > MOST_ARGUMENTS) return false;
        allow((uintptr_t)shared, (uintptr_t)(shared + 1));
        if (n > threads) {
            free_stacks();
            char* map = (char*)mmap(nullptr, (n + 1) * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (map == MAP_FAILED) return false;
            char* start = (char*)(((uintptr_t)map + STACK - 1) & ~(uintptr_t)(STACK - 1));
            if (start != map) munmap(map, start - map);
            munmap(start + n * STACK, map + (n + 1) * STACK - (start + n * STACK));
            for (unsigned i = 0; i < n; i++) mprotect(start + i * STACK, PAGE, PROT_NONE);
            stacks = start, threads = n;
            allow((uintptr_t)stacks, (uintptr_t)stacks + n * STACK);
        }
        if (lds_bytes > lds.bytes || !lds.map) free_lds(), lds = Guarded::make(lds_bytes + 64, 0xff);
        shared->block = Block{};
        memset((void*)shared->waves, 0, n / wave * sizeof(Wave));
        memcpy(shared->arguments, l.arguments, l.entry->bytes);
        shared->block.waves = n / wave, shared->block.wave = shared->waves,
        shared->block.lds = lds.data;
        return lds.map != nullptr;
    }
    Fiber* fiber(unsigned i) { return (Fiber*)(stacks + (i + 1) * STACK - sizeof(Fiber)); }
};

// Set while a kernel runs on this thread, for the signal handler.
inline thread_local Fiber* running = nullptr;

[[noreturn]] inline void leave(Fiber* f) {
    for (;;) to_scheduler(f);
}
inline void on_fault(Fiber* f, const char* what, uintptr_t address, size_t bytes) {
    Launch* l = (Launch*)f->block->launch;
    char place[384];
    int n = snprintf(place, sizeof place, "%s: %s", l->entry->name, what);
    if (address && n > 0 && (size_t)n < sizeof place)
        n += snprintf(place + n, sizeof place - n, bytes ? " (%#zx, %zu bytes)" : " (%#zx)", (size_t)address, bytes);
    // The allocation of the launch whose start or end is nearest to the access.
    const Given* near = nullptr;
    size_t least = ~(size_t)0;
    for (const Given& g : l->given) {
        size_t away = address < g.start ? g.start - address : address - g.start;
        if (bytes && away < least) least = away, near = &g;
    }
    if (near && n > 0 && (size_t)n < sizeof place) {
        bool before = address < near->start;
        n += snprintf(place + n, sizeof place - n, ", %zu bytes %s argument %u's %zu", before ? least : address - near->start,
                      before ? "before" : "from the start of", near->argument, near->bytes);
    }
    if (n > 0 && (size_t)n < sizeof place)
        snprintf(place + n, sizeof place - n, " [block %u,%u,%u thread %u]", f->block->id[0], f->block->id[1], f->block->id[2], f->thread);
    l->fail(place);
    leave(f);
}

inline void finish(Fiber* f) {
    Wave* w = f->wave;
    uint64_t bit = 1ull << f->slot;
    w->ready &= ~bit;
    w->done |= bit;
    if (!w->ready && w->arrived) on_fault(f, "a wave operation that not all lanes reach: this one has ended", 0, 0);
    if (!w->ready) leave(f);
    rest(f);
    __builtin_unreachable();
}
inline void enter() {
    Fiber* f = self();
    Launch* l = (Launch*)f->block->launch;
    l->entry->call(((Shared*)f->block)->arguments);
    finish(f);
}

inline void start(Slot& slot, unsigned thread, unsigned wave, unsigned turn, unsigned stride) {
    Fiber* f = slot.fiber(thread);
    f->block = &slot.shared->block, f->thread = thread, f->lane = thread % wave,
    f->wave = &slot.shared->waves[thread / wave];
    f->slot = (f->lane * stride + turn) % wave;
    f->wave->slot[f->slot] = f;
    // Stacks start in different cache sets.
    uintptr_t top = (uintptr_t)f - (thread % 32) * 192;
    top &= ~(uintptr_t)63;
#if defined(__x86_64__)
    void** s = (void**)top;
    *--s = nullptr;  // keeps the stack aligned as after a call
    *--s = (void*)enter;
    for (int i = 0; i < 6; i++) *--s = nullptr;
    f->sp = s;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = (char*)fiber_on(top) + sizeof(Fiber) - STACK + PAGE;
    f->context.uc_stack.ss_size = top - (uintptr_t)f->context.uc_stack.ss_sp;
    makecontext(&f->context, enter, 0);
#endif
}

inline bool restart(Slot& s, Launch& l, uint64_t number, Random& random) {
    const unsigned wave = l.library->wave, threads = l.library->block;
    Block& b = s.shared->block;
    b.id[0] = number % l.grid[0], b.id[1] = number / l.grid[0] % l.grid[1],
    b.id[2] = number / l.grid[0] / l.grid[1];
    b.launch = &l, b.fault = on_fault;
    memset(b.lds, 0xff, b.static_lds_at + *l.library->lds_bytes);
    for (unsigned w = 0; w < b.waves; w++) {
        Wave& v = b.wave[w];
        v.all = wave == 64 ? ~0ull : (1ull << wave) - 1;
        v.ready = v.all, v.arrived = v.at_barrier = v.done = 0, v.kind = 0, v.phase = 0;
        unsigned turn = random(wave), stride = random(wave) | 1;
        for (unsigned i = 0; i < wave; i++) start(s, w * wave + i, wave, turn, stride);
    }
    return b.waves * wave == threads;
}

// Allows a kernel to access its arrays in LDS, and no bytes between them.
inline void fence_lds(Slot& s, const Launch& l) {
    uintptr_t base = (uintptr_t)s.shared->block.lds, end = (base + s.lds.bytes + 7) & ~(uintptr_t)7;
    forbid(base, end);
    if (l.dynamic_lds) allow(base, base + l.dynamic_lds);
    unsigned count = *l.library->lds_count < LDS_MOST ? *l.library->lds_count : LDS_MOST;
    for (unsigned i = 0; i < count; i++) {
        uintptr_t at = base + s.shared->block.static_lds_at + l.library->lds[i].at;
        allow(at, at + l.library->lds[i].bytes);
    }
}

// Runs the part of a launch that belongs to one thread.
inline void work(Launch& l, unsigned worker) {
    static thread_local std::vector<std::unique_ptr<Slot>> slots;
    const unsigned wave = l.library->wave, threads = l.library->block;
    Random random(l.seed * 7919 + worker);
    size_t static_at = (l.dynamic_lds + LDS_ALIGN - 1) / LDS_ALIGN * LDS_ALIGN + LDS_REDZONE;
    while (slots.size() < l.resident) slots.emplace_back(new Slot());
    std::vector<Slot*> idle, busy;
    for (unsigned i = 0; i < l.resident && i < l.total; i++) {
        Slot* s = slots[i].get();
        if (!s->prepare(threads, wave, static_at + *l.library->lds_bytes, l)) return l.fail("the simulated device has no memory for a block");
        s->shared->block.static_lds_at = static_at;
        fence_lds(*s, l);
        idle.push_back(s);
    }
#if !defined(__x86_64__)
    ucontext_t home;
#endif
    unsigned tick = 0;
    while (!l.failed) {
        while (!idle.empty()) {
            uint64_t n = l.next.fetch_add(1);
            if (n >= l.total) break;
            Slot* s = idle.back();
            idle.pop_back();
            busy.push_back(s);
            restart(*s, l, (n * l.step + l.offset) % l.total, random);
        }
        if (busy.empty()) return;
        size_t which = random((uint32_t)busy.size());
        Block& b = busy[which]->shared->block;
        // The wave to run: the first ready wave after a random one.
        unsigned first = random(b.waves), w = 0;
        bool found = false;
        for (unsigned i = 0; i < b.waves && !found; i++) {
            w = first + i < b.waves ? first + i : first + i - b.waves;
            found = b.wave[w].ready != 0;
        }
        if (found) {
            Wave& v = b.wave[w];
            unsigned turn = random(64);
            uint64_t turned = turn ? v.ready >> turn | v.ready << (64 - turn) : v.ready;
            Fiber* f = v.slot[((unsigned)__builtin_ctzll(turned) + turn) & 63];
            running = f;
#if defined(__x86_64__)
            kjsim_switch(&b.scheduler, f->sp);
#else
            b.scheduler = &home;
            swapcontext(&home, &f->context);
#endif
            running = nullptr;
            if (++tick % 4096 == 0 && std::chrono::steady_clock::now() > l.deadline)
                l.fail(std::string(l.entry->name) + ": does not end (it waits for something that nobody does)");
            continue;
        }
        // No wave is ready: all lanes wait at the barrier, or all have exited.
        bool all_barrier = true, all_done = true;
        for (unsigned i = 0; i < b.waves; i++)
            all_barrier &= b.wave[i].at_barrier == b.wave[i].all,
                all_done &= b.wave[i].done == b.wave[i].all;
        if (all_done) {
            idle.push_back(busy[which]);
            busy.erase(busy.begin() + which);
        } else if (all_barrier) {
            for (unsigned i = 0; i < b.waves; i++)
                b.wave[i].at_barrier = 0, b.wave[i].ready = b.wave[i].all;
        } else {
            l.fail(std::string(l.entry->name) + ": a divergent barrier: not all threads of the block reach it");
        }
    }
}

// ------------------------------------------------------------------------------------- CPU signals

inline struct sigaction previous_actions[64];
inline void stopped_on_signal() {  // runs on the fiber's stack
    static const char* const names[] = {"touches memory outside of what it was given", "divides by zero", "an instruction that a check put there"};
    Fiber* f = self();
    size_t kind = (size_t)f->wave->value[0][0];
    on_fault(f, names[kind < 3 ? kind : 0], ((uintptr_t)f->wave->value[1][0] << 32) | f->wave->value[1][1], 0);
}
inline void on_signal(int number, siginfo_t* info, void* context) {
    // The first access to this part of the shadow.
    if (number == SIGSEGV && info->si_code == SEGV_ACCERR && make_piece((uintptr_t)info->si_addr))
        return;
    if (running) {
        ucontext_t* c = (ucontext_t*)context;
#if defined(__x86_64__)
        Fiber* f = fiber_on((uintptr_t)c->uc_mcontext.gregs[REG_RSP]);
        uintptr_t at = (uintptr_t)info->si_addr;
        // The address is the shadow of an invalid address.
        if (at >= SHADOW + SHADOW_BYTES && at < SHADOW + 2 * SHADOW_BYTES) at = (at - SHADOW) << 3;
        f->wave->value[0][0] = number == SIGFPE ? 1 : number == SIGILL ? 2 : 0;
        f->wave->value[1][0] = (uint32_t)(at >> 32), f->wave->value[1][1] = (uint32_t)at;
        // Execution continues in stopped_on_signal, so that no signal frame stays on the other
        // stack.
        c->uc_mcontext.gregs[REG_RSP] = (c->uc_mcontext.gregs[REG_RSP] - 512) / 64 * 64 - 8;
        c->uc_mcontext.gregs[REG_RIP] = (greg_t)stopped_on_signal;
        return;
#else
        (void)c;
#endif
    }
    struct sigaction& before = previous_actions[number];
    if (before.sa_flags & SA_SIGINFO && before.sa_sigaction)
        return before.sa_sigaction(number, info, context);
    signal(number, SIG_DFL);  // is raised again immediately, and ends the process
}
inline void catch_faults() {
    static const bool once = [] {
        for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
            struct sigaction action {};
            action.sa_sigaction = on_signal;
            action.sa_flags = SA_SIGINFO | SA_ONSTACK;
            sigaction(number, &action, &previous_actions[number]);
        }
        return true;
    }();
    (void)once;
    static thread_local std::unique_ptr<char[]> stack;
    if (!stack) {
        stack.reset(new char[64 * 1024]);
        stack_t s{};
        s.ss_sp = stack.get(), s.ss_size = 64 * 1024;
        sigaltstack(&s, nullptr);
    }
}

inline uint64_t coprime(uint64_t total, Random& random) {
    auto gcd = [](uint64_t a, uint64_t b) {
        while (b) {
            uint64_t t = a % b;
            a = b, b = t;
        }
        return a;
    };
    uint64_t step;
    do step = 1 + random(0x7fffffff) % total; while (gcd(step, total) != 1);
    return step;
}
inline void begin(Launch& l) {
    Random random(l.seed);
    l.total = (uint64_t)l.grid[0] * l.grid[1] * l.grid[2];
    if (l.total > 2) l.step = coprime(l.total, random), l.offset = random(0x7fffffff) % l.total;
    l.deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds((int64_t)(l.seconds * 1000));
    if (*l.library->lds_count > LDS_MOST) l.fail("more LDS arrays than the simulated device keeps track of");
}

}  // namespace kjsim
