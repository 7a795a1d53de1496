// The arguments are described in top_keys.h.
#include "top_keys.h"
#include "shape.h"

KERNEL top_keys(const float* scores, const u32* slots, const u32* position, u32* chosen, u32 first,
                u32 tokens, u32 capacity) {
    LDS_ARRAY(TopKeys<Shape>::Shared, lds, 1);
    launch_dependents();
    wait_for_producer();
    TopKeysArgs args{scores, slots, position, chosen, first, tokens, capacity};
    TopKeys<Shape>::step(args, launched_share(), lds[0]);
}
