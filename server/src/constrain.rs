//! Constrained answers: by a JSON schema, a regular expression, a grammar, or tool schemas.

use crate::loaded::Loaded;
use crate::prompt::Prompt;
use crate::refusal::Refusal;
use crate::tool::Tool;
use axum::http::HeaderValue;
use axum::response::Response;
use kjit_model::cancel::Cancel;
use kjit_model::chat;
use kjit_model::constrain::{Content, Grammar, GrammarError, Grammars, Reply, unheld};
use kjit_model::serve::Constraint;
use serde_json::{Value, json};
use std::time::Duration;

/// The required format of the content.
#[derive(Debug, Clone)]
pub enum ContentFormat {
    /// JSON that matches a schema.
    Json {
        /// The schema.
        schema: Value,
        /// Whether a keyword that cannot be enforced is refused. If false, the keyword is ignored.
        exact: bool,
    },
    /// Text that matches a regular expression completely.
    Regex(String),
    /// Text that matches a Lark grammar.
    Lark(String),
}

impl ContentFormat {
    /// JSON that matches a schema, as far as its keywords can be enforced.
    pub fn json(schema: Value) -> ContentFormat {
        ContentFormat::Json { schema, exact: false }
    }

    fn content(&self) -> Content<'_> {
        match self {
            ContentFormat::Json { schema, .. } => Content::Json(schema),
            ContentFormat::Regex(expression) => Content::Regex(expression),
            ContentFormat::Lark(grammar) => Content::Lark(grammar),
        }
    }

    /// The grammar of an answer that is only this content.
    fn alone(&self, grammars: &Grammars) -> Result<Box<Grammar>, GrammarError> {
        match self {
            ContentFormat::Json { schema, .. } => grammars.json_schema(schema),
            ContentFormat::Regex(expression) => grammars.regex(expression),
            ContentFormat::Lark(grammar) => grammars.lark(grammar),
        }
    }
}

/// Constraints of an answer. Every request has this value; most have no constraints.
#[derive(Debug, Default)]
pub struct OutputConstraints {
    /// The format of the content, and the field that requested it.
    pub form: Option<(ContentFormat, &'static str)>,
    /// The tools that may be called, each with the schema of its arguments.
    pub tools: Vec<(Value, Tool)>,
    /// Whether a tool must be called.
    pub must_call: bool,
    /// Whether several calls are allowed.
    pub parallel: bool,
}

/// A constraint, and the field that requested it.
pub struct Constrained {
    /// The constraint, for the scheduler.
    pub constraint: Box<dyn Constraint>,
    /// The field that an error names.
    pub field: &'static str,
    /// Schema keywords that are not enforced, as a string. Empty: all are enforced.
    pub unheld: String,
}

/// Maximum time for the first token of a constraint.
const LONGEST: Duration = Duration::from_secs(10);
/// Response header that lists the schema keywords that were not enforced.
const NOT_ENFORCED: &str = "x-kjit-not-held";

/// The schema keywords that are not enforced, as a string.
pub fn not_held(constraints: &[Constrained]) -> String {
    constraints.first().map_or_else(String::new, |one| one.unheld.clone())
}

/// Adds the header to a response.
pub fn noted(mut response: Response, not_held: &str) -> Response {
    const LONGEST: usize = 500;
    let words: String = not_held.escape_default().take(LONGEST).collect();
    if let Some(value) = HeaderValue::from_str(&words).ok().filter(|value| !value.is_empty()) {
        response.headers_mut().insert(NOT_ENFORCED, value);
    }
    response
}

impl OutputConstraints {
    /// Allows calls of these tools. Calls of tools with `strict` follow their schemas.
    ///
    /// # Errors
    /// The schema of a tool does not describe an object.
    pub fn strict_tools(&mut self, tools: Vec<Tool>) -> Result<(), Refusal> {
        match tools.iter().any(|tool| tool.strict) {
            true => self.any_tool(tools),
            false => Ok(()),
        }
    }

    /// Allows calls of these tools. Calls of tools with `strict` follow their schemas.
    ///
    /// # Errors
    /// The schema of a tool does not describe an object.
    pub fn any_tool(&mut self, tools: Vec<Tool>) -> Result<(), Refusal> {
        let free = || json!({ "type": "object" });
        let held = |tool: &Tool| tool.strict || takes_nothing(&tool.parameters);
        let with = |tool: Tool| Ok((if held(&tool) { arguments(&tool)? } else { free() }, tool));
        self.tools = tools.into_iter().map(with).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Requires a call of one of these tools, with arguments that match its schema.
    ///
    /// # Errors
    /// The schema of a tool does not describe an object.
    pub fn call(&mut self, tools: Vec<Tool>, parallel: bool) -> Result<(), Refusal> {
        (self.must_call, self.parallel) = (true, parallel);
        self.tools = tools
            .into_iter()
            .map(|tool| Ok((arguments(&tool)?, tool)))
            .collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Whether there is no constraint.
    pub fn nothing(&self) -> bool {
        self.form.is_none() && self.tools.is_empty()
    }

    /// Whether an answer is either calls or content, never both.
    pub fn either(&self) -> bool {
        self.must_call || self.form.is_some()
    }

    /// Creates one constraint for each of `n` answers. This takes milliseconds (the first request:
    /// tenths of a second), which is too long for an async thread. `prompt` is `None` if the answer
    /// continues a text without a template.
    ///
    /// # Errors
    /// The field and the reason of the failure.
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
        let mut made = made.map_err(|why| self.culprit(grammars, field, &why, cancel))?;
        // A grammar may be too large for its first token. Here this does not delay other requests.
        made.try_first(LONGEST, cancel).map_err(|why| Refusal::field(field, why))?;
        let words: Vec<String> = made.unheld().iter().map(ToString::to_string).collect();
        let one = |_| Constrained { constraint: made.clone(), field, unheld: words.join("; ") };
        Ok((0..n).map(one).collect())
    }

    /// Refuses a schema that must be enforced exactly but contains a keyword that cannot be
    /// enforced.
    fn exact(&self) -> Result<(), Refusal> {
        let form = match &self.form {
            Some((ContentFormat::Json { schema, exact: true }, field)) => {
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
                    "{one} cannot be enforced, but strict is on: remove the keyword or strict"
                );
                return Err(Refusal::field(&field, why));
            }
        }
        Ok(())
    }

    /// The field to name in the error if the combination of constraints cannot be satisfied.
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

/// Returns an error if the client has disconnected.
fn waited_for(cancel: &Cancel) -> Result<(), Refusal> {
    match cancel.is_cancelled() {
        true => Err(Refusal::internal("the client closed the connection")),
        false => Ok(()),
    }
}

/// Whether a tool has no parameters: its schema has no properties and allows no others.
fn takes_nothing(parameters: &Value) -> bool {
    const CALL_MARKERS: [&str; 9] = [
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
    empty("properties")
        && empty("required")
        && !CALL_MARKERS.iter().any(|word| map.contains_key(*word))
}

/// The schema of a tool's arguments. Arguments must be an object, even if the schema does not say
/// so. A tool without parameters takes `{}`.
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
