// graph.cpp: captures a stream into a graph and replays it. A replay runs the nodes in a random
// order that respects their edges.
#include "sim.h"

namespace hipsim {

API hipStreamBeginCapture(void* handle, unsigned mode) {
    ENTER(DEVICE);
    std::shared_ptr<Stream> stream = get(s.streams, handle);  // never the null stream
    if (mode > 2) return INVALID_VALUE;
    if (!handle) return CAPTURE_UNSUPPORTED;
    if (!stream || stream->destroyed) return INVALID_HANDLE;
    if (stream->capture) return CAPTURE_UNSUPPORTED;
    stream->capture = std::make_shared<Capture>();
    stream->capture->origin = handle, stream->capture->thread = std::this_thread::get_id();
    stream->capture->streams.insert(handle);
    stream->tail.clear();
    return OK;
}

API hipStreamEndCapture(void* handle, void** to) {
    Call call(__func__, Call::DEVICE);  // a failure here ends the capture too
    State& s = state();
    std::shared_ptr<Stream> stream = get(s.streams, handle);
    if (!to) return INVALID_VALUE;
    *to = nullptr;
    if (!stream) return INVALID_HANDLE;
    std::shared_ptr<Capture> c = stream->capture;
    if (!c || c->origin != handle) return CAPTURE_UNMATCHED;
    if (c->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
    // All captured work of other streams must precede the end of the origin stream.
    std::set<size_t> before;
    std::vector<size_t> open = stream->tail;
    while (!open.empty()) {
        size_t n = open.back();
        open.pop_back();
        if (before.insert(n).second) open.insert(open.end(), c->graph.nodes[n].after.begin(), c->graph.nodes[n].after.end());
    }
    bool joined = true;
    for (void* h : c->streams)
        if (std::shared_ptr<Stream> other = get(s.streams, h)) {
            for (size_t n : other->tail) joined &= before.count(n) != 0;
            other->capture.reset(), other->tail.clear();
        }
    for (auto& entry : s.events)
        if (entry.second->capture == c) entry.second->capture.reset(), entry.second->tail.clear();
    if (call.code) return call.code;
    if (c->error) return CAPTURE_INVALIDATED;
    if (!joined) return CAPTURE_UNJOINED;
    auto graph = std::make_shared<Graph>(std::move(c->graph));
    *to = graph.get();
    s.graphs.emplace(*to, graph);
    return OK;
}

API hipGraphGetNodes(void* handle, void** nodes, size_t* count) {
    ENTER(DEVICE);
    std::shared_ptr<Graph> graph = get(s.graphs, handle);
    if (!graph || !count) return INVALID_VALUE;
    for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < graph->nodes.size() ? &graph->nodes[i] : nullptr;
    *count = graph->nodes.size();
    return OK;
}
API hipGraphDestroy(void* handle) {
    ENTER(INIT);
    return s.graphs.erase(handle) ? OK : INVALID_VALUE;
}
API hipGraphInstantiate(void** to, void* handle, void**, char*, size_t) {
    ENTER(DEVICE);
    std::shared_ptr<Graph> graph = get(s.graphs, handle);
    if (!to || !graph) return INVALID_VALUE;
    auto exec = std::make_shared<Graph>(*graph);
    *to = exec.get();
    s.execs.emplace(*to, exec);
    return OK;
}
#ifndef HIPSIM_ROCM5
API hipGraphUpload(void* handle, void* stream) {
    ENTER(DEVICE);
    return get(s.execs, handle) && stream_of(s, stream) ? OK : INVALID_VALUE;
}
#endif
API hipGraphLaunch(void* handle, void* stream) {
    ENTER(DEVICE);
    std::shared_ptr<Graph> exec = get(s.execs, handle);
    return exec ? submit_graph(call.hold, stream, exec) : INVALID_VALUE;
}
API hipGraphExecUpdate(void* handle, void* graph_handle, void** error_node, unsigned* result) {
    ENTER(DEVICE);
    auto at = s.execs.find(handle);
    std::shared_ptr<Graph> graph = get(s.graphs, graph_handle);
    if (at == s.execs.end() || !graph || !result) return INVALID_VALUE;
    const std::vector<Node>&a = at->second->nodes, &b = graph->nodes;
    unsigned why = a.size() == b.size() ? 0 : 2;  // topology
    for (size_t i = 0; i < a.size() && !why; i++) {
        if (a[i].after != b[i].after) why = 2;
        else if (a[i].work.kind != b[i].work.kind) why = 3;
        else if (a[i].work.entry != b[i].work.entry) why = 4;  // different function
    }
    *result = why;
    if (error_node) *error_node = nullptr;
    if (why) return GRAPH_UPDATE_FAILURE;
    at->second = std::make_shared<Graph>(*graph);  // running replays keep the old graph
    return OK;
}
API hipGraphExecDestroy(void* handle) {
    ENTER(INIT);
    // NCCL stores pointers to its work with a captured graph and gives them back to the
    // communicator. After an abort of the communicator this is an access to freed memory.
    if (auto graph = get(s.execs, handle))
        for (const Node& node : graph->nodes)
            if (node.work.given_up && node.work.given_up())
                say("a recorded graph has work of a communicator that was given up"), abort();
    return s.execs.erase(handle) ? OK : INVALID_VALUE;
}

}  // namespace hipsim
