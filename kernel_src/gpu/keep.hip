// The arguments are described in keep.h.
#include "keep.h"
#include "shape.h"

KERNEL keep(const float* row, const u32* slots, const u32* position, u8* rows, u32 tokens,
            u32 capacity, u64 sequence_bytes PAGED(, const u32* table)) {
    launch_dependents();
    wait_for_producer();
    keep_rows<Shape>({row, slots, position, rows, tokens, capacity, sequence_bytes PAGED(, table)},
                     launched_share());
}
