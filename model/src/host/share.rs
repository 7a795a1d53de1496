//! A buffer whose parts are written by several threads at once.

use std::marker::PhantomData;

/// A mutable slice shared by the tasks of one step, each of which takes parts of its own.
#[derive(Clone, Copy)]
pub struct Shared<'a> {
    start: *mut f32,
    len: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: access is by `part` and `start`, whose callers promise that no two threads have the same element.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Shares a slice.
    pub fn new(slice: &'a mut [f32]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// `n` elements from `at` on.
    ///
    /// # Safety
    /// No other part that is in use at the same time has any of these elements.
    ///
    /// # Panics
    /// If they are not in the slice.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise, as for split_at_mut it is the index")]
    pub unsafe fn part(&self, at: usize, n: usize) -> &'a mut [f32] {
        assert!(at <= self.len && n <= self.len - at);
        // SAFETY: inside the slice, and nobody else has these elements, says the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), n) }
    }

    /// The first element, for kernels that write strided parts; the same promise holds.
    pub fn start(&self) -> *mut f32 {
        self.start
    }
}
