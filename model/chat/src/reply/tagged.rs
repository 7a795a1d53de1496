//! Parses answers with tags around reasoning and calls.

use super::bare_calls::{self, CallGuess};
use super::body::Body;
use super::calls;
use super::form::{FENCE, Form, TOOL_CODE};
use super::part::{Part, ToolCall, calls_or_content};
use super::python;
use super::scan::{Scan, scan, without_partial_marker};
use super::truncated::{self, Truncated};

/// The parser's position in the answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Section {
    /// At the start. An answer that starts with JSON may be a call (Llama 3).
    Start,
    Content,
    /// In reasoning; the field is the tag that ends it.
    Reasoning(&'static str),
    Call,
    /// The whole answer is collected and parsed at its end.
    Whole,
}

#[derive(Debug)]
pub struct Tagged {
    form: Form,
    tools: bool,
    /// Names of the tools, if an answer may be a call that consists only of JSON.
    names: Vec<String>,
    section: Section,
    /// The markers around the current call.
    marks: (&'static str, Option<&'static str>),
    /// White space before the current call. It is stored because the call may be text.
    gap: String,
    /// The state of parsing the current call.
    body: Body,
    /// Text that is not returned yet.
    held: String,
    /// No text of this section has been returned, so leading white space is removed.
    fresh: bool,
    /// Some content has been returned. Reasoning can only come before it.
    content_returned: bool,
    /// Whether calls can come only before content, like reasoning.
    either: bool,
    /// The returned parts include content and not only calls.
    text_returned: bool,
}

impl Tagged {
    pub fn new(form: Form, tools: bool, prompt: &str) -> Tagged {
        let (section, fresh) = match form.begun(prompt) {
            Some(close) => (Section::Reasoning(close), true),
            None => (Section::Start, false),
        };
        let (body, marks, names, held) = (Body::default(), form.call(), vec![], String::new());
        Tagged {
            form,
            tools,
            names,
            section,
            marks,
            gap: String::new(),
            body,
            held,
            fresh,
            content_returned: false,
            either: false,
            text_returned: false,
        }
    }

    pub fn knowing(self, names: Vec<String>) -> Tagged {
        Tagged { names, ..self }
    }

    pub fn either(self) -> Tagged {
        Tagged { either: true, ..self }
    }

    pub fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    /// Returns the parts that are certain. Returns whether to continue.
    fn step(&mut self, out: &mut Vec<Part>) -> bool {
        match self.section {
            Section::Start => {
                let Some(first) = self.held.trim_start().chars().next() else { return false };
                let bare = self.tools && self.form == Form::Llama3 && first == '{';
                let is = match self.tools && !self.either && !self.names.is_empty() {
                    true => bare_calls::may_be(&self.held, &self.names),
                    false => CallGuess::No,
                };
                self.section = match is {
                    _ if bare => Section::Whole,
                    CallGuess::Open => return false,
                    CallGuess::Named => Section::Whole,
                    CallGuess::No => Section::Content,
                };
                true
            }
            Section::Whole => false,
            Section::Content => self.content(out),
            Section::Reasoning(close) => match scan(&self.held, &[close]) {
                Scan::Found(_, at) => {
                    let before = self.without_white_space(at);
                    self.hand_out(before, out);
                    self.drop_front(at - before + close.len());
                    (self.section, self.fresh) = (Section::Start, true);
                    true
                }
                Scan::Until(at) => {
                    self.hand_out(self.without_white_space(at), out);
                    false
                }
            },
            Section::Call => {
                let (open, Some(close)) = self.marks else { return false };
                let Some((_, at)) = self.body.end(&self.held, &[close]) else { return false };
                let body: String = self.held.drain(..at).collect();
                self.drop_front(close.len());
                let read = self.call(&body, format!("{open}{body}{close}"), out);
                let text = !read && self.marks.1 == FENCE;
                (self.section, self.fresh) = (Section::Content, !text);
                true
            }
        }
    }

    fn content(&mut self, out: &mut Vec<Part>) -> bool {
        let opens = self.form.calls();
        let reasoning = self.form.reasoning();
        let mut needles: Vec<&str> = if self.content_returned {
            vec![]
        } else {
            reasoning.iter().map(|(o, _)| *o).collect()
        };
        let thinks = needles.len();
        if self.tools && !(self.either && self.text_returned) {
            needles.extend(opens.iter().map(|(open, _)| *open));
        }
        match scan(&self.held, &needles) {
            // Reasoning comes first. After content its tag is text.
            Scan::Found(i, at)
                if (i < thinks || self.either)
                    && !self.held.get(..at).unwrap_or_default().trim().is_empty() =>
            {
                (self.content_returned, self.text_returned) = (true, true);
                true
            }
            Scan::Found(i, at) => {
                let before = self.without_white_space(at);
                self.hand_out(before, out);
                let tag = needles.get(i).map_or(0, |n| n.len());
                // The text before the white space was already sent.
                let gap = self.held.get(..at - before).unwrap_or_default().to_owned();
                self.drop_front(at - before + tag);
                self.section = match reasoning.get(i) {
                    Some((_, close)) if i < thinks => Section::Reasoning(close),
                    _ => Section::Call,
                };
                self.marks = opens
                    .get(i.saturating_sub(thinks))
                    .copied()
                    .unwrap_or_else(|| self.form.call());
                self.gap = if self.marks.1 == FENCE { gap } else { String::new() };
                self.body = Body::default();
                self.fresh = true;
                true
            }
            Scan::Until(at) => {
                // White space before a call is dropped.
                let at = if needles.is_empty() { at } else { self.without_white_space(at) };
                self.hand_out(at, out);
                false
            }
        }
    }

    pub fn finish(&mut self, out: &mut Vec<Part>) {
        // In a call with broken JSON the end marker may have been skipped.
        while let (Section::Call, (_, Some(close))) = (self.section, self.marks)
            && self.read_call(&self.held).is_none()
            && self.body.give_up(&self.held, &[close])
        {
            while self.step(out) {}
        }
        match self.section {
            Section::Start | Section::Content | Section::Reasoning(_) => {
                self.hand_out(self.held.len(), out)
            }
            Section::Whole => {
                let all = std::mem::take(&mut self.held);
                let read = if self.names.is_empty() {
                    calls::json(&all)
                } else {
                    bare_calls::read(&all, &self.names)
                };
                match (read, self.form) {
                    (None, form) if form != Form::Llama3 => self.as_content(all, out),
                    (read, _) => calls_or_content(read, all, out),
                }
            }
            Section::Call => {
                let body = std::mem::take(&mut self.held);
                let written = format!("{}{body}", self.marks.0);
                self.call(&body, written, out);
            }
        }
    }

    /// Parses text that looked like a call but is not a call. It becomes content, which may contain
    /// reasoning and calls.
    fn as_content(&mut self, all: String, out: &mut Vec<Part>) {
        (self.section, self.held) = (Section::Content, all);
        while self.step(out) {}
        self.finish(out);
    }

    /// Ends a truncated answer. Returns whether the last part is an incomplete call.
    pub fn cut(&mut self, out: &mut Vec<Part>) -> bool {
        let held = std::mem::take(&mut self.held);
        let cut = match self.section {
            Section::Call => Some(self.cut_call(&held)),
            // Llama 3's calls do not need the name of a known tool. In other formats the name must
            // be the name of a tool.
            Section::Whole | Section::Start if !self.names.is_empty() => {
                bare_calls::cut(&held, &self.names)
            }
            Section::Whole => {
                let (calls, partial) = truncated::json(&held);
                let begun =
                    self.either && calls.is_empty() && "{\"name\": \"".starts_with(held.trim());
                (begun || !calls.is_empty()).then_some((calls, partial))
            }
            _ => None,
        };
        if let Some((calls, partial)) = cut {
            self.content_returned = true;
            out.extend(calls.into_iter().map(Part::Call));
            return partial;
        }
        // The tags of a call without a name are dropped.
        let begun = held.trim_start();
        if matches!(self.section, Section::Start | Section::Whole)
            && (begun.starts_with("<t") || begun.starts_with("<f"))
            && bare_calls::may_be(begun, &self.names) != CallGuess::No
        {
            return false;
        }
        let marks: Vec<&str> = match self.section {
            Section::Reasoning(close) => vec![close],
            // In content constrained to a schema a marker is text.
            _ if self.either && self.text_returned => vec![],
            _ => {
                let reasoning = self.form.reasoning().iter().map(|(open, _)| *open);
                // A plain word is not the start of a marker.
                let may = |open: &&str| !open.starts_with("Action:") || held.contains("Action:");
                let calls = self.form.calls().iter().map(|(open, _)| *open).filter(|_| self.tools);
                reasoning.chain(calls.filter(may)).collect()
            }
        };
        let kept = without_partial_marker(&held, &marks);
        // White space before a marker is dropped.
        let kept = if kept.len() < held.len() { kept.trim_end() } else { kept };
        kept.clone_into(&mut self.held);
        if self.section == Section::Whole && self.form != Form::Llama3 {
            let all = std::mem::take(&mut self.held);
            self.as_content(all, out);
            return false;
        }
        self.hand_out(self.held.len(), out);
        false
    }

    fn cut_call(&self, body: &str) -> Truncated {
        if self.marks.1 == FENCE {
            // A block without its end is a call only if all of it was received.
            return (self.read_call(body).unwrap_or_default(), false);
        }
        let body = self.marks.1.map_or(body, |close| without_partial_marker(body, &[close]));
        // The call may be complete except for its end marker. Arguments in tags and a name without
        // arguments may continue.
        let (begin, end) = (body.trim_start(), body.trim_end());
        let ended = match self.form {
            Form::Mistral => end.ends_with('}') || (begin.starts_with('[') && end.ends_with(']')),
            Form::Hermes if !begin.starts_with(['{', '[']) && !self.marks.0.contains('▁') => {
                end.ends_with("</function>")
            }
            _ => true,
        };
        match (self.read_call(body).filter(|_| ended), self.form) {
            (Some(calls), _) => (calls, false),
            (None, Form::Mistral) => truncated::mistral(body),
            (None, Form::Llama3) => truncated::json(body),
            (None, _) if self.marks.0.contains('▁') => truncated::deepseek(body),
            (None, _) => truncated::hermes(body),
        }
    }

    fn read_call(&self, body: &str) -> Option<Vec<ToolCall>> {
        match self.form {
            Form::Mistral => calls::mistral(body),
            Form::Llama3 => calls::json(body),
            _ if self.marks.0.contains('▁') => calls::deepseek(body),
            _ if self.marks.1 == FENCE => {
                let read = match self.marks.0 == TOOL_CODE {
                    true => python::calls(body).or_else(|| calls::json(body)),
                    false => calls::json(body),
                };
                let known = |call: &ToolCall| self.names.contains(&call.name);
                read.filter(|calls| calls.iter().all(known))
            }
            _ => calls::hermes(body),
        }
    }

    /// Returns the calls of a body, or its text if it contains none. Also returns whether it could
    /// be parsed.
    fn call(&mut self, body: &str, written: String, out: &mut Vec<Part>) -> bool {
        let read = self.read_call(body);
        self.content_returned = true;
        let is = read.is_some();
        calls_or_content(read, std::mem::take(&mut self.gap) + &written, out);
        is
    }

    /// The length of the text before `at` without trailing white space.
    fn without_white_space(&self, at: usize) -> usize {
        self.held.get(..at).unwrap_or_default().trim_end().len()
    }

    fn drop_front(&mut self, bytes: usize) {
        self.held.drain(..bytes.min(self.held.len()));
    }

    /// Returns the first `bytes` bytes as a part of the current kind.
    fn hand_out(&mut self, bytes: usize, out: &mut Vec<Part>) {
        let text: String = self.held.drain(..bytes.min(self.held.len())).collect();
        let text = if self.fresh { text.trim_start() } else { text.as_str() };
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        match self.section {
            Section::Reasoning(_) => out.push(Part::Reasoning(text.to_owned())),
            _ => {
                self.text_returned |= !text.trim().is_empty();
                self.content_returned |= self.text_returned;
                out.push(Part::Content(text.to_owned()));
            }
        }
    }
}
