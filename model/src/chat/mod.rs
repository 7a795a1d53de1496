//! Chat templates: conversations to prompts, by the Jinja template in the file.
//!
//! Templates are written for Hugging Face's `apply_chat_template`; this module gives them what they find there:
//! `trim_blocks` and `lstrip_blocks`, Python's string and dictionary methods, Python's spelling of `True` and `None` in
//! output, `tojson` as `json.dumps` writes, `raise_exception`, `strftime_now`, `bos_token` and `eos_token`. A template comes
//! with a model from anywhere, so it can read nothing but what it is given, and its work ([`FUEL`]) and its output
//! ([`MAX_OUTPUT`]) are bounded. Not bounded is the memory of strings that it joins without writing them.

mod clock;
mod python;

use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, ErrorKind, Value};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::gguf::{self, Gguf};
use crate::tokenizer::Tokenizer;

/// The metadata key of the template.
pub const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Instructions that one rendering may take. Llama 3.1's template takes about 60 a message; this is under a second.
pub const FUEL: u64 = 10_000_000;

/// Bytes that one rendering may write.
pub const MAX_OUTPUT: usize = 64 << 20;

/// Why a conversation did not become a prompt.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The file has no chat template.
    #[error("the model has no chat template ({TEMPLATE_KEY}): use --raw to give it the prompt as it is")]
    NoTemplate,
    /// A key of the file is of the wrong type.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The template is no Jinja that is understood here.
    #[error("{template}, line {line}: the chat template cannot be read: {problem}; use --raw to do without it")]
    Template {
        /// The template's name: its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The template failed on this conversation.
    #[error("{template}, line {line}: the chat template failed: {problem}")]
    Render {
        /// The template's name: its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// What went wrong.
        problem: String,
    },
    /// The template refused the conversation (`raise_exception`): roles that do not alternate, a system prompt for a model
    /// that knows none.
    #[error("{template}: the model's chat template refuses this conversation: {message}")]
    Refused {
        /// The template's name: its metadata key.
        template: String,
        /// The template's words.
        message: String,
    },
    /// Messages that are no JSON array of objects.
    #[error("the messages are not a JSON array of objects: {0}")]
    Messages(String),
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of a role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// A template, read once, to be rendered many times.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    name: String,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// The template of a file.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`] if it has none, and a template that cannot be read.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, ChatError> {
        let source = file.opt_str(TEMPLATE_KEY)?.ok_or(ChatError::NoTemplate)?;
        let text = |id: Option<u32>| {
            let text = tokenizer.token_text(id?).ok()?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        ChatTemplate::new(TEMPLATE_KEY, source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// A template from its source. The name is for errors; the tokens are what the template writes as `bos_token` and
    /// `eos_token`.
    ///
    /// # Errors
    /// A template that cannot be read.
    pub fn new(name: &str, source: &str, bos: Option<String>, eos: Option<String>) -> Result<ChatTemplate, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| failed(name, &error, true))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(python::write_value);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", clock::strftime_now);
        environment
            .add_template_owned(name.to_owned(), without_generation_marks(source))
            .map_err(|error| failed(name, &error, true))?;
        Ok(ChatTemplate { environment, name: name.to_owned(), bos, eos })
    }

    /// The prompt of a conversation: messages as anything that serialises to a list of objects, [`Message`] for one.
    /// `add_generation_prompt` ends it with the begin of the assistant's turn.
    ///
    /// # Errors
    /// A template that fails on, or refuses, the conversation.
    pub fn render<M: Serialize>(&self, messages: M, add_generation_prompt: bool) -> Result<String, ChatError> {
        self.render_value(Value::from(Serde(messages)), Value::from(()), add_generation_prompt)
    }

    /// The same from JSON: an array of objects, in whatever shape the template knows (`tool_calls`, content in parts), and
    /// tools if any, another array.
    ///
    /// # Errors
    /// Text that is no such JSON; a template that fails on, or refuses, the conversation.
    pub fn render_json(
        &self,
        messages: &str,
        tools: Option<&str>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let messages = array(messages)?;
        let objects = messages.try_iter().is_ok_and(|mut all| all.all(|m| m.kind() == ValueKind::Map));
        if !objects {
            return Err(ChatError::Messages("an element is no object".to_owned()));
        }
        let tools = tools.map(array).transpose()?.unwrap_or_else(|| Value::from(()));
        self.render_value(messages, tools, add_generation_prompt)
    }

    fn render_value(&self, messages: Value, tools: Value, add_generation_prompt: bool) -> Result<String, ChatError> {
        let fail = |error: minijinja::Error| failed(&self.name, &error, false);
        let token = |text: &Option<String>| text.as_deref().map_or(Value::UNDEFINED, Value::from);
        let context = minijinja::context! {
            messages,
            tools,
            documents => (),
            add_generation_prompt,
            bos_token => token(&self.bos),
            eos_token => token(&self.eos),
        };
        let mut out = Bounded(Vec::new());
        let template = self.environment.get_template(&self.name).map_err(fail)?;
        template.render_captured_to(context, &mut out).map_err(fail)?;
        Ok(String::from_utf8_lossy(&out.0).into_owned())
    }
}

/// Output that stops at [`MAX_OUTPUT`].
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other(format!("the template writes more than {MAX_OUTPUT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn array(json: &str) -> Result<Value, ChatError> {
    let value: Value = serde_json::from_str(json).map_err(|error| ChatError::Messages(error.to_string()))?;
    match value.kind() {
        ValueKind::Seq => Ok(value),
        kind => Err(ChatError::Messages(format!("found a {kind}"))),
    }
}

/// What a template threw.
#[derive(Debug, Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<String, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn failed(name: &str, error: &minijinja::Error, reading: bool) -> ChatError {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return ChatError::Refused { template: name.to_owned(), message: one_line(message) };
        }
        source = cause.source();
    }
    let mut problem = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    if let Some(cause) = std::error::Error::source(error) {
        problem = format!("{problem}: {cause}");
    }
    let (template, line, problem) = (name.to_owned(), error.line().unwrap_or(0), one_line(&problem));
    match reading {
        true => ChatError::Template { template, line, problem },
        false => ChatError::Render { template, line, problem },
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `{% generation %}` marks what the assistant says, for training; for a prompt it is a block that does nothing.
fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
