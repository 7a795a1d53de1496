// The arguments are described in rows.h.
#include "rows.h"

KERNEL rows(const u32* x, const u32* which, u32* out, u32 words) {
    launch_dependents();
    wait_for_producer();
    copy_rows({x, which, out, words}, launched_share());
}
