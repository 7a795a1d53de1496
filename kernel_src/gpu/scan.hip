// The arguments are described in scan.h.
#include "scan.h"
#include "shape.h"

KERNEL scan(const float* x, const float* dt, const float* b, const float* c, const float* a,
            const float* d, const u32* slots, const u32* position, u8* state, float* y, u32 tokens,
            u64 sequence_bytes) {
    launch_dependents();
    wait_for_producer();
    ScanArgs args{x, dt, b, c, a, d, slots, position, state, y, tokens, sequence_bytes};
    Scan<Shape>::step(args, launched_share());
}
