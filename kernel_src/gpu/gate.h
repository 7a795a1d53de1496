// gate.h: the functions of gated units.
#pragma once
#include "enums.h"
#include "kjit.h"

STEP float silu(float x) { return x * sigmoid(x); }
// GELU, its tanh form: Hendrycks & Gimpel 2016, arXiv 1606.08415.
STEP float gelu(float x) {
    float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh_f32(inner));
}
// The same with one multiplication less and other roundings, as tiles and products of matrices have it.
STEP float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanh_f32(0.7978845608f * fma_f32(0.044715f * x * x, x, x)));
}
