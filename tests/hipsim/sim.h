// sim.h: the state of the simulated HIP runtime, shared by its parts.
//
// One lock guards everything. Calls check their arguments and submit work to streams. A thread for
// each device executes it (run_queues): the head of a random stream at a time. Unless a caller
// waits, the thread delays it a little, so that a result that is used before its event shows as
// poison.
//
// Settings, by environment variables:
//
//   HIPSIM_DEVICES: arch ids with flags, comma-separated (gfx1100,gfx942:sramecc+:xnack-); default
//     gfx1100; empty: no device
//   HIPSIM_SEED: seed of every random order
//   HIPSIM_MEMORY: bytes of memory of each device; default 4 GiB
//   HIPSIM_LINK: faults of transfers between devices.
//     lies: copies between two devices succeed, but no data arrive
//     kernels: copies arrive; writes of kernels into another device's memory do not
//     none: every device reports that it cannot access another
//     nothing: as none, and writes of kernels into page-locked memory of another device are lost
//     pairs: devices 0 and 1, 2 and 3 … can access each other
//   HIPSIM_RCCL: version:N: RCCL reports this version; die:N: the process exits at its N-th
//     all-gather; hang:N: its N-th all-gather never ends
//   HIPSIM_INTEGRATED: numbers of the devices that report to be integrated GPUs, comma-separated
//   HIPSIM_FAIL: call:n:code, comma-separated: the n-th call of that name fails with the code; if n
//     is *, every call fails
//   HIPSIM_HANG, HIPSIM_ABORT: name of a call that never returns, or that aborts the process:
//     hipInit
//   HIPSIM_BREAK: entry:threads:how, comma-separated: a kernel with blocks of this number of
//     threads (or of wave32, wave64) has the fault abort, hang or fault
//   HIPSIM_WRONG: an instruction with wrong results: dot4, matrix, exchange32 or exchange64
//     (between the lanes of waves of that width), packed (two f16 in a register),
//     widen (f16 to f32) or narrow (f32 to f16)
//   HIPSIM_FAULTS: behaviour after a fault. stay: only a new process helps; abort: the process
//     aborts
//   HIPSIM_TIMEOUT: seconds after which a kernel counts as hanging; default 120
//   HIPSIM_THREADS: CPU threads that run blocks; default all, at most four
//   HIPSIM_DIR: folder of sources, their CPU libraries, and the source of each code object
//   HIPSIM_CLANG: path of the real clang, or none: code objects have only a note and symbols
//   HIPSIM_SLOW: gemm:2.5,flash:1: hiprtc takes this many seconds longer for files
//     whose names begin with these words
//   HIPSIM_REFUSE: gemm,flash: hiprtc refuses these files
//   HIPSIM_MISBEHAVE: argmax:abort: a fault of hiprtc with these files: abort, kill, loop, eat
//     (memory), print (to stdout), garbage
//   HIPSIM_ONCE: a folder: hiprtc has that fault only if it can create the folder
//   HIPSIM_CXX, HIPSIM_OPTIMISE: compiler for the CPU (c++), and its optimisation flag (-O2)

#pragma once
#include "exec.h"
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <set>

namespace hipsim {

// hipError_t
enum : int {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_CONFIGURATION = 9,
    INVALID_DEVICE_POINTER = 17,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NO_BINARY_FOR_GPU = 209,
    PEER_ALREADY = 704,
    PEER_UNSUPPORTED = 217,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    HOST_ALREADY_REGISTERED = 712,
    HOST_NOT_REGISTERED = 713,
    LAUNCH_FAILURE = 719,
    COOPERATIVE_TOO_LARGE = 720,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_WRONG_THREAD = 908,
    GRAPH_UPDATE_FAILURE = 910,
};

constexpr unsigned CUS = 4, BLOCKS_PER_CU = 2, LDS_PER_BLOCK = 64 * 1024, MOST_THREADS = 1024;

struct Allocation {
    enum Kind { DEVICE, HOST, REGISTERED } kind;
    int device;
    kjsim::Guarded memory;  // if the simulator allocated it
    char* start;
    size_t bytes;
};

struct Device {
    int number = 0;
    std::string arch;  // with feature flags: gfx90a:sramecc+:xnack-
    unsigned wave = 32;
    size_t lds = LDS_PER_BLOCK;
    bool integrated = false;
    size_t memory = 0, used = 0;
    std::set<int> peers;
    bool executor = false;  // its thread has started
    int error = OK;  // a fault: all later calls fail, as on a real device
    std::string fault;
};

// A loaded code object: its CPU library, and the name of its source.
struct Module {
    int device;
    void* handle = nullptr;
    const kjsim::Library* library = nullptr;
    std::string object;  // the loaded bytes
};
struct Function {
    std::shared_ptr<Module> module;
    const kjsim::Entry* entry;
};

// A unit of work of a device.
struct Work {
    enum Kind { NOTHING, KERNEL, COPY, FILL, CALL } kind = NOTHING;
    int device = 0;
    // KERNEL
    std::shared_ptr<Module> module;
    const kjsim::Entry* entry = nullptr;
    std::string arguments;
    unsigned grid[3] = {1, 1, 1}, shared = 0;
    bool cooperative = false;
    // COPY, FILL
    char* to = nullptr;
    const char* from = nullptr;
    std::string snapshot;  // of pageable memory, copied at the call
    bool has_snapshot = false;
    size_t bytes = 0;
    int byte = 0;
    // CALL: work of a library; and a reference that shows whether the owner of its resources still
    // exists
    std::function<void()> call;
    std::function<bool()> given_up;
};
struct Node {
    Work work;
    std::vector<size_t> after;
};
struct Graph { std::vector<Node> nodes; };

struct Op {
    Work work;
    std::shared_ptr<const Graph> graph;  // a replay of it
    std::vector<std::shared_ptr<Op>> after;
    bool done = false;
    bool timed = false;
    std::chrono::steady_clock::time_point time;
};
using OpRef = std::shared_ptr<Op>;

struct Capture {
    Graph graph;
    void* origin;
    std::thread::id thread;
    std::set<void*> streams;
    int error = OK;
};
struct Stream {
    int device = 0;
    bool blocking = false, destroyed = false;
    std::deque<OpRef> queue;
    OpRef last;
    std::vector<OpRef> waits;  // before the next op
    std::shared_ptr<Capture> capture;
    std::vector<size_t> tail;  // nodes that the next one follows
};
struct Event {
    int device = 0;
    bool timing = true;
    OpRef recorded;
    std::shared_ptr<Capture> capture;
    std::vector<size_t> tail;
};

// Runs a launch as machine code instead of from its source (../src/emulated.rs). Returns 0, or a
// nonzero value with a message in `error`.
struct Lent { const char* at; size_t bytes; };
using Emulate = int (*)(const char* arch, const char* object, size_t object_bytes,
                        const char* symbol, const unsigned* grid, unsigned threads, unsigned lds,
                        int cooperative, const char* arguments, size_t argument_bytes,
                        const Lent* memory, size_t regions, uint64_t seed, char* error,
                        size_t room);

struct State {
    Emulate emulate = nullptr;
    std::mutex mutex;
    std::condition_variable changed;
    bool configured = false, initialised = false;
    std::vector<Device> devices;
    std::map<uintptr_t, Allocation> memory;
    std::map<void*, std::shared_ptr<Stream>> streams;
    std::map<void*, std::shared_ptr<Event>> events;
    std::map<void*, std::shared_ptr<Module>> modules;
    std::map<void*, std::shared_ptr<Function>> functions;
    std::map<void*, std::shared_ptr<Graph>> graphs;
    std::map<void*, std::shared_ptr<Graph>> execs;
    std::vector<std::shared_ptr<Stream>> legacy;  // the null stream of each device
    std::map<std::string, unsigned> calls;
    struct Injected { std::string call; unsigned at; int code; };
    std::vector<Injected> injected;
    uint64_t seed = 1, launches = 0;
    unsigned waiting = 0;
    std::chrono::steady_clock::time_point not_before;
    kjsim::Random random{1};
};
State& state();
extern thread_local int current_device;

using Hold = std::unique_lock<std::mutex>;

// The start of every call: reads the configuration, fails if a failure is injected, and refuses
// calls that are invalid before hipInit or after a fault.
struct Call {
    Hold hold;
    int code;
    enum Needs { NOTHING, INIT, DEVICE };
    Call(const char* name, Needs needs);
};
#define API extern "C" __attribute__((visibility("default"))) int
#define ENTER(needs)                                         \
    hipsim::Call call(__func__, hipsim::Call::needs);        \
    if (call.code) return call.code;                         \
    [[maybe_unused]] hipsim::State& s = hipsim::state();     \
    [[maybe_unused]] hipsim::Device& device = s.devices[(size_t)hipsim::current_device]

// memory.cpp
Allocation* find(State&, const void* p, size_t bytes);
// Redirects a kernel's argument that points into another device's memory (or into its page-locked
// memory) to zeroed memory on this device, so that its writes are lost. Each allocation has one
// substitute, which is kept until the process exits.
int mislead(State&, char* argument);
bool reaches(State&, const Device&, const void* p);
void drop_memory(Hold&, int device);
// stream.cpp
std::shared_ptr<Stream> stream_of(State&, void* handle);
int submit(Hold&, void* stream, Work work);  // executes or captures it
int submit_graph(Hold&, void* stream, std::shared_ptr<const Graph>);
int wait_for(Hold&, int device, const std::function<bool()>& done);
int wait_device(Hold&, int device);
// Returns an error if this thread captures: the calling function is invalid during a capture.
int refuse_in_capture(State&);
bool capturing(State&, void* stream);
// module.cpp
void execute(const Work&, uint64_t seed, std::string& error, int& code);
// Forbids kernels to access the memory at `start`.
void forget(uintptr_t start);
// compile.cpp
const kjsim::Library* library_of(const std::string& code_object, const std::string& arch,
                                 void** handle, std::string& why);

template <class T> std::shared_ptr<T> get(std::map<void*, std::shared_ptr<T>>& map, void* handle) {
    auto at = map.find(handle);
    return at == map.end() ? nullptr : at->second;
}
void say(const std::string& line);

}  // namespace hipsim
