//! Embeddings: vectors of texts, from encoder models.

use super::{Session, SessionError};
use crate::graph::{Graph, Pooling};
use crate::placement::Stage;

impl Session {
    /// Computes a text's vector. The model must be an encoder.
    ///
    /// # Errors
    /// A model that makes logits; no tokens, too many, or ids outside the vocabulary; a device
    /// fault.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        self.not_lost()?;
        let made = match &mut self.runner {
            Stage::Host(host) => host.embed(tokens),
            Stage::Gpu(gpu) => gpu.embed(tokens),
        };
        if let Err(SessionError::Lost(why)) = &made {
            self.lost = Some(why.clone());
        }
        made
    }
}

/// Checks the tokens and returns how their rows are pooled to a vector.
///
/// # Errors
/// A model that makes logits; no tokens, too many, or ids outside the vocabulary.
pub(crate) fn embeds(
    graph: &Graph,
    tokens: &[u32],
    context: usize,
) -> Result<Pooling, SessionError> {
    let Some(pooling) = graph.pooling else {
        return Err(SessionError::Device(format!(
            "architecture '{}' is not an encoder",
            graph.arch
        )));
    };
    let (n_vocab, n) = (graph.n_vocab(), tokens.len());
    if let Some(&id) = tokens.iter().find(|&&id| id as usize >= n_vocab) {
        return Err(SessionError::Token { id, n_vocab });
    }
    match n {
        0 => Err(SessionError::NoTokens),
        n if n > context => Err(SessionError::Context { tokens: n, context }),
        _ => Ok(pooling),
    }
}
