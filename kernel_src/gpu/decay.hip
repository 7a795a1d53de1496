// The arguments are described in decay.h.
#include "decay.h"
#include "shape.h"

KERNEL decay(const float* x, const float* a, const float* b, float* y, float p) {
    launch_dependents();
    wait_for_producer();
    Decay<Shape>::step(DecayArgs{x, a, b, y, p}, launched_share());
}
