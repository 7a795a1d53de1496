// flash_args.h: arguments, unrolling and soft cap of attention for prompts (flash.h, flash_wgmma.h,
// latent_flash.h).
#pragma once
#include "mma.h"
#include "paged.h"
#include "scores.h"

// Not unrolled on AMD: compilers load the addresses of all steps into registers first, and spill
// (800 registers at HEAD_DIM 256 on gfx1030).
#if defined(KJ_AMD)
#define FLASH_DEPTH NO_UNROLL
#else
#define FLASH_DEPTH UNROLL
#endif

struct FlashArgs {
    const float *q, *sinks;
    const u8 *keys, *values;
    u16* y;
    const u32* position;
    u32 tokens, capacity;
    PAGED(const u32* table;)
};

// tanh(s / cap). The argument is s / cap · 2 · log2(e), so that e^(2s / cap) is one instruction.
STEP float soften(float x) { return 1.0f - 2.0f * rcp_hw(exp2_hw(x) + 1.0f); }

// Eight elements of a query, scaled, as f16.
STEP u32x4 scaled_inputs(u32x4 a, u32x4 b, float factor) {
    return u32x4{pack_input(as_f32(a.x) * factor, as_f32(a.y) * factor),
                 pack_input(as_f32(a.z) * factor, as_f32(a.w) * factor),
                 pack_input(as_f32(b.x) * factor, as_f32(b.y) * factor),
                 pack_input(as_f32(b.z) * factor, as_f32(b.w) * factor)};
}
