// compile.cpp: records sources, compiles them for the CPU, and finds them by the code object's
// hash. See compile.h.
#include "compile.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "sha256.h"

extern char** environ;

namespace hipsim {

static void make_folders(const std::string& path) {
    for (size_t at = 1; at != std::string::npos; at = path.find('/', at + 1)) mkdir(path.substr(0, path.find('/', at)).c_str(), 0700);
    mkdir(path.c_str(), 0700);
}
std::string folder() {
    // Never destroyed: another thread may load a kernel while the process exits.
    static const std::string& path = *new std::string([] {
        const char *own = getenv("HIPSIM_DIR"), *temp = getenv("TMPDIR");
        std::string p = own ? own : std::string(temp ? temp : "/tmp") + "/kjit-hipsim-" + std::to_string(getuid());
        make_folders(p + "/sources");
        make_folders(p + "/objects");
        make_folders(p + "/libraries");
        return p;
    }());
    return path;
}
bool read_file(const std::string& path, std::string& to) {
    FILE* f = fopen(path.c_str(), "rb");
    if (!f) return false;
    char part[65536];
    to.clear();
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) to.append(part, n);
    bool fine = !ferror(f);
    fclose(f);
    return fine;
}
bool write_file(const std::string& path, const std::string& bytes) {
    std::string temp = path + "." + std::to_string(getpid()) + ".tmp";
    FILE* f = fopen(temp.c_str(), "wb");
    if (!f) return false;
    bool fine = fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
    fine = fclose(f) == 0 && fine;
    return fine && rename(temp.c_str(), path.c_str()) == 0;
}

int run(const std::vector<std::string>& arguments, const std::string& cwd, std::string& log) {
    char name[] = "/tmp/kjit-hipsim-log-XXXXXX";
    int out = mkstemp(name);
    if (out < 0) return -1;
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    posix_spawn_file_actions_adddup2(&actions, out, 2);
    if (!cwd.empty()) posix_spawn_file_actions_addchdir_np(&actions, cwd.c_str());
    pid_t child;
    int status = -1;
    int failed = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
    if (!failed) {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
        status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    posix_spawn_file_actions_destroy(&actions);
    close(out);
    read_file(name, log);
    unlink(name);
    if (failed) log = arguments[0] + ": " + strerror(failed);
    return failed ? -1 : status;
}

std::string real_clang() {
    static const std::string& found = *new std::string([] {
        const char* asked = getenv("HIPSIM_CLANG");
        if (asked) return strcmp(asked, "none") == 0 ? std::string() : std::string(asked);
        for (const char* name : {"clang-22", "clang-21", "clang-20", "clang-19"}) {
            std::string log;
            if (run({name, "--version"}, "", log) == 0) return std::string(name);
        }
        return std::string();
    }());
    return found;
}

std::string arch_of(const std::vector<std::string>& options) {
    std::string arch;
    for (const std::string& o : options) {
        for (const char* flag : {"--offload-arch=", "--gpu-architecture=", "-mcpu="})
            if (o.compare(0, strlen(flag), flag) == 0) arch = o.substr(strlen(flag));
    }
    return arch;
}
unsigned default_wave(const std::string& arch) { return arch.compare(0, 4, "gfx8") == 0 || arch.compare(0, 4, "gfx9") == 0 ? 64 : 32; }
unsigned wave_of(const std::vector<std::string>& options) {
    unsigned wave = default_wave(arch_of(options));
    for (const std::string& o : options) {
        if (o == "-mwavefrontsize64") wave = 64;
        if (o == "-mno-wavefrontsize64") wave = 32;
    }
    return wave;
}

std::string keep(const Source& s, std::string& why) {
    std::string all = s.file + '\0' + s.text + '\0';
    for (const auto& h : s.headers) all += h.first + '\0' + h.second + '\0';
    std::string options;
    for (const std::string& o : s.options) options += o + "\n";
    std::string id = sha256(all + options).substr(0, 32), at = folder() + "/sources/" + id;
    // A source that was recorded by an older simulator has no hash.
    if (access((at + "/main").c_str(), R_OK) == 0 && access((at + "/hash").c_str(), R_OK) == 0) return id;
    make_folders(at);
    bool fine = write_file(at + "/options", options) && write_file(at + "/hash", sha256(all));
    for (const auto& f : s.headers) {
        if (f.first.find("..") != std::string::npos || f.first.empty() || f.first[0] == '/') return why = "a header called " + f.first, "";
        size_t slash = f.first.rfind('/');
        if (slash != std::string::npos) make_folders(at + "/" + f.first.substr(0, slash));
        fine &= write_file(at + "/" + f.first, f.second);
    }
    // Written last: if a reader finds it, all other files are complete.
    fine &= write_file(at + "/text", s.text) && write_file(at + "/main", s.file);
    if (!fine) why = at + " cannot be written";
    return fine ? id : "";
}
void note(const std::string& code_object, const std::string& id) { write_file(folder() + "/objects/" + sha256(code_object), id); }
std::string source_of(const std::string& code_object) {
    std::string id;
    read_file(folder() + "/objects/" + sha256(code_object), id);
    return id;
}

// ------------------------------------------------------------------------------------- for the CPU
// The names after the word KERNEL, or after `__global__ void`, except in comments and in the
// definition of KERNEL. If the dialect has no constant for it, the number of threads of a block is
// the argument of `__launch_bounds__`.
static std::vector<std::string> entries(const std::string& text, std::string& threads) {
    std::vector<std::string> names;
    std::string plain;
    for (size_t i = 0; i < text.size(); i++) {
        if (text.compare(i, 2, "//") == 0) i = std::min(text.find('\n', i), text.size());
        else if (text.compare(i, 2, "/*") == 0) i = std::min(text.find("*/", i), text.size() - 2) + 1;
        if (i < text.size()) plain += text[i];
    }
    auto word = [&](size_t at) { return at < plain.size() && (isalnum((unsigned char)plain[at]) || plain[at] == '_'); };
    auto blank = [&](size_t at) {
        while (at < plain.size() && isspace((unsigned char)plain[at])) at++;
        return at;
    };
    auto behind = [&](size_t at, const std::string& w) { return plain.compare(at, w.size(), w) == 0 && !word(at + w.size()) ? blank(at + w.size()) : at; };
    for (const std::string mark : {"KERNEL", "__global__"})
        for (size_t at = plain.find(mark); at != std::string::npos; at = plain.find(mark, at + mark.size())) {
            if ((at && word(at - 1)) || word(at + mark.size())) continue;
            size_t line = plain.rfind('\n', at);
            line = line == std::string::npos ? 0 : line + 1;
            if (plain.compare(line, 7, "#define") == 0) continue;
            size_t from = behind(blank(at + mark.size()), "void"), bounds = behind(from, "__launch_bounds__");
            if (bounds != from && bounds < plain.size() && plain[bounds] == '(') {
                size_t end = plain.find(')', bounds);
                if (end == std::string::npos) continue;
                threads = plain.substr(bounds + 1, end - bounds - 1);
                from = blank(end + 1);
            }
            size_t to = from;
            while (word(to)) to++;
            if (to > from && to < plain.size() && plain[to] == '(') names.push_back(plain.substr(from, to - from));
        }
    return names;
}

static const char* const FLAGS[] = {
    "-std=c++17", "-march=native", "-fPIC", "-shared", "-w", "-pipe", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-strict-aliasing",
    "-fno-exceptions", "-fno-rtti", "-fno-stack-protector", "-fcf-protection=none", "-fno-plt", "-Wl,-z,now,-z,defs",
    // Kernels do not use the C++ library. Without it, and without the linker plugin, linking takes
    // 0.04 s of a core instead of 0.1 s. Compiling takes 0.15 s.
    "-nostdlib", "-fno-use-linker-plugin",
    // Instruments every load and store with a check of the shadow, and checks alignments, indices
    // and shifts.
    "-fsanitize=kernel-address", "-fasan-shadow-offset=0x7fff8000", "--param=asan-stack=0", "--param=asan-globals=0",
    "--param=asan-instrumentation-with-call-threshold=1000000", "-fsanitize=alignment,bounds,shift-exponent",
    "-fno-sanitize-recover=alignment,bounds,shift-exponent"};

std::string cpu_library(const std::string& id, std::string& why) {
    std::string at = folder() + "/sources/" + id, text, file, options, hash, header;
    bool whole = read_file(at + "/text", text) && read_file(at + "/main", file) && read_file(at + "/options", options);
    if (!whole || !read_file(at + "/hash", hash)) return why = at + " is not whole", "";
    if (!read_file(HIPSIM_FOLDER "/kernel.h", header)) return why = HIPSIM_FOLDER "/kernel.h is not there", "";
    const char* asked = getenv("HIPSIM_CXX");
    std::vector<std::string> command{asked ? asked : "c++"};
    for (const char* flag : FLAGS) command.push_back(flag);
    // -Og reduces the compile time to 40 %. Tests of many small kernels set it.
    const char* optimise = getenv("HIPSIM_OPTIMISE");
    command.push_back(optimise ? optimise : "-O2");
    std::vector<std::string> given;
    for (size_t from = 0, to; from < options.size(); from = to + 1) {
        to = std::min(options.find('\n', from), options.size());
        given.push_back(options.substr(from, to - from));
    }
    for (size_t i = 0; i < given.size(); i++) {
        if (given[i].compare(0, 2, "-D") != 0) continue;
        command.push_back(given[i]);
        if (given[i] == "-D" && i + 1 < given.size()) command.push_back(given[++i]);
    }
    // An instruction that gives wrong results on this device: dot4, matrix, exchange32, exchange64,
    // packed, widen, narrow.
    if (const char* wrong = getenv("HIPSIM_WRONG")) command.push_back(std::string("-DKJSIM_WRONG_") + wrong);
    // Processors whose kernels have the same text share a library: in CI this is one for eight
    // processors.
    std::string how = header + hash + std::to_string(wave_of(given));
    for (const std::string& part : command) how += part + '\n';
    std::string library = folder() + "/libraries/" + sha256(how).substr(0, 32) + ".so";
    if (access(library.c_str(), R_OK) == 0) return library;

    // The order is: constants, the simulated device's header, kernels, the list of kernels.
    size_t body = 0;
    while (text.compare(body, 8, "#define ") == 0) body = std::min(text.find('\n', body), text.size() - 1) + 1;
    std::string program = text.substr(0, body);
    program += "#ifndef KJ_WAVE\n#define KJ_WAVE " + std::to_string(wave_of(given)) + "\n#endif\n";
    program += "static_assert(KJ_WAVE == " + std::to_string(wave_of(given)) + ", \"KJ_WAVE is not the wave width that the options ask for\");\n";
    std::string threads = "64";
    std::vector<std::string> names = entries(text, threads);
    program += "#ifndef KJ_BLOCK\n#define KJ_BLOCK (" + threads + ")\n#endif\n#include \"" HIPSIM_FOLDER "/kernel.h\"\n#line 1 \"" + file + "\"\n" + text.substr(body) + "\n";
    std::string list;
    for (const std::string& name : names) program += "KJSIM_ENTRY(" + name + ")\n", list += (list.empty() ? "" : ", ") + ("KJSIM_DESCRIBE(" + name + ")");
    if (names.empty()) return why = file + " has no KERNEL", "";
    program += "KJSIM_LIBRARY(" + list + ")\n";
    std::string unit = at + "/cpu." + std::to_string(getpid()) + ".cpp", made = library + "." + std::to_string(getpid());
    if (!write_file(unit, program)) return why = unit + " cannot be written", "";
    for (const char* more : {"-I.", "-x", "c++"}) command.push_back(more);
    command.insert(command.end(), {unit, "-o", made, "-lm", "-lc", "-lgcc"});
    bool fine = run(command, at, why) == 0 && rename(made.c_str(), library.c_str()) == 0;
    rename(unit.c_str(), (at + "/cpu.cpp").c_str());
    return fine ? library : "";
}

}  // namespace hipsim
