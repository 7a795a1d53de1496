// The arguments are described in argmax.h.
#include "argmax.h"
#include "shape.h"

KERNEL argmax(const float* logits, u64* part, u32* counters, const u32* slots, u32* tokens,
              u32* position, u32 capacity, u32 blocks) {
    launch_dependents();
    wait_for_producer();
    Argmax<Shape>::step({logits, part, counters, slots, tokens, position, capacity, blocks},
                        launched_share());
}
