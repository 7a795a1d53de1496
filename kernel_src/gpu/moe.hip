// The arguments are described in moe.h.
#include "moe.h"
#include "shape.h"

KERNEL moe_count(const u32* experts, u32* counts, u32 pairs) {
    launch_dependents();
    wait_for_producer();
    MoeCount<Shape>::step({experts, counts, pairs}, launched_share());
}

KERNEL moe_place(const u32* experts, const u32* counts, u32* tile_expert, u32* source, u32* row_of,
                 u32 pairs, u32 max_tiles) {
    LDS_ARRAY(MoePlace<Shape>::Shared, lds, 1);
    launch_dependents();
    wait_for_producer();
    MoePlace<Shape>::step({experts, counts, tile_expert, source, row_of, pairs, max_tiles},
                          launched_share(), lds[0]);
}

KERNEL moe_sum(const float* y, const u32* row_of, const float* shares, const float* residual,
               float* out) {
    launch_dependents();
    wait_for_producer();
    MoeSum<Shape>::step({y, row_of, shares, residual, out}, launched_share());
}
