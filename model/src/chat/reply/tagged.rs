//! Answers in which tags stand around reasoning and calls.

use super::body::Body;
use super::form::Form;
use super::{Part, Scan, ToolCall, calls, calls_or_content, scan};

/// Where in the answer the next character stands.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// At its begin, where a whole answer that is JSON is a call (Llama 3).
    Start,
    Content,
    /// With the tag that ends it.
    Reasoning(&'static str),
    Call,
    /// All of the answer, to be looked at when it has ended.
    Whole,
}

#[derive(Debug)]
pub struct Tagged {
    form: Form,
    tools: bool,
    place: Place,
    /// How far the call at hand was read.
    body: Body,
    /// What is not handed out yet.
    held: String,
    /// Nothing of this section has been handed out, so that white space before it goes.
    fresh: bool,
    /// Some content has been handed out: reasoning stands before it only.
    spoke: bool,
    /// And so do calls, if this is so.
    either: bool,
    /// What was handed out had text of the answer's own, not only calls.
    said: bool,
}

impl Tagged {
    pub fn new(form: Form, tools: bool, prompt: &str) -> Tagged {
        let (place, fresh) = match form.begun(prompt) {
            Some(close) => (Place::Reasoning(close), true),
            None => (Place::Start, false),
        };
        let body = Body::default();
        Tagged { form, tools, place, body, held: String::new(), fresh, spoke: false, either: false, said: false }
    }

    pub fn either(self) -> Tagged {
        Tagged { either: true, ..self }
    }

    pub fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    /// Hands out what is certain; whether there may be more to do.
    fn step(&mut self, out: &mut Vec<Part>) -> bool {
        match self.place {
            Place::Start => {
                let Some(first) = self.held.trim_start().chars().next() else { return false };
                let bare = self.tools && self.form == Form::Llama3 && first == '{';
                self.place = if bare { Place::Whole } else { Place::Content };
                true
            }
            Place::Whole => false,
            Place::Content => self.content(out),
            Place::Reasoning(close) => match scan(&self.held, &[close]) {
                Scan::Found(_, at) => {
                    let before = self.without_white_space(at);
                    self.hand_out(before, out);
                    self.drop_front(at - before + close.len());
                    (self.place, self.fresh) = (Place::Content, true);
                    true
                }
                Scan::Until(at) => {
                    self.hand_out(self.without_white_space(at), out);
                    false
                }
            },
            Place::Call => {
                let (open, Some(close)) = self.form.call() else { return false };
                let Some((_, at)) = self.body.end(&self.held, &[close]) else { return false };
                let body: String = self.held.drain(..at).collect();
                self.drop_front(close.len());
                self.call(&body, format!("{open}{body}{close}"), out);
                (self.place, self.fresh) = (Place::Content, true);
                true
            }
        }
    }

    fn content(&mut self, out: &mut Vec<Part>) -> bool {
        let (open, _) = self.form.call();
        let reasoning = self.form.reasoning();
        let mut needles: Vec<&str> = if self.spoke { vec![] } else { reasoning.iter().map(|(o, _)| *o).collect() };
        let thinks = needles.len();
        if self.tools && !(self.either && self.said) {
            needles.push(open);
        }
        match scan(&self.held, &needles) {
            // Reasoning stands before all else: later, the tag is text.
            Scan::Found(i, at)
                if (i < thinks || self.either) && !self.held.get(..at).unwrap_or_default().trim().is_empty() =>
            {
                (self.spoke, self.said) = (true, true);
                true
            }
            Scan::Found(i, at) => {
                let before = self.without_white_space(at);
                self.hand_out(before, out);
                let tag = needles.get(i).map_or(0, |n| n.len());
                self.drop_front(at - before + tag);
                self.place = match reasoning.get(i) {
                    Some((_, close)) if i < thinks => Place::Reasoning(close),
                    _ => Place::Call,
                };
                self.body = Body::default();
                self.fresh = true;
                true
            }
            Scan::Until(at) => {
                // White space before a call is nobody's.
                let at = if needles.is_empty() { at } else { self.without_white_space(at) };
                self.hand_out(at, out);
                false
            }
        }
    }

    pub fn finish(&mut self, out: &mut Vec<Part>) {
        // A call whose JSON is broken has hidden its end.
        while let (Place::Call, (_, Some(close))) = (self.place, self.form.call())
            && self.read_call(&self.held).is_none()
            && self.body.give_up(&self.held, &[close])
        {
            while self.step(out) {}
        }
        match self.place {
            Place::Start | Place::Content | Place::Reasoning(_) => self.hand_out(self.held.len(), out),
            Place::Whole => {
                let all = std::mem::take(&mut self.held);
                calls_or_content(calls::json(&all), all, out);
            }
            Place::Call => {
                let body = std::mem::take(&mut self.held);
                let written = format!("{}{body}", self.form.call().0);
                self.call(&body, written, out);
            }
        }
    }

    fn read_call(&self, body: &str) -> Option<Vec<ToolCall>> {
        match self.form {
            Form::Mistral => calls::mistral(body),
            Form::Llama3 => calls::json(body),
            _ => calls::hermes(body),
        }
    }

    fn call(&mut self, body: &str, written: String, out: &mut Vec<Part>) {
        let read = self.read_call(body);
        self.spoke = true;
        calls_or_content(read, written, out);
    }

    /// The bytes before `at` without the white space at their end.
    fn without_white_space(&self, at: usize) -> usize {
        self.held.get(..at).unwrap_or_default().trim_end().len()
    }

    fn drop_front(&mut self, bytes: usize) {
        self.held.drain(..bytes.min(self.held.len()));
    }

    /// So many bytes, as what this place is.
    fn hand_out(&mut self, bytes: usize, out: &mut Vec<Part>) {
        let text: String = self.held.drain(..bytes.min(self.held.len())).collect();
        let text = if self.fresh { text.trim_start() } else { text.as_str() };
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        match self.place {
            Place::Reasoning(_) => out.push(Part::Reasoning(text.to_owned())),
            _ => {
                self.said |= !text.trim().is_empty();
                self.spoke |= self.said;
                out.push(Part::Content(text.to_owned()));
            }
        }
    }
}
