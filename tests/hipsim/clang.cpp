// clang.cpp: a wrapper of clang that records the source of each code object, so that the simulated
// device can run it. The real clang compiles, and kjit gets its output.
#include <unistd.h>
#include <cstdio>
#include "compile.h"

using namespace hipsim;

// The headers that a source text includes by name, and that are in its folder. Also the headers
// that they include.
static void headers(const std::string& text, Source& source) {
    for (size_t at = text.find("#include \""); at != std::string::npos; at = text.find("#include \"", at + 1)) {
        size_t from = at + 10, to = text.find('"', from);
        if (to == std::string::npos) return;
        std::string name = text.substr(from, to - from), inner;
        bool known = false;
        for (const auto& h : source.headers) known |= h.first == name;
        if (known || !read_file(name, inner)) continue;
        source.headers.emplace_back(name, inner);
        headers(inner, source);
    }
}

int main(int, char** argv) {
    std::string clang = real_clang();
    if (clang.empty()) {
        fprintf(stderr, "clang: error: no clang to call (HIPSIM_CLANG names one)\n");
        return 1;
    }
    std::vector<std::string> command{clang};
    std::string input, output;
    Source source;
    for (char** a = argv + 1; *a; a++) {
        std::string one = *a;
        command.push_back(one);
        if (one == "-c" && a[1]) input = a[1], command.push_back(*++a);
        else if (one == "-o" && a[1]) output = a[1], command.push_back(*++a);
        else source.options.push_back(one);
    }
    if (input.empty() || output.empty()) {
        std::vector<char*> all;
        for (const std::string& c : command) all.push_back(const_cast<char*>(c.c_str()));
        all.push_back(nullptr);
        execvp(all[0], all.data());
        perror(all[0]);
        return 1;
    }
    std::string log, code, why;
    int result = run(command, "", log);
    fputs(log.c_str(), stderr);
    if (result != 0 || !read_file(output, code)) return result ? result : 1;
    source.file = input;
    if (!read_file(input, source.text)) return 1;
    headers(source.text, source);
    std::string id = keep(source, why);
    if (id.empty()) return fprintf(stderr, "clang: error: %s\n", why.c_str()), 1;
    note(code, id);
    return 0;
}
