// The arguments are described in flash.h.
#include "flash_wgmma.h"
#include "shape.h"

KERNEL flash_wgmma(const float* q, const float* RESTRICT sinks, const u8* keys, const u8* values,
                   u16* y, const u32* position, u32 tokens,
                   u32 capacity PAGED(, const u32* table)) {
    LDS_DYNAMIC(pool);
    LDS_ARRAY(FlashWgmma<Shape>::Shared, lds, 1);
    FlashArgs args{q, sinks, keys, values, y, position, tokens, capacity PAGED(, table)};
    FlashWgmma<Shape>::step<LaunchBefore>(args, launched_share(), pool, lds[0]);
}
