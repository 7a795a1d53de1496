//! Handles a mapped file that another program truncates.

use std::sync::atomic::{AtomicBool, Ordering};

/// The whole message: a signal handler cannot format.
const MESSAGE: &[u8] =
    b"error: a model file was truncated while it was in use, or its disk failed: restore the file \
        and start kjit again\n";

/// Whether a thread has already printed the message.
static MESSAGE_PRINTED: AtomicBool = AtomicBool::new(false);

/// Installs a SIGBUS handler. If another program truncates a mapped model file, reading past its
/// new end then ends this process with one line on stderr and exit code 1. Programs should call it,
/// but not libraries, because it replaces the handler of the process. Any other bus error still
/// ends the process as before. If the system refuses, it has no effect.
#[allow(unsafe_code, reason = "a signal handler")]
pub fn exit_on_truncated_file() {
    extern "C" fn ended(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: with SA_SIGINFO, the kernel passes a siginfo that is valid during the call.
        let code = unsafe { (*info).si_code };
        if code == libc::BUS_ADRERR {
            // Several threads may read the file: the first prints the message and ends the process.
            if MESSAGE_PRINTED.swap(true, Ordering::Relaxed) {
                loop {
                    std::hint::spin_loop();
                }
            }
            // SAFETY: write and _exit are allowed in a signal handler; the bytes are a constant.
            unsafe {
                libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
                libc::_exit(1);
            }
        }
        // SAFETY: signal is allowed in a handler. After the return the fault repeats and ends the
        // process.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero sigaction is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = ended;
    action.sa_sigaction = handler as libc::sighandler_t;
    // Uses the alternate stack that std sets up for each of its threads, because the normal stack
    // may be exhausted.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is fully initialised, and its handler calls only async-signal-safe
    // functions.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}
