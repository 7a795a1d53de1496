//! Masks of constraints. A thread computes them while the device runs the step: they depend on the
//! tokens, not on the logits of the step.

use super::request::{Constraint, Failure};
use super::running::guarded;
use crate::sample::TokenMask;
use std::sync::mpsc::{Receiver, Sender, channel};

type Boxed = Box<dyn Constraint>;
/// The mask of a constraint, or why it failed.
pub(super) type Mask = Result<TokenMask, Failure>;

/// A thread that computes masks. It ends when this is dropped.
pub(super) struct Masks {
    ask: Sender<(usize, Boxed)>,
    answers: Receiver<(usize, Boxed, Mask)>,
    asked: usize,
}

/// Computes a constraint's mask. A panic becomes the request's failure.
fn allowed(constraint: &mut Boxed) -> Mask {
    guarded(|| constraint.allowed())?.map_err(Failure::Constraint)
}

impl Masks {
    /// `None` if the system cannot start a thread.
    pub fn new() -> Option<Masks> {
        let (ask, asked) = channel::<(usize, Boxed)>();
        let (answer, answers) = channel();
        let work = move || {
            for (at, mut constraint) in asked {
                let mask = allowed(&mut constraint);
                if answer.send((at, constraint, mask)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("kjit-masks".to_owned()).spawn(work).ok()?;
        Some(Masks { ask, answers, asked: 0 })
    }

    /// Sends a constraint to the thread; [`Masks::answers`] returns it.
    pub fn ask(&mut self, at: usize, constraint: Boxed) {
        // If the thread has ended, the constraint is lost, and is missing among the answers.
        if self.ask.send((at, constraint)).is_ok() {
            self.asked += 1;
        }
    }

    /// Waits for all masks, and returns the constraints with them.
    pub fn answers(&mut self) -> Vec<(usize, Boxed, Mask)> {
        let n = std::mem::take(&mut self.asked);
        self.answers.iter().take(n).collect()
    }
}
