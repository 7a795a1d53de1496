// attend_args.h: the arguments of attention for new tokens (attend.h, attend_mma.h, attend_wide.h).
#pragma once
#include "paged.h"

struct AttendArgs {
    const float *q, *k, *v, *q_norm, *k_norm, *sinks;
    const u32x2* angles;
    const u32 *slots, *position;
    u8 *keys, *values;
    float* part;
    u32* counters;
    float* out;
    float scale, eps;
    u32 capacity, splits;
    u64 sequence_bytes;
    PAGED(const u32* table;)
};
