// gate.h: the functions of gated units.
#pragma once
#include "kjit.h"

STEP float silu(float x) { return x * sigmoid(x); }
STEP float gelu(float x) {  // the tanh form
    float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh_f32(inner));
}
