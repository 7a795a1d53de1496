//! `wordwrap`: wraps lines as Python's `textwrap` does.

use std::rc::Rc;

use super::super::chars;
use super::super::meter::{Meter, MeteredString};
use super::super::value::Value;
use crate::jinja::fault::Fault;

/// The options of wrapping.
pub struct Wrap {
    /// Characters per line, at least 1.
    pub width: usize,
    /// Whether words longer than a line are broken.
    pub long_words: bool,
    /// Whether words are broken after hyphens.
    pub hyphens: bool,
}

impl Wrap {
    /// Wraps every line of a text, with `between` between lines.
    pub fn text(&self, text: &str, between: &str, meter: &Rc<Meter>) -> Result<Value, Fault> {
        let mut out = MeteredString::new(meter);
        for (i, line) in chars::lines(text, false).enumerate() {
            out.push(if i > 0 { between } else { "" })?;
            self.line(line, between, &mut out, meter)?;
        }
        Value::grown(out, meter)
    }

    fn line(
        &self,
        line: &str,
        between: &str,
        out: &mut MeteredString,
        meter: &Rc<Meter>,
    ) -> Result<(), Fault> {
        Value::check_length(line.len(), meter)?;
        let letters: Vec<char> = line.chars().collect();
        // Pieces that cannot be broken, in reverse order.
        let mut pieces: Vec<&[char]> = self.pieces(&letters);
        pieces.reverse();
        let mut first = true;
        while !pieces.is_empty() {
            meter.work(1)?;
            if !first && pieces.last().is_some_and(|piece| is_blank(piece)) {
                pieces.pop();
            }
            let (mut row, mut used) = (Vec::new(), 0);
            while let Some(piece) = pieces.pop_if(|piece| used + piece.len() <= self.width) {
                used += piece.len();
                row.push(piece);
            }
            if let Some(piece) = pieces.pop_if(|piece| piece.len() > self.width) {
                if self.long_words {
                    let (start, rest) = piece.split_at(self.cut(piece, self.width - used));
                    row.push(start);
                    pieces.push(rest);
                } else if row.is_empty() {
                    row.push(piece);
                } else {
                    pieces.push(piece);
                }
            }
            row.pop_if(|piece| is_blank(piece));
            if !row.is_empty() {
                out.push(if first { "" } else { between })?;
                first = false;
                row.into_iter().flatten().try_for_each(|c| out.push_char(*c))?;
            }
        }
        Ok(())
    }

    /// The length of the first part of a long word: up to its last hyphen that fits, if the part
    /// has other characters.
    fn cut(&self, piece: &[char], room: usize) -> usize {
        let start = piece.get(..room).unwrap_or(piece);
        match start.iter().rposition(|c| *c == '-') {
            Some(at) if self.hyphens && at > 0 && start.iter().take(at).any(|c| *c != '-') => {
                at + 1
            }
            _ => start.len(),
        }
    }

    /// Splits a line into white space and words. Long or hyphenated words may be several pieces.
    fn pieces<'t>(&self, letters: &'t [char]) -> Vec<&'t [char]> {
        let mut all = Vec::new();
        let mut from = 0;
        while from < letters.len() {
            let to = self.piece_end(letters, from).max(from + 1);
            all.extend(letters.get(from..to));
            from = to;
        }
        all
    }

    fn piece_end(&self, letters: &[char], from: usize) -> usize {
        let at = |i: usize| letters.get(i).copied();
        let blank = |i: usize| at(i).is_some_and(is_space);
        let run = |from: usize, is: &dyn Fn(usize) -> bool| {
            (from..letters.len()).find(|i| !is(*i)).unwrap_or(letters.len())
        };
        if blank(from) {
            return run(from, &blank);
        }
        if !self.hyphens {
            return run(from, &|i| !blank(i));
        }
        let hyphen = |i: usize| at(i) == Some('-');
        let letter = |i: Option<usize>| {
            i.and_then(at).is_some_and(|c| chars::is_word(c) && c != '_' && !chars::is_numeric(c))
        };
        let punctuated = |i: Option<usize>| {
            i.and_then(at).is_some_and(|c| chars::is_word(c) || "!\"'&.,?".contains(c))
        };
        // A dash: two or more hyphens between words.
        let dashes = |i: usize| {
            let end = if punctuated(i.checked_sub(1)) { run(i, &hyphen) } else { i };
            (end - i >= 2 && at(end).is_some_and(chars::is_word)).then_some(end)
        };
        if let Some(end) = dashes(from) {
            return end;
        }
        let mut i = from + 1;
        loop {
            let before = |n: usize| i.checked_sub(n);
            let word = letter(before(1)) && letter(before(2))
                || punctuated(before(1)) && before(2).is_some_and(hyphen) && letter(before(3));
            let more = letter(Some(i + 1))
                && (letter(Some(i + 2)) || hyphen(i + 2) && letter(Some(i + 3)));
            if hyphen(i) && word && more {
                return i + 1;
            }
            if i >= letters.len() || blank(i) || dashes(i).is_some() {
                return i;
            }
            i += 1;
        }
    }
}

fn is_space(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\x0b' | '\x0c' | '\r' | ' ')
}

fn is_blank(piece: &[char]) -> bool {
    piece.iter().all(|c| chars::is_space(*c))
}
