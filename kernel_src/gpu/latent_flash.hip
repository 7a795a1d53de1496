// The arguments are described in latent_flash.h.
#include "latent_flash.h"
#include "shape.h"

KERNEL latent_flash(const float* q, const u8* rows, const u32* position, float* out, float scale,
                    u32 tokens,
                    u32 capacity PAGED(, const u32* table) CHOSEN(, const u32* chosen)) {
    LDS_DYNAMIC(pool);
    launch_dependents();
    wait_for_producer();
    LatentFlashArgs args{q, rows, position, out, scale, tokens,
                         capacity PAGED(, table) CHOSEN(, chosen)};
    LatentFlash<Shape>::step(args, launched_share(), pool);
}
