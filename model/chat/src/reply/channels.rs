//! Answers in channels (gpt-oss): a header up to `<|message|>`, then a body up to a token that ends
//! it.

use super::body::Body;
use super::calls;
use super::part::{Part, ToolCall, calls_or_content};
use super::scan::{Scan, scan, without_partial_marker};

const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
/// Tokens that end a body. The last two begin the next header.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", CHANNEL];

#[derive(Debug, Clone, PartialEq)]
enum Section {
    /// Between the end of a body and the next header.
    Between,
    Header,
    Content,
    /// JSON content. It is the last part of the answer and extends to its end.
    Rest,
    Reasoning,
    /// A tool call. The header is stored in case the call is not valid.
    Call {
        name: String,
        header: String,
    },
}

#[derive(Debug)]
pub struct Channels {
    tools: bool,
    /// The content of the final channel is constrained to JSON. A marker inside a JSON string is
    /// text.
    json: bool,
    section: Section,
    /// The state of parsing the current call.
    body: Body,
    held: String,
}

impl Channels {
    pub fn new(tools: bool) -> Channels {
        // The prompt ends with `<|start|>assistant`. Text without a channel is content.
        Channels {
            tools,
            json: false,
            section: Section::Content,
            body: Body::default(),
            held: String::new(),
        }
    }

    pub fn json(self) -> Channels {
        Channels { json: true, ..self }
    }

    pub fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    fn step(&mut self, out: &mut Vec<Part>) -> bool {
        if self.section == Section::Header {
            let Scan::Found(_, at) = scan(&self.held, &[MESSAGE]) else { return false };
            let header: String = self.held.drain(..at).collect();
            self.held.drain(..MESSAGE.len());
            (self.section, self.body) = (self.body_of(header), Body::default());
            return true;
        }
        let end = match self.section {
            Section::Call { .. } => self
                .body
                .end(&self.held, &ENDS)
                .map_or(Scan::Until(self.held.len()), |(i, at)| Scan::Found(i, at)),
            Section::Rest => Scan::Until(self.held.len()),
            _ => scan(&self.held, &ENDS),
        };
        match end {
            Scan::Found(i, at) => {
                self.hand_out(at, true, out);
                let end = ENDS.get(i).copied().unwrap_or_default();
                self.section = match end {
                    "<|start|>" | CHANNEL => Section::Header,
                    _ => Section::Between,
                };
                // A header includes the text before its channel marker.
                self.held.drain(..if end == CHANNEL { 0 } else { end.len() });
                true
            }
            Scan::Until(at) => {
                self.hand_out(at, false, out);
                false
            }
        }
    }

    pub fn finish(&mut self, out: &mut Vec<Part>) {
        // In a call with broken JSON the end marker may have been skipped.
        while let Section::Call { name, .. } = &self.section
            && calls::named(name, &self.held).is_none()
            && self.body.give_up(&self.held, &ENDS)
        {
            while self.step(out) {}
        }
        self.hand_out(self.held.len(), true, out);
    }

    /// Ends a truncated answer.
    pub fn cut(&mut self, out: &mut Vec<Part>) -> bool {
        if let Section::Call { name, .. } = &self.section {
            let whole = calls::named(name, &self.held).filter(|_| !self.held.trim().is_empty());
            let partial = whole.is_none();
            let begun = ToolCall { name: name.clone(), arguments: self.held.trim().to_owned() };
            out.push(Part::Call(whole.unwrap_or(begun)));
            self.held.clear();
            return partial;
        }
        if self.section != Section::Rest {
            let marks: Vec<&str> = ENDS.iter().copied().chain([MESSAGE]).collect();
            let kept = without_partial_marker(&self.held, &marks).len();
            self.held.truncate(kept);
        }
        self.hand_out(self.held.len(), true, out);
        false
    }

    /// `assistant<|channel|>commentary to=functions.name <|constrain|>json`, in any order.
    fn body_of(&self, header: String) -> Section {
        let until = |text: &str| {
            text.split(|c: char| c.is_whitespace() || c == '<')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        let to = header.split_once("to=").map(|(_, rest)| until(rest));
        if let Some(name) =
            to.as_deref().and_then(|to| to.strip_prefix("functions.")).filter(|_| self.tools)
        {
            return Section::Call { name: name.to_owned(), header };
        }
        match header.rsplit_once(CHANNEL).map(|(_, rest)| until(rest.trim_start())).as_deref() {
            Some("analysis") => Section::Reasoning,
            Some("final") if self.json => Section::Rest,
            _ => Section::Content,
        }
    }

    fn hand_out(&mut self, bytes: usize, ended: bool, out: &mut Vec<Part>) {
        if matches!(self.section, Section::Call { .. }) && !ended {
            return;
        }
        let text: String = self.held.drain(..bytes.min(self.held.len())).collect();
        match &self.section {
            Section::Call { name, header } => {
                let written = format!("{header}{MESSAGE}{text}");
                calls_or_content(calls::named(name, &text).map(|call| vec![call]), written, out);
            }
            Section::Content | Section::Rest if !text.is_empty() => out.push(Part::Content(text)),
            Section::Reasoning if !text.is_empty() => out.push(Part::Reasoning(text)),
            _ => {}
        }
    }
}
