// The arguments are described in indexer_scores.h.
#include "indexer_scores.h"
#include "shape.h"

KERNEL indexer_scores(const float* q, const float* w, const u32* slots, const u32* position,
                  const u8* rows, float* scores, u32 first, u32 tokens, u32 capacity, u32 splits,
                  u64 sequence_bytes) {
    LDS_DYNAMIC(pool);
    launch_dependents();
    wait_for_producer();
    IndexerScoresArgs args{q, w, slots, position, rows, scores, first, tokens, capacity, splits,
                       sequence_bytes};
    IndexerScores<Shape>::step(args, launched_share(), pool);
}
