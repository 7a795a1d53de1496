//! A buffer that several threads write simultaneously, in disjoint parts.

use std::marker::PhantomData;

/// A mutable slice shared by the tasks of a step. Each task takes its own parts.
pub struct SharedMut<'a, T = f32> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedMut<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedMut<'_, T> {}

// SAFETY: access is only by `part` and `start`, whose callers guarantee that no two threads use the
// same element.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: access is only by `part` and `start`, whose callers guarantee that no two threads use the
// same element.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Shares a slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// `n` elements from `at` on.
    ///
    /// # Safety
    /// No other part in use at the same time has any of these elements.
    ///
    /// # Panics
    /// If the range is outside the slice.
    #[allow(clippy::mut_from_ref, reason = "the caller guarantees that parts are disjoint")]
    pub unsafe fn part(&self, at: usize, n: usize) -> &'a mut [T] {
        assert!(at <= self.len && n <= self.len - at);
        // SAFETY: the assertion shows that the range is inside the slice; the caller guarantees
        // that no one else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), n) }
    }

    /// Pointer to the first element, for kernels that write strided parts. The rule of
    /// [`SharedMut::part`] holds.
    pub fn start(&self) -> *mut T {
        self.start
    }
}
