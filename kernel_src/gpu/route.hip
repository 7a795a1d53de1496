// route.h says what the arguments are.
#include "route.h"
#include "shape.h"

KERNEL route(const float* scores, u32* experts, float* shares, float scale) {
    launch_dependents();
    wait_for_producer();
    Route<Shape>::step({scores, experts, shares, scale}, launched_share());
}
