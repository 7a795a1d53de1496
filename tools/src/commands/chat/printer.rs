//! Prints an answer on a terminal: lines are broken at words, and Markdown is shown with light
//! emphasis. The text is not changed. Marks of Markdown stay in the text, because a mark may also
//! be ordinary text.

use console::measure_text_width;
use std::io::{self, Write};

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
/// Columns between two tab stops.
const TAB: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Bold,
    Dim,
}

/// Prints an answer piece by piece. A word is printed when it is complete.
pub struct Printer<W> {
    out: W,
    /// Columns of the terminal; `None`: lines are not broken.
    width: Option<usize>,
    /// Whether emphasis may be shown.
    styled: bool,
    /// Number of columns used in the current line.
    column: usize,
    /// Space before the word that is not yet printed.
    space: String,
    /// The word that is not yet complete.
    word: String,
    /// Whether no word of the line was printed yet.
    begins: bool,
    /// Whether the line is a heading.
    heading: bool,
    /// Whether the line is in a code block.
    fence: bool,
    bold: bool,
    code: bool,
    /// The current style of the terminal.
    style: Style,
}

impl<W: Write> Printer<W> {
    pub fn new(out: W, width: Option<usize>, styled: bool) -> Printer<W> {
        Printer {
            out,
            width,
            styled,
            column: 0,
            space: String::new(),
            word: String::new(),
            begins: true,
            heading: false,
            fence: false,
            bold: false,
            code: false,
            style: Style::Plain,
        }
    }

    /// Prints a piece of the answer. Control characters are shown as �, so that an answer cannot
    /// control the terminal.
    pub fn push(&mut self, piece: &str) -> io::Result<()> {
        for c in piece.chars() {
            match c {
                '\n' => self.end_line()?,
                ' ' | '\t' => {
                    self.end_word(true)?;
                    self.space.push(c);
                }
                '\r' => {}
                c if c.is_control() => self.word.push(char::REPLACEMENT_CHARACTER),
                c => {
                    self.word.push(c);
                    // In scripts without spaces, lines may break anywhere.
                    if measure_text_width(c.encode_utf8(&mut [0; 4])) > 1 {
                        self.end_word(false)?;
                    }
                }
            }
        }
        self.out.flush()
    }

    /// Prints the last word and ends the line.
    pub fn finish(&mut self) -> io::Result<()> {
        self.end_line()?;
        self.out.flush()
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.end_word(false)?;
        self.write_space()?;
        self.set(Style::Plain)?;
        writeln!(self.out)?;
        (self.column, self.begins) = (0, true);
        (self.heading, self.bold, self.code) = (false, false, false);
        Ok(())
    }

    fn write_space(&mut self) -> io::Result<()> {
        for c in self.space.chars() {
            self.column += if c == '\t' { TAB - self.column % TAB } else { 1 };
        }
        self.out.write_all(self.space.as_bytes())?;
        self.space.clear();
        Ok(())
    }

    /// Prints the word and the space before it. `spaced`: whether a space follows.
    fn end_word(&mut self, spaced: bool) -> io::Result<()> {
        if self.word.is_empty() {
            return Ok(());
        }
        let word = std::mem::take(&mut self.word);
        let wide = measure_text_width(&word);
        let fence = self.begins && word.starts_with("```");
        let code = self.fence || fence;
        match self.width {
            Some(width)
                if !code && self.column > 0 && self.column + self.space.len() + wide > width =>
            {
                writeln!(self.out)?;
                self.space.clear();
                self.column = 0;
            }
            _ => self.write_space()?,
        }
        self.heading |= self.begins && spaced && word.len() <= 6 && word.bytes().all(|b| b == b'#');
        if fence {
            self.fence = !self.fence;
        }
        self.begins = false;
        if code {
            self.set(Style::Dim)?;
            self.out.write_all(word.as_bytes())?;
        } else {
            self.emphasised(&word)?;
        }
        let all = self.column + wide;
        self.column = self.width.filter(|width| all > *width).map_or(all, |width| all % width);
        Ok(())
    }

    /// Prints a word with its marks: code between backticks, bold between double asterisks.
    fn emphasised(&mut self, word: &str) -> io::Result<()> {
        let mut rest = word;
        while let Some(c) = rest.chars().next() {
            let double = !self.code && rest.starts_with("**");
            let mark = if double { "**" } else { rest.get(..c.len_utf8()).unwrap_or(rest) };
            let after = rest.get(mark.len()..).unwrap_or_default();
            // Marks have the style of the text that they enclose. An opening mark is before a word,
            // a closing mark is after it.
            let opens = double && !self.bold && !after.is_empty();
            let closes = double && self.bold && rest.len() < word.len();
            let code = c == '`';
            self.bold |= opens;
            let was_code = self.code;
            self.code |= code;
            self.set(self.wanted())?;
            self.out.write_all(mark.as_bytes())?;
            self.bold &= !closes;
            self.code &= !(code && was_code);
            rest = after;
        }
        // The space after a closing mark has no style.
        self.set(self.wanted())
    }

    fn wanted(&self) -> Style {
        match (self.code, self.bold || self.heading) {
            (true, _) => Style::Dim,
            (false, true) => Style::Bold,
            (false, false) => Style::Plain,
        }
    }

    fn set(&mut self, style: Style) -> io::Result<()> {
        if !self.styled || style == self.style {
            return Ok(());
        }
        if self.style != Style::Plain {
            self.out.write_all(PLAIN.as_bytes())?;
        }
        self.out.write_all(match style {
            Style::Plain => b"",
            Style::Bold => BOLD.as_bytes(),
            Style::Dim => DIM.as_bytes(),
        })?;
        self.style = style;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Printer;
    use console::{measure_text_width, strip_ansi_codes};

    /// The printed text, if the answer comes in pieces of this many characters.
    fn printed(text: &str, width: Option<usize>, styled: bool, piece: usize) -> String {
        let mut out = vec![];
        let mut printer = Printer::new(&mut out, width, styled);
        let all: Vec<char> = text.chars().collect();
        for some in all.chunks(piece) {
            printer.push(&some.iter().collect::<String>()).unwrap();
        }
        printer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    const TEXT: &str = "# A heading of some words\n\nPlain, **bold words** and `code **here**`; 2 ** 3.\n\
        ```rust\nlet a_long_line = \"that is not broken\"; // whatever the width **is**\n```\n\
        - a point\n\t- an indented one **not closed\nplain again 漢字かな交じり文は空白なしで折れる end";

    #[test]
    fn lines_wrap_at_words_without_loss() {
        // The longest word outside of code has 10 columns.
        for width in [11, 13, 20, 40, 100] {
            for piece in [1, 3, 1000] {
                let shown = printed(TEXT, Some(width), false, piece);
                let words = |text: &str| text.split_whitespace().collect::<String>();
                assert_eq!(words(&shown), words(TEXT), "{width} {piece}");
                let code = |line: &str| line.contains("a_long_line");
                for line in shown.lines().filter(|line| !code(line)) {
                    let tabs = line.matches('\t').count() * 7;
                    assert!(measure_text_width(line) + tabs <= width, "{width}: {line:?}");
                }
            }
        }
        let shown = printed("one two three", Some(8), false, 1000);
        assert_eq!(shown, "one two\nthree\n");
        assert_eq!(printed("one two  \nthree", None, false, 2), "one two  \nthree\n");
    }

    #[test]
    fn emphasis_adds_styles_without_changing_text() {
        for piece in [1, 2, 1000] {
            let shown = printed(TEXT, None, true, piece);
            assert_eq!(strip_ansi_codes(&shown), format!("{TEXT}\n"));
            for part in [
                "\x1b[1m# A heading of some words\x1b[0m\n",
                "Plain, \x1b[1m**bold words**\x1b[0m and \x1b[2m`code **here**`\x1b[0m; 2 ** 3.\n",
                "\x1b[2m```rust\x1b[0m\n\x1b[2mlet a_long_line",
                "\x1b[2m```\x1b[0m\n- a point\n",
                "\x1b[1m**not closed\x1b[0m\nplain again",
            ] {
                assert!(shown.contains(part), "{part:?} is not in {shown:?}");
            }
            assert_eq!(printed(TEXT, None, false, piece), format!("{TEXT}\n"));
        }
    }

    #[test]
    fn control_characters_are_replaced() {
        let shown = printed("a\x1b]0;title\x07b\r\n\u{9b}31mc", None, true, 1000);
        assert_eq!(shown, "a�]0;title�b\n�31mc\n");
    }
}
