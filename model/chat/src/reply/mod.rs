//! What an answer consists of: text, reasoning, calls of tools. Models write the last two in the
//! form that their chat template taught them; [`Form::of`] knows it by the template, and
//! [`ReplyParser`] reads an answer in pieces, however the stream was cut.

mod bare_calls;
mod body;
mod calls;
mod channels;
mod form;
mod tagged;
mod truncated;

pub use form::Form;

use channels::Channels;
use tagged::Tagged;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// Its arguments: a JSON object; of a call that was cut, as much of it as there is.
    pub arguments: String,
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text for the reader.
    Content(String),
    /// What the model wrote to itself.
    Reasoning(String),
    /// A call, whole. One that cannot be read is content, as it was written.
    Call(ToolCall),
}

/// Reads one answer.
#[derive(Debug)]
pub struct ReplyParser(Reader);

#[derive(Debug)]
enum Reader {
    Tagged(Tagged),
    Channels(Channels),
}

impl ReplyParser {
    /// For an answer in a form. `tools`: some were offered, otherwise no call is looked for.
    /// `prompt` is the rendered prompt, which may have begun the reasoning already.
    pub fn new(form: Form, tools: bool, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(tools)),
            form => Reader::Tagged(Tagged::new(form, tools, prompt)),
        })
    }

    /// The same for an answer that is calls or content, not both: in content that was held to a
    /// schema, what looks like a call is text.
    pub fn either(form: Form, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(true).json()),
            form => Reader::Tagged(Tagged::new(form, true, prompt).either()),
        })
    }

    /// The same for an answer whose content was held to a schema, with no tool to call: a mark of
    /// the form in one of its strings is text.
    pub fn json(form: Form, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(false).json()),
            form => Reader::Tagged(Tagged::new(form, false, prompt)),
        })
    }

    /// The same where the names of the offered tools are known: an answer that is nothing but JSON
    /// of their calls, in a fence or without one, is calls.
    #[must_use]
    pub fn knowing(self, names: Vec<String>) -> ReplyParser {
        ReplyParser(match self.0 {
            Reader::Tagged(tagged) => Reader::Tagged(tagged.knowing(names)),
            channels @ Reader::Channels(_) => channels,
        })
    }

    /// The next piece of the answer's text; what is certain now is appended to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        match &mut self.0 {
            Reader::Tagged(tagged) => tagged.push(text, out),
            Reader::Channels(channels) => channels.push(text, out),
        }
    }

    /// The end of an answer that was cut, by its length or by a stop text. Of a call that has no
    /// end the name and the arguments so far are given, if its name is there, and nothing else of
    /// it; half a mark is left out. Whether such a call is the last part.
    pub fn cut(&mut self, out: &mut Vec<Part>) -> bool {
        match &mut self.0 {
            Reader::Tagged(tagged) => tagged.cut(out),
            Reader::Channels(channels) => channels.cut(out),
        }
    }

    /// The end of the answer.
    pub fn finish(&mut self, out: &mut Vec<Part>) {
        match &mut self.0 {
            Reader::Tagged(tagged) => tagged.finish(out),
            Reader::Channels(channels) => channels.finish(out),
        }
    }
}

/// The calls, if they could be read; else what was written.
fn calls_or_content(calls: Option<Vec<ToolCall>>, written: String, out: &mut Vec<Part>) {
    match calls {
        Some(calls) => out.extend(calls.into_iter().map(Part::Call)),
        None if written.is_empty() => {}
        None => out.push(Part::Content(written)),
    }
}

/// Where one of some texts stands first.
enum Scan {
    /// The index of the text, and its begin.
    Found(usize, usize),
    /// Nowhere, but from here on one may have begun.
    Until(usize),
}

fn scan(text: &str, needles: &[&str]) -> Scan {
    // At one place the longest counts, should one begin another.
    let found = needles
        .iter()
        .enumerate()
        .filter_map(|(i, n)| text.find(n).map(|at| (at, std::cmp::Reverse(n.len()), i)));
    match found.min() {
        Some((at, _, i)) => Scan::Found(i, at),
        None => {
            let held =
                needles.iter().map(|n| crate::stop::partial_suffix(text, n)).max().unwrap_or(0);
            Scan::Until(text.len() - held)
        }
    }
}

/// A text without the mark that it ends in the middle of. One byte may as well be itself.
fn without_half_a_mark<'a>(text: &'a str, marks: &[&str]) -> &'a str {
    let half = marks.iter().map(|mark| crate::stop::partial_suffix(text, mark)).max().unwrap_or(0);
    if half < 2 { text } else { text.get(..text.len() - half).unwrap_or(text) }
}

#[cfg(test)]
mod tests;
