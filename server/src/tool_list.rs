//! The tools of a request, for dialects whose format differs from the format of templates.

use crate::fields::Fields;
use crate::refusal::Refusal;
use crate::tool::MAX_TOOLS;
use crate::tool::{Tool, checked_name};
use serde_json::{Value, json};

/// Tools that a request offers.
#[derive(Debug, Default)]
pub struct ToolList {
    tools: Vec<Tool>,
    /// The tools in the templates' format.
    written: Vec<Value>,
}

impl ToolList {
    /// Adds a tool. `f` has its `name`, `description` and `strict`; `schema` names the field with
    /// the tool's schema.
    ///
    /// # Errors
    /// A field is wrong, or another tool has this name.
    pub fn add(&mut self, f: &mut Fields, schema: &str) -> Result<(), Refusal> {
        if self.tools.len() >= MAX_TOOLS {
            return Err(Refusal::field("tools", format_args!("give at most {MAX_TOOLS}")));
        }
        let name = checked_name(f, &self.tools)?;
        let description = f.text("description")?;
        let strict = f.flag("strict")?.unwrap_or(false);
        let parameters = match f.take(schema) {
            None => json!({}),
            Some(schema @ Value::Object(_)) => schema,
            Some(_) => return Err(f.wrong(schema, "give a JSON schema: an object")),
        };
        let mut function = json!({ "name": name });
        if let Some(map) = function.as_object_mut() {
            map.extend(description.map(|text| ("description".to_owned(), text.into())));
            map.insert("parameters".to_owned(), parameters.clone());
        }
        self.written.push(json!({ "type": "function", "function": function }));
        self.tools.push(Tool { field: f.name(schema), name, parameters, strict });
        Ok(())
    }

    /// Whether a tool has this name.
    pub fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// Whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// The tools, and their list in the templates' format, `None` if there are none.
    pub fn into_parts(self) -> (Vec<Tool>, Option<String>) {
        let written = (!self.written.is_empty()).then(|| Value::from(self.written).to_string());
        (self.tools, written)
    }
}
