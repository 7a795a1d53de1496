// The arguments are described in attend.h.
#include "attend.h"
#include "shape.h"

KERNEL attend(const float* q, const float* k, const float* v, const float* RESTRICT q_norm,
              const float* RESTRICT k_norm, const float* RESTRICT sinks,
              const u32x2* RESTRICT angles, const u32* slots, const u32* position, u8* keys,
              u8* values, float* part, u32* counters, float* out, float scale, float eps,
              u32 capacity, u32 splits, u64 sequence_bytes PAGED(, const u32* table)) {
    LDS_ARRAY(Attend<Shape>::Shared, lds, 1);
    launch_dependents();
    wait_for_producer();
    AttendArgs args{q, k, v, q_norm, k_norm, sinks, angles, slots, position, keys, values, part,
                    counters, out, scale, eps, capacity, splits, sequence_bytes PAGED(, table)};
    Attend<Shape>::step(args, launched_share(), lds[0]);
}
