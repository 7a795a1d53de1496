//! A buffer whose parts are written by several threads at once.

use std::marker::PhantomData;

/// A mutable slice shared by the tasks of one step, each of which takes parts of its own.
pub struct Shared<'a, T = f32> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

// SAFETY: access is by `part` and `start`, whose callers promise that no two threads have the same
// element.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares a slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// `n` elements from `at` on.
    ///
    /// # Safety
    /// No other part that is in use at the same time has any of these elements.
    ///
    /// # Panics
    /// If they are not in the slice.
    #[allow(
        clippy::mut_from_ref,
        reason = "disjointness is the caller's promise, as for split_at_mut it is the index"
    )]
    pub unsafe fn part(&self, at: usize, n: usize) -> &'a mut [T] {
        assert!(at <= self.len && n <= self.len - at);
        // SAFETY: inside the slice, and nobody else has these elements, says the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), n) }
    }

    /// The first element, for kernels that write strided parts; the same promise holds.
    pub fn start(&self) -> *mut T {
        self.start
    }
}
