// device.cpp: the simulated devices and their properties, and the start of every call.
//
// HIPSIM_DEVICES   arch ids, comma-separated (gfx1100,gfx942:sramecc+:xnack-); default gfx1100; empty: no device
// HIPSIM_MEMORY    bytes of memory of each device (default 4 GiB)
// HIPSIM_SEED      order of fibers, waves, blocks and streams (default 1)
// HIPSIM_FAIL      call:n:code[,…]: the n-th call of that name fails with the code; n may be `*`
// HIPSIM_HANG      name of a call that never returns
// HIPSIM_ABORT     name of a call that aborts the process
#include "compile.h"
#include "sim.h"

#include <algorithm>
#include <cstring>

namespace hipsim {

thread_local int current_device = 0;

State& state() {
    static State* s = new State();  // never destroyed: the executor lives as long as the process
    return *s;
}
void say(const std::string& line) { fprintf(stderr, "simulated HIP device: %s\n", line.c_str()); }

static std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts;
    for (size_t from = 0; from <= text.size();) {
        size_t to = std::min(text.find(at, from), text.size());
        if (to > from) parts.push_back(text.substr(from, to - from));
        from = to + 1;
    }
    return parts;
}
static std::string variable(const char* name, const char* otherwise) {
    const char* v = getenv(name);
    return v ? v : otherwise;
}
static void configure(State& s) {
    if (s.configured) return;
    s.configured = true;
    s.seed = strtoull(variable("HIPSIM_SEED", "1").c_str(), nullptr, 0);
    s.random = kjsim::Random(s.seed);
    size_t memory = strtoull(variable("HIPSIM_MEMORY", "4294967296").c_str(), nullptr, 0);
    for (const std::string& arch : split(variable("HIPSIM_DEVICES", "gfx1100"), ',')) {
        Device d;
        d.number = (int)s.devices.size(), d.arch = arch, d.memory = memory;
        d.wave = default_wave(arch);
        if (arch.compare(0, 6, "gfx125") == 0) d.lds = 320 * 1024;
        std::vector<std::string> inside = split(variable("HIPSIM_INTEGRATED", ""), ',');
        d.integrated = std::count(inside.begin(), inside.end(), std::to_string(d.number)) > 0;
        s.devices.push_back(d);
        auto legacy = std::make_shared<Stream>();
        legacy->device = d.number, legacy->blocking = true;
        s.legacy.push_back(legacy);
    }
    for (const std::string& one : split(variable("HIPSIM_FAIL", ""), ',')) {
        std::vector<std::string> p = split(one, ':');
        if (p.size() == 3) s.injected.push_back({p[0], p[1] == "*" ? 0 : (unsigned)atoi(p[1].c_str()), atoi(p[2].c_str())});
        else say("HIPSIM_FAIL: '" + one + "' is not call:n:code");
    }
}

Call::Call(const char* name, Needs needs) : hold(state().mutex), code(OK) {
    State& s = state();
    configure(s);
    unsigned n = ++s.calls[name];
    if (variable("HIPSIM_HANG", "") == name)
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    if (variable("HIPSIM_ABORT", "") == name) say(std::string(name) + " gives up"), abort();
    for (const State::Injected& i : s.injected)
        if (i.call == name && (i.at == n || i.at == 0)) code = i.code;
    if (code) return;
    if (needs != NOTHING && s.devices.empty()) code = NO_DEVICE;
    else if (needs != NOTHING && !s.initialised) code = NOT_INITIALIZED;
    else if (needs == DEVICE) code = s.devices[(size_t)current_device].error;
}

static bool known(const State& s, int device) { return device >= 0 && (size_t)device < s.devices.size(); }

API hipInit(unsigned flags) {
    Call call(__func__, Call::NOTHING);
    if (call.code) return call.code;
    State& s = state();
    if (s.devices.empty()) return NO_DEVICE;
    if (flags) return INVALID_VALUE;
    if (!kjsim::map_shadow()) return say("the shadow memory cannot be mapped (16 TiB of addresses at 0x7fff8000)"), NOT_INITIALIZED;
    s.initialised = true;
    return OK;
}
static int version(int* v) {
    if (!v) return INVALID_VALUE;
#ifdef HIPSIM_ROCM5
    *v = 50221153;
#else
    *v = 60241133;
#endif
    return OK;
}
API hipDriverGetVersion(int* v) {
    Call call(__func__, Call::NOTHING);
    return call.code ? call.code : version(v);
}
API hipRuntimeGetVersion(int* v) {
    Call call(__func__, Call::NOTHING);
    return call.code ? call.code : version(v);
}
API hipGetDeviceCount(int* count) {
    Call call(__func__, Call::NOTHING);
    if (call.code) return call.code;
    if (!count) return INVALID_VALUE;
    *count = (int)state().devices.size();
    return *count ? OK : NO_DEVICE;
}
API hipSetDevice(int number) {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    if (!known(state(), number)) return INVALID_DEVICE;
    current_device = number;
    return OK;
}
API hipDeviceGetAttribute(int* value, unsigned attribute, int number) {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    if (!value) return INVALID_VALUE;
    if (!known(state(), number)) return INVALID_DEVICE;
    const Device& d = state().devices[(size_t)number];
    switch (attribute) {
        case 5: *value = 2500000; return OK;  // kHz
        case 10: *value = 1; return OK;
        case 16: *value = d.integrated; return OK;
        case 19: *value = 4 << 20; return OK;
        case 56: *value = (int)MOST_THREADS; return OK;
        case 63: *value = (int)CUS; return OK;
        case 74: *value = (int)d.lds; return OK;
        case 87: *value = (int)d.wave; return OK;
        default: say("attribute " + std::to_string(attribute) + " is none that it has"); return INVALID_VALUE;
    }
}
static int text(char* to, int len, const std::string& from) {
    if (!to || len <= 0) return INVALID_VALUE;
    if (from.size() >= (size_t)len) return INVALID_VALUE;
    memcpy(to, from.c_str(), from.size() + 1);
    return OK;
}
static std::string name_of(const Device& d) { return "Simulated " + d.arch.substr(0, d.arch.find(':')); }
API hipDeviceGetName(char* name, int len, int number) {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    return known(state(), number) ? text(name, len, name_of(state().devices[(size_t)number])) : INVALID_DEVICE;
}
API hipDeviceGetUuid(char* uuid, int number) {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    if (!uuid || !known(state(), number)) return uuid ? INVALID_DEVICE : INVALID_VALUE;
    char all[17];
    snprintf(all, sizeof all, "51a0%012x", number);
    memcpy(uuid, all, 16);
    return OK;
}
API hipDeviceTotalMem(size_t* bytes, int number) {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    if (!bytes || !known(state(), number)) return bytes ? INVALID_DEVICE : INVALID_VALUE;
    *bytes = state().devices[(size_t)number].memory;
    return OK;
}
API hipDeviceGetPCIBusId(char* to, int len, int number) {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    if (!known(state(), number)) return INVALID_DEVICE;
    char all[16];
    snprintf(all, sizeof all, "0000:%02x:00.0", (number + 3) & 255);
    return text(to, len, all);
}

// Writes name, memory and architecture at the offsets of a struct layout. All other bytes are zero.
static int properties(const char* function, char* to, int number, size_t size, size_t memory_at, size_t arch_at) {
    Call call(function, Call::INIT);
    if (call.code) return call.code;
    if (!to) return INVALID_VALUE;
    if (!known(state(), number)) return INVALID_DEVICE;
    const Device& d = state().devices[(size_t)number];
    memset(to, 0, size);
    snprintf(to, 256, "%s", name_of(d).c_str());
    memcpy(to + memory_at, &d.memory, sizeof d.memory);
    snprintf(to + arch_at, 256, "%s", d.arch.c_str());
    return OK;
}
API hipGetDeviceProperties(char* to, int number) { return properties(__func__, to, number, 792, 256, 396); }
#ifndef HIPSIM_ROCM5
API hipGetDevicePropertiesR0000(char* to, int number) { return properties(__func__, to, number, 792, 256, 396); }
API hipGetDevicePropertiesR0600(char* to, int number) { return properties(__func__, to, number, 1472, 288, 1160); }
#endif

// Destroys everything on the device. It also clears a fault, unless HIPSIM_FAULTS requires a new
// process.
API hipDeviceReset() {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    State& s = state();
    const int number = current_device;
    Device& d = s.devices[(size_t)number];
    const char* how = getenv("HIPSIM_FAULTS");
    if (d.error && how && strcmp(how, "stay") == 0) return d.error;
    drop_memory(call.hold, number);
    auto clear = [&](auto& all) {
        for (auto at = all.begin(); at != all.end();) at = at->second->device == number ? all.erase(at) : std::next(at);
    };
    clear(s.streams), clear(s.events), clear(s.modules);
    for (auto at = s.functions.begin(); at != s.functions.end();) at = at->second->module->device == number ? s.functions.erase(at) : std::next(at);
    s.graphs.clear(), s.execs.clear();
    d.error = OK, d.fault.clear();
    return OK;
}

API hipDeviceCanAccessPeer(int* can, int number, int peer) {
    Call call(__func__, Call::INIT);
    if (call.code) return call.code;
    if (!can) return INVALID_VALUE;
    if (!known(state(), number) || !known(state(), peer)) return INVALID_DEVICE;
    const char* link = getenv("HIPSIM_LINK");
    const bool none = link && (!strcmp(link, "none") || !strcmp(link, "nothing"));
    const bool pairs = link && !strcmp(link, "pairs");
    *can = number != peer && !none && !(pairs && number / 2 != peer / 2);
    return OK;
}
API hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    ENTER(DEVICE);
    if (flags) return INVALID_VALUE;
    if (!known(s, peer) || peer == current_device) return INVALID_DEVICE;
    return device.peers.insert(peer).second ? OK : PEER_ALREADY;
}
API hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
    ENTER(DEVICE);
    if (!least || !greatest) return INVALID_VALUE;
    *least = 1, *greatest = -1;
    return OK;
}

extern "C" __attribute__((visibility("default"))) const char* hipGetErrorName(int code) { return code ? "hipErrorSimulated" : "hipSuccess"; }
extern "C" __attribute__((visibility("default"))) const char* hipGetErrorString(int code) {
    return code ? "the simulated device says no (its sentence is on standard error)" : "no error";
}

// Functions for tests: the number of objects that are alive, and injected failures (counted from
// now).
struct Alive { uint64_t allocations, bytes, streams, events, modules, graphs, execs; };
extern "C" __attribute__((visibility("default"))) void hipsim_alive(Alive* to) {
    Hold hold(state().mutex);
    State& s = state();
    *to = Alive{s.memory.size(), 0, s.streams.size(), s.events.size(), s.modules.size(), s.graphs.size(), s.execs.size()};
    for (const auto& m : s.memory) to->bytes += m.second.bytes;
}
extern "C" __attribute__((visibility("default"))) void hipsim_fail(const char* call, unsigned n, int code) {
    Hold hold(state().mutex);
    State& s = state();
    s.injected.push_back({call, s.calls[call] + n, code});
}
// Poisons device allocations of exactly this many bytes, except the ranges in `keep`; returns their
// number. Before that it waits for submitted work.
extern "C" __attribute__((visibility("default"))) size_t hipsim_poison(size_t bytes, const size_t (*keep)[2], size_t kept) {
    Hold hold(state().mutex);
    State& s = state();
    for (const Device& d : s.devices) wait_device(hold, d.number);
    size_t found = 0;
    for (auto& m : s.memory) {
        Allocation& a = m.second;
        if (a.kind != Allocation::DEVICE || a.bytes != bytes) continue;
        std::string before(a.start, bytes);
        memset(a.start, 0xff, bytes);
        for (size_t i = 0; i < kept; i++)
            if (keep[i][0] <= keep[i][1] && keep[i][1] <= bytes) memcpy(a.start + keep[i][0], &before[keep[i][0]], keep[i][1] - keep[i][0]);
        found++;
    }
    return found;
}
extern "C" __attribute__((visibility("default"))) unsigned hipsim_calls(const char* call) {
    Hold hold(state().mutex);
    return state().calls[call];
}
extern "C" __attribute__((visibility("default"))) void hipsim_emulate(Emulate with) {
    Hold hold(state().mutex);
    state().emulate = with;
}
// The message of a device's fault: writes as much as fits and returns the full length.
extern "C" __attribute__((visibility("default"))) size_t hipsim_fault(int number, char* to, size_t len) {
    Hold hold(state().mutex);
    if (!known(state(), number)) return 0;
    const std::string& why = state().devices[(size_t)number].fault;
    if (len) snprintf(to, len, "%s", why.c_str());
    return why.size();
}

}  // namespace hipsim
