// module.cpp: code objects, launches, and execution of the work in a stream.
#include <dlfcn.h>
#include "sim.h"

namespace hipsim {

// -------------------------------------------------------------------------- threads for the blocks
static unsigned thread_count() {
    static const unsigned n = [] {
        const char* v = getenv("HIPSIM_THREADS");
        unsigned asked = v ? (unsigned)atoi(v) : std::thread::hardware_concurrency();
        return asked < 1 ? 1u : asked > CUS ? CUS : asked;
    }();
    return n;
}
struct Pool {
    std::mutex mutex;
    std::condition_variable changed;
    kjsim::Launch* launch = nullptr;
    uint64_t round = 0;
    unsigned busy = 0;
    Pool() {
        for (unsigned i = 1; i < thread_count(); i++)
            std::thread([this, i] {
                kjsim::catch_faults();
                uint64_t seen = 0;
                std::unique_lock<std::mutex> hold(mutex);
                for (;;) {
                    changed.wait(hold, [&] { return round != seen; });
                    seen = round;
                    kjsim::Launch* l = launch;
                    hold.unlock();
                    kjsim::work(*l, i);
                    hold.lock();
                    if (--busy == 0) changed.notify_all();
                }
            }).detach();
    }
    void run(kjsim::Launch& l) {
        kjsim::catch_faults();
        unsigned threads = l.total > 1 ? thread_count() : 1;
        if (threads > 1) {
            std::lock_guard<std::mutex> hold(mutex);
            launch = &l, busy = threads - 1, round++;
            changed.notify_all();
        }
        kjsim::work(l, 0);
        std::unique_lock<std::mutex> hold(mutex);
        changed.wait(hold, [&] { return busy == 0; });
    }
};

// The fault that a test injects into a kernel, if any: HIPSIM_BREAK is `entry:threads:how`,
// comma-separated. `threads` may be `wave32` or `wave64`.
static std::string broken(const char* entry, unsigned threads, unsigned wave) {
    const char* asked = getenv("HIPSIM_BREAK");
    std::string rest = asked ? asked : "";
    for (const std::string& blocks : {std::to_string(threads), "wave" + std::to_string(wave)}) {
        std::string want = std::string(entry) + ":" + blocks + ":";
        for (size_t from = 0; from < rest.size();) {
            size_t to = std::min(rest.find(',', from), rest.size());
            if (rest.compare(from, want.size(), want) == 0) return rest.substr(from + want.size(), to - from - want.size());
            from = to + 1;
        }
    }
    return {};
}

// Runs the launch as machine code if a test asks for it, with all memory that its device can
// access.
static bool emulate(const Work& w, uint64_t seed, std::string& error, int& code) {
    std::vector<Lent> memory;
    Emulate with;
    {
        State& s = state();
        Hold hold(s.mutex);
        with = s.emulate;
        for (const auto& m : s.memory)
            if (reaches(s, s.devices[(size_t)w.device], m.second.start)) memory.push_back({m.second.start, m.second.bytes});
    }
    if (!with) return false;
    std::string arch = state().devices[(size_t)w.device].arch, text(2000, '\0');
    const std::string& object = w.module->object;
    if (with(arch.c_str(), object.data(), object.size(), w.entry->name, w.grid, w.module->library->block, w.shared, w.cooperative, w.arguments.data(),
             w.arguments.size(), memory.data(), memory.size(), seed, &text[0], text.size()) != 0)
        error = text.c_str(), code = LAUNCH_FAILURE;
    return true;
}

// For each device, the memory that its last launch may access; all other memory is forbidden. A
// device runs one kernel at a time. Memory that two devices share is forbidden when neither may
// access it. Never destroyed: at the exit of the process another thread's launch may still run.
static auto& allowed = *new std::map<int, std::map<uintptr_t, size_t>>();

static void forget_on(int device, uintptr_t start) {
    auto at = allowed[device].find(start);
    if (at == allowed[device].end()) return;
    auto region = *at;
    allowed[device].erase(at);
    for (const auto& other : allowed)
        if (other.second.count(start)) return;
    kjsim::forbid(region.first & ~(uintptr_t)7, region.first + region.second);
}
void forget(uintptr_t start) {
    for (auto& device : allowed) forget_on(device.first, start);
}

// Allows a kernel to access the memory that its arguments point into, and no other memory. A
// pointer that the device cannot access is a fault even if it is never dereferenced. Pointers in
// struct arguments count too. Pointers in memory only count in the allocation of the first argument
// of a cooperative launch: a kernel of many steps has the arguments of the steps there. No other
// kernel dereferences pointers in memory.
static bool give(State& s, const Work& w, std::vector<kjsim::Given>& given, std::string& error) {
    const Device& device = s.devices[(size_t)w.device];
    std::map<uintptr_t, size_t> now;
    for (unsigned i = 0; i < w.entry->count; i++) {
        bool pointer = w.entry->pointers[i];
        for (unsigned at = 0; at + 8 <= w.entry->sizes[i]; at += 8) {
            const void* p;
            memcpy(&p, w.arguments.data() + w.entry->offsets[i] + at, sizeof p);
            Allocation* a = p && (pointer || w.entry->sizes[i] > 8) ? find(s, p, 0) : nullptr;
            if (a && reaches(s, device, p)) {
                now.emplace((uintptr_t)a->start, a->bytes);
                given.push_back({i, (uintptr_t)a->start, a->bytes});
            } else if (pointer && p) {
                char text[128];
                snprintf(text, sizeof text, "%s: argument %u (%p) is no address that rocm:%d reaches", w.entry->name, i, p, w.device);
                return error = text, false;
            }
        }
    }
    void* list = nullptr;
    if (w.cooperative && w.entry->count && w.entry->pointers[0]) memcpy(&list, w.arguments.data() + w.entry->offsets[0], sizeof list);
    if (Allocation* a = list ? find(s, list, 0) : nullptr; a && a->start == list)
        for (size_t i = 0; i + 8 <= a->bytes; i += 8) {
            void* p;
            memcpy(&p, (const char*)a->start + i, sizeof p);
            Allocation* in = p ? find(s, p, 0) : nullptr;
            if (in && reaches(s, device, p) && now.emplace((uintptr_t)in->start, in->bytes).second) given.push_back({0, (uintptr_t)in->start, in->bytes});
        }
    std::vector<uintptr_t> gone;
    for (const auto& a : allowed[w.device])
        if (!now.count(a.first)) gone.push_back(a.first);
    for (uintptr_t start : gone) forget_on(w.device, start);
    for (const auto& a : now)
        if (allowed[w.device].emplace(a).second) kjsim::allow(a.first & ~(uintptr_t)7, a.first + a.second);
    return true;
}

static void run_kernel(const Work& w, uint64_t seed, std::string& error, int& code) {
    std::string how = broken(w.entry->name, w.module->library->block, w.module->library->wave);
    if (how == "abort") abort();
    if (how == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (how == "fault") {
        error = std::string(w.entry->name) + ": faults, as a test wants it", code = ILLEGAL_ADDRESS;
        return;
    }
    Pool* pool;
    {
        State& s = state();
        Hold hold(s.mutex);
        static auto& pools = *new std::map<int, Pool*>();
        Pool*& of = pools[w.device];
        if (!of) of = new Pool();
        pool = of;
    }
    kjsim::Launch l;
    l.library = w.module->library, l.entry = w.entry, l.arguments = w.arguments.data(), l.dynamic_lds = w.shared, l.seed = seed;
    memcpy(l.grid, w.grid, sizeof l.grid);
    if (const char* v = getenv("HIPSIM_TIMEOUT")) l.seconds = atof(v);
    kjsim::begin(l);
    unsigned threads = l.total > 1 ? thread_count() : 1;
    uint64_t at_once = w.cooperative ? l.total : CUS * BLOCKS_PER_CU;
    l.resident = (unsigned)((at_once + threads - 1) / threads);
    {
        State& s = state();
        Hold hold(s.mutex);
        if (!give(s, w, l.given, error)) return (void)(code = ILLEGAL_ADDRESS);
    }
    if (!l.failed && emulate(w, seed, error, code)) return;
    if (!l.failed) pool->run(l);
    if (l.failed) {
        error = l.error;
        bool memory = error.find("outside of what it was given") != std::string::npos;
        code = memory ? ILLEGAL_ADDRESS : error.find("does not end") != std::string::npos ? LAUNCH_TIMEOUT : LAUNCH_FAILURE;
    }
}

void execute(const Work& w, uint64_t seed, std::string& error, int& code) {
    switch (w.kind) {
        case Work::NOTHING: return;
        case Work::KERNEL: return run_kernel(w, seed, error, code);
        case Work::COPY: memmove(w.to, w.has_snapshot ? w.snapshot.data() : w.from, w.bytes); return;
        case Work::CALL: return w.call();
        case Work::FILL: memset(w.to, w.byte, w.bytes); return;
    }
}

// ----------------------------------------------------------------------------------------- modules
// The size of a 64-bit ELF file from its headers; hipModuleLoadData gets no size.
static std::string whole(const void* image) {
    const unsigned char* p = (const unsigned char*)image;
    if (memcmp(p, "\x7f" "ELF\2\1", 6) != 0) return {};
    auto number = [&](size_t at, int bytes) {
        uint64_t v = 0;
        memcpy(&v, p + at, (size_t)bytes);
        return v;
    };
    if (number(18, 2) != 224) return {};
    uint64_t end = 64, sections = number(40, 8), count = number(60, 2), each = number(58, 2);
    if (count && each != 64) return {};
    end = std::max(end, sections + count * each);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t header = sections + i * each;
        if (number(header + 4, 4) != 8) end = std::max(end, number(header + 24, 8) + number(header + 32, 8));  // 8: SHT_NOBITS
    }
    return std::string((const char*)image, end);
}

API hipModuleLoadData(void** to, const void* image) {
    ENTER(DEVICE);
    if (!to || !image) return INVALID_VALUE;
    if (int code = refuse_in_capture(s)) return code;
    std::string object = whole(image), arch = device.arch, why;
    if (object.empty()) return INVALID_IMAGE;
    auto module = std::make_shared<Module>();
    module->device = current_device;
    call.hold.unlock();  // compiling takes long
    module->library = library_of(object, arch, &module->handle, why);
    call.hold.lock();
    if (!module->library) {
        say(why);
        return why.find("is for ") != std::string::npos ? NO_BINARY_FOR_GPU : INVALID_IMAGE;
    }
    module->object = std::move(object);
    *to = module.get();
    s.modules.emplace(*to, module);
    return OK;
}
API hipModuleUnload(void* handle) {
    ENTER(INIT);
    if (!get(s.modules, handle)) return NOT_FOUND;
    // Running work keeps the code (the real runtime waits for it). Handles of its kernels become
    // invalid here.
    for (auto at = s.functions.begin(); at != s.functions.end();)
        at = at->second->module.get() == handle ? s.functions.erase(at) : std::next(at);
    s.modules.erase(handle);
    return OK;
}
API hipModuleGetFunction(void** to, void* handle, const char* name) {
    ENTER(DEVICE);
    std::shared_ptr<Module> module = get(s.modules, handle);
    if (!to || !name) return INVALID_VALUE;
    if (!module) return INVALID_HANDLE;
    for (unsigned i = 0; i < module->library->entry_count; i++)
        if (strcmp(module->library->entries[i].name, name) == 0) {
            auto function = std::make_shared<Function>(Function{module, &module->library->entries[i]});
            *to = function.get();
            s.functions.emplace(*to, function);
            return OK;
        }
    return NOT_FOUND;
}

// Number of blocks that a compute unit can hold, by their LDS and threads, at most BLOCKS_PER_CU.
static unsigned per_unit(const Function& f, unsigned threads, size_t shared) {
    size_t lds = shared + *f.module->library->lds_bytes, all = state().devices[(size_t)f.module->device].lds;
    if (threads == 0 || threads > MOST_THREADS || lds > all) return 0;
    unsigned most = BLOCKS_PER_CU;
    if (lds && all / lds < most) most = (unsigned)(all / lds);
    return most;
}
API hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads, size_t shared) {
    ENTER(DEVICE);
    std::shared_ptr<Function> f = get(s.functions, handle);
    if (!blocks || threads <= 0) return INVALID_VALUE;
    if (!f) return INVALID_HANDLE;
    *blocks = (int)per_unit(*f, (unsigned)threads, shared);
    return OK;
}

static int launch(Call& call, void* handle, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared, void* stream, void** params,
                  bool cooperative) {
    State& s = state();
    std::shared_ptr<Function> f = get(s.functions, handle);
    if (!f) return INVALID_HANDLE;
    if (f->module->device != current_device) return INVALID_HANDLE;
    if (f->entry->count && !params) return INVALID_VALUE;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !block[i] || (uint64_t)grid[i] * block[i] > 0xffffffffull) return INVALID_CONFIGURATION;
    if (threads > MOST_THREADS) return INVALID_CONFIGURATION;
    if (threads != f->module->library->block || block[1] != 1 || block[2] != 1) {
        say(std::string(f->entry->name) + ": launched with " + std::to_string(threads) + " threads, compiled for " + std::to_string(f->module->library->block));
        return LAUNCH_FAILURE;
    }
    unsigned fit = per_unit(*f, (unsigned)threads, shared);
    if (!fit) return LAUNCH_OUT_OF_RESOURCES;
    if (cooperative && (uint64_t)grid[0] * grid[1] * grid[2] > (uint64_t)fit * CUS) return COOPERATIVE_TOO_LARGE;
    Work w;
    w.kind = Work::KERNEL, w.module = f->module, w.entry = f->entry, w.shared = shared, w.cooperative = cooperative;
    memcpy(w.grid, grid, sizeof grid);
    w.arguments.assign(f->entry->bytes, '\0');
    for (unsigned i = 0; i < f->entry->count; i++) memcpy(&w.arguments[f->entry->offsets[i]], params[i], f->entry->sizes[i]);
    const char* link = getenv("HIPSIM_LINK");
    if (link && (!strcmp(link, "kernels") || !strcmp(link, "nothing")))
        for (unsigned i = 0; i < f->entry->count; i++)
            if (f->entry->sizes[i] == 8)
                if (int code = mislead(s, &w.arguments[f->entry->offsets[i]])) return code;
    return submit(call.hold, stream, std::move(w));
}
API hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void* stream,
                          void** params, void** extra) {
    ENTER(DEVICE);
    if (extra) return INVALID_VALUE;
    return launch(call, f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, false);
}
#ifndef HIPSIM_ROCM5
API hipModuleLaunchCooperativeKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                     void* stream, void** params) {
    ENTER(DEVICE);
    return launch(call, f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, true);
}
#endif

}  // namespace hipsim
