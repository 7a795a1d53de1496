//! Ctrl-C: ends the program with exit code 130, at once or, where there is something to finish, as
//! soon as that notices.

use crate::report::{INTERRUPTED, say};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Somebody asks [`Interrupt::came`].
static WATCHED: AtomicBool = AtomicBool::new(false);
/// Ctrl-C came since the last [`Interrupt::forget`].
static CAME: AtomicBool = AtomicBool::new(false);

/// What is said beside the one word.
type Words = Box<dyn Fn() -> String + Send>;
static WORDS: Mutex<Option<Words>> = Mutex::new(None);

/// What Ctrl-C leaves behind, in words of the command at work: asked for just before the program
/// ends.
pub fn leaves(words: impl Fn() -> String + Send + 'static) {
    *WORDS.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(words));
}

/// What was said to be left behind is so no more.
pub fn leaves_nothing() {
    *WORDS.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// From now on Ctrl-C ends the program with exit code 130. Where the system lets nobody listen,
/// Ctrl-C still ends it, by the signal.
pub fn listen() {
    let _ = ctrlc::set_handler(|| {
        // A second one is from somebody who does not want to wait.
        if !WATCHED.load(Ordering::Relaxed) || CAME.swap(true, Ordering::Relaxed) {
            let words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
            match words.as_ref() {
                Some(words) => say(format_args!("interrupted: {}", words())),
                None => say("interrupted"),
            }
            std::process::exit(i32::from(INTERRUPTED));
        }
    });
}

/// While it lives, Ctrl-C is asked for rather than obeyed at once.
pub struct Interrupt(());

impl Interrupt {
    pub fn watch() -> Interrupt {
        CAME.store(false, Ordering::Relaxed);
        WATCHED.store(true, Ordering::Relaxed);
        Interrupt(())
    }

    /// Whether it came.
    pub fn came(&self) -> bool {
        CAME.load(Ordering::Relaxed)
    }

    /// As if it had not come.
    pub fn forget(&self) {
        CAME.store(false, Ordering::Relaxed);
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        WATCHED.store(false, Ordering::Relaxed);
    }
}
