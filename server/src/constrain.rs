//! Answers that must keep to a schema, an expression or a grammar, or call a tool.

use crate::conversation::{Prompt, Tool};
use crate::loaded::Loaded;
use crate::refusal::Refusal;
use axum::http::HeaderValue;
use axum::response::Response;
use kjit_model::cancel::Cancel;
use kjit_model::chat;
use kjit_model::constrain::{Content, Grammar, GrammarError, Grammars, Reply, unheld};
use kjit_model::serve::Constraint;
use serde_json::{Value, json};

/// A form that content keeps to.
#[derive(Debug, Clone)]
pub enum Form {
    /// JSON by a schema.
    Json {
        /// It.
        schema: Value,
        /// What cannot be held is refused, not left out.
        exact: bool,
    },
    /// What matches an expression as a whole.
    Regex(String),
    /// What a grammar in Lark's form makes.
    Lark(String),
}

impl Form {
    /// JSON by a schema, as far as it can be held.
    pub fn json(schema: Value) -> Form {
        Form::Json { schema, exact: false }
    }

    fn content(&self) -> Content<'_> {
        match self {
            Form::Json { schema, .. } => Content::Json(schema),
            Form::Regex(expression) => Content::Regex(expression),
            Form::Lark(grammar) => Content::Lark(grammar),
        }
    }

    /// An answer that is nothing else.
    fn alone(&self, grammars: &Grammars) -> Result<Box<Grammar>, GrammarError> {
        match self {
            Form::Json { schema, .. } => grammars.json_schema(schema),
            Form::Regex(expression) => grammars.regex(expression),
            Form::Lark(grammar) => grammars.lark(grammar),
        }
    }
}

/// What an answer must be like. Made for each request; nothing is wanted of most.
#[derive(Debug, Default)]
pub struct Follow {
    /// What content keeps to, and the field that it came by.
    pub form: Option<(Form, &'static str)>,
    /// The tools that may be called, each behind the schema that its arguments keep to.
    pub tools: Vec<(Value, Tool)>,
    /// One of them must be.
    pub must_call: bool,
    /// More than one call may come.
    pub parallel: bool,
}

/// A constraint, and the field that asked for it.
pub struct Constrained {
    /// For the scheduler.
    pub constraint: Box<dyn Constraint>,
    /// What is named where it cannot go on.
    pub field: &'static str,
    /// What it does not hold of schemas, in words; empty: it holds all.
    pub unheld: String,
}

/// The header of an answer that says which words of a schema it was not held to.
const UNHELD: &str = "x-kjit-not-held";

/// What is not held of the schemas that an answer keeps to, in words.
pub fn not_held(constraints: &[Constrained]) -> String {
    constraints.first().map_or_else(String::new, |one| one.unheld.clone())
}

/// An answer that says so.
pub fn noted(mut response: Response, not_held: &str) -> Response {
    const LONGEST: usize = 500;
    let words: String = not_held.escape_default().take(LONGEST).collect();
    if let Some(value) = HeaderValue::from_str(&words).ok().filter(|value| !value.is_empty()) {
        response.headers_mut().insert(UNHELD, value);
    }
    response
}

impl Follow {
    /// Of these tools, none needs to be called, and those that say `strict` are called by their
    /// schemas.
    ///
    /// # Errors
    /// A schema is none of an object.
    pub fn strict_tools(&mut self, tools: Vec<Tool>) -> Result<(), Refusal> {
        match tools.iter().any(|tool| tool.strict) {
            true => self.any_tool(tools),
            false => Ok(()),
        }
    }

    /// These tools may be called, each by its schema where it says `strict`.
    ///
    /// # Errors
    /// A schema is none of an object.
    pub fn any_tool(&mut self, tools: Vec<Tool>) -> Result<(), Refusal> {
        let free = || json!({ "type": "object" });
        let held = |tool: &Tool| tool.strict || takes_nothing(&tool.parameters);
        let with = |tool: Tool| Ok((if held(&tool) { arguments(&tool)? } else { free() }, tool));
        self.tools = tools.into_iter().map(with).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// One of these tools must be called, by its schema.
    ///
    /// # Errors
    /// A schema is none of an object.
    pub fn call(&mut self, tools: Vec<Tool>, parallel: bool) -> Result<(), Refusal> {
        (self.must_call, self.parallel) = (true, parallel);
        self.tools = tools
            .into_iter()
            .map(|tool| Ok((arguments(&tool)?, tool)))
            .collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Whether anything is wanted.
    pub fn nothing(&self) -> bool {
        self.form.is_none() && self.tools.is_empty()
    }

    /// Whether an answer is calls or content, and not both.
    pub fn either(&self) -> bool {
        self.must_call || self.form.is_some()
    }

    /// So many constraints, for an answer each. It takes some milliseconds and for the first
    /// request some tenths of a second: not for an async thread. `prompt`: none where text goes on
    /// without a template.
    ///
    /// # Errors
    /// The field's name, and why not.
    pub fn constraints(
        &self,
        loaded: &Loaded,
        prompt: Option<&Prompt>,
        n: usize,
        cancel: &Cancel,
    ) -> Result<Vec<Constrained>, Refusal> {
        if self.nothing() {
            return Ok(vec![]);
        }
        waited_for(cancel)?;
        let field = match &self.form {
            _ if self.must_call => "tool_choice",
            Some((_, field)) => field,
            None => "tools",
        };
        self.exact()?;
        let grammars = loaded.grammars().map_err(|why| Refusal::field(field, why))?;
        let tools: Vec<(&str, &Value)> =
            self.tools.iter().map(|(schema, tool)| (tool.name.as_str(), schema)).collect();
        let reply = Reply {
            form: prompt.map_or(chat::Form::Hermes, |prompt| prompt.form),
            prompt: prompt.map_or("", Prompt::rendered),
            content: match &self.form {
                _ if self.must_call => Content::Nothing,
                Some((form, _)) => form.content(),
                None => Content::Text,
            },
            tools: &tools,
            parallel: self.parallel,
        };
        let made = match (prompt, &self.form) {
            (None, Some((form, _))) => form.alone(grammars),
            _ => grammars.reply(&loaded.tokenizer, &reply),
        };
        let made = made.map_err(|why| self.culprit(grammars, field, &why, cancel))?;
        let words: Vec<String> = made.unheld().iter().map(ToString::to_string).collect();
        let one = |_| Constrained { constraint: made.clone(), field, unheld: words.join("; ") };
        Ok((0..n).map(one).collect())
    }

    /// Refuses what asks for exactness and cannot be held exactly.
    fn exact(&self) -> Result<(), Refusal> {
        let form = match &self.form {
            Some((Form::Json { schema, exact: true }, field)) => {
                Some(((*field).to_owned(), schema))
            }
            _ => None,
        };
        let strict = self.tools.iter().filter(|(_, tool)| tool.strict);
        let tools = strict.map(|(schema, tool)| (tool.field.clone(), schema));
        for (field, schema) in form.into_iter().chain(tools) {
            let all = unheld(schema).map_err(|why| Refusal::field(&field, why))?;
            if let Some(one) = all.iter().find(|one| one.matters) {
                let why = format_args!(
                    "{one} cannot be held, and strict asks for it: leave one of them out"
                );
                return Err(Refusal::field(&field, why));
            }
        }
        Ok(())
    }

    /// Which field is to blame where all of them together cannot be kept.
    fn culprit(
        &self,
        grammars: &Grammars,
        field: &str,
        why: &GrammarError,
        cancel: &Cancel,
    ) -> Refusal {
        if let Some((form, field)) = &self.form
            && let Err(why) = form.alone(grammars)
        {
            return Refusal::field(field, why);
        }
        for (schema, tool) in &self.tools {
            if let Err(left) = waited_for(cancel) {
                return left;
            }
            if let Err(why) = grammars.json_schema(schema) {
                return Refusal::field(&tool.field, why);
            }
        }
        Refusal::field(field, why)
    }
}

/// Whether somebody waits for what is made.
fn waited_for(cancel: &Cancel) -> Result<(), Refusal> {
    match cancel.is_cancelled() {
        true => Err(Refusal::internal("nobody waits for this")),
        false => Ok(()),
    }
}

/// Whether a tool has no parameters: there are none in its schema, and it does not say that others
/// may come.
fn takes_nothing(parameters: &Value) -> bool {
    const SAYS: [&str; 9] = [
        "$ref",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "allOf",
        "anyOf",
        "oneOf",
        "const",
        "enum",
    ];
    let Some(map) = parameters.as_object() else { return false };
    let empty = |word: &str| match map.get(word) {
        Some(Value::Object(all)) => all.is_empty(),
        Some(Value::Array(all)) => all.is_empty(),
        other => other.is_none(),
    };
    empty("properties") && empty("required") && !SAYS.iter().any(|word| map.contains_key(*word))
}

/// The schema of a tool's arguments: they are an object, whether it says so or not; one without
/// parameters takes `{}`.
fn arguments(tool: &Tool) -> Result<Value, Refusal> {
    let mut schema = tool.parameters.clone();
    let nothing = takes_nothing(&schema);
    let Some(map) = schema.as_object_mut() else { return Ok(json!({ "type": "object" })) };
    if *map.entry("type").or_insert_with(|| "object".into()) != "object" {
        return Err(Refusal::field(
            &tool.field,
            "give the schema of an object: \"type\": \"object\"",
        ));
    }
    match nothing {
        true => Ok(json!({ "const": {} })),
        false => Ok(schema),
    }
}
