//! Constraints at work while the device computes: what may come after the tokens of a step is known
//! before their scores are.

use super::request::{Constraint, Failure};
use super::running::guarded;
use crate::sample::TokenMask;
use std::sync::mpsc::{Receiver, Sender, channel};

type Boxed = Box<dyn Constraint>;
/// What came of a constraint that was asked.
pub(super) type Mask = Result<TokenMask, Failure>;

/// A thread that asks constraints. It ends when this is dropped.
pub(super) struct Masks {
    ask: Sender<(usize, Boxed)>,
    answers: Receiver<(usize, Boxed, Mask)>,
    asked: usize,
}

/// What a constraint allows; a panic in it is its request's.
fn allowed(constraint: &mut Boxed) -> Mask {
    guarded(|| constraint.allowed())?.map_err(Failure::Constraint)
}

impl Masks {
    /// None: the system has no thread to give.
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

    /// Asks a constraint; it comes back with the answer of [`Masks::answers`].
    pub fn ask(&mut self, at: usize, constraint: Boxed) {
        // Where nobody is there to be asked, the constraint is gone, which whoever waits for it
        // sees.
        if self.ask.send((at, constraint)).is_ok() {
            self.asked += 1;
        }
    }

    /// All that were asked, with what they allow. Waits for it.
    pub fn answers(&mut self) -> Vec<(usize, Boxed, Mask)> {
        let n = std::mem::take(&mut self.asked);
        self.answers.iter().take(n).collect()
    }
}
