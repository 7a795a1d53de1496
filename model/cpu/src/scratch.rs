//! Scratch buffers of a thread, reused from task to task.
//!
//! This is a guard and not a closure: a closure does not inherit the caller's instruction set, and
//! kernels run while the buffer is in use.

use std::cell::Cell;

/// Floats in a cache line.
const LINE: usize = 16;

thread_local! {
    static BUFFER: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// The thread's buffer. A second one, taken while the first is in use, starts empty.
pub struct Scratch(Vec<f32>);

impl Scratch {
    /// Takes the thread's buffer until the guard is dropped.
    #[inline]
    pub fn take() -> Scratch {
        Scratch(BUFFER.take())
    }

    /// Divides the buffer into parts of these lengths, aligned to 64 bytes. Their contents are
    /// undefined.
    #[inline(always)]
    pub fn parts<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        let total: usize = lengths.iter().map(|l| l.next_multiple_of(LINE)).sum::<usize>() + LINE;
        if self.0.len() < total {
            self.0.resize(total, 0.0);
        }
        let skip = self.0.as_ptr().align_offset(64).min(LINE);
        let mut rest = &mut self.0[skip..];
        lengths.map(|l| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(l.next_multiple_of(LINE));
            rest = others;
            &mut part[..l]
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        BUFFER.set(std::mem::take(&mut self.0));
    }
}
