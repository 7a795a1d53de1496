// memory.cpp: device memory, page-locked memory, copies. New memory is poisoned (0xff: NaN in every
// float format).
#include "sim.h"

namespace hipsim {

Allocation* find(State& s, const void* p, size_t bytes) {
    auto at = s.memory.upper_bound((uintptr_t)p);
    if (at == s.memory.begin()) return nullptr;
    Allocation& a = (--at)->second;
    size_t from = (uintptr_t)p - (uintptr_t)a.start;
    return from <= a.bytes && bytes <= a.bytes - from ? &a : nullptr;
}
bool reaches(State& s, const Device& d, const void* p) {
    Allocation* a = find(s, p, 0);
    return a && (a->kind != Allocation::DEVICE || a->device == d.number || d.peers.count(a->device));
}

static int allocate(State& s, void** to, size_t bytes, Allocation::Kind kind) {
    Device& d = s.devices[(size_t)current_device];
    *to = nullptr;
    if (bytes == 0) return OK;
    if (kind == Allocation::DEVICE && bytes > d.memory - d.used) return OUT_OF_MEMORY;
    Allocation a{kind, d.number, kjsim::Guarded::make(bytes, 0xff), nullptr, bytes};
    if (!a.memory.map) return OUT_OF_MEMORY;
    a.start = a.memory.data;
    if (kind == Allocation::DEVICE) d.used += bytes;
    s.memory.emplace((uintptr_t)a.start, a);
    *to = a.start;
    return OK;
}
int mislead(State& s, char* argument) {
    static auto& lost = *new std::map<std::pair<int, char*>, char*>();
    uintptr_t p;
    memcpy(&p, argument, sizeof p);
    Allocation* a = find(s, (void*)p, 1);
    if (!a || a->kind == Allocation::REGISTERED || a->device == current_device) return OK;
    if (a->kind == Allocation::HOST && strcmp(getenv("HIPSIM_LINK"), "nothing") != 0) return OK;
    char*& there = lost[{current_device, a->start}];
    if (!there) {
        void* made = nullptr;
        if (int code = allocate(s, &made, a->bytes, Allocation::DEVICE)) return code;
        memset(made, 0, a->bytes);
        there = (char*)made;
    }
    p = (uintptr_t)there + (p - (uintptr_t)a->start);
    memcpy(argument, &p, sizeof p);
    return OK;
}
static int release(Hold& hold, void* p, Allocation::Kind kind) {
    State& s = state();
    if (!p) return OK;
    auto at = s.memory.find((uintptr_t)p);
    if (at == s.memory.end() || at->second.kind != kind) return INVALID_VALUE;
    // Waits for work that uses the memory, as the real runtime does.
    if (int code = wait_device(hold, at->second.device)) return code;
    at = s.memory.find((uintptr_t)p);
    if (at == s.memory.end()) return INVALID_VALUE;
    if (kind == Allocation::DEVICE) s.devices[(size_t)at->second.device].used -= at->second.bytes;
    forget(at->first);
    at->second.memory.release();
    s.memory.erase(at);
    return OK;
}

void drop_memory(Hold& hold, int number) {
    State& s = state();
    wait_device(hold, number);
    for (auto at = s.memory.begin(); at != s.memory.end();) {
        Allocation& a = at->second;
        if (a.device != number) { ++at; continue; }
        forget(at->first);
        a.memory.release();
        at = s.memory.erase(at);
    }
    s.devices[(size_t)number].used = 0;
}

API hipMemGetInfo(size_t* free, size_t* total) {
    ENTER(DEVICE);
    if (!free || !total) return INVALID_VALUE;
    *free = device.memory - device.used, *total = device.memory;
    return OK;
}
API hipMalloc(void** to, size_t bytes) {
    ENTER(DEVICE);
    if (!to) return INVALID_VALUE;
    if (int code = refuse_in_capture(s)) return code;
    return allocate(s, to, bytes, Allocation::DEVICE);
}
API hipExtMallocWithFlags(void** to, size_t bytes, unsigned flags) {
    ENTER(DEVICE);
    if (!to || flags > 3) return INVALID_VALUE;
    if (int code = refuse_in_capture(s)) return code;
    return allocate(s, to, bytes, Allocation::DEVICE);
}
API hipFree(void* p) {
    ENTER(DEVICE);
    if (int code = refuse_in_capture(s)) return code;
    return release(call.hold, p, Allocation::DEVICE);
}
API hipHostMalloc(void** to, size_t bytes, unsigned flags) {
    ENTER(DEVICE);
    if (!to || flags & ~0xe0000007u) return INVALID_VALUE;
    if (int code = refuse_in_capture(s)) return code;
    return allocate(s, to, bytes, Allocation::HOST);
}
API hipHostFree(void* p) {
    ENTER(DEVICE);
    if (int code = refuse_in_capture(s)) return code;
    return release(call.hold, p, Allocation::HOST);
}
API hipHostGetDevicePointer(void** to, void* host, unsigned flags) {
    ENTER(DEVICE);
    if (!to || flags) return INVALID_VALUE;
    Allocation* a = find(s, host, 1);
    if (!a || a->kind == Allocation::DEVICE) return INVALID_VALUE;
    *to = host;
    return OK;
}
API hipHostRegister(void* host, size_t bytes, unsigned flags) {
    ENTER(DEVICE);
    if (!host || !bytes || flags & ~0xfu) return INVALID_VALUE;
    if (int code = refuse_in_capture(s)) return code;
    auto next = s.memory.lower_bound((uintptr_t)host);
    if (find(s, host, 0) || (next != s.memory.end() && next->first < (uintptr_t)host + bytes)) return HOST_ALREADY_REGISTERED;
    s.memory.emplace((uintptr_t)host, Allocation{Allocation::REGISTERED, current_device, {}, (char*)host, bytes});
    return OK;
}
API hipHostUnregister(void* host) {
    ENTER(DEVICE);
    auto at = s.memory.find((uintptr_t)host);
    if (at == s.memory.end() || at->second.kind != Allocation::REGISTERED) return HOST_NOT_REGISTERED;
    if (int code = wait_device(call.hold, at->second.device)) return code;
    forget((uintptr_t)host);
    s.memory.erase((uintptr_t)host);
    return OK;
}

// Whether a device can use these addresses. Also checks whether they are host memory.
static bool on_device(State& s, const void* p, size_t bytes) { return find(s, p, bytes) != nullptr; }
static bool on_host(State& s, const void* p, size_t bytes) {
    Allocation* a = find(s, p, 0);
    return p && (!a || (a->kind != Allocation::DEVICE && find(s, p, bytes)));
}
static int copy(Hold& hold, void* to, const void* from, size_t bytes, void* stream, bool wait) {
    Work w;
    w.kind = Work::COPY, w.to = (char*)to, w.from = (const char*)from, w.bytes = bytes, w.device = current_device;
    if (int code = submit(hold, stream, std::move(w))) return code;
    if (!wait || capturing(state(), stream)) return OK;
    std::shared_ptr<Stream> st = stream_of(state(), stream);
    return wait_for(hold, current_device, [st] { return st->queue.empty(); });
}
API hipMemcpyHtoDAsync(void* to, void* from, size_t bytes, void* stream) {
    ENTER(DEVICE);
    if (bytes == 0) return OK;
    if (!on_device(s, to, bytes) || !on_host(s, from, bytes)) return INVALID_VALUE;
    Work w;
    w.kind = Work::COPY, w.to = (char*)to, w.from = (const char*)from, w.bytes = bytes, w.device = current_device;
    // Page-locked memory is read when the copy runs; pageable memory is copied to a buffer of the
    // runtime immediately.
    if (!find(s, from, bytes) && !capturing(s, stream)) w.snapshot.assign((const char*)from, bytes), w.has_snapshot = true;
    return submit(call.hold, stream, std::move(w));
}
API hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, void* stream) {
    ENTER(DEVICE);
    if (bytes == 0) return OK;
    if (!on_device(s, from, bytes) || !on_host(s, to, bytes)) return INVALID_VALUE;
    return copy(call.hold, to, from, bytes, stream, !find(s, to, bytes));
}
API hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, void* stream) {
    ENTER(DEVICE);
    if (bytes == 0) return OK;
    if (!on_device(s, from, bytes) || !on_device(s, to, bytes)) return INVALID_VALUE;
    return copy(call.hold, to, from, bytes, stream, false);
}
API hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, void* stream) {
    ENTER(DEVICE);
    if (bytes == 0) return OK;
    Allocation *a = find(s, to, bytes), *b = find(s, from, bytes);
    if (!a || !b || a->device != to_device || b->device != from_device) return INVALID_VALUE;
    const char* link = getenv("HIPSIM_LINK");
    if (link && !strcmp(link, "lies")) return OK;  // the data never arrive (HIPSIM_LINK)
    return copy(call.hold, to, from, bytes, stream, false);
}
API hipMemsetAsync(void* to, int byte, size_t bytes, void* stream) {
    ENTER(DEVICE);
    if (bytes == 0) return OK;
    if (!on_device(s, to, bytes)) return INVALID_VALUE;
    Work w;
    w.kind = Work::FILL, w.to = (char*)to, w.byte = byte, w.bytes = bytes, w.device = current_device;
    return submit(call.hold, stream, std::move(w));
}

}  // namespace hipsim
