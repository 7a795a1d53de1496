//! The parts of an answer: content, reasoning, tool calls. A model writes the last two in the form
//! of its chat template, see [`Form::of`]. [`ReplyParser`] parses an answer in pieces of any
//! length.

mod bare_calls;
mod body;
mod calls;
mod channels;
mod form;
mod python;
mod tagged;
mod truncated;

pub use form::Form;

use channels::Channels;
use tagged::Tagged;

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The name of the tool.
    pub name: String,
    /// Its arguments, a JSON object. Incomplete if the answer was cut.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text for the reader.
    Content(String),
    /// Reasoning of the model.
    Reasoning(String),
    /// A complete call. A call that cannot be parsed is content.
    Call(ToolCall),
}

/// Parses one answer.
#[derive(Debug)]
pub struct ReplyParser(Reader);

#[derive(Debug)]
enum Reader {
    Tagged(Tagged),
    Channels(Channels),
}

impl ReplyParser {
    /// For an answer in a form. `tools`: whether tools were offered; otherwise calls are not
    /// parsed. `prompt` is the rendered prompt, which may have started the reasoning.
    pub fn new(form: Form, tools: bool, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(tools)),
            form => Reader::Tagged(Tagged::new(form, tools, prompt)),
        })
    }

    /// For an answer that is either calls or content constrained to a schema. Text in the content
    /// that looks like a call is text.
    pub fn either(form: Form, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(true).json()),
            form => Reader::Tagged(Tagged::new(form, true, prompt).either()),
        })
    }

    /// For an answer with content constrained to a schema and without tools. Markers inside its
    /// strings are text.
    pub fn json(form: Form, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(false).json()),
            form => Reader::Tagged(Tagged::new(form, false, prompt)),
        })
    }

    /// Sets the names of the offered tools. An answer of nothing but JSON calls to them, optionally
    /// in a code fence, is then parsed as calls.
    #[must_use]
    pub fn knowing(self, names: Vec<String>) -> ReplyParser {
        ReplyParser(match self.0 {
            Reader::Tagged(tagged) => Reader::Tagged(tagged.knowing(names)),
            channels @ Reader::Channels(_) => channels,
        })
    }

    /// Adds a piece of the answer. Parts that are certain are appended to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        match &mut self.0 {
            Reader::Tagged(tagged) => tagged.push(text, out),
            Reader::Channels(channels) => channels.push(text, out),
        }
    }

    /// Ends an answer that was cut by its length or a stop text. An incomplete call is returned
    /// with its name and partial arguments if the name is complete; an incomplete marker is
    /// dropped. Returns whether the last part is such a call.
    pub fn cut(&mut self, out: &mut Vec<Part>) -> bool {
        match &mut self.0 {
            Reader::Tagged(tagged) => tagged.cut(out),
            Reader::Channels(channels) => channels.cut(out),
        }
    }

    /// Ends the answer.
    pub fn finish(&mut self, out: &mut Vec<Part>) {
        match &mut self.0 {
            Reader::Tagged(tagged) => tagged.finish(out),
            Reader::Channels(channels) => channels.finish(out),
        }
    }
}

/// The calls if they could be parsed, else the text.
fn calls_or_content(calls: Option<Vec<ToolCall>>, written: String, out: &mut Vec<Part>) {
    match calls {
        Some(calls) => out.extend(calls.into_iter().map(Part::Call)),
        None if written.is_empty() => {}
        None => out.push(Part::Content(written)),
    }
}

/// The first occurrence of one of several texts.
enum Scan {
    /// The index of the text, and its position.
    Found(usize, usize),
    /// No occurrence, but one may begin at this position.
    Until(usize),
}

fn scan(text: &str, needles: &[&str]) -> Scan {
    // Of several at one position the longest counts, since one may be a prefix of another.
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

/// Removes an incomplete marker at the end of a text. A single byte may be plain text and stays.
fn without_half_a_mark<'a>(text: &'a str, marks: &[&str]) -> &'a str {
    let half = marks.iter().map(|mark| crate::stop::partial_suffix(text, mark)).max().unwrap_or(0);
    if half < 2 { text } else { text.get(..text.len() - half).unwrap_or(text) }
}

#[cfg(test)]
mod tests;
