// The arguments are described in flash.h.
#include "flash.h"
#include "shape.h"

KERNEL flash(const float* q, const float* RESTRICT sinks, const u8* keys, const u8* values, u16* y,
             const u32* position, u32 tokens, u32 capacity PAGED(, const u32* table)) {
    LDS_DYNAMIC(pool);
    launch_dependents();
    wait_for_producer();
    Flash<Shape>::step({q, sinks, keys, values, y, position, tokens, capacity PAGED(, table)},
                       launched_share(), pool);
}
