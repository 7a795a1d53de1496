// The arguments are described in adjust.h.
#include "adjust.h"
#include "shape.h"

KERNEL adjust(float* logits, const u32* slots, const u32* lists, u32 blocks) {
    launch_dependents();
    wait_for_producer();
    Adjust<Shape>::step({logits, slots, lists, blocks}, launched_share());
}
