// The arguments are described in draw.h.
#include "draw.h"
#include "shape.h"

KERNEL draw(const float* logits, const u64* seeds, const u32x4* options, const u32* slots,
            u32* tokens, u32* position, DrawMeeting* work, DrawSaid* said, u32 capacity, u32 top_k,
            float inverse, float top_p, float min_p, u32 blocks) {
    LDS_ARRAY(Draw<Shape>::Memory, lds, 1);
    launch_dependents();
    wait_for_producer();
    DrawArgs args{logits, seeds, options, slots, tokens, position, work, said, capacity, top_k,
                  inverse, top_p, min_p, blocks};
    Draw<Shape>::step(args, launched_share(), lds[0]);
}
