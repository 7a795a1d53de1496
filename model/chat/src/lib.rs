//! Chat templates: conversations to prompts, by the Jinja template in the file.
//!
//! Templates are written for Hugging Face's `apply_chat_template`, and `jinja` gives them what they
//! find there: `trim_blocks` and `lstrip_blocks`, Python's string and dictionary methods, Python's
//! spelling of `True` and `None` in output, `tojson` as `json.dumps` writes, `raise_exception`,
//! `strftime_now`, `bos_token` and `eos_token`. A template comes with a model from anywhere: it can
//! read nothing but what it is given, and its nesting, its work ([`FUEL`]), its values
//! ([`MAX_MEMORY`]) and its output ([`MAX_OUTPUT`]) are bounded, on any thread.
//!
//! A file may have several templates, one of them for conversations with tools; a file without any
//! gets one that its architecture and its special tokens call for ([`ChatTemplate::origin`] says
//! so).

#![forbid(unsafe_code)]
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

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The metadata key of the template; `KEY.name` has one of that name.
pub const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Name of the template that is for conversations with tools.
const TOOL_USE: &str = "tool_use";

/// Bytes of a template's file.
const MAX_SOURCE: u64 = 1 << 20;

/// Why a conversation did not become a prompt.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The file has no chat template, and none is known for it.
    #[error(
        "the model has no chat template ({TEMPLATE_KEY}), and none is known for its architecture \
         and special tokens: use --raw to \
         give it the prompt as it is, or --template FILE"
    )]
    NoTemplate,
    /// The file has no template of that name.
    #[error(
        "the model has no chat template named '{0}' ({TEMPLATE_KEY}.{0}); it has: {1}",
        elide(name, 90),
        elide(known, 200)
    )]
    NoSuchTemplate {
        /// The name that was asked for.
        name: String,
        /// Those that there are, separated by commas.
        known: String,
    },
    /// A key of the file is of the wrong type.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The template is no Jinja that is understood here.
    #[error(
        "{0}, line {line}: the chat template cannot be read: {1}; use --raw to do without it",
        elide(template, 90),
        elide(problem, 300)
    )]
    Template {
        /// The template's name: its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The template failed on this conversation.
    #[error(
        "{0}, line {line}: the chat template failed: {1}",
        elide(template, 90),
        elide(problem, 300)
    )]
    Render {
        /// The template's name: its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// What went wrong.
        problem: String,
    },
    /// The template asks for more steps, memory, output or nesting than a template may have.
    #[error(
        "{0}, line {line}: the chat template asks for too much: {1}; use --raw to do without it",
        elide(template, 90),
        elide(problem, 300)
    )]
    Limit {
        /// The template's name: its metadata key.
        template: String,
        /// Line in the template, from 1; 0 if not known.
        line: usize,
        /// Which limit it was.
        problem: String,
    },
    /// The template refused the conversation (`raise_exception`): roles that do not alternate, a
    /// system prompt for a model that knows none.
    #[error(
        "{0}: the model's chat template refuses this conversation: {1}",
        elide(template, 90),
        elide(message, 300)
    )]
    Refused {
        /// The template's name: its metadata key.
        template: String,
        /// The template's words.
        message: String,
    },
    /// A file with a template that cannot be read.
    #[error("{path}: the chat template cannot be read: {problem}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        problem: String,
    },
    /// Messages that are no JSON array of objects.
    #[error("the messages are not a JSON array of objects: {}", elide(.0, 400))]
    Messages(String),
    /// Variables that are no JSON object of what a template can have.
    #[error("the template's variables cannot be used: {}", elide(.0, 400))]
    Variables(String),
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

/// Where a template comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The model's file, or the caller.
    Given,
    /// The file has none: the usual one of this name for such models.
    Fallback(&'static str),
}

/// A template, read once, to be rendered many times.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    name: String,
    /// For conversations with tools, where the file has one for them, with its name.
    with_tools: Option<(Template, String)>,
    form: Form,
    origin: Origin,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// The template of a file, with the one for tools if it has one; else the usual one for such
    /// models, which [`ChatTemplate::origin`] then names.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`] if it has none and none is known, and a template that cannot be
    /// read.
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

    /// A template of a file by its name.
    ///
    /// # Errors
    /// [`ChatError::NoSuchTemplate`], and a template that cannot be read.
    pub fn named(
        file: &Gguf,
        tokenizer: &Tokenizer,
        name: &str,
    ) -> Result<ChatTemplate, ChatError> {
        let key = format!("{TEMPLATE_KEY}.{name}");
        let Some(source) = file.opt_str(&key)? else {
            let known = ChatTemplate::names(file).join(", ");
            let known = if known.is_empty() { "none with a name".to_owned() } else { known };
            return Err(ChatError::NoSuchTemplate { name: name.to_owned(), known });
        };
        ChatTemplate::with_tokenizer(&key, source, tokenizer)
    }

    /// The names of a file's templates beside the one without a name.
    pub fn names(file: &Gguf) -> Vec<String> {
        let name = |key: &str| Some(key.strip_prefix(TEMPLATE_KEY)?.strip_prefix('.')?.to_owned());
        file.keys().filter_map(name).collect()
    }

    /// A template from its source, for a model with this tokenizer. The name is for errors.
    ///
    /// # Errors
    /// A template that cannot be read.
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

    /// A template in a file of its own, of at most 1 MiB, for a model with this tokenizer.
    ///
    /// # Errors
    /// [`ChatError::Unreadable`], and a template that is not understood.
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
        // Editors write a mark in front that is no text.
        ChatTemplate::with_tokenizer(
            &name,
            source.strip_prefix('\u{feff}').unwrap_or(&source),
            tokenizer,
        )
    }

    /// A template from its source. The name is for errors; the tokens are what the template writes
    /// as `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// A template that cannot be read.
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

    /// How the model of this template writes reasoning and calls of tools.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Where the template comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What a user should be told before the template is used: that the file has none, and which is
    /// taken.
    pub fn note(&self) -> Option<String> {
        match self.origin {
            Origin::Given => None,
            Origin::Fallback(name) => Some(format!(
                "the model has no chat template; its special tokens are those of '{name}', which \
                 is used"
            )),
        }
    }

    /// The prompt of a conversation: messages as anything that serialises to a list of objects,
    /// [`Message`] for one. `add_generation_prompt` ends it with the begin of the assistant's turn.
    ///
    /// # Errors
    /// A template that fails on, or refuses, the conversation.
    pub fn render<M: Serialize>(
        &self,
        messages: M,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let json = serde_json::to_string(&messages)
            .map_err(|error| ChatError::Messages(error.to_string()))?;
        self.render_json(&json, None, add_generation_prompt)
    }

    /// The same from JSON: an array of objects, in whatever shape the template knows (`tool_calls`,
    /// content in parts), and tools if any, another array, for which the file's template for tools
    /// is taken if it has one.
    ///
    /// # Errors
    /// Text that is no such JSON; a template that fails on, or refuses, the conversation.
    pub fn render_json(
        &self,
        messages: &str,
        tools: Option<&str>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_with(messages, tools, None, add_generation_prompt)
    }

    /// The same with further variables of the template's (`enable_thinking`, `documents`): a JSON
    /// object.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_json`]; [`ChatError::Variables`].
    pub fn render_with(
        &self,
        messages: &str,
        tools: Option<&str>,
        variables: Option<&str>,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.render_within(messages, tools, variables, add_generation_prompt, &Cancel::default())
    }

    /// The same, as long as somebody waits for it.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_with`]; [`ChatError::Limit`] when nobody waits any more.
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
            return Err(ChatError::Messages("an element is no object".to_owned()));
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
        // What the caller names counts, but for the conversation itself.
        for (key, value) in &more {
            match variables.iter_mut().find(|(name, _)| *name == key.as_str()) {
                None => variables.push((key, value.clone())),
                Some(_) if matches!(key.as_str(), "messages" | "tools") => {
                    return Err(ChatError::Variables(format!(
                        "'{key}' is given by the conversation"
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
        _ => Err(ChatError::Messages("found something else".to_owned())),
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

/// Words with one space between, without control characters, and not without end: they come out of
/// a file.
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
