// The arguments are described in experts.h.
#include "experts.h"
#include "shape.h"

KERNEL experts(const float* x, const float* aux, const u32* chosen, const float* shares,
               const float* residual, const u8* RESTRICT w0, const u8* RESTRICT w1,
               const float* RESTRICT b0, const float* RESTRICT b1, float* y, float eps, float limit,
               u32 tokens, u32 blocks) {
    LDS_DYNAMIC(columns);
    LDS_ARRAY(Experts<Shape>::Shared, lds, 1);
    ExpertsArgs args{x, aux, chosen, shares, residual, w0, w1, b0, b1, y, eps, limit, tokens,
                     blocks};
    Experts<Shape>::step<LaunchBefore>(args, launched_share(), columns, lds[0]);
}
