// compile.h: the record of code objects and their sources, shared by the library (hiprtc) and the
// wrapper of clang.
//
// The folder HIPSIM_DIR (default: kjit-hipsim in TMPDIR or /tmp) holds:
//   sources/ID/…      a source: the main file, the headers by their names, `options`, `main` (the
//                     file's name), `hash` (of all except the options)
//   libraries/H.so    the source compiled for the CPU; H is the hash of the source, the wave width
//                     and the compiler's command line
//   objects/SHA256    the ID of the source of a code object
// A code object is found by the hash of its bytes. So a code object from a cache or a
// pack also runs if it was compiled once with this folder (or with a copy of it): hiprtc and
// `clang` of the simulator both record it.
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
std::string real_clang();  // empty without clang, or if HIPSIM_CLANG is "none"
bool read_file(const std::string& path, std::string& to);
bool write_file(const std::string& path, const std::string& bytes);  // atomically
// Runs a command; returns its exit code. `log` gets its standard output and error.
int run(const std::vector<std::string>& arguments, const std::string& cwd, std::string& log);
// Records a source; returns its ID. Empty with `why` if it cannot be written.
std::string keep(const Source&, std::string& why);
// The CPU library of a source, compiled if it does not exist. Empty with `why` (the compiler's log)
// if it does not compile.
std::string cpu_library(const std::string& id, std::string& why);
void note(const std::string& code_object, const std::string& id);
std::string source_of(const std::string& code_object);
unsigned wave_of(const std::vector<std::string>& options);
std::string arch_of(const std::vector<std::string>& options);
unsigned default_wave(const std::string& arch);  // GCN and CDNA: 64

}  // namespace hipsim
