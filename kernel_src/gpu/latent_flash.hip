// latent_flash.h says what the arguments are.
#include "latent_flash.h"
#include "shape.h"

KERNEL latent_flash(const float* q, const u8* rows, const u32* position, float* out, float scale, u32 tokens,
                    u32 capacity PAGED(, const u32* table)) {
    LDS_DYNAMIC(pool);
    launch_dependents();
    wait_for_producer();
    LatentFlash<Shape>::step({q, rows, position, out, scale, tokens, capacity PAGED(, table)},
                             launched_share(), pool);
}
