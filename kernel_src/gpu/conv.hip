// The arguments are described in conv.h.
#include "conv.h"
#include "shape.h"

KERNEL conv(const float* x, const float* w, const float* b, const u32* slots, const u32* position,
            u8* state, float* y, u32 tokens, u64 sequence_bytes) {
    launch_dependents();
    wait_for_producer();
    ConvArgs args{x, w, b, slots, position, state, y, tokens, sequence_bytes};
    Conv<Shape>::step(args, launched_share());
}
