// combine: y = a + b (OP 0), silu(a)·b (1) or gelu(a)·b (2), element by element; y may be a or b.
#include "gate.h"

KERNEL combine(const float* a, const float* b, float* y, u64 n, u32 blocks) {
    launch_dependents();
    wait_for_producer();
    for (u64 i = (u64)block_id() * KJ_BLOCK + thread_id(); i < n; i += (u64)blocks * KJ_BLOCK)
        y[i] = OP == 0 ? a[i] + b[i] : (OP == 1 ? silu(a[i]) : gelu(a[i])) * b[i];
}
