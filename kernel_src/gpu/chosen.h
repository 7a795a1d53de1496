// chosen.h: sparse attention, to chosen positions only.
//
// With KJ_CHOSEN the kernel's last argument is a list of KJ_CHOSEN positions for each token, in
// rising order, ~0 after the last (top_keys.h). A token sees only the positions in its list. Loops
// over the positions of a sequence become loops over the indices of the list.
#pragma once
#include "kjit.h"

#if defined(KJ_CHOSEN)
#define CHOSEN(...) __VA_ARGS__
constexpr u32 kj_chosen = KJ_CHOSEN;
struct Chosen { const u32* list; };
STEP Chosen chosen_by(const u32* lists, u32 token) { return {lists + (u64)token * kj_chosen}; }
// The position at an index of the list.
STEP u32 chosen_at(Chosen chosen, u32 place) { return chosen.list[place]; }
#else
#define CHOSEN(...)
constexpr u32 kj_chosen = 0;
struct Chosen {};
STEP u32 chosen_at(Chosen, u32 place) { return place; }
#endif

// The number of entries in the list of a token that sees `seen` positions.
STEP u32 chosen_of(u32 seen) { return kj_chosen != 0 ? min_u32(seen, kj_chosen) : seen; }
