//! The grammar of a whole answer: reasoning, then content, tool calls in the format of the model,
//! or either of both. [`ReplyParser`](crate::chat::ReplyParser) parses such answers.

use super::{Grammar, GrammarError, Grammars, Translated, Unenforced, translated};
use crate::chat::Form;
use crate::tokenizer::Tokenizer;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;
use std::fmt::Write;

/// The allowed parts of an answer.
pub struct Reply<'a> {
    /// The format in which the model writes reasoning and calls.
    pub form: Form,
    /// The rendered prompt. It may have started the reasoning.
    pub prompt: &'a str,
    /// The content that is allowed instead of a call.
    pub content: Content<'a>,
    /// The tools that may be called, with the schemas of their arguments (objects).
    pub tools: &'a [(&'a str, &'a Value)],
    /// Whether several calls are allowed.
    pub parallel: bool,
}

/// The allowed content.
pub enum Content<'a> {
    /// No content: a tool must be called.
    Nothing,
    /// Any text, also before calls and between them.
    Text,
    /// JSON that satisfies this schema.
    Json(&'a Value),
    /// Text that fully matches this regular expression.
    Regex(&'a str),
    /// Text of this grammar, in llguidance's dialect of Lark.
    Lark(&'a str),
}

/// Any text, without control tokens.
const ANY: &str = r"/(.|\n)*/";
/// Any text that does not start like a call of Llama 3.
const NOT_A_CALL: &str = r"/([^\s{](.|\n)*)?/";
/// Any text without channel markers. In some vocabularies, channel markers are plain text.
const NO_MARK: &str = r"/([^<]|<+[^<|])*<*/";
/// White space after reasoning.
const WHITE_SPACE: &str = r"/[ \n]{0,4}/";

impl Grammars {
    /// Creates the grammar of answers with these parts.
    ///
    /// # Errors
    /// A schema is invalid, or uses an unsupported keyword.
    pub fn reply(
        &self,
        tokenizer: &Tokenizer,
        reply: &Reply<'_>,
    ) -> Result<Box<Grammar>, GrammarError> {
        let mut lark =
            Lark { tokenizer, rules: String::new(), schemas: vec![], unheld: vec![], wrong: None };
        lark.reply(reply);
        if let Some(wrong) = lark.wrong {
            return Err(wrong);
        }
        let mut grammars = vec![GrammarWithLexer::from_lark(lark.rules)];
        grammars.extend(lark.schemas);
        let made = self.made("form", TopLevelGrammar { grammars, max_tokens: None })?;
        Ok(Box::new(Grammar { unheld: lark.unheld, ..*made }))
    }
}

/// A grammar while it is built.
struct Lark<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    schemas: Vec<GrammarWithLexer>,
    unheld: Vec<Unenforced>,
    /// The error of the first invalid schema.
    wrong: Option<GrammarError>,
}

impl Lark<'_> {
    fn reply(&mut self, reply: &Reply<'_>) {
        let body = match reply.form {
            Form::Channels => self.channels(reply),
            form => {
                let body = self.body(reply);
                self.reasoned(form, reply, body)
            }
        };
        let _ = writeln!(self.rules, "start: {body}");
    }

    /// Writes a rule and returns its name.
    fn rule(&mut self, name: &str, is: &str) -> String {
        let _ = writeln!(self.rules, "{name}: {is}");
        name.to_owned()
    }

    /// A marker of the format. A control token is written as its id, because no text produces it.
    /// Other markers are text.
    fn mark(&self, text: &str) -> String {
        match self.control(text) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }

    fn control(&self, text: &str) -> Option<u32> {
        self.tokenizer.special_id(text).filter(|id| self.tokenizer.is_control(*id).unwrap_or(false))
    }

    /// Any text up to and including a marker.
    fn until(&mut self, name: &str, mark: &str) -> String {
        match self.control(mark) {
            Some(id) => self.rule(name, &format!("{ANY} <[{id}]>")),
            // The rule ends with the first marker, which is part of it.
            None => self
                .rule(&format!("{name}[lazy]"), &format!("{ANY} {}", quoted(mark)))
                .replace("[lazy]", ""),
        }
    }

    /// The rule of JSON that satisfies a schema.
    fn json(&mut self, schema: &Value) -> String {
        match translated(schema) {
            Ok(Translated { lark, unheld }) => {
                self.unheld.extend(unheld);
                self.inner(GrammarWithLexer::from_lark(lark))
            }
            Err(wrong) => {
                self.wrong.get_or_insert(wrong);
                String::new()
            }
        }
    }

    /// The rule of the content; `None` if any text is allowed, or if there is no content.
    fn content(&mut self, content: &Content<'_>) -> Option<String> {
        match content {
            Content::Nothing | Content::Text => None,
            Content::Json(schema) => Some(self.json(schema)),
            Content::Regex(expression) => {
                Some(self.inner(GrammarWithLexer::from_regex(expression)))
            }
            Content::Lark(grammar) => {
                Some(self.inner(GrammarWithLexer::from_lark((*grammar).to_owned())))
            }
        }
    }

    /// Adds an embedded grammar and returns its name.
    fn inner(&mut self, mut grammar: GrammarWithLexer) -> String {
        let name = format!("schema-{}", self.schemas.len());
        grammar.name = Some(name.clone());
        self.schemas.push(grammar);
        format!("@{name}")
    }

    /// Reasoning, then the body. Reasoning is allowed if the prompt started it or the vocabulary
    /// has a token for it.
    fn reasoned(&mut self, form: Form, reply: &Reply<'_>, body: String) -> String {
        if let Some(close) = form.begun(reply.prompt) {
            let until = self.until("reasoning", close);
            return format!("{until} {WHITE_SPACE} ({body})");
        }
        let prompt = reply.prompt.trim_end();
        let mut all = vec![];
        for (i, (open, close)) in form.reasoning().iter().enumerate() {
            // If the vocabulary has a token for the tag, the model was trained with reasoning.
            // Reasoning is not allowed if the prompt has already ended it.
            if self.tokenizer.special_id(open).is_some() && !prompt.ends_with(close) {
                let until = self.until(&format!("reasoning_{i}"), close);
                all.push(format!("{} {until} {WHITE_SPACE}", self.mark(open)));
            }
        }
        match all.is_empty() {
            true => body,
            false => format!("({})? ({body})", all.join(" | ")),
        }
    }

    /// Content and calls, for formats with tags or without markers.
    fn body(&mut self, reply: &Reply<'_>) -> String {
        let content = self.content(&reply.content);
        if reply.tools.is_empty() {
            return content.unwrap_or_else(|| ANY.to_owned());
        }
        let (begin, call, between, end) = self.calls(reply);
        let call = self.rule("call", &call);
        if matches!(reply.content, Content::Text) {
            return self.free(reply, &begin, &call, &between, &end);
        }
        let more = if reply.parallel { format!("({between} {call})*") } else { String::new() };
        let calls = format!("{begin} {call} {more} {end}");
        match content {
            Some(content) => format!("{calls} | {content}"),
            None => calls,
        }
    }

    /// Text in which everything that starts like a call must be a call.
    fn free(
        &mut self,
        reply: &Reply<'_>,
        begin: &str,
        call: &str,
        between: &str,
        end: &str,
    ) -> String {
        let more = if reply.parallel { format!("({between} {call})*") } else { String::new() };
        if begin.is_empty() {
            // Llama 3: the whole answer is a call, also after its call token.
            let calls = self.rule("calls", &format!("{call} {more}"));
            let told = self
                .control(reply.form.call().0)
                .map(|id| format!(" | <[{id}]> {calls}"))
                .unwrap_or_default();
            return format!("{calls}{told} | {NOT_A_CALL}");
        }
        let (open, _) = reply.form.call();
        let until = self.until("until_call", open);
        // The part of `begin` after the marker.
        let rest = begin.strip_prefix(&self.mark(open)).unwrap_or_default().to_owned();
        match (reply.parallel, reply.form) {
            // A call is followed by another call or text.
            (true, Form::Hermes) => {
                self.rule("free", &format!("{until} {rest} {call} {end} free | {ANY}"))
            }
            _ => format!("{until} {rest} {call} {more} {end} | {ANY}"),
        }
    }

    /// Returns the text before calls, a call, the text between calls, and the text after them.
    fn calls(&mut self, reply: &Reply<'_>) -> (String, String, String, String) {
        let (open, close) = reply.form.call();
        let named = |key: &str, name: &str| quoted(&format!("{{\"name\": \"{name}\", \"{key}\": "));
        let mut each = vec![];
        let by_name = reply.form == Form::Mistral && self.tokenizer.special_id("[ARGS]").is_some();
        for (name, schema) in reply.tools {
            let arguments = self.json(schema);
            each.push(match reply.form {
                Form::Llama3 => format!("{} {arguments} \"}}\"", named("parameters", name)),
                Form::Mistral if by_name => {
                    format!("{} {} {arguments}", quoted(name), self.mark("[ARGS]"))
                }
                _ => format!("{} {arguments} \"}}\"", named("arguments", name)),
            });
        }
        let call = each.join(" | ");
        let open = self.mark(open);
        match reply.form {
            Form::Llama3 => (String::new(), call, quoted("; "), String::new()),
            Form::Mistral if by_name => (open.clone(), call, open, String::new()),
            Form::Mistral => (format!("{open} \"[\""), call, quoted(", "), quoted("]")),
            _ => {
                let close = self.mark(close.unwrap_or_default());
                let (begin, end) = (format!("{open} \"\\n\""), format!("\"\\n\" {close}"));
                (begin.clone(), call, format!("{end} \"\\n\" {begin}"), end)
            }
        }
    }

    /// An answer of messages in channels. The prompt ends with `<|start|>assistant`. The answer
    /// ends with the end of a call.
    fn channels(&mut self, reply: &Reply<'_>) -> String {
        let [channel, message, end, start] =
            ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"].map(|text| self.mark(text));
        let body = match self.control("<|end|>") {
            Some(_) => format!("{NO_MARK} {end}"),
            None => self.rule("said[lazy]", &format!("{NO_MARK} {end}")).replace("[lazy]", ""),
        };
        let before = self.rule(
            "before",
            &format!("\"analysis\" {message} {body} {start} \"assistant\" {channel}"),
        );
        let mut ways = vec![];
        for (name, schema) in reply.tools {
            let (arguments, json) = (self.json(schema), self.mark("<|constrain|>"));
            let to = quoted(&format!("commentary to=functions.{name} "));
            ways.push(format!("{to} {json} \"json\" {message} {arguments}"));
        }
        let last = quoted("final");
        match &reply.content {
            Content::Nothing => {}
            Content::Text => ways.push(format!("{last} {message} {NO_MARK}")),
            formed => {
                let content = self.content(formed).unwrap_or_default();
                ways.push(format!("{last} {message} {content}"));
            }
        }
        let ways = ways.join(" | ");
        if !matches!(reply.content, Content::Text) {
            return format!("{channel} {before}? ({ways})");
        }
        // The model may write text before a call.
        let told = self.rule(
            "told",
            &format!("\"commentary\" {message} {body} {start} \"assistant\" {channel}"),
        );
        format!("{channel} {before}? {told}? ({ways})")
    }
}

/// A string in Lark's syntax.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
