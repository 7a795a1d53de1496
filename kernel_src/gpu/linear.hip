// The arguments are described in linear.h.
#include "linear.h"
#include "shape.h"

KERNEL linear(const float* q, const float* k, const float* v, const float* w, const float* a,
              const float* b, const float* u, const u32* slots, const u32* position, u8* state,
              float* y, u32 tokens, u64 sequence_bytes) {
    launch_dependents();
    wait_for_producer();
    LinearArgs args{q, k, v, w, a, b, u, slots, position, state, y, tokens, sequence_bytes};
    Linear<Shape>::step(args, launched_share());
}
