//! The line editor of the chat: texts of several lines, and a history in a file.

use crate::report::say;
use rustyline::completion::Completer;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Editor, Helper, KeyCode, KeyEvent, Modifiers};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// Maximum number of history entries. With [`ENTRY`] the file has at most 16 MB.
const ENTRIES: usize = 1000;
/// Maximum bytes of a history entry. Longer texts are not stored.
const ENTRY: usize = 16 << 10;

/// Reads texts from the terminal.
pub struct Input {
    editor: Editor<Quoted, FileHistory>,
    /// The history file; `None` if it cannot be used.
    file: Option<PathBuf>,
    quiet: bool,
}

impl Input {
    pub fn new(quiet: bool) -> anyhow::Result<Input> {
        let mut editor = Editor::new()?;
        editor.set_helper(Some(Quoted));
        editor.set_max_history_size(ENTRIES)?;
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let file = history_file();
        if let Some(file) = file.as_ref().filter(|file| file.exists()) {
            // A history file that cannot be read is created again.
            let _ = editor.load_history(file);
        }
        Ok(Input { editor, file, quiet })
    }

    /// The next text; `None` at the end of input. Ctrl-C clears the line.
    pub fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.editor.readline("> ") {
                Ok(text) => return Ok(Some(text)),
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Adds a text to the history and its file. Only the user can read the file.
    pub fn remember(&mut self, text: &str) {
        if text.len() > ENTRY || !self.editor.add_history_entry(text).unwrap_or(false) {
            return;
        }
        let Some(file) = &self.file else { return };
        if let Err(why) = self.editor.append_history(file) {
            if !self.quiet {
                let file = file.display();
                say(format_args!("note: the history is not saved: {file}: {why}"));
            }
            self.file = None;
        }
    }
}

/// `$XDG_STATE_HOME/kjit/history`, or `~/.local/state/kjit/history` if that is unset. `None` if the
/// user has no home folder, or if the folder cannot be created.
fn history_file() -> Option<PathBuf> {
    let folder = directories::BaseDirs::new()?.state_dir()?.join("kjit");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    Some(folder.join("history"))
}

/// A text that begins with three quotes continues until three quotes end it.
struct Quoted;

impl Validator for Quoted {
    fn validate(&self, text: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match open(text.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Quoted {
    type Candidate = String;
}

impl Hinter for Quoted {
    type Hint = String;
}

impl Highlighter for Quoted {}

impl Helper for Quoted {}

/// Whether the closing quotes are missing.
fn open(text: &str) -> bool {
    text.trim_start().strip_prefix(QUOTES).is_some_and(|rest| !rest.trim_end().ends_with(QUOTES))
}

/// Starts and ends a text of several lines.
pub(super) const QUOTES: &str = "\"\"\"";

#[cfg(test)]
mod tests {
    use super::open;

    #[test]
    fn triple_quotes_are_open_until_closed() {
        for (text, is_open) in [
            ("", false),
            ("hello", false),
            ("\"\"\"", true),
            ("\"\"\"\"\"", true),
            ("\"\"\"\"\"\"", false),
            ("\"\"\"one", true),
            ("\"\"\"one\ntwo\"\"\"", false),
            ("  \"\"\"one\n\"\"\" ", false),
            ("say \"\"\"", false),
        ] {
            assert_eq!(open(text), is_open, "{text:?}");
        }
    }
}
