// The arguments are described in norm_rows.h.
#include "norm_rows.h"
#include "shape.h"

KERNEL norm_rows(const float* x, const float* RESTRICT weight, const float* RESTRICT bias,
                 const float* residual, float* y, float eps) {
    launch_dependents();
    wait_for_producer();
    NormRows<Shape>::step({x, weight, bias, residual, y, eps}, launched_share());
}
