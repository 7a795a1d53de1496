//! Messages of the command: errors, notes and statistics, all on stderr.

use kjit_model::elide::{MAX_LINE, elide};
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// Exit code after Ctrl-C, as in shells.
pub const INTERRUPTED: u8 = 130;

/// Prints one line for an error. Exit code 1. If the reader of stdout has ended (`kjit … | head`),
/// that is not an error, and nothing is printed.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(reader_went) {
        return ExitCode::SUCCESS;
    }
    say(format_args!("error: {}", one_line(&sentence(error))));
    ExitCode::FAILURE
}

/// Only stdout can cause this error, because the command does not write to other pipes.
fn reader_went(error: &(dyn std::error::Error + 'static)) -> bool {
    let kind = match error.downcast_ref::<std::io::Error>() {
        Some(e) => Some(e.kind()),
        // serde_json does not show the system's error as its source.
        None => {
            error.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind)
        }
    };
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

/// A system error without context comes from writing to stdout. All other errors name their file.
fn sentence(error: &anyhow::Error) -> String {
    match error.downcast_ref::<std::io::Error>() {
        Some(bare) if error.chain().len() == 1 => format!("cannot write to stdout: {bare}"),
        _ => causes(error),
    }
}

/// The error and its causes. A cause that is already in the message is omitted, because some types
/// print their cause.
fn causes(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// Formats an error as one line: control characters become visible, for example in a hostile file
/// name, and a long text is cut.
pub fn one_line(text: &str) -> String {
    let visible = |c: char| if c.is_control() { c.escape_default().collect() } else { vec![c] };
    elide(&text.chars().flat_map(visible).collect::<String>(), MAX_LINE).into_owned()
}

/// Failures of many kernels, each distinct line once: with an error in a header, or without a
/// compiler, all kernels fail.
#[derive(Default)]
pub struct FailureReport(Vec<String>);

impl FailureReport {
    /// Adds the failure of a kernel.
    pub fn failed(&mut self, error: &kjit_engine::Error) {
        self.say(match error {
            kjit_engine::Error::Miss { target, why, .. } => {
                format!("kernels for {target} cannot be compiled here: {why}")
            }
            other => other.to_string(),
        });
    }

    /// Prints a line unless it was printed before.
    pub fn say(&mut self, error: String) {
        if !self.0.contains(&error) {
            say(format_args!("error: {}", one_line(&error)));
            self.0.push(error);
        }
    }

    /// Exit code: 1 after any failure.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(u8::from(!self.0.is_empty()))
    }
}

/// Prints a line on stderr. A closed stderr is ignored.
pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Formats a number of bytes with a decimal unit.
pub fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000)];
    match UNITS.iter().find(|(_, u)| n >= *u) {
        Some((name, unit)) => format!("{:.2} {name}", n as f64 / *unit as f64),
        None => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn cause_already_in_message_is_not_repeated() {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let own = kjit_model::gpu::bundle::BundleError::Io { path: "/x".into(), source: missing() };
        assert_eq!(super::sentence(&own.into()), format!("/x: {}", missing()));
        let context = anyhow::Error::from(missing()).context("cannot read /x");
        assert_eq!(super::sentence(&context), format!("cannot read /x: {}", missing()));
    }

    #[test]
    fn error_with_any_content_is_one_short_line() {
        assert_eq!(super::one_line("no file 'a\nb\u{1b}[31m'"), "no file 'a\\nb\\u{1b}[31m'");
        let long = super::one_line(&format!("begin {} end", "\n".repeat(100_000)));
        assert!(
            long.chars().count() <= 500 && long.starts_with("begin ") && long.ends_with(" end"),
            "{long}"
        );
    }
}
