// gate.h: activation functions of gated units.
#pragma once
#include "enums.h"
#include "kjit.h"

STEP float silu(float x) { return x * sigmoid(x); }
// x limited to low … high. Comparisons keep a NaN.
STEP float between(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
// The gate of gpt-oss (arXiv 2508.10925). The function below is for the other factor.
STEP float clamped_silu(float x, float limit) {
    float g = x > limit ? limit : x;
    return g * sigmoid(1.702f * g);
}
STEP float clamped_up(float x, float limit) { return between(x, -limit, limit) + 1.0f; }
// GELU, tanh form (Hendrycks & Gimpel 2016, arXiv 1606.08415).
STEP float gelu(float x) {
    float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh_f32(inner));
}
// GELU, tanh form, with one multiplication less and different roundings, for tiles and matrix
// products.
STEP float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanh_f32(0.7978845608f * fma_f32(0.044715f * x * x, x, x)));
}
