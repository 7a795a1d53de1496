//! Finds the end of a call. A marker inside a JSON string or a parameter's value does not end the
//! call.

use super::scan::{Scan, scan};

const PARAMETER: [&str; 2] = ["<parameter=", "</parameter>"];

/// The syntax of a call's body.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Kind {
    /// More text is needed to know the syntax.
    #[default]
    Unknown,
    Json,
    /// `<function=…><parameter=…>…</parameter></function>`
    Parameters,
    /// Any other text, or broken JSON. The first marker ends it.
    Plain,
}

/// The state of the search for a call's end.
#[derive(Debug, Clone, Default)]
pub struct Body {
    kind: Kind,
    /// Number of bytes that were read.
    at: usize,
    /// Number of open lists and objects.
    depth: usize,
    /// Whether the position is inside a string or a parameter's value.
    quoted: bool,
    escaped: bool,
}

/// A marker at a position of the text.
enum CallMarker {
    Whole(usize),
    /// The text may become a marker.
    Partial,
    None,
}

fn mark(rest: &[u8], marks: &[&str]) -> CallMarker {
    let whole = marks.iter().enumerate().filter(|(_, mark)| rest.starts_with(mark.as_bytes()));
    match whole.max_by_key(|(_, mark)| mark.len()) {
        Some((i, _)) => CallMarker::Whole(i),
        None if marks.iter().any(|mark| mark.as_bytes().starts_with(rest)) => CallMarker::Partial,
        None => CallMarker::None,
    }
}

impl Body {
    /// The index of the marker that ends the call, and its position. `body` is the body so far; it
    /// only grows between calls.
    pub fn end(&mut self, body: &str, ends: &[&str]) -> Option<(usize, usize)> {
        if self.kind == Kind::Unknown {
            let begin = body.trim_start();
            self.kind = match begin.as_bytes().first()? {
                b'{' | b'[' => Kind::Json,
                _ if begin.starts_with("<function=") => Kind::Parameters,
                _ if "<function=".starts_with(begin) => return None,
                _ => Kind::Plain,
            };
        }
        while let Some(rest) = body.as_bytes().get(self.at..).filter(|rest| !rest.is_empty()) {
            let used = match self.kind {
                Kind::Json => match self.json(rest, ends) {
                    Ok(used) => used,
                    Err(found) => return found.map(|i| (i, self.at)),
                },
                Kind::Parameters => match self.parameters(rest, ends) {
                    Ok(used) => used,
                    Err(found) => return found.map(|i| (i, self.at)),
                },
                Kind::Unknown | Kind::Plain => break,
            };
            self.at += used;
        }
        match (self.kind, scan(body, ends)) {
            (Kind::Plain, Scan::Found(i, at)) => Some((i, at)),
            _ => None,
        }
    }

    /// Bytes read, or the marker at this position; `None` if more text is needed.
    fn json(&mut self, rest: &[u8], ends: &[&str]) -> Result<usize, Option<usize>> {
        let byte = rest.first().copied().unwrap_or_default();
        if self.quoted {
            match byte {
                // A control character is invalid in a JSON string; the rest is treated as plain
                // text.
                ..b' ' => self.kind = Kind::Plain,
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.quoted = false,
                _ => {}
            }
            return Ok(1);
        }
        match mark(rest, ends) {
            CallMarker::Whole(i) => return Err(Some(i)),
            CallMarker::Partial => return Err(None),
            CallMarker::None => {}
        }
        match byte {
            b'"' => self.quoted = self.depth > 0,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Ok(1)
    }

    /// Like [`Body::json`], for parameters in tags.
    fn parameters(&mut self, rest: &[u8], ends: &[&str]) -> Result<usize, Option<usize>> {
        let [open, close] = PARAMETER;
        let other = if self.quoted { close } else { open };
        match mark(rest, &[other]) {
            CallMarker::Whole(_) => {
                self.quoted = !self.quoted;
                return Ok(other.len());
            }
            CallMarker::Partial => return Err(None),
            CallMarker::None => {}
        }
        match if self.quoted { CallMarker::None } else { mark(rest, ends) } {
            CallMarker::Whole(i) => Err(Some(i)),
            CallMarker::Partial => Err(None),
            CallMarker::None => Ok(1),
        }
    }

    /// Called when the answer is complete and the call has no end marker. Returns whether the body
    /// contains a marker. If so, that marker ends the call.
    pub fn give_up(&mut self, body: &str, ends: &[&str]) -> bool {
        self.kind = Kind::Plain;
        matches!(scan(body, ends), Scan::Found(..))
    }
}
