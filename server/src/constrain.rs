//! Answers that must keep to a schema, or call a tool.

use crate::conversation::{Prompt, Tool};
use crate::loaded::Loaded;
use crate::refusal::Refusal;
use kjit_model::chat::Form;
use kjit_model::constrain::{Content, GrammarError, Grammars, Reply};
use kjit_model::serve::Constraint;
use serde_json::{Value, json};

/// What an answer must be like. Made for each request; nothing is wanted of most.
#[derive(Debug, Default)]
pub struct Follow {
    /// A JSON schema, and the field that it came by.
    pub schema: Option<(Value, &'static str)>,
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
}

impl Follow {
    /// Of these tools, none needs to be called, and those that say `strict` are called by their schemas.
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
        let with = |tool: Tool| Ok((if tool.strict { arguments(&tool)? } else { free() }, tool));
        self.tools = tools.into_iter().map(with).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// One of these tools must be called, by its schema.
    ///
    /// # Errors
    /// A schema is none of an object.
    pub fn call(&mut self, tools: Vec<Tool>, parallel: bool) -> Result<(), Refusal> {
        (self.must_call, self.parallel) = (true, parallel);
        self.tools = tools.into_iter().map(|tool| Ok((arguments(&tool)?, tool))).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Whether anything is wanted.
    pub fn nothing(&self) -> bool {
        self.schema.is_none() && self.tools.is_empty()
    }

    /// Whether an answer is calls or content, and not both.
    pub fn either(&self) -> bool {
        self.must_call || self.schema.is_some()
    }

    /// So many constraints, for an answer each. It takes some milliseconds and for the first request some
    /// tenths of a second: not for an async thread. `prompt`: none where text goes on without a template.
    ///
    /// # Errors
    /// The field's name, and why not.
    pub fn constraints(&self, loaded: &Loaded, prompt: Option<&Prompt>, n: usize) -> Result<Vec<Constrained>, Refusal> {
        let field = match &self.schema {
            _ if self.must_call => "tool_choice",
            Some((_, field)) => field,
            None => "tools",
        };
        let grammars = loaded.grammars().map_err(|why| Refusal::field(field, why))?;
        let tools: Vec<(&str, &Value)> = self.tools.iter().map(|(schema, tool)| (tool.name.as_str(), schema)).collect();
        let reply = Reply {
            form: prompt.map_or(Form::Hermes, |prompt| prompt.form),
            prompt: prompt.map_or("", Prompt::rendered),
            content: match &self.schema {
                _ if self.must_call => Content::Nothing,
                Some((schema, _)) => Content::Json(schema),
                None => Content::Text,
            },
            tools: &tools,
            parallel: self.parallel,
        };
        let one = || match (prompt, &self.schema) {
            (None, Some((schema, _))) => grammars.json_schema(schema),
            _ => grammars.reply(&loaded.tokenizer, &reply),
        };
        let made: Result<Vec<_>, GrammarError> =
            (0..n).map(|_| Ok(Constrained { constraint: one()?, field })).collect();
        made.map_err(|why| self.culprit(grammars, field, &why))
    }

    /// Which field is to blame where all of them together cannot be kept.
    fn culprit(&self, grammars: &Grammars, field: &str, why: &GrammarError) -> Refusal {
        if let Some((schema, field)) = &self.schema
            && let Err(why) = grammars.json_schema(schema)
        {
            return Refusal::field(field, why);
        }
        for (schema, tool) in &self.tools {
            if let Err(why) = grammars.json_schema(schema) {
                return Refusal::field(&format!("tools[{}].function.parameters", tool.index), why);
            }
        }
        Refusal::field(field, why)
    }
}

/// The schema of a tool's arguments: they are an object, whether it says so or not.
fn arguments(tool: &Tool) -> Result<Value, Refusal> {
    let mut schema = tool.parameters.clone();
    let Some(map) = schema.as_object_mut() else { return Ok(json!({ "type": "object" })) };
    if *map.entry("type").or_insert_with(|| "object".into()) != "object" {
        let field = format!("tools[{}].function.parameters", tool.index);
        return Err(Refusal::field(&field, "give the schema of an object: \"type\": \"object\""));
    }
    Ok(schema)
}
