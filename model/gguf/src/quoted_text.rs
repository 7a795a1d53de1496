//! Untrusted text in messages.

use std::fmt;
use std::path::Path;

/// Text from a file, safe to print: quoted, on one line, with escaped control characters, cut after
/// about 96 bytes.
pub struct QuotedText<'a>(pub &'a str);

impl QuotedText<'_> {
    pub(super) fn path(path: &Path) -> String {
        let mut out = String::new();
        for c in path.to_string_lossy().chars() {
            // Writing to a String cannot fail.
            let _ = write_escaped(&mut out, c);
        }
        out
    }
}

impl fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        f.write_char('\'')?;
        let mut out = String::new();
        for c in self.0.chars() {
            // Counts the output: a control character takes up to ten bytes.
            if out.len() >= 96 {
                out.push('…');
                break;
            }
            write_escaped(&mut out, c)?;
        }
        f.write_str(&out)?;
        f.write_char('\'')
    }
}

/// Like `char::escape_debug`, but quotes and backslashes are not escaped.
pub(super) fn write_escaped(out: &mut impl fmt::Write, c: char) -> fmt::Result {
    match c {
        '\'' | '"' | '\\' => out.write_char(c),
        _ => c.escape_debug().try_for_each(|e| out.write_char(e)),
    }
}
