// The arguments are described in matvec.h.
#include "matvec.h"
#include "shape.h"

KERNEL matvec(const float* x, const float* aux, const float* residual, const u8* RESTRICT w0,
              const float* RESTRICT b0, float* y0, const u8* RESTRICT w1, const float* RESTRICT b1,
              float* y1, const u8* RESTRICT w2, const float* RESTRICT b2, float* y2, float eps,
              u32 blocks) {
    LDS_DYNAMIC(columns);
    LDS_ARRAY(Matvec<Shape>::Shared, lds, 1);
    MatvecArgs args{x, aux, residual, w0, w1, w2, b0, b1, b2, y0, y1, y2, eps, blocks};
    Matvec<Shape>::step<LaunchBefore>(args, launched_share(), columns, lds[0]);
}
