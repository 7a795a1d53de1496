//! Whether an answer calls tools, and which: `tool_choice` of every dialect.

use crate::constrain::{Follow, Form};
use crate::conversation::Tool;
use crate::refusal::Refusal;

/// Which tools an answer calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The model decides.
    Auto,
    /// None.
    None,
    /// At least one, of any tool.
    Required,
    /// This one.
    Tool(String),
}

impl Choice {
    /// The form of an answer to a request that offers these tools and asks for this form of text.
    ///
    /// # Errors
    /// A tool's schema is not that of an object.
    pub fn follow(
        self,
        offered: Vec<Tool>,
        form: Option<(Form, &'static str)>,
        parallel: bool,
    ) -> Result<Follow, Refusal> {
        let mut follow = Follow { form, parallel, ..Follow::default() };
        match self {
            Choice::None => {}
            // Text follows the form; a call names an offered tool.
            Choice::Auto if follow.form.is_some() && !offered.is_empty() => {
                follow.any_tool(offered)?;
            }
            Choice::Auto => follow.strict_tools(offered)?,
            Choice::Required => follow.call(offered, parallel)?,
            Choice::Tool(name) => {
                let named = offered.into_iter().filter(|tool| tool.name == name);
                follow.call(named.collect(), false)?;
            }
        }
        Ok(follow)
    }
}
