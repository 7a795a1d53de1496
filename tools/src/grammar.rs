//! `--grammar`, `--grammar-file`, `--json-schema`: constraints on the answers of `kjit run`.

use crate::args;
use crate::input;
use crate::report::say;
use anyhow::{Context, anyhow, bail};
use kjit_model::Model;
use kjit_model::cancel::Cancel;
use kjit_model::chat::Form;
use kjit_model::constrain::{Content, Grammar, Grammars, Reply, lark_of_gbnf};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Maximum bytes of a grammar or schema, as in the library.
const MOST: usize = 512 << 10;
/// Maximum time for the first token of a grammar.
const LONGEST: Duration = Duration::from_secs(10);

/// A grammar or schema, and the flag that gave it.
pub struct AnswerForm {
    flag: &'static str,
    form: ContentForm,
}

enum ContentForm {
    Lark(String),
    Json(Value),
}

impl AnswerForm {
    /// Reads the flags. `None` if no flag is given. Files are read before the model, so that
    /// errors are reported early.
    pub fn read(args: &args::Grammar) -> anyhow::Result<Option<AnswerForm>> {
        let schema = |text: &str| -> anyhow::Result<ContentForm> {
            let schema: Value = serde_json::from_str(text).context("it is not JSON")?;
            match schema.is_object() {
                true => Ok(ContentForm::Json(schema)),
                false => bail!("a JSON schema is an object: it begins with {{"),
            }
        };
        let gbnf = |text: &str| -> anyhow::Result<ContentForm> {
            let lark = lark_of_gbnf(text).map_err(|why| anyhow!("invalid GBNF: {why}"))?;
            Ok(ContentForm::Lark(lark))
        };
        let (flag, form) = if let Some(text) = &args.grammar {
            ("--grammar", within(text).and_then(gbnf))
        } else if let Some(file) = &args.grammar_file {
            ("--grammar-file", read(file).and_then(|text| gbnf(&text)))
        } else if let Some(text) = &args.json_schema {
            let form = match text.trim_start().starts_with('{') {
                true => within(text).and_then(schema),
                false => read(Path::new(text)).and_then(|text| schema(&text)),
            };
            ("--json-schema", form)
        } else if let Some(file) = &args.json_schema_file {
            ("--json-schema-file", read(file).and_then(|text| schema(&text)))
        } else {
            return Ok(None);
        };
        Ok(Some(AnswerForm { flag, form: form.context(flag)? }))
    }

    /// The text that determines the constraint: all ranks must have the same.
    pub fn text(&self) -> String {
        match &self.form {
            ContentForm::Lark(lark) => lark.clone(),
            ContentForm::Json(schema) => schema.to_string(),
        }
    }

    /// Opens the grammars of a model's vocabulary. This takes some tenths of a second.
    pub fn open(self, model: &Model, quiet: bool) -> anyhow::Result<AnswerGrammar> {
        let grammars = Grammars::new(&model.tokenizer, model.session.n_vocab());
        Ok(AnswerGrammar { grammars: grammars.context(self.flag)?, form: self, quiet })
    }
}

/// Makes a constraint for each answer.
pub struct AnswerGrammar {
    grammars: Grammars,
    form: AnswerForm,
    /// Whether notes are omitted.
    quiet: bool,
}

impl AnswerGrammar {
    /// The constraint of an answer after this rendered prompt. Without a template (`None`), the
    /// answer has no reasoning.
    pub fn constraint(
        &mut self,
        model: &Model,
        prompt: Option<(Form, &str)>,
    ) -> anyhow::Result<Box<Grammar>> {
        let content = match &self.form.form {
            ContentForm::Lark(lark) => Content::Lark(lark),
            ContentForm::Json(schema) => Content::Json(schema),
        };
        let made = match (prompt, &self.form.form) {
            (Some((form, prompt)), _) => {
                let reply = Reply { form, prompt, content, tools: &[], parallel: false };
                self.grammars.reply(&model.tokenizer, &reply)
            }
            (None, ContentForm::Lark(lark)) => self.grammars.lark(lark),
            (None, ContentForm::Json(schema)) => self.grammars.json_schema(schema),
        };
        let flag = self.form.flag;
        let mut made = made.context(flag)?;
        made.try_first(LONGEST, &Cancel::default()).map_err(|why| anyhow!("{flag}: {why}"))?;
        if !self.quiet && !made.unheld().is_empty() {
            let words: Vec<String> = made.unheld().iter().map(ToString::to_string).collect();
            say(format_args!("note: {flag}: not enforced: {}", words.join("; ")));
        }
        // One note is enough for a chat.
        self.quiet = true;
        Ok(made)
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    let text = input::text(input::file(file)?, &file.display().to_string())?;
    within(&text)?;
    Ok(text)
}

fn within(text: &str) -> anyhow::Result<&str> {
    match text.len() {
        0 => bail!("it is empty"),
        1..=MOST => Ok(text),
        bytes => bail!("it has {bytes} bytes, more than {MOST}"),
    }
}
