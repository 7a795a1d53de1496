//! Reads `tool_choice` of every dialect: whether an answer calls tools, and which.

use crate::constrain::{ContentFormat, OutputConstraints};
use crate::refusal::Refusal;
use crate::tool::Tool;

/// The choice of tools that an answer may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The model decides.
    Auto,
    /// No tool is called.
    None,
    /// At least one call of any tool.
    Required,
    /// A call of this tool.
    Tool(String),
}

impl Choice {
    /// The constraint on an answer, from the offered tools and the requested text format.
    ///
    /// # Errors
    /// A tool's schema does not describe an object.
    pub fn follow(
        self,
        offered: Vec<Tool>,
        form: Option<(ContentFormat, &'static str)>,
        parallel: bool,
    ) -> Result<OutputConstraints, Refusal> {
        let mut follow = OutputConstraints { form, parallel, ..OutputConstraints::default() };
        match self {
            Choice::None => {}
            // The text follows the format; calls name an offered tool.
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
