//! Chat templates: renders conversations to prompts with the Jinja template of the file.
//!
//! Templates are written for Hugging Face's `apply_chat_template`. `jinja` implements its
//! environment: `trim_blocks`, `lstrip_blocks`, Python's string and dictionary methods, Python's
//! output of `True` and `None`, `tojson` as in `json.dumps`, `raise_exception`, `strftime_now`,
//! `bos_token` and `eos_token`. Templates are untrusted. They can read only their input, and their
//! nesting, steps ([`FUEL`]), memory ([`MAX_MEMORY`]) and output ([`MAX_OUTPUT`]) are limited.
//!
//! A file may have several templates, one of them for conversations with tools. For a file without
//! a template, one is chosen by architecture and special tokens ([`ChatTemplate::origin`]).

#![cfg_attr(not(test), forbid(unsafe_code))]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod clock;
mod fallback;
pub mod history;
mod jinja;
mod reply;
pub mod stop;

use kjit_gguf::elide::elide;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use jinja::{Data, Fault, Kind, Template};
pub use jinja::{FUEL, MAX_MEMORY, MAX_OUTPUT};
use kjit_gguf::{self as gguf, Gguf, Value};
use kjit_tokenizer::Tokenizer;
use kjit_tokenizer::cancel::Cancel;
pub use reply::{Form, Part, ReplyParser, ToolCall};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
/// The metadata key of the template. `KEY.name` is the key of a named template.
pub const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Name of the template for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// Maximum bytes of a template file.
const MAX_SOURCE: u64 = 1 << 20;

/// The reasons why a conversation cannot be rendered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The file has no chat template, and no fallback is known.
    #[error(
        "the model has no chat template ({TEMPLATE_KEY}), and kjit has none for its architecture \
         and special tokens: use --template FILE, or --raw to pass the prompt unchanged"
    )]
    NoTemplate,
    /// The file has no template with this name.
    #[error(
        "the model has no chat template named '{0}' ({TEMPLATE_KEY}.{0}); it has: {1}",
        elide(name, 90),
        elide(known, 200)
    )]
    NoSuchTemplate {
        /// The requested name of a template.
        name: String,
        /// The existing names, separated by commas.
        known: String,
    },
    /// A key of the file has the wrong type.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The template cannot be parsed.
    #[error(
        "{0}, line {line}: the chat template cannot be parsed: \
         {1}; use --template FILE, or --raw for no template",
        elide(template, 90),
        elide(problem, 300)
    )]
    Template {
        /// The template's name, which is its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// The reason.
        problem: String,
    },
    /// The template failed on this conversation.
    #[error(
        "{0}, line {line}: the chat template failed: {1}",
        elide(template, 90),
        elide(problem, 300)
    )]
    Render {
        /// The template's name, which is its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// The reason.
        problem: String,
    },
    /// The template exceeded a limit of steps, memory, output or nesting.
    #[error(
        "{0}, line {line}: the chat template exceeds a limit: \
         {1}; use --template FILE, or --raw for no template",
        elide(template, 90),
        elide(problem, 300)
    )]
    Limit {
        /// The template's name, which is its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// The limit.
        problem: String,
    },
    /// The template refused the conversation by `raise_exception`, for example because roles do not
    /// alternate or a system prompt is not supported.
    #[error(
        "{0}: the model's chat template refuses this conversation: {1}",
        elide(template, 90),
        elide(message, 300)
    )]
    Refused {
        /// The template's name: its metadata key.
        template: String,
        /// The message of the template.
        message: String,
    },
    /// A template file cannot be read.
    #[error("{path}: the chat template cannot be read: {problem}")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        problem: String,
    },
    /// The messages are not a JSON array of objects.
    #[error("the messages are not a JSON array of objects: {}", elide(.0, 400))]
    Messages(String),
    /// The variables are not a JSON object of supported values.
    #[error("the template's variables cannot be used: {}", elide(.0, 400))]
    Variables(String),
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template supports.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

impl Message {
    /// A message with a role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// The source of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The template of the model's file, or of the caller.
    Given,
    /// The file has no template; this is the name of the fallback.
    Fallback(&'static str),
}

/// A parsed template, which can be rendered many times.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    name: String,
    /// The template for conversations with tools and its name, if the file has one.
    with_tools: Option<(Template, String)>,
    form: Form,
    origin: Origin,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// The template of a file, with the template for tools if the file has one. A file without a
    /// template gets a fallback, which [`ChatTemplate::origin`] names.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`] if there is no template and no fallback; an error if the template
    /// cannot be parsed.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate, ChatError> {
        let Some(source) = file.opt_str(TEMPLATE_KEY)? else {
            let architecture = match file.value("general.architecture") {
                Some(Value::Str(name)) => String::from_utf8_lossy(name).into_owned(),
                _ => String::new(),
            };
            let row = fallback::find(&architecture, tokenizer).ok_or(ChatError::NoTemplate)?;
            let template = ChatTemplate::with_tokenizer(row.name, row.template, tokenizer)?;
            return Ok(ChatTemplate { origin: Origin::Fallback(row.name), ..template });
        };
        let mut template = ChatTemplate::with_tokenizer(TEMPLATE_KEY, source, tokenizer)?;
        let key = format!("{TEMPLATE_KEY}.{TOOL_USE}");
        if let Some(source) = file.opt_str(&key)? {
            template.with_tools = Some((read(&key, source)?, key));
            template.form = Form::of(source);
        }
        Ok(template)
    }

    /// Returns a named template of a file.
    ///
    /// # Errors
    /// [`ChatError::NoSuchTemplate`]; an error if the template cannot be parsed.
    pub fn named(
        file: &Gguf,
        tokenizer: &Tokenizer,
        name: &str,
    ) -> Result<ChatTemplate, ChatError> {
        let key = format!("{TEMPLATE_KEY}.{name}");
        let Some(source) = file.opt_str(&key)? else {
            let known = ChatTemplate::names(file).join(", ");
            let known = if known.is_empty() { "no named templates".to_owned() } else { known };
            return Err(ChatError::NoSuchTemplate { name: name.to_owned(), known });
        };
        ChatTemplate::with_tokenizer(&key, source, tokenizer)
    }

    /// The names of a file's named templates.
    pub fn names(file: &Gguf) -> Vec<String> {
        let name = |key: &str| Some(key.strip_prefix(TEMPLATE_KEY)?.strip_prefix('.')?.to_owned());
        file.keys().filter_map(name).collect()
    }

    /// Parses a template from its source, for a model with this tokenizer. The name is used in
    /// errors.
    ///
    /// # Errors
    /// The template cannot be parsed.
    pub fn with_tokenizer(
        name: &str,
        source: &str,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, ChatError> {
        let text = |id: Option<u32>| {
            let text = tokenizer.token_text(id?).ok()?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        ChatTemplate::new(name, source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// Reads a template from a separate file of at most 1 MiB, for a model with this tokenizer.
    ///
    /// # Errors
    /// [`ChatError::Unreadable`]; an error if the template cannot be parsed.
    pub fn from_file(path: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate, ChatError> {
        let name = path.display().to_string();
        let failed = |problem: String| ChatError::Unreadable { path: name.clone(), problem };
        let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
        let mut source = String::new();
        file.take(MAX_SOURCE + 1)
            .read_to_string(&mut source)
            .map_err(|error| failed(error.to_string()))?;
        if source.len() as u64 > MAX_SOURCE {
            return Err(failed("it is larger than 1 MiB".to_owned()));
        }
        // Some editors write a byte order mark at the start.
        ChatTemplate::with_tokenizer(
            &name,
            source.strip_prefix('\u{feff}').unwrap_or(&source),
            tokenizer,
        )
    }

    /// Parses a template from its source. The name is used in errors; the tokens are the values of
    /// `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// The template cannot be parsed.
    pub fn new(
        name: &str,
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
    ) -> Result<ChatTemplate, ChatError> {
        let template = read(name, source)?;
        Ok(ChatTemplate {
            template,
            name: name.to_owned(),
            with_tools: None,
            form: Form::of(source),
            origin: Origin::Given,
            bos,
            eos,
        })
    }

    /// The format in which the model writes reasoning and tool calls.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The source of the template.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// A note for the user, if a fallback is used because the file has no template.
    pub fn note(&self) -> Option<String> {
        match self.origin {
            Origin::Given => None,
            Origin::Fallback(name) => Some(format!(
                "the model has no chat template; \
                 kjit uses its template '{name}', because the special tokens match"
            )),
        }
    }

    /// Renders the prompt of a conversation. Messages are of any type that serialises to a list of
    /// objects, such as [`Message`]. `add_generation_prompt` appends the beginning of the
    /// assistant's message.
    ///
    /// # Errors
    /// The template fails or refuses the conversation.
    pub fn render<M: Serialize>(
        &self,
        messages: M,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let json = serde_json::to_string(&messages)
            .map_err(|error| ChatError::Messages(error.to_string()))?;
        self.render_json(&json, None, add_generation_prompt)
    }

    /// Renders JSON messages: an array of objects in any structure that the template supports
    /// (`tool_calls`, content in parts). `tools` is also an array. If `tools` is present, the
    /// file's template for tools is used if it has one.
    ///
    /// # Errors
    /// The JSON is invalid; the template fails or refuses the conversation.
    pub fn render_json(
        &self,
        messages: &str,
        tools: Option<&str>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_with(messages, tools, None, add_generation_prompt)
    }

    /// Like [`ChatTemplate::render_json`], with further variables of the template
    /// (`enable_thinking`, `documents`) as a JSON object.
    ///
    /// # Errors
    /// See [`ChatTemplate::render_json`]; also [`ChatError::Variables`].
    pub fn render_with(
        &self,
        messages: &str,
        tools: Option<&str>,
        variables: Option<&str>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_within(messages, tools, variables, add_generation_prompt, &Cancel::default())
    }

    /// Like [`ChatTemplate::render_with`], but it can be cancelled.
    ///
    /// # Errors
    /// See [`ChatTemplate::render_with`]; also [`ChatError::Limit`] if it is cancelled.
    pub fn render_within(
        &self,
        messages: &str,
        tools: Option<&str>,
        variables: Option<&str>,
        add_generation_prompt: bool,
        cancel: &Cancel,
    ) -> Result<String, ChatError> {
        let more: Vec<(String, Data)> = match variables {
            None => vec![],
            Some(json) => {
                let map: std::collections::BTreeMap<String, Data> = serde_json::from_str(json)
                    .map_err(|error| ChatError::Variables(error.to_string()))?;
                map.into_iter().collect()
            }
        };
        let messages = array(messages)?;
        if let Data::List(all) = &messages
            && !all.iter().all(|message| matches!(message, Data::Map(_)))
        {
            return Err(ChatError::Messages("an element is not an object".to_owned()));
        }
        let tools = tools.map(array).transpose()?.unwrap_or(Data::None);
        let (template, name) = match &self.with_tools {
            Some((template, name)) if tools != Data::None => (template, name),
            _ => (&self.template, &self.name),
        };
        let token = |text: &Option<String>| text.clone().map_or(Data::Undefined, Data::Text);
        let mut variables = vec![
            ("messages", messages),
            ("tools", tools),
            ("documents", Data::None),
            ("add_generation_prompt", Data::Bool(add_generation_prompt)),
            ("bos_token", token(&self.bos)),
            ("eos_token", token(&self.eos)),
        ];
        // Variables of the caller override the default variables, but not the conversation.
        for (key, value) in &more {
            match variables.iter_mut().find(|(name, _)| *name == key.as_str()) {
                None => variables.push((key, value.clone())),
                Some(_) if matches!(key.as_str(), "messages" | "tools") => {
                    return Err(ChatError::Variables(format!(
                        "'{key}' is already set by the request"
                    )));
                }
                Some((_, old)) => *old = value.clone(),
            }
        }
        template.render(variables, cancel).map_err(|fault| failed(name, fault, false))
    }
}

fn read(name: &str, source: &str) -> Result<Template, ChatError> {
    Template::new(source).map_err(|fault| failed(name, fault, true))
}

fn array(json: &str) -> Result<Data, ChatError> {
    match serde_json::from_str(json).map_err(|error| ChatError::Messages(error.to_string()))? {
        list @ Data::List(_) => Ok(list),
        Data::Map(_) => Err(ChatError::Messages("found an object".to_owned())),
        _ => Err(ChatError::Messages("found a value that is not an array".to_owned())),
    }
}

fn failed(name: &str, fault: Fault, reading: bool) -> ChatError {
    let (template, line) = (name.to_owned(), fault.line);
    match fault.kind {
        Kind::Raised(message) => ChatError::Refused { template, message: one_line(&message) },
        Kind::Limit(problem) => ChatError::Limit { template, line, problem: one_line(&problem) },
        Kind::Wrong(problem) if reading => {
            ChatError::Template { template, line, problem: one_line(&problem) }
        }
        Kind::Wrong(problem) => ChatError::Render { template, line, problem: one_line(&problem) },
    }
}

/// Collapses white space, removes control characters and limits the length of a text that comes
/// from a file.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        line.push_str(if line.is_empty() { "" } else { " " });
        line.extend(word.chars().filter(|c| !c.is_control()).take(400));
        if line.len() > 400 {
            line.push('…');
            break;
        }
    }
    line
}

// Unit and integration tests are one program. The integration tests use the public API only.
#[cfg(test)]
extern crate self as kjit_chat;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
