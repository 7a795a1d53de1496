// compile.h: code objects and where they came from: shared by the library (hiprtc) and the clang in
// front of clang.
//
// The folder HIPSIM_DIR (default: kjit-hipsim in TMPDIR or /tmp) holds
//   sources/ID/…          what was compiled: the main file, the headers by their names, `options`,
//   `main` (its name), `hash` of all but options libraries/H.so        the same for the CPU; H is
//   the hash of that, the wave's width and how it is compiled objects/SHA256        the ID of the
//   source that a code object was made from
// A code object is found by the hash of its bytes, so one that comes from a cache or a pack runs as
// one just compiled does, as long as it was compiled once under this folder (or one copied from
// it): hiprtc here and `clang` here both write it down.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace hipsim {

struct Source {
    std::string file, text;                                    // the main file
    std::vector<std::pair<std::string, std::string>> headers;  // name, text
    std::vector<std::string> options;
};

std::string folder();
std::string real_clang();  // empty where there is none, or HIPSIM_CLANG says "none"
bool read_file(const std::string& path, std::string& to);
bool write_file(const std::string& path, const std::string& bytes);  // whole or not at all
// Exit code; `log` gets standard error and output.
int run(const std::vector<std::string>& arguments, const std::string& cwd, std::string& log);
// The source's ID, once it is in the folder; empty and `why` if it cannot be written.
std::string keep(const Source&, std::string& why);
// The CPU library of a source, made if it is not there yet; empty and `why` (the compiler's log) if
// it does not compile.
std::string cpu_library(const std::string& id, std::string& why);
void note(const std::string& code_object, const std::string& id);
std::string source_of(const std::string& code_object);
unsigned wave_of(const std::vector<std::string>& options);
std::string arch_of(const std::vector<std::string>& options);
unsigned default_wave(const std::string& arch);  // GCN and CDNA: 64

}  // namespace hipsim
