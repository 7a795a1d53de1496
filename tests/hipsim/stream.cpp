// stream.cpp: streams, events, and the thread that executes their work.
#include "sim.h"

namespace hipsim {

std::shared_ptr<Stream> stream_of(State& s, void* handle) { return handle ? get(s.streams, handle) : s.legacy[(size_t)current_device]; }
bool capturing(State& s, void* handle) {
    std::shared_ptr<Stream> stream = stream_of(s, handle);
    return stream && stream->capture;
}
int refuse_in_capture(State& s) {
    for (auto& entry : s.streams) {
        std::shared_ptr<Capture>& c = entry.second->capture;
        if (c && c->thread == std::this_thread::get_id()) return c->error = CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED;
    }
    return OK;
}

// ------------------------------------------------------------------------------------ the executor
static void replay(const Graph& g, uint64_t seed, std::string& error, int& code) {
    kjsim::Random random(seed);
    std::vector<size_t> open(g.nodes.size());
    std::vector<std::vector<size_t>> next(g.nodes.size());
    std::vector<size_t> ready;
    for (size_t i = 0; i < g.nodes.size(); i++) {
        open[i] = g.nodes[i].after.size();
        for (size_t before : g.nodes[i].after) next[before].push_back(i);
        if (!open[i]) ready.push_back(i);
    }
    while (!ready.empty() && !code) {
        size_t at = random((uint32_t)ready.size()), node = ready[at];
        ready[at] = ready.back();
        ready.pop_back();
        execute(g.nodes[node].work, seed + node * 2654435761u, error, code);
        for (size_t n : next[node])
            if (--open[n] == 0) ready.push_back(n);
    }
}

static bool can_start(const Stream& stream) {
    if (stream.queue.empty()) return false;
    for (const OpRef& before : stream.queue.front()->after)
        if (!before->done) return false;
    return true;
}

static void run_queues(int number) {
    State& s = state();
    Hold hold(s.mutex);
    for (;;) {
        std::vector<std::shared_ptr<Stream>> able;
        for (auto& entry : s.streams)
            if (entry.second->device == number && can_start(*entry.second)) able.push_back(entry.second);
        if (can_start(*s.legacy[(size_t)number])) able.push_back(s.legacy[(size_t)number]);
        if (able.empty()) {
            s.changed.wait(hold);
            continue;
        }
        if (!s.waiting && std::chrono::steady_clock::now() < s.not_before) {
            s.changed.wait_until(hold, s.not_before);
            continue;
        }
        std::shared_ptr<Stream> stream = able[s.random((uint32_t)able.size())];
        OpRef op = stream->queue.front();
        Device& device = s.devices[(size_t)stream->device];
        int code = device.error;
        if (!code) {
            uint64_t seed = s.seed * 1000003 + ++s.launches;
            std::string error;
            hold.unlock();
            if (op->graph) replay(*op->graph, seed, error, code);
            else execute(op->work, seed, error, code);
            hold.lock();
            if (code) {
                device.error = code, device.fault = error;
                say("rocm:" + std::to_string(device.number) + ": " + error);
                const char* how = getenv("HIPSIM_FAULTS");
                if (how && strcmp(how, "abort") == 0) abort();
            }
        }
        op->time = std::chrono::steady_clock::now();
        op->done = true;
        op->after.clear();
        stream->queue.pop_front();
        if (stream->destroyed && stream->queue.empty())
            for (auto at = s.streams.begin(); at != s.streams.end(); ++at)
                if (at->second == stream) {
                    s.streams.erase(at);
                    break;
                }
        s.changed.notify_all();
    }
}

static void enqueue(State& s, Stream& stream, const OpRef& op) {
    if (stream.blocking) {  // the null stream and blocking streams wait for each other
        Stream& legacy = *s.legacy[(size_t)stream.device];
        if (&stream != &legacy) {
            if (legacy.last) op->after.push_back(legacy.last);
        } else {
            for (auto& entry : s.streams)
                if (entry.second->blocking && entry.second->device == stream.device && entry.second->last) op->after.push_back(entry.second->last);
        }
    }
    bool idle = true;
    for (auto& entry : s.streams) idle &= entry.second->queue.empty();
    if (idle) s.not_before = std::chrono::steady_clock::now() + std::chrono::microseconds(s.random(3000));
    stream.queue.push_back(op);
    stream.last = op;
    Device& device = s.devices[(size_t)stream.device];
    if (!device.executor) device.executor = true, std::thread(run_queues, device.number).detach();
    s.changed.notify_all();
}

int submit(Hold&, void* handle, Work work) {
    State& s = state();
    std::shared_ptr<Stream> stream = stream_of(s, handle);
    if (!stream || stream->destroyed || stream->device != current_device) return INVALID_HANDLE;
    work.device = stream->device;
    if (stream->capture) {
        Capture& c = *stream->capture;
        if (c.error) return CAPTURE_INVALIDATED;
        c.graph.nodes.push_back(Node{std::move(work), stream->tail});
        stream->tail.assign(1, c.graph.nodes.size() - 1);
        return OK;
    }
    auto op = std::make_shared<Op>();
    op->work = std::move(work);
    enqueue(s, *stream, op);
    return OK;
}
int submit_graph(Hold&, void* handle, std::shared_ptr<const Graph> graph) {
    State& s = state();
    std::shared_ptr<Stream> stream = stream_of(s, handle);
    if (!stream || stream->destroyed || stream->device != current_device) return INVALID_HANDLE;
    if (stream->capture) return stream->capture->error = CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED;
    auto op = std::make_shared<Op>();
    op->graph = std::move(graph);
    enqueue(s, *stream, op);
    return OK;
}

int wait_for(Hold& hold, int number, const std::function<bool()>& done) {
    State& s = state();
    Device& device = s.devices[(size_t)number];
    s.waiting++;
    s.changed.notify_all();
    s.changed.wait(hold, done);
    s.waiting--;
    return device.error;
}
int wait_device(Hold& hold, int number) {
    State& s = state();
    return wait_for(hold, number, [&s, number] {
        for (auto& entry : s.streams)
            if (entry.second->device == number && !entry.second->queue.empty()) return false;
        return s.legacy[(size_t)number]->queue.empty();
    });
}

// ----------------------------------------------------------------------------------------- streams
API hipDeviceSynchronize() {
    ENTER(DEVICE);
    if (int code = refuse_in_capture(s)) return code;
    return wait_device(call.hold, current_device);
}
API hipStreamCreateWithPriority(void** to, unsigned flags, int) {
    ENTER(DEVICE);
    if (!to || flags > 1) return INVALID_VALUE;
    auto stream = std::make_shared<Stream>();
    stream->device = current_device, stream->blocking = flags == 0;
    *to = stream.get();
    s.streams.emplace(*to, stream);
    return OK;
}
API hipStreamDestroy(void* handle) {
    ENTER(INIT);
    std::shared_ptr<Stream> stream = get(s.streams, handle);
    if (!stream || stream->destroyed) return INVALID_HANDLE;
    if (stream->capture) stream->capture->error = CAPTURE_INVALIDATED;
    stream->destroyed = true;
    if (stream->queue.empty()) s.streams.erase(handle);
    return OK;
}
API hipStreamSynchronize(void* handle) {
    ENTER(DEVICE);
    std::shared_ptr<Stream> stream = stream_of(s, handle);
    if (!stream || stream->destroyed) return INVALID_HANDLE;
    if (stream->capture) return stream->capture->error = CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED;
    OpRef last = stream->last;
    return wait_for(call.hold, stream->device, [last] { return !last || last->done; });
}
API hipStreamQuery(void* handle) {
    ENTER(DEVICE);
    std::shared_ptr<Stream> stream = stream_of(s, handle);
    if (!stream || stream->destroyed) return INVALID_HANDLE;
    if (stream->capture) return stream->capture->error = CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED;
    return stream->queue.empty() ? OK : NOT_READY;
}
API hipStreamWaitEvent(void* handle, void* event_handle, unsigned flags) {
    ENTER(DEVICE);
    std::shared_ptr<Stream> stream = stream_of(s, handle);
    std::shared_ptr<Event> event = get(s.events, event_handle);
    if (flags) return INVALID_VALUE;
    if (!stream || stream->destroyed || !event) return INVALID_HANDLE;
    if (event->capture) {
        if (stream->capture && stream->capture != event->capture) return CAPTURE_ISOLATION;
        if (!stream->capture) stream->capture = event->capture, stream->tail.clear(), event->capture->streams.insert(handle);
        std::set<size_t> tail(stream->tail.begin(), stream->tail.end());
        tail.insert(event->tail.begin(), event->tail.end());
        stream->tail.assign(tail.begin(), tail.end());
        return OK;
    }
    if (stream->capture) return stream->capture->error = CAPTURE_INVALIDATED, CAPTURE_ISOLATION;
    if (!event->recorded || event->recorded->done) return OK;
    auto op = std::make_shared<Op>();
    op->after.push_back(event->recorded);
    enqueue(s, *stream, op);
    return OK;
}

// ------------------------------------------------------------------------------------------ events
API hipEventCreateWithFlags(void** to, unsigned flags) {
    ENTER(DEVICE);
    if (!to || flags & ~7u) return INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->device = current_device, event->timing = !(flags & 2);
    *to = event.get();
    s.events.emplace(*to, event);
    return OK;
}
API hipEventDestroy(void* handle) {
    ENTER(INIT);
    return s.events.erase(handle) ? OK : INVALID_HANDLE;
}
API hipEventRecord(void* handle, void* stream_handle) {
    ENTER(DEVICE);
    std::shared_ptr<Stream> stream = stream_of(s, stream_handle);
    std::shared_ptr<Event> event = get(s.events, handle);
    if (!stream || stream->destroyed || !event || stream->device != event->device) return INVALID_HANDLE;
    if (stream->capture) {
        event->capture = stream->capture, event->tail = stream->tail;
        return OK;
    }
    auto op = std::make_shared<Op>();
    op->timed = event->timing;
    event->capture.reset(), event->tail.clear(), event->recorded = op;
    enqueue(s, *stream, op);
    return OK;
}
static constexpr int CAPTURED_EVENT = 907;
API hipEventQuery(void* handle) {
    ENTER(DEVICE);
    std::shared_ptr<Event> event = get(s.events, handle);
    if (!event) return INVALID_HANDLE;
    if (event->capture) return CAPTURED_EVENT;
    return !event->recorded || event->recorded->done ? OK : NOT_READY;
}
API hipEventSynchronize(void* handle) {
    ENTER(DEVICE);
    std::shared_ptr<Event> event = get(s.events, handle);
    if (!event) return INVALID_HANDLE;
    if (event->capture) return CAPTURED_EVENT;
    OpRef op = event->recorded;
    return wait_for(call.hold, event->device, [op] { return !op || op->done; });
}
API hipEventElapsedTime(float* milliseconds, void* from_handle, void* to_handle) {
    ENTER(DEVICE);
    std::shared_ptr<Event> from = get(s.events, from_handle), to = get(s.events, to_handle);
    if (!milliseconds) return INVALID_VALUE;
    if (!from || !to || !from->timing || !to->timing || !from->recorded || !to->recorded) return INVALID_HANDLE;
    if (!from->recorded->done || !to->recorded->done) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(to->recorded->time - from->recorded->time).count();
    return OK;
}

}  // namespace hipsim
