//! A pseudo-terminal, and a simulated person who types and reads.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// Both ends of a new terminal with this many columns (0: unknown): for the person and for the
/// program.
pub fn terminal(columns: u16) -> (Person, OwnedFd) {
    let (mut person, mut program) = (-1, -1);
    let null = std::ptr::null_mut();
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the arguments are two integers for the handles, null for optional arguments, and a
    // size that outlives the call.
    let done =
        unsafe { libc::openpty(&mut person, &mut program, null, null.cast(), &raw const size) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both handles were just opened, and have no other owner.
    let (terminal, program) = unsafe { (File::from_raw_fd(person), OwnedFd::from_raw_fd(program)) };
    (Person { terminal, seen: vec![] }, program)
}

/// A person at a terminal.
pub struct Person {
    terminal: File,
    seen: Vec<u8>,
}

impl Person {
    /// Types a line.
    pub fn types(&mut self, line: &str) {
        self.terminal.write_all(format!("{line}\r").as_bytes()).unwrap();
    }

    /// Reads until this text has appeared, and drops everything up to its end.
    pub fn sees(&mut self, text: &str) {
        self.passes(text);
    }

    /// Like `sees`, but returns the text that was dropped.
    pub fn passes(&mut self, text: &str) -> String {
        let found = |seen: &[u8]| seen.windows(text.len()).position(|w| w == text.as_bytes());
        if text.is_empty() {
            return String::new();
        }
        while found(&self.seen).is_none() {
            let mut some = [0; 512];
            let n = self.terminal.read(&mut some).unwrap_or(0);
            assert!(n > 0, "no {text:?} in {:?}", String::from_utf8_lossy(&self.seen));
            self.seen.extend_from_slice(&some[..n]);
        }
        let end = found(&self.seen).unwrap() + text.len();
        String::from_utf8_lossy(&self.seen.drain(..end).collect::<Vec<_>>()).into_owned()
    }

    /// The rest of the output, until the program has closed the terminal.
    pub fn rest(mut self) -> String {
        let mut some = [0; 512];
        // On Linux, reading from a closed terminal is an error.
        while let Ok(n @ 1..) = self.terminal.read(&mut some) {
            self.seen.extend_from_slice(&some[..n]);
        }
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}
