// run.cpp: runs the library of one kernel on the simulated device (see tests/hipsim). Arguments are
// read from a file, buffers are written to another. For tests without a runtime. Every buffer ends
// at an unmapped page.
//
//   run KERNEL.so IN OUT
//
// Compiled once, not with every kernel: the headers of the C++ library take more than 1 s of a
// core, a kernel alone 0.2 s.
#include <dlfcn.h>
#include "../../../tests/hipsim/exec.h"

namespace kjsim {

[[noreturn]] inline void stop(const std::string& why) {
    fprintf(stderr, "simulated device: %s\n", why.c_str());
    exit(3);
}
inline void untouched(const Guarded& g) {
    for (const char* p = g.map + PAGE; p < g.map + g.mapped - PAGE; p++)
        if ((p < g.data || p >= g.data + g.bytes) && (unsigned char)*p != 0xee)
            stop("a write beside a buffer");
}

// The input file: u32 grid[3], u32 dynamic LDS, u64 seed, u32 count. Then for each argument: u32
// kind (0 value, 1 buffer, 2 null), u64 bytes, the bytes.
inline int run(const Library& library, const char* from, const char* to) {
    FILE* in = fopen(from, "rb");
    if (!in) stop("no argument file");
    auto get = [&](void* p, size_t n) {
        if (n && fread(p, 1, n, in) != n) stop("the argument file is too short");
    };
    const Entry& entry = library.entries[0];
    unsigned shared, count;
    Launch l;
    l.library = &library, l.entry = &entry;
    get(l.grid, 12), get(&shared, 4), get(&l.seed, 8), get(&count, 4);
    l.dynamic_lds = shared;
    if (count != entry.count) stop("the number of arguments is not the kernel's");
    std::string arguments(entry.bytes, '\0');
    std::vector<Guarded> buffers;
    for (unsigned i = 0; i < count; i++) {
        unsigned kind;
        uint64_t n;
        get(&kind, 4), get(&n, 8);
        if ((kind ? 8 : n) != entry.sizes[i])
            stop("an argument has another size than the kernel's parameter");
        char* at = &arguments[entry.offsets[i]];
        if (kind == 1) {
            buffers.push_back(Guarded::make(n, 0xee));
            if (!buffers.back().map) stop("no memory");
            get(buffers.back().data, n);
            memcpy(at, &buffers.back().data, 8);
        } else if (kind == 0) {
            get(at, n);
        }
    }
    fclose(in);
    l.arguments = arguments.data();
    begin(l);
    catch_faults();
    work(l, 0);
    if (l.failed) stop(l.error);
    FILE* out = fopen(to, "wb");
    if (!out) stop("no output file");
    for (const Guarded& g : buffers) {
        untouched(g);
        if (g.bytes && fwrite(g.data, 1, g.bytes, out) != g.bytes)
            stop("the output file cannot be written");
    }
    return fclose(out);
}

}  // namespace kjsim

int main(int count, char** argv) {
    if (count != 4) kjsim::stop("run KERNEL.so IN OUT");
    void* kernel = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!kernel) kjsim::stop(dlerror());
    auto* library = (const kjsim::Library*)dlsym(kernel, "kjsim_library");
    if (!library || library->version != kjsim::LIBRARY_VERSION)
        kjsim::stop("a library of another version");
    return kjsim::run(*library, argv[2], argv[3]);
}
