// The arguments are described in repack.h.
#include "repack.h"
#include "shape.h"

KERNEL repack(const u8* RESTRICT raw, u8* RESTRICT records, u64 rows, u32 blocks) {
    launch_dependents();
    wait_for_producer();
    Repack<Shape>::step({raw, records, rows, blocks}, launched_share());
}
