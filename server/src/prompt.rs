//! A prompt, and the format of its answer.

use kjit_model::chat::Form;
use kjit_model::exec::ImageRows;
use std::sync::Arc;

/// A prompt, and the format of its answer.
pub struct Prompt {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The images whose rows are among the ids.
    pub images: Vec<Arc<ImageRows>>,
    /// The format in which the model writes reasoning and calls.
    pub form: Form,
    pub(super) rendered: String,
    /// Names of the offered tools.
    pub(super) offered: Vec<String>,
}

impl Prompt {
    /// The prompt as text.
    pub fn rendered(&self) -> &str {
        &self.rendered
    }
}
