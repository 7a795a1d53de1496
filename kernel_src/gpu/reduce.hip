// The arguments are described in reduce.h.
#include "reduce.h"
#include "shape.h"

KERNEL reduce(const float* x, const float* residual, float* y, u32* words, u32* late, u64* inbox,
              u64* to0, u64* to1, u64* to2, u64* to3, u64* to4, u64* to5, u64* to6, u64 count,
              u64 room, u64 limit, u32 rank, u32 blocks) {
    LDS_ARRAY(Reduce<Shape>::Shared, lds, 1);
    launch_dependents();
    wait_for_producer();
    Reduce<Shape>::step({x, residual, y, words, late, inbox, to0, to1, to2, to3, to4, to5, to6,
                         count, room, limit, rank, blocks},
                        launched_share(), lds[0]);
}
