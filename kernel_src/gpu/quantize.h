// quantize: writes columns of activations in the layout of activations.h to global memory; one
// block per column.
//
//   x    columns × COLS f32
//   aux  Prologue::Norm: COLS f32; Silu, Gelu: columns × COLS f32
//   out  columns × VECTORS vectors of 16 bytes
//
// S: as for activations.h. Share: x is the column.
#pragma once
#include "activations.h"

struct QuantizeArgs {
    const float *x, *aux;
    u32x4* out;
    float eps;
};

template <class S> struct Quantize {
    using X = Activations<S>;

    template <class Before> STEP void step(QuantizeArgs a, Share share) {
        typename X::Norm norm;
        X::load_norm(norm, a.aux);
        Before::release();
        Before::wait();
        u64 column = share.x;
        const float* aux = X::GATED ? a.aux + column * X::COLS : a.aux;
        X::template make<1>(a.x + column * X::COLS, aux, norm, a.eps, a.out + column * X::VECTORS);
    }
};
