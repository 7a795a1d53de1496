// The arguments are described in route.h.
#include "route.h"
#include "shape.h"

KERNEL route(const float* scores, const float* RESTRICT bias, const float* RESTRICT factors,
             u32* experts, float* shares, float scale) {
    launch_dependents();
    wait_for_producer();
    Route<Shape>::step({scores, bias, factors, experts, shares, scale}, launched_share());
}
