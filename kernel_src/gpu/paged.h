// paged.h: the location of a sequence's positions in memory.
//
// Without KJ_PAGE a cache (kv.h) has all positions of a sequence in order. With KJ_PAGE keys and
// values are pools of pages at a fixed distance; each page is a cache of KJ_PAGE positions. The
// last argument of a kernel is a table of ⌈capacity / KJ_PAGE⌉ words per slot: the page of each
// KJ_PAGE positions. Sequences may share pages, but a page that is written must belong to one
// sequence only.
#pragma once
#include "kjit.h"

#if defined(KJ_PAGE)
#define PAGED(...) __VA_ARGS__
constexpr u32 kj_page = KJ_PAGE;
struct Pages { const u32* table; };
STEP Pages pages_of(const u32* table, u32 slot, u32 capacity) {
    return {table + (u64)slot * CEIL_DIV(capacity, kj_page)};
}
STEP u32 page_of(Pages pages, u32 position) { return pages.table[position / kj_page]; }
#else
#define PAGED(...)
constexpr u32 kj_page = 0;
struct Pages {};
STEP u32 page_of(Pages, u32) { return 0; }
#endif

// Number of positions of a page, or of a sequence without pages.
STEP u32 stretch(u32 capacity) { return kj_page != 0 ? kj_page : capacity; }
// The index of a position within its page.
STEP u32 within(u32 position) {
    return kj_page != 0 ? position % (kj_page != 0 ? kj_page : 1) : position;
}
