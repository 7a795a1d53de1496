// hiprtc.cpp: the run-time compiler, comgr's list of architectures, and the loader of code objects.
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "compile.h"
#include "object.h"
#include "sim.h"

namespace hipsim {

// The CPU library of a code object, if its source is known and it was compiled for this device.
const kjsim::Library* library_of(const std::string& code_object, const std::string& arch, void** handle, std::string& why) {
    std::string id = source_of(code_object), options;
    if (id.empty()) {
        why = "a code object of " + std::to_string(code_object.size()) + " bytes whose source is not in " + folder() + " (was it compiled there?)";
        return nullptr;
    }
    read_file(folder() + "/sources/" + id + "/options", options);
    std::vector<std::string> given;
    for (size_t from = 0, to; from < options.size(); from = to + 1) {
        to = std::min(options.find('\n', from), options.size());
        given.push_back(options.substr(from, to - from));
    }
    // The rule of the real loader: the processors must be equal, and the device must have each flag
    // of the code object.
    std::string made = arch_of(given);
    auto part = [](const std::string& s, const std::string& of) { return (":" + s + ":").find(":" + of + ":") != std::string::npos; };
    bool suits = made.substr(0, made.find(':')) == arch.substr(0, arch.find(':'));
    for (size_t at = made.find(':'); suits && at != std::string::npos; at = made.find(':', at + 1))
        suits = part(arch, made.substr(at + 1, made.find(':', at + 1) - at - 1));
    if (!suits) return why = "the code object is for " + made + ", the device is " + arch, nullptr;
    std::string file = cpu_library(id, why);
    if (file.empty()) return nullptr;
    *handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!*handle) return why = dlerror(), nullptr;
    auto* library = (const kjsim::Library*)dlsym(*handle, "kjsim_library");
    if (!library || library->version != kjsim::LIBRARY_VERSION) return why = file + " is of another version", nullptr;
    // Kernels may access constants of the library.
    link_map* map = nullptr;
    if (dlinfo(*handle, RTLD_DI_LINKMAP, &map) != 0) return why = dlerror(), nullptr;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* base) {
            for (int i = 0; i < info->dlpi_phnum && info->dlpi_addr == *(ElfW(Addr)*)base; i++) {
                const ElfW(Phdr)& part = info->dlpi_phdr[i];
                if (part.p_type == PT_LOAD) kjsim::allow(info->dlpi_addr + (part.p_vaddr & ~(ElfW(Addr))7), info->dlpi_addr + part.p_vaddr + part.p_memsz);
            }
            return 0;
        },
        &map->l_addr);
    return library;
}

static const char* const ISAS[] = {HIPSIM_ISAS};  // from the engine's table

}  // namespace hipsim

using namespace hipsim;

API amd_comgr_get_isa_count(size_t* count) { return *count = sizeof ISAS / sizeof *ISAS, 0; }
API amd_comgr_get_isa_name(size_t index, const char** name) {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        for (const char* isa : ISAS) all.push_back(std::string("amdgcn-amd-amdhsa--") + isa);
        return all;
    }();
    if (index >= names.size()) return 2;
    return *name = names[index].c_str(), 0;
}

enum : int { RTC_OK = 0, RTC_INVALID_INPUT = 3, RTC_INVALID_PROGRAM = 4, RTC_INVALID_OPTION = 5, RTC_COMPILATION = 6, RTC_INTERNAL = 11 };
struct Program {
    Source source;
    std::string log, code;
    bool compiled = false;
};
static auto& programs = *new std::set<Program*>();
static auto& programs_mutex = *new std::mutex();
static Program* known(void* p) {
    std::lock_guard<std::mutex> hold(programs_mutex);
    return programs.count((Program*)p) ? (Program*)p : nullptr;
}

API hiprtcVersion(int* major, int* minor) { return *major = 9, *minor = 0, RTC_OK; }
API hiprtcCreateProgram(void** to, const char* text, const char* name, int count, const char** headers, const char** names) {
    if (!to || !text || count < 0 || (count && (!headers || !names))) return RTC_INVALID_INPUT;
    auto* p = new Program();
    p->source.text = text, p->source.file = name ? name : "program.hip";
    for (int i = 0; i < count; i++) p->source.headers.emplace_back(names[i], headers[i]);
    std::lock_guard<std::mutex> hold(programs_mutex);
    programs.insert(p);
    *to = p;
    return RTC_OK;
}
API hiprtcDestroyProgram(void** program) {
    Program* p = program ? known(*program) : nullptr;
    if (!p) return RTC_INVALID_PROGRAM;
    std::lock_guard<std::mutex> hold(programs_mutex);
    programs.erase(p);
    delete p;
    *program = nullptr;
    return RTC_OK;
}

// The value that a variable such as `gemm:2.5,flash:1` gives for a file; null if it has none.
static const char* told(const char* variable, const std::string& file) {
    const char* list = getenv(variable);
    while (list && *list) {
        size_t name = strcspn(list, ":,");
        if (name && file.compare(0, name, list, name) == 0) return list[name] == ':' ? list + name + 1 : list + name;
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return nullptr;
}

// Fails like run-time compilers do. Returns true if `code` is the result.
static bool misbehave(const std::string& how, std::string& code) {
    const char* once = getenv("HIPSIM_ONCE");
    if (once && mkdir(once, 0700) != 0) return false;
    if (how == "print") puts("this is not a valid answer"), fflush(stdout);
    if (how == "abort") say("comgr: LLVM ERROR: as the test wants it"), abort();
    if (how == "kill") raise(SIGKILL);
    if (how == "loop") for (volatile int i = 0;; i = i + 1) {}
    if (how == "eat") for (;;) memset(new char[1 << 20], 1, 1 << 20);
    return how == "garbage" ? code = "no code object", true : false;
}

// Makes the real code object if there is a clang; if not, an own code object with the same note.
// Also makes the CPU library of the kernels.
static int compile(Program& p) {
    std::string why, id = keep(p.source, why);
    if (id.empty()) return p.log = why, RTC_INTERNAL;
    std::string library = cpu_library(id, why);
    if (library.empty()) return p.log = why, RTC_COMPILATION;
    std::string clang = real_clang(), at = folder() + "/sources/" + id;
    if (clang.empty()) {
        void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        auto* described = handle ? (const kjsim::Library*)dlsym(handle, "kjsim_library") : nullptr;
        if (!described) return p.log = library + " cannot be opened", RTC_INTERNAL;
        p.code = code_object(*described, arch_of(p.source.options), id);
    } else {
        // The main file is in the folder of the headers with another name; `#line` in the text
        // gives its real name.
        std::string out = at + "/code." + std::to_string(getpid()) + ".co";
        std::vector<std::string> command{clang, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-fuse-cuid=none"};
        command.insert(command.end(), p.source.options.begin(), p.source.options.end());
        command.insert(command.end(), {"-I.", "-c", "text", "-o", out});
        int code = run(command, at, p.log);
        bool fine = code == 0 && read_file(out, p.code);
        unlink(out.c_str());
        if (!fine) return p.log.find("error:") != std::string::npos ? RTC_COMPILATION : RTC_INTERNAL;
    }
    note(p.code, id);
    return RTC_OK;
}
API hiprtcCompileProgram(void* program, int count, const char** options) {
    Program* p = known(program);
    if (!p) return RTC_INVALID_PROGRAM;
    p->source.options.assign(options, options + count);
    for (const std::string& o : p->source.options)
        if (o.empty() || o[0] != '-') return p->log = "unknown option '" + o + "'", RTC_INVALID_OPTION;
    std::string arch = arch_of(p->source.options), id = arch.substr(0, arch.find(':'));
    bool there = false;
    for (const char* isa : ISAS) there |= id == isa;
    if (!there) {
        say("hiprtc: no such architecture: '" + arch + "' (the real one aborts too)");
        abort();
    }
    if (const char* seconds = told("HIPSIM_SLOW", p->source.file)) usleep((useconds_t)(atof(seconds) * 1e6));
    if (told("HIPSIM_REFUSE", p->source.file)) return p->log = p->source.file + ":1:1: error: refused, as the test wants it", RTC_COMPILATION;
    const char* how = told("HIPSIM_MISBEHAVE", p->source.file);
    if (how && misbehave(std::string(how, strcspn(how, ",")), p->code)) return p->compiled = true, RTC_OK;
    int code = compile(*p);
    p->compiled = code == RTC_OK;
    return code;
}
static int put(void* program, const std::string Program::*field, size_t* size, char* to) {
    Program* p = known(program);
    if (!p) return RTC_INVALID_PROGRAM;
    const std::string& bytes = p->*field;
    bool log = field == &Program::log;
    if (!log && !p->compiled) return RTC_INVALID_PROGRAM;
    if (size) *size = bytes.size() + log;
    if (to) memcpy(to, bytes.c_str(), bytes.size() + log);
    return RTC_OK;
}
API hiprtcGetProgramLogSize(void* p, size_t* size) { return put(p, &Program::log, size, nullptr); }
API hiprtcGetProgramLog(void* p, char* log) { return put(p, &Program::log, nullptr, log); }
API hiprtcGetCodeSize(void* p, size_t* size) { return put(p, &Program::code, size, nullptr); }
API hiprtcGetCode(void* p, char* code) { return put(p, &Program::code, nullptr, code); }
