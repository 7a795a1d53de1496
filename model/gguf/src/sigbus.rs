//! What happens when a mapped file loses its end.

use std::sync::atomic::{AtomicBool, Ordering};

/// The whole of the sentence: a signal handler may format nothing.
const SENTENCE: &[u8] =
    b"error: a model file was cut short while it was in use, or its disk failed: put it back \
        whole and start again\n";

/// Whether a thread has said it.
static SAID: AtomicBool = AtomicBool::new(false);

/// From now on, reading a mapped model file past the end that another program has left it ends this
/// process with one line on stderr and exit code 1, instead of by SIGBUS. For programs, not for
/// libraries: it takes the process's handler of that signal. A bus error of any other kind still
/// ends the process as it did. Without effect where the system refuses.
#[allow(unsafe_code, reason = "a signal handler")]
pub fn exit_on_truncated_file() {
    extern "C" fn ended(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel hands a handler set with SA_SIGINFO a siginfo that lives as long as
        // the call.
        let code = unsafe { (*info).si_code };
        if code == libc::BUS_ADRERR {
            // Several threads read the file: the first says it, and ends the process for all.
            if SAID.swap(true, Ordering::Relaxed) {
                loop {
                    std::hint::spin_loop();
                }
            }
            // SAFETY: write and _exit may be called in a signal handler; the bytes are a
            // constant's.
            unsafe {
                libc::write(libc::STDERR_FILENO, SENTENCE.as_ptr().cast(), SENTENCE.len());
                libc::_exit(1);
            }
        }
        // SAFETY: signal may be called in a handler. What went wrong happens again when this
        // returns, and then ends the process.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    // SAFETY: all zeros are a sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = ended;
    action.sa_sigaction = handler as libc::sighandler_t;
    // On the stack that std sets up for each of its threads: the other may be what is exhausted.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is whole and its handler calls only what a handler may.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}
