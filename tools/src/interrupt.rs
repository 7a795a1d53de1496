//! Ctrl-C ends the program with exit code 130: immediately, or, if work must be finished, when the
//! work notices it.

use crate::report::{INTERRUPTED, say};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether the work checks [`Interrupt::came`].
static WORK_CHECKS: AtomicBool = AtomicBool::new(false);
/// Whether Ctrl-C was pressed since the last [`Interrupt::forget`].
static PRESSED: AtomicBool = AtomicBool::new(false);

/// Creates the text after "interrupted".
type MessageFn = Box<dyn Fn() -> String + Send>;
static WORDS: Mutex<Option<MessageFn>> = Mutex::new(None);

/// Sets the message about remaining files and progress after Ctrl-C. It is created just before the
/// program ends.
pub fn leaves(words: impl Fn() -> String + Send + 'static) {
    *WORDS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(words));
}

/// Removes the message that [`leaves`] set.
pub fn leaves_nothing() {
    *WORDS.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Handles Ctrl-C from now on. If no handler can be installed, the signal itself ends the program.
pub fn listen() {
    let _ = ctrlc::set_handler(|| {
        // A second Ctrl-C ends the program immediately.
        if !WORK_CHECKS.load(Ordering::Relaxed) || PRESSED.swap(true, Ordering::Relaxed) {
            let words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
            match words.as_ref() {
                Some(words) => say(format_args!("interrupted: {}", words())),
                None => say("interrupted"),
            }
            std::process::exit(i32::from(INTERRUPTED));
        }
    });
}

/// While this lives, Ctrl-C sets a flag instead of ending the program.
pub struct Interrupt(());

impl Interrupt {
    pub fn watch() -> Interrupt {
        PRESSED.store(false, Ordering::Relaxed);
        WORK_CHECKS.store(true, Ordering::Relaxed);
        Interrupt(())
    }

    /// Whether Ctrl-C was pressed.
    pub fn came(&self) -> bool {
        PRESSED.load(Ordering::Relaxed)
    }

    /// Resets the flag.
    pub fn forget(&self) {
        PRESSED.store(false, Ordering::Relaxed);
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        WORK_CHECKS.store(false, Ordering::Relaxed);
    }
}
