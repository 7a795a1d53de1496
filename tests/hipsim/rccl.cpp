// rccl.cpp: the part of RCCL that the engine calls, between processes. The id contains a port of
// this machine. Ranks connect to it, and all data go through the first rank.
//
// HIPSIM_RCCL    version:N    the version that it reports
//                die:N        the process ends at its N-th all-gather
//                hang:N       the N-th all-gather never ends and sends nothing
#include "sim.h"

#include <arpa/inet.h>
#include <atomic>
#include <cstring>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace hipsim;

namespace {

enum : int { NCCL_OK = 0, UNHANDLED = 1, SYSTEM = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE = 6 };
constexpr int FLOAT32 = 7;
constexpr char WORD[8] = "kjitsim";

struct Id { char internal[128]; };

struct Comm {
    int device = 0, rank = 0, ranks = 0;
    // First rank: one socket per rank, -1 for itself. Other ranks: only the socket to the first
    // rank.
    std::vector<int> sockets;
    std::atomic<int> error{NCCL_OK};
    std::atomic<bool> aborted{false};
    unsigned gathered = 0;
    ~Comm() {
        for (int fd : sockets)
            if (fd >= 0) close(fd);
    }
};
std::mutex mutex;
std::map<void*, std::shared_ptr<Comm>>& comms() {
    static auto& all = *new std::map<void*, std::shared_ptr<Comm>>();
    return all;
}
std::map<int, int>& listeners() {  // by port
    static auto& all = *new std::map<int, int>();
    return all;
}
std::shared_ptr<Comm> comm_of(void* handle) {
    std::lock_guard<std::mutex> lock(mutex);
    auto at = comms().find(handle);
    return at == comms().end() ? nullptr : at->second;
}
// The number after a word of the setting; 0 if the word is missing.
unsigned setting(const char* word) {
    const char* all = getenv("HIPSIM_RCCL");
    size_t n = strlen(word);
    return all && !strncmp(all, word, n) && all[n] == ':' ? (unsigned)atoi(all + n + 1) : 0;
}

// Transfers all bytes. Returns false if the peer has exited or the communicator was aborted.
bool go(Comm& c, int fd, char* p, size_t bytes, bool out) {
    while (bytes) {
        if (c.aborted) return false;
        pollfd wait{fd, (short)(out ? POLLOUT : POLLIN), 0};
        if (poll(&wait, 1, 20) <= 0) continue;
        ssize_t n = out ? send(fd, p, bytes, MSG_NOSIGNAL) : recv(fd, p, bytes, 0);
        if (n <= 0) return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}
bool exchange(Comm& c, const float* from, float* to, size_t count) {
    uint64_t n = count;
    if (c.rank > 0) {
        int fd = c.sockets[0];
        return go(c, fd, (char*)&n, 8, true) && go(c, fd, (char*)from, count * 4, true) && go(c, fd, (char*)to, count * 4 * (size_t)c.ranks, false);
    }
    memmove(to, from, count * 4);
    for (int r = 1; r < c.ranks; r++) {
        uint64_t theirs = 0;
        if (!go(c, c.sockets[(size_t)r], (char*)&theirs, 8, false)) return false;
        if (theirs != n) {
            say("rank " + std::to_string(r) + " gathers " + std::to_string(theirs) + " values, rank 0 " + std::to_string(n));
            return c.error = INVALID_USAGE, false;
        }
        if (!go(c, c.sockets[(size_t)r], (char*)(to + (size_t)r * count), count * 4, false)) return false;
    }
    for (int r = 1; r < c.ranks; r++)
        if (!go(c, c.sockets[(size_t)r], (char*)to, count * 4 * (size_t)c.ranks, true)) return false;
    return true;
}

sockaddr_in here(int port) {
    sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_port = htons((uint16_t)port), at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

}  // namespace

API ncclGetVersion(int* version) {
    if (!version) return INVALID_ARGUMENT;
    unsigned told = setting("version");
    return *version = told ? (int)told : 21805, NCCL_OK;
}
API ncclGetUniqueId(Id* id) {
    if (!id) return INVALID_ARGUMENT;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at = here(0);
    socklen_t size = sizeof at;
    if (fd < 0 || bind(fd, (sockaddr*)&at, size) || listen(fd, 64) || getsockname(fd, (sockaddr*)&at, &size)) return SYSTEM;
    memset(id, 0, sizeof *id);
    int port = ntohs(at.sin_port);
    memcpy(id->internal, WORD, 8), memcpy(id->internal + 8, &port, 4);
    std::lock_guard<std::mutex> lock(mutex);
    return listeners()[port] = fd, NCCL_OK;
}
API ncclCommInitRank(void** to, int ranks, Id id, int rank) {
    int number;
    {
        ENTER(DEVICE);
        number = current_device;
    }
    int port;
    memcpy(&port, id.internal + 8, 4);
    if (!to || ranks < 1 || rank < 0 || rank >= ranks || memcmp(id.internal, WORD, 8)) return INVALID_ARGUMENT;
    auto comm = std::make_shared<Comm>();
    comm->device = number, comm->rank = rank, comm->ranks = ranks;
    if (rank == 0) {
        int listener;
        {
            std::lock_guard<std::mutex> lock(mutex);
            if (!listeners().count(port)) return INVALID_ARGUMENT;
            listener = listeners()[port];
            listeners().erase(port);
        }
        comm->sockets.assign((size_t)ranks, -1);
        for (int n = 1; n < ranks; n++) {
            int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), theirs = 0;
            if (fd < 0 || !go(*comm, fd, (char*)&theirs, 4, false) || theirs <= 0 || theirs >= ranks || comm->sockets[(size_t)theirs] >= 0) return SYSTEM;
            comm->sockets[(size_t)theirs] = fd;
        }
        close(listener);
    } else {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in at = here(port);
        if (fd < 0 || connect(fd, (sockaddr*)&at, sizeof at) || !go(*comm, fd, (char*)&rank, 4, true)) return SYSTEM;
        comm->sockets.assign(1, fd);
    }
    int yes = 1;
    for (int fd : comm->sockets)
        if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    std::lock_guard<std::mutex> lock(mutex);
    comms().emplace(comm.get(), comm);
    return *to = comm.get(), NCCL_OK;
}
static int remove(void* handle, bool abort) {
    std::shared_ptr<Comm> comm = comm_of(handle);
    if (!comm) return INVALID_ARGUMENT;
    if (abort) comm->aborted = true;
    std::lock_guard<std::mutex> lock(mutex);
    comms().erase(handle);
    return NCCL_OK;
}
API ncclCommDestroy(void* handle) { return remove(handle, false); }
API ncclCommAbort(void* handle) { return remove(handle, true); }
API ncclCommGetAsyncError(void* handle, int* error) {
    std::shared_ptr<Comm> comm = comm_of(handle);
    if (!comm || !error) return INVALID_ARGUMENT;
    return *error = comm->error, NCCL_OK;
}
API ncclAllGather(const float* from, float* to, size_t count, int kind, void* handle, void* stream) {
    std::shared_ptr<Comm> comm = comm_of(handle);
    ENTER(DEVICE);
    if (!comm || !from || !to || !count || kind != FLOAT32) return INVALID_ARGUMENT;
    if (comm->device != current_device) return INVALID_USAGE;
    Allocation *a = find(s, from, count * 4), *b = find(s, to, count * 4 * (size_t)comm->ranks);
    if (!a || !b || a->device != comm->device || b->device != comm->device) return INVALID_ARGUMENT;
    Work w;
    w.kind = Work::CALL;
    w.given_up = [=] { return comm->aborted.load(); };
    w.call = [=] {
        comm->gathered++;
        if (comm->gathered == setting("die")) _exit(9);
        bool done = comm->gathered != setting("hang") && !comm->aborted && exchange(*comm, from, to, count);
        if (done) return;
        // A waiting device waits until the communicator is aborted.
        int none = NCCL_OK;
        if (!setting("hang")) comm->error.compare_exchange_strong(none, REMOTE);
        while (!comm->aborted) usleep(1000);
        memset(to, 0xff, count * 4 * (size_t)comm->ranks);
    };
    return submit(call.hold, stream, std::move(w)) ? UNHANDLED : NCCL_OK;
}
