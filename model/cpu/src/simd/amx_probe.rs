//! Whether tile instructions run here.
//!
//! Three things are asked. The processor lists AMX (`cpuid`, leaf 7). Linux lets this process use
//! it: the registers of tiles are 8 KiB of each thread's state, which a program must ask for; from
//! then on it refuses alternate stacks for signals that have no room for them, which is why it is
//! asked for last. And an instruction runs: some virtual machines list AMX and fault on it. A child
//! process tries that, so that the fault, if there is one, is its own.

use super::amx::SHAPE;
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::ffi::c_long;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bits of `cpuid`'s leaf 7, register edx.
const BF16: u32 = 1 << 22;
const TILE: u32 = 1 << 24;

/// Asks the system for a feature whose state is large (`arch_prctl`), and which: the tiles' data.
const REQUEST: c_long = 0x1023;
const TILE_DATA: c_long = 18;

/// Whether tiles may be used by this process; it is found out once.
pub fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| !refused() && listed() && runs() && allowed())
}

/// Whether the user wants none (`KJIT_AMX=off`): then no child is made and the system is not asked.
fn refused() -> bool {
    std::env::var_os("KJIT_AMX").is_some_and(|v| v == "off")
}

fn listed() -> bool {
    super::avx512::present()
        && is_x86_feature_detected!("avx512bf16")
        // The leaf is there: AVX2, which was asked for, is told by it.
        && __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE
}

/// Whether the system lets this process use tiles from now on.
fn allowed() -> bool {
    // SAFETY: a system call that takes numbers.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
}

/// Whether a child process multiplies two tiles as it should.
fn runs() -> bool {
    child_says(|| allowed() && product())
}

/// What a child process answers; no, if it ends before it does.
///
/// The child is made by the bare system call, without the signal that tells a program of a child's
/// end: a program that waits for its own children does not hear of this one. One that waits for all
/// kinds of children on another thread may take this one's status, so the answer is a word of
/// shared memory.
fn child_says(ask: fn() -> bool) -> bool {
    const PAGE: usize = 4096;
    // SAFETY: a new page, of nobody else's.
    let page = unsafe {
        let (read_and_write, own) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), PAGE, read_and_write, own, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the page is there until the end of this function, zeros at first, and all who reach
    // it use it so.
    let answer = unsafe { &*page.cast::<AtomicU32>() };
    let ended = answered(ask, answer);
    let yes = ended && answer.load(Ordering::Acquire) == YES;
    // SAFETY: the page of above, of which nothing is used any more.
    unsafe { libc::munmap(page, PAGE) };
    yes
}

/// The child's yes.
const YES: u32 = 1;

/// Makes the child and waits for its end; whether there was one.
fn answered(ask: fn() -> bool, answer: &AtomicU32) -> bool {
    // Signals wait until the child is made: a program's handler of Ctrl-C shall not run a second
    // time in it. It keeps them blocked; a fault of a blocked signal ends it. SAFETY: sets of
    // signals on this stack, filled before they are read.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        before
    };
    let zero: c_long = 0;
    // SAFETY: as `fork`, with no signal. The child has a copy of this thread alone, so until its
    // end it makes only system calls and touches only its own stack and the answer.
    let child = unsafe { libc::syscall(libc::SYS_clone, zero, zero, zero, zero, zero) };
    if child == 0 {
        // SAFETY: system calls, with what they ask for.
        unsafe {
            // A fault ends it, without a word, whatever handlers this program has; and leaves no
            // core behind, neither a file (the limit) nor a report by a program that takes cores
            // through a pipe (which a limit does not hold).
            libc::prctl(libc::PR_SET_DUMPABLE, zero, zero, zero, zero);
            let nothing: libc::rlimit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const nothing);
            for signal in [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            if ask() {
                answer.store(YES, Ordering::Release);
            }
            libc::syscall(libc::SYS_exit_group, zero);
        }
        unreachable_here();
    }
    // SAFETY: puts back what was there.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    let Ok(child @ 1..) = libc::pid_t::try_from(child) else { return false };
    loop {
        // SAFETY: waits for the child; its status is not asked for.
        let done = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
        // A signal to this thread interrupts it. Where there is no such child any more somebody
        // else has waited for it.
        if done == child
            || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted
        {
            return true;
        }
    }
}

/// The child's end, should the system not have ended it.
fn unreachable_here() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Multiplies a tile of ones with a tile of twos: all sums are 64.
fn product() -> bool {
    // Two bf16 in each.
    let (ones, twos, mut sums) = ([0x3f80_3f80u32; 256], [0x4000_4000u32; 256], [0f32; 256]);
    // SAFETY: reads two tiles and writes one, of 16 rows of 64 bytes. Where the instructions are
    // missing this process, which is a child made for this, ends.
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

    /// Each test here takes any child that is made without a signal.
    static ALONE: Mutex<()> = Mutex::new(());

    fn faults() -> bool {
        // SAFETY: ends the child that runs this.
        unsafe { asm!("ud2", options(noreturn)) }
    }

    #[test]
    fn a_childs_answer_is_heard_whoever_takes_its_status() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                while done.load(Ordering::Relaxed) == 0 {
                    // SAFETY: waits for children that are made without a signal, as those here are
                    // and no others.
                    let child = unsafe {
                        libc::waitpid(-1, std::ptr::null_mut(), libc::__WCLONE | libc::WNOHANG)
                    };
                    taken.fetch_add((child > 0).into(), Ordering::Relaxed);
                }
            });
            for _ in 0..50 {
                let answers = [|| true, || false, faults].map(child_says);
                if answers != [true, false, false] {
                    done.store(1, Ordering::Relaxed);
                    panic!("{answers:?}");
                }
            }
            done.store(1, Ordering::Relaxed);
        });
        assert!(taken.load(Ordering::Relaxed) > 0, "nobody else took a status");
    }

    #[test]
    fn probing_leaves_no_child_and_says_the_same_twice() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let first = runs();
        assert_eq!(first, runs());
        // SAFETY: asks for any child's end without waiting.
        let left =
            unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WCLONE) };
        assert!(left <= 0, "{left}");
        assert_eq!(present(), !refused() && listed() && first && allowed());
    }
}
