// The arguments are described in batch_gemm.h.
#include "batch_gemm.h"
#include "shape.h"

KERNEL batch_gemm(const u16* x, const float* residual, const u8* RESTRICT w0,
                  const float* RESTRICT b0, void* y0, const u8* RESTRICT w1,
                  const float* RESTRICT b1, void* y1, const u8* RESTRICT w2,
                  const float* RESTRICT b2, void* y2, float* parts, u32* counters, u32 tokens,
                  u32 blocks) {
    LDS_DYNAMIC(pool);
    LDS_ARRAY(BatchGemm<Shape>::Shared, lds, 1);
    GemmArgs args{x, residual, w0, w1, w2, b0, b1, b2, y0, y1, y2, parts, counters, nullptr,
                  tokens, 0, 0, 0, blocks};
    BatchGemm<Shape>::step<LaunchBefore>(args, launched_share(), pool, lds[0]);
}
