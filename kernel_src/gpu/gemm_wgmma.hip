// The arguments are described in gemm_wgmma.h.
#include "gemm_wgmma.h"
#include "shape.h"

KERNEL gemm_wgmma(const u16* x, const float* residual, const u8* RESTRICT w0,
                  const float* RESTRICT b0, void* y0, const u8* RESTRICT w1,
                  const float* RESTRICT b1, void* y1, const u8* RESTRICT w2,
                  const float* RESTRICT b2, void* y2, float* parts, u32* counters,
                  const u32* tile_expert, u32 tokens, u32 splits, u32 token_tiles, u32 tiles,
                  u32 blocks) {
    LDS_DYNAMIC(pool);
    LDS_ARRAY(GemmWgmma<Shape>::Shared, lds, 1);
    GemmArgs args{x, residual, w0, w1, w2, b0, b1, b2, y0, y1, y2, parts, counters, tile_expert,
                  tokens, splits, token_tiles, tiles, blocks};
    GemmWgmma<Shape>::step<LaunchBefore>(args, launched_share(), pool, lds[0]);
}
