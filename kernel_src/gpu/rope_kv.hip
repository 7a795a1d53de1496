// The arguments are described in rope_kv.h.
#include "rope_kv.h"
#include "shape.h"

KERNEL rope_kv(const float* q, const float* k, const float* v, const float* RESTRICT q_norm,
               const float* RESTRICT k_norm, const u32x2* RESTRICT angles, const u32* position,
               u8* keys, u8* values, u8* rotated, float eps,
               u32 capacity PAGED(, const u32* table)) {
    LDS_ARRAY(RopeKv<Shape>::Shared, lds, 1);
    launch_dependents();
    wait_for_producer();
    RopeKv<Shape>::step({q, k, v, q_norm, k_norm, angles, position, keys, values, rotated, eps,
                          capacity PAGED(, table)},
                        launched_share(), lds[0]);
}
