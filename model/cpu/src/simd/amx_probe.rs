//! Detects whether AMX tile instructions can be used.
//!
//! There are three checks. First, the CPU lists AMX (`cpuid`, leaf 7). Second, a child process can
//! run an AMX instruction: some virtual machines list AMX but fault on it. Third, Linux permits the
//! use: tiles add 8 KiB to the state of each thread, which a program must request. After the
//! request Linux rejects alternate signal stacks that are too small for this state, so the request
//! comes last.

use super::amx::SHAPE;
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::ffi::c_long;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bits of `cpuid` leaf 7, register edx.
const BF16: u32 = 1 << 22;
const TILE: u32 = 1 << 24;

/// The `arch_prctl` request for a feature with a large state, and the number of tile data.
const REQUEST: c_long = 0x1023;
const TILE_DATA: c_long = 18;

/// Whether this process may use tiles; detected once.
pub fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| !is_off() && cpu_lists_tiles() && runs() && system_allows_tiles())
}

/// Whether `KJIT_AMX=off`. In this case no child process is started and nothing is requested.
fn is_off() -> bool {
    std::env::var_os("KJIT_AMX").is_some_and(|v| v == "off")
}

fn cpu_lists_tiles() -> bool {
    super::avx512::present()
        && is_x86_feature_detected!("avx512bf16")
        // Leaf 7 exists, because AVX2 was detected by it.
        && __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE
}

/// Requests the use of tiles for this process from the system.
fn system_allows_tiles() -> bool {
    // SAFETY: this system call takes numbers only.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

/// Whether a child process multiplies two tiles correctly.
fn runs() -> bool {
    child_succeeds(|| system_allows_tiles() && product())
}

/// The answer of a child process; `false` if it ends before it answers.
///
/// The child is created by the plain `clone` system call without an exit signal, so that a program
/// that waits for its children does not see it. A thread that waits for all kinds of children may
/// still take its status, so the answer is written to shared memory.
fn child_succeeds(ask: fn() -> bool) -> bool {
    const PAGE: usize = 4096;
    // SAFETY: this maps a new page, which no other code uses.
    let page = unsafe {
        let (read_and_write, own) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), PAGE, read_and_write, own, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the page stays mapped until the end of this function and starts as zeros; both
    // processes use it only as this atomic.
    let answer = unsafe { &*page.cast::<AtomicU32>() };
    let ended = run_child(ask, answer);
    let yes = ended && answer.load(Ordering::Acquire) == SUCCESS;
    // SAFETY: the page was mapped above, and no reference to it is used any more.
    unsafe { libc::munmap(page, PAGE) };
    yes
}

/// The child's positive answer.
const SUCCESS: u32 = 1;

/// Creates the child and waits for its end. Returns whether a child was created.
fn run_child(ask: fn() -> bool, answer: &AtomicU32) -> bool {
    // Signals are blocked before the child is started, so that the program's handlers (Ctrl-C) do
    // not run in it, too. The child keeps them blocked; a fault with a blocked signal kills it.
    // SAFETY: the signal sets are on this stack and are filled before they are read.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        before
    };
    let zero: c_long = 0;
    // SAFETY: like `fork`, without an exit signal. The child is a copy of this thread only, so
    // until its end it makes only system calls and uses only its own stack and the answer.
    let child = unsafe { libc::syscall(libc::SYS_clone, zero, zero, zero, zero, zero) };
    if child == 0 {
        // SAFETY: system calls with valid arguments.
        unsafe {
            // A fault must end the child silently and without a core dump, regardless of the
            // handlers of this program. The limit prevents a file; `PR_SET_DUMPABLE` prevents a
            // dump through a pipe, which ignores the limit.
            libc::prctl(libc::PR_SET_DUMPABLE, zero, zero, zero, zero);
            let nothing: libc::rlimit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const nothing);
            for signal in [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            if ask() {
                answer.store(SUCCESS, Ordering::Release);
            }
            libc::syscall(libc::SYS_exit_group, zero);
        }
        stop_child();
    }
    // SAFETY: restores the signal mask that was read above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    let Ok(child @ 1..) = libc::pid_t::try_from(child) else { return false };
    loop {
        // SAFETY: waits for the child without reading its status.
        let done = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
        // A signal to this thread interrupts the wait. If the child does not exist any more,
        // another thread has reaped it.
        if done == child
            || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted
        {
            return true;
        }
    }
}

/// Stops the child if `exit_group` did not.
fn stop_child() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Multiplies a tile of ones with a tile of twos; every sum must be 64.
fn product() -> bool {
    // Each u32 holds two bf16 numbers.
    let (ones, twos, mut sums) = ([0x3f80_3f80u32; 256], [0x4000_4000u32; 256], [0f32; 256]);
    // SAFETY: reads two tiles and writes one, of 16 rows of 64 bytes. If the instructions are
    // missing, only this child process ends.
    unsafe {
        asm!(
            "ldtilecfg [{shape}]",
            "tileloadd tmm1, [{ones} + {stride}]",
            "tileloadd tmm2, [{twos} + {stride}]",
            "tilezero tmm0",
            "tdpbf16ps tmm0, tmm1, tmm2",
            "tilestored [{sums} + {stride}], tmm0",
            "tilerelease",
            shape = in(reg) &raw const SHAPE,
            ones = in(reg) ones.as_ptr(),
            twos = in(reg) twos.as_ptr(),
            sums = in(reg) sums.as_mut_ptr(),
            stride = in(reg) 64usize,
            options(nostack),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
        );
    }
    sums.iter().all(|s| *s == 64.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    /// Serialises these tests, because each waits for any child without an exit signal.
    static SERIAL_TESTS: Mutex<()> = Mutex::new(());

    fn faults() -> bool {
        // SAFETY: ends the child process that runs this.
        unsafe { asm!("ud2", options(noreturn)) }
    }

    #[test]
    fn amx_probe_is_read_after_foreign_waitpid() {
        let _alone = SERIAL_TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                while done.load(Ordering::Relaxed) == 0 {
                    // SAFETY: waits for children without an exit signal; only these tests make such
                    // children.
                    let child = unsafe {
                        libc::waitpid(-1, std::ptr::null_mut(), libc::__WCLONE | libc::WNOHANG)
                    };
                    taken.fetch_add((child > 0).into(), Ordering::Relaxed);
                }
            });
            for _ in 0..50 {
                let answers = [|| true, || false, faults].map(child_succeeds);
                if answers != [true, false, false] {
                    done.store(1, Ordering::Relaxed);
                    panic!("{answers:?}");
                }
            }
            done.store(1, Ordering::Relaxed);
        });
        assert!(taken.load(Ordering::Relaxed) > 0, "no other thread took the child's status");
    }

    #[test]
    fn amx_probe_leaves_no_child_and_is_repeatable() {
        let _alone = SERIAL_TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let first = runs();
        assert_eq!(first, runs());
        // SAFETY: checks for any ended child without waiting.
        let left =
            unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WCLONE) };
        assert!(left <= 0, "{left}");
        assert_eq!(present(), !is_off() && cpu_lists_tiles() && first && system_allows_tiles());
    }
}
