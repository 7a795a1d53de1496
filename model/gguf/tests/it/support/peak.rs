//! Counts the peak of the memory that a thread has allocated, to test limits of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator with counters for each thread.
pub struct Counting;

fn grow(n: usize) {
    // When a thread ends, its counters may not exist any more. No test reads them then.
    let _ = LIVE.try_with(|live| {
        live.set(live.get().saturating_add(n));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

fn shrink(n: usize) {
    let _ = LIVE.try_with(|live| live.set(live.get().saturating_sub(n)));
}

// SAFETY: every call goes to the system's allocator with unchanged arguments; the counters are
// `Cell`s of the thread and do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's guarantees are the ones that the system's allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: the caller's guarantees are the ones that the system's allocator needs.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The peak of the bytes that this thread had allocated during `work`, in addition to those before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get().saturating_sub(before))
}
