// The arguments are described in attend.h.
#include "attend_mma.h"
#include "shape.h"

KERNEL attend_mma(const float* q, const float* k, const float* v, const float* RESTRICT q_norm,
                  const float* RESTRICT k_norm, const float* RESTRICT sinks,
                  const u32x2* RESTRICT angles, const u32* slots, const u32* position, u8* keys,
                  u8* values, float* part, u32* counters, float* out, float scale, float eps,
                  u32 capacity, u32 splits, u64 sequence_bytes PAGED(, const u32* table)) {
    LDS_DYNAMIC(dynamic);
    LDS_ARRAY(AttendMma<Shape>::Shared, lds, 1);
    AttendArgs args{q, k, v, q_norm, k_norm, sinks, angles, slots, position, keys, values, part,
                    counters, out, scale, eps, capacity, splits, sequence_bytes PAGED(, table)};
    AttendMma<Shape>::step<LaunchBefore>(args, launched_share(), dynamic, lds[0]);
}
