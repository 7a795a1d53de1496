// chosen.h: attention that reads chosen positions alone.
//
// Where KJ_CHOSEN is set, a list of so many positions for each token, in rising order, ~0 behind
// the last (top_keys.h), is the kernel's last argument, and a token sees what stands in its list.
// What runs over a sequence's positions then runs over the list's places.
#pragma once
#include "kjit.h"

#if defined(KJ_CHOSEN)
#define CHOSEN(...) __VA_ARGS__
constexpr u32 kj_chosen = KJ_CHOSEN;
struct Chosen { const u32* list; };
STEP Chosen chosen_by(const u32* lists, u32 token) { return {lists + (u64)token * kj_chosen}; }
// The position at a place.
STEP u32 chosen_at(Chosen chosen, u32 place) { return chosen.list[place]; }
#else
#define CHOSEN(...)
constexpr u32 kj_chosen = 0;
struct Chosen {};
STEP u32 chosen_at(Chosen, u32 place) { return place; }
#endif

// Places of a token that sees so many positions.
STEP u32 chosen_of(u32 seen) { return kj_chosen != 0 ? min_u32(seen, kj_chosen) : seen; }
