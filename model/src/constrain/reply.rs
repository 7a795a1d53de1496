//! The whole of an answer as a grammar: reasoning, then content, calls of tools in the form that
//! the model knows, or either. [`ReplyParser`](crate::chat::ReplyParser) reads what comes of it.

use super::{Grammar, GrammarError, Grammars, Translated, Unheld, translated};
use crate::chat::Form;
use crate::tokenizer::Tokenizer;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;
use std::fmt::Write;

/// What an answer may consist of.
pub struct Reply<'a> {
    /// How the model writes reasoning and calls.
    pub form: Form,
    /// The rendered prompt: it may have begun the reasoning.
    pub prompt: &'a str,
    /// What may be said instead of a call.
    pub content: Content<'a>,
    /// The tools that may be called, and the schemas of their arguments: of objects.
    pub tools: &'a [(&'a str, &'a Value)],
    /// More than one call may come.
    pub parallel: bool,
}

/// What may be said.
pub enum Content<'a> {
    /// Nothing: a tool is called.
    Nothing,
    /// Any text, before calls and between them, too.
    Text,
    /// JSON that keeps to this schema.
    Json(&'a Value),
    /// What matches this regular expression as a whole.
    Regex(&'a str),
    /// What this grammar makes, in llguidance's form of Lark.
    Lark(&'a str),
}

/// Any text, without control tokens.
const ANY: &str = r"/(.|\n)*/";
/// The same that does not begin as a call of Llama 3's does.
const NO_OBJECT: &str = r"/([^\s{](.|\n)*)?/";
/// Any text without marks of channels, which are text in some vocabularies.
const NO_MARK: &str = r"/([^<]|<+[^<|])*<*/";
/// White space behind reasoning.
const GAP: &str = r"/[ \n]{0,4}/";

impl Grammars {
    /// Answers that consist of this.
    ///
    /// # Errors
    /// A schema is wrong, or has what is not supported.
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

/// A grammar on its way.
struct Lark<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    schemas: Vec<GrammarWithLexer>,
    unheld: Vec<Unheld>,
    /// The first schema that is none.
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

    /// A rule of this name.
    fn rule(&mut self, name: &str, is: &str) -> String {
        let _ = writeln!(self.rules, "{name}: {is}");
        name.to_owned()
    }

    /// A mark of the form: a control token by its id, because no text becomes it; any other is
    /// text.
    fn mark(&self, text: &str) -> String {
        match self.control(text) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }

    fn control(&self, text: &str) -> Option<u32> {
        self.tokenizer.special_id(text).filter(|id| self.tokenizer.is_control(*id).unwrap_or(false))
    }

    /// Any text up to a mark, and the mark.
    fn until(&mut self, name: &str, mark: &str) -> String {
        match self.control(mark) {
            Some(id) => self.rule(name, &format!("{ANY} <[{id}]>")),
            // The first one ends it, and is part of it.
            None => self
                .rule(&format!("{name}[lazy]"), &format!("{ANY} {}", quoted(mark)))
                .replace("[lazy]", ""),
        }
    }

    /// JSON by a schema.
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

    /// What content keeps to; none where it may be any text, or there is none.
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

    /// A grammar of its own inside.
    fn inner(&mut self, mut grammar: GrammarWithLexer) -> String {
        let name = format!("schema-{}", self.schemas.len());
        grammar.name = Some(name.clone());
        self.schemas.push(grammar);
        format!("@{name}")
    }

    /// Reasoning, if the prompt began it or the model has a word for it, and then the body.
    fn reasoned(&mut self, form: Form, reply: &Reply<'_>, body: String) -> String {
        if let Some(close) = form.begun(reply.prompt) {
            let until = self.until("reasoning", close);
            return format!("{until} {GAP} ({body})");
        }
        let prompt = reply.prompt.trim_end();
        let mut all = vec![];
        for (i, (open, close)) in form.reasoning().iter().enumerate() {
            // A word of its own in the vocabulary: the model knows it. Where the prompt has ended
            // the reasoning, there is none.
            if self.tokenizer.special_id(open).is_some() && !prompt.ends_with(close) {
                let until = self.until(&format!("reasoning_{i}"), close);
                all.push(format!("{} {until} {GAP}", self.mark(open)));
            }
        }
        match all.is_empty() {
            true => body,
            false => format!("({})? ({body})", all.join(" | ")),
        }
    }

    /// Content and calls where tags or nothing stand around them.
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

    /// Text in which what begins as a call must be one.
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
            // Llama 3: the whole answer is one. After its own word for it, too.
            let calls = self.rule("calls", &format!("{call} {more}"));
            let told = self
                .control(reply.form.call().0)
                .map(|id| format!(" | <[{id}]> {calls}"))
                .unwrap_or_default();
            return format!("{calls}{told} | {NO_OBJECT}");
        }
        let (open, _) = reply.form.call();
        let until = self.until("until_call", open);
        // What follows the mark in `begin`.
        let rest = begin.strip_prefix(&self.mark(open)).unwrap_or_default().to_owned();
        match (reply.parallel, reply.form) {
            // What comes behind is a call or text again.
            (true, Form::Hermes) => {
                self.rule("free", &format!("{until} {rest} {call} {end} free | {ANY}"))
            }
            _ => format!("{until} {rest} {call} {more} {end} | {ANY}"),
        }
    }

    /// What stands before calls, a call, what stands between two, and what comes behind.
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

    /// Messages in channels. The prompt ends with `<|start|>assistant`; what ends a call ends the
    /// answer.
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
        // Before a call the model may say what it is about to do.
        let told = self.rule(
            "told",
            &format!("\"commentary\" {message} {body} {start} \"assistant\" {channel}"),
        );
        format!("{channel} {before}? {told}? ({ways})")
    }
}

/// A text as Lark writes it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
