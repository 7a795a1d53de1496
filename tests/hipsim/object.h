// object.h: the simulator's own code object, for machines without clang. It has no machine code. It
// has the note and the symbols that describe the kernels and their arguments, in LLVM's format
// ("Code Object V5 Metadata" in its AMDGPUUsage).
#pragma once
#include <string>
#include <utility>
#include <vector>
#include "kernel.h"

namespace hipsim {

// The part of MessagePack that the note needs.
struct Pack {
    std::string bytes;
    void big(uint64_t v, int n) { while (n--) bytes += (char)(v >> (8 * n)); }
    void text(const std::string& s) { bytes += (char)0xda, big(s.size(), 2), bytes += s; }
    void number(uint32_t v) { bytes += (char)0xce, big(v, 4); }
    void map(size_t n) { bytes += (char)0xde, big(n, 2); }
    void list(size_t n) { bytes += (char)0xdc, big(n, 2); }
    void field(const char* key, uint32_t v) { text(key), number(v); }
    void field(const char* key, const std::string& v) { text(key), text(v); }
};

inline std::string code_object(const kjsim::Library& l, const std::string& arch,
                               const std::string& id) {
    Pack p;
    p.map(3);
    p.field("amdhsa.target", "amdgcn-amd-amdhsa--" + arch);
    p.field("kjit.simulated", id);
    p.text("amdhsa.kernels"), p.list(l.entry_count);
    for (unsigned k = 0; k < l.entry_count; k++) {
        const kjsim::Entry& e = l.entries[k];
        p.map(12);
        p.field(".name", std::string(e.name)), p.field(".symbol", std::string(e.name) + ".kd");
        p.field(".kernarg_segment_size", e.bytes), p.field(".kernarg_segment_align", 8);
        p.field(".group_segment_fixed_size", *l.lds_bytes), p.field(".private_segment_fixed_size", 0);
        p.field(".wavefront_size", l.wave), p.field(".max_flat_workgroup_size", l.block);
        p.field(".vgpr_count", 32), p.field(".sgpr_count", 16), p.field(".vgpr_spill_count", 0);
        p.text(".args"), p.list(e.count);
        for (unsigned a = 0; a < e.count; a++) {
            p.map(3);
            p.field(".offset", e.offsets[a]), p.field(".size", e.sizes[a]);
            p.field(".value_kind", std::string(e.pointers[a] ? "global_buffer" : "by_value"));
        }
    }
    auto little = [](std::string& to, uint64_t v, int n) {
        for (int i = 0; i < n; i++) to += (char)(v >> (8 * i));
    };
    std::string note;
    little(note, 7, 4), little(note, p.bytes.size(), 4), little(note, 32, 4);
    note += std::string("AMDGPU\0\0", 8) + p.bytes;
    while (note.size() % 8) note += '\0';
    std::string names(1, '\0'), symbols(24, '\0');
    for (unsigned k = 0; k < l.entry_count; k++)
        for (const char* end : {"", ".kd"}) {
            little(symbols, names.size(), 4), symbols += end[0] ? (char)0x11 : (char)0x12,
                symbols += (char)0, little(symbols, 1, 2);
            little(symbols, 0, 8), little(symbols, 64, 8);
            names += std::string(l.entries[k].name) + end + '\0';
        }
    while (names.size() % 8) names += '\0';
    std::string titles("\0.note\0.symtab\0.strtab\0.shstrtab\0\0\0\0\0\0\0", 40);
    std::string file("\x7f" "ELF\2\1\1\x40\3\0\0\0\0\0\0\0", 16);
    size_t at_note = 64, at_symbols = at_note + note.size(), at_names = at_symbols + symbols.size(),
           at_titles = at_names + names.size();
    size_t at_sections = at_titles + titles.size();
    little(file, 3, 2), little(file, 224, 2), little(file, 1, 4), little(file, 0, 8),
        little(file, 0, 8), little(file, at_sections, 8);
    little(file, 0, 4), little(file, 64, 2), little(file, 56, 2), little(file, 0, 2),
        little(file, 64, 2), little(file, 5, 2), little(file, 4, 2);
    file += note + symbols + names + titles;
    auto section = [&](uint32_t name, uint32_t type, size_t at, size_t bytes, uint32_t link,
                       uint32_t info, uint64_t each) {
        little(file, name, 4), little(file, type, 4), little(file, 0, 8), little(file, 0, 8),
            little(file, at, 8), little(file, bytes, 8);
        little(file, link, 4), little(file, info, 4), little(file, type == 7 ? 4 : 8, 8),
            little(file, each, 8);
    };
    section(0, 0, 0, 0, 0, 0, 0);
    section(1, 7, at_note, note.size(), 0, 0, 0);
    section(7, 2, at_symbols, symbols.size(), 3, 1, 24);
    section(15, 3, at_names, names.size(), 0, 0, 0);
    section(23, 3, at_titles, titles.size(), 0, 0, 0);
    return file;
}

}  // namespace hipsim
