// The arguments are described in embed.h.
#include "embed.h"
#include "shape.h"

KERNEL embed(const u8* RESTRICT table, const u32* tokens, const u32* slots, const u32* position,
             float* out, float scale, u32 capacity) {
    launch_dependents();
    wait_for_producer();
    Embed<Shape>::step({table, tokens, slots, position, out, scale, capacity}, launched_share());
}
