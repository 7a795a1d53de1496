//! Shortens messages that quote a file, a request or another program to fit a terminal.

use std::borrow::Cow;

/// Maximum number of characters of an error line.
pub const MAX_LINE: usize = 500;

/// The text with at most `most` characters. A longer text is cut in the middle, because an error
/// line starts with the problem and ends with the solution.
pub fn elide(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most || text.chars().count() <= most {
        return Cow::Borrowed(text);
    }
    let room = most.saturating_sub(1);
    let end = room / 3;
    let at = |index: Option<(usize, char)>| index.map_or(text.len(), |(at, _)| at);
    let begin = text.get(..at(text.char_indices().nth(room - end))).unwrap_or_default();
    let end =
        text.get(at(text.char_indices().rev().nth(end.saturating_sub(1)))..).unwrap_or_default();
    Cow::Owned(format!("{begin}…{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_elided_in_the_middle() {
        assert_eq!(elide("0123456789", 10), "0123456789");
        assert_eq!(elide("0123456789x", 10), "012345…89x");
        assert_eq!(elide("ääääääääää", 10), "ääääääääää");
        let long = format!("begin {} end", "ü\u{1f600}".repeat(100_000));
        let short = elide(&long, MAX_LINE);
        assert!(
            short.chars().count() == MAX_LINE
                && short.starts_with("begin ")
                && short.ends_with(" end"),
            "{short}"
        );
    }
}
