//! The parts of an answer: content, reasoning, tool calls. A model writes reasoning and tool calls
//! in the format of its chat template, see [`Form::of`]. [`ReplyParser`] parses an answer that
//! arrives in pieces of any length.

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
pub use part::{Part, ToolCall};
use tagged::Tagged;

/// Parses one answer.
#[derive(Debug)]
pub struct ReplyParser(Reader);

#[derive(Debug)]
enum Reader {
    Tagged(Tagged),
    Channels(Channels),
}

impl ReplyParser {
    /// A parser for an answer in a format. `tools`: whether tools were offered; otherwise calls are
    /// not parsed. `prompt` is the rendered prompt, which may have started the reasoning.
    pub fn new(form: Form, tools: bool, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(tools)),
            form => Reader::Tagged(Tagged::new(form, tools, prompt)),
        })
    }

    /// A parser for an answer that is either calls or content constrained to a schema. Content that
    /// looks like a call stays text.
    pub fn either(form: Form, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(true).json()),
            form => Reader::Tagged(Tagged::new(form, true, prompt).either()),
        })
    }

    /// A parser for an answer with content constrained to a schema and without tools. Markers
    /// inside its strings are text.
    pub fn json(form: Form, prompt: &str) -> ReplyParser {
        ReplyParser(match form {
            Form::Channels => Reader::Channels(Channels::new(false).json()),
            form => Reader::Tagged(Tagged::new(form, false, prompt)),
        })
    }

    /// Sets the names of the offered tools. An answer that consists only of JSON calls to these
    /// tools, optionally in a code fence, is then parsed as calls.
    #[must_use]
    pub fn knowing(self, names: Vec<String>) -> ReplyParser {
        ReplyParser(match self.0 {
            Reader::Tagged(tagged) => Reader::Tagged(tagged.knowing(names)),
            channels @ Reader::Channels(_) => channels,
        })
    }

    /// Adds a piece of the answer. Parts that are complete or certain are appended to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        match &mut self.0 {
            Reader::Tagged(tagged) => tagged.push(text, out),
            Reader::Channels(channels) => channels.push(text, out),
        }
    }

    /// Ends an answer that was truncated by the token limit or by a stop string. An incomplete call
    /// is returned with its name and partial arguments if the name is complete. An incomplete
    /// marker is dropped. Returns whether the last part is an incomplete call.
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

mod part;
mod scan;
#[cfg(test)]
mod tests;
