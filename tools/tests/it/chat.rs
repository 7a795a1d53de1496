//! The chat, on a terminal.

use crate::support::smollm2;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// Both ends of a new terminal: a person's, and a program's.
fn terminal() -> (Person, OwnedFd) {
    let (mut person, mut program) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: two integers for the handles, and null for what is optional.
    let done = unsafe { libc::openpty(&mut person, &mut program, null, null.cast(), null.cast()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both handles were just opened, and nobody else has them.
    let (terminal, program) = unsafe { (File::from_raw_fd(person), OwnedFd::from_raw_fd(program)) };
    (Person { terminal, seen: vec![] }, program)
}

fn chat(terminal: &OwnedFd, stdout: impl Into<Stdio>, more: &[&str]) -> Child {
    // With an end, so that a chat which says something else fails rather than hangs.
    Command::new("timeout")
        .args([
            "--foreground",
            "60",
            env!("CARGO_BIN_EXE_kjit"),
            "run",
            "--device",
            "cpu",
            "--temp",
            "0",
            "-n",
            "24",
        ])
        .env("TERM", "xterm")
        .arg(smollm2())
        .args(more)
        .stdin(terminal.try_clone().unwrap())
        .stderr(terminal.try_clone().unwrap())
        .stdout(stdout)
        .spawn()
        .unwrap()
}

/// A person at a terminal.
struct Person {
    terminal: File,
    seen: Vec<u8>,
}

impl Person {
    /// Types a line.
    fn types(&mut self, line: &str) {
        self.terminal.write_all(format!("{line}\r").as_bytes()).unwrap();
    }

    /// Reads on until this has appeared, and forgets all before its end.
    fn sees(&mut self, text: &str) {
        self.passes(text);
    }

    /// The same; what came before.
    fn passes(&mut self, text: &str) -> String {
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
}

#[test]
fn a_chat_remembers_until_it_is_cleared_shows_figures_and_leaves() {
    let (mut person, program) = terminal();
    let mut child = chat(&program, program.try_clone().unwrap(), &[]);
    drop(program);
    person.sees("> ");
    for (line, wanted) in [
        ("/stats", "nothing was generated yet"),
        ("Hi", ""),
        ("/stats", "prompt 31 tokens"),
        // What was said before is not fed again; and after /clear only the system message is still
        // there.
        ("And now?", ""),
        ("/stats", "prompt 14 tokens"),
        ("/clear", ""),
        ("And now?", ""),
        ("/stats", "prompt 9 tokens"),
        ("/nonsense", "no command '/nonsense'"),
    ] {
        person.types(line);
        // What was typed comes back first.
        person.sees(line);
        person.sees(wanted);
        // What is typed before the next prompt is there would be lost.
        person.sees("> ");
    }
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_terminal_on_stdout_there_is_no_chat_and_stdout_stays_empty() {
    let (mut person, program) = terminal();
    let child = chat(&program, Stdio::piped(), &[]);
    drop(program);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    person.sees("error: no prompt, and no terminal on stdout");
}

#[test]
fn a_full_chat_forgets_its_oldest_turns_says_so_and_goes_on() {
    let (mut person, program) = terminal();
    let mut child = chat(&program, program.try_clone().unwrap(), &["-c", "128"]);
    drop(program);
    person.sees("> ");
    let mut forgotten = 0;
    for turn in 0..8 {
        let line = format!("Say the number {turn}.");
        person.types(&line);
        person.sees(&line);
        forgotten += person.passes("> ").matches("oldest messages are forgotten").count();
    }
    assert!((1..8).contains(&forgotten), "{forgotten}");
    // What alone is too long is not taken, and all before is as it was.
    person.types(&"word ".repeat(200));
    person.sees("the context of 128");
    person.sees("> ");
    person.types("And now?");
    person.sees("And now?");
    person.sees("> ");
    person.types("/bye");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
