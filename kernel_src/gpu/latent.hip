// The arguments are described in latent.h.
#include "latent.h"
#include "shape.h"

KERNEL latent(const float* q, const float* row, const u32* slots, const u32* position, u8* rows,
              float* part, u32* counters, float* out, float scale, u32 capacity, u32 splits,
              u64 sequence_bytes PAGED(, const u32* table) CHOSEN(, const u32* chosen)) {
    LDS_ARRAY(Latent<Shape>::Shared, lds, 1);
    launch_dependents();
    wait_for_producer();
    LatentArgs args{q, row, slots, position, rows, part, counters, out, scale, capacity, splits,
                    sequence_bytes PAGED(, table) CHOSEN(, chosen)};
    Latent<Shape>::step(args, launched_share(), lds[0]);
}
