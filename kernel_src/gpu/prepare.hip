// prepare: columns of activations as activations.h lays them out, into global memory; one block a column.
//
//   x  columns × COLS f32    aux  PROLOGUE 1: COLS f32; 2, 3: columns × COLS f32    out  columns × X_VECTORS vectors of 16 bytes
//
// Constants: those of activations.h.
#include "activations.h"

KERNEL prepare(const float* x, const float* aux, u32x4* out, float eps) {
    Norm norm;
    load_norm(norm, aux);
    launch_dependents();
    wait_for_producer();
    u64 column = block_id();
    make_columns<1>(x + column * COLS, PROLOGUE == 1 ? aux : aux + column * COLS, norm, eps, out + column * X_VECTORS);
}
