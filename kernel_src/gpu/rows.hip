// rows: out[r] = x[which[r]], rows of `words` f32.
#include "kjit.h"

KERNEL rows(const u32* x, const u32* which, u32* out, u32 words) {
    launch_dependents();
    wait_for_producer();
    u64 row = block_id_y(), from = which[row];
    u32 i = block_id() * KJ_BLOCK + thread_id();
    if (i < words) out[row * words + i] = x[from * words + i];
}
