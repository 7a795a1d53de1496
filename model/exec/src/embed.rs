//! Embeddings: vectors of texts, from encoder models.

use super::SessionError;
use kjit_graph::{Graph, Pooling};

/// Checks the tokens and returns how their rows are pooled to a vector.
///
/// # Errors
/// The model computes logits. There are no tokens, too many tokens, or ids outside the vocabulary.
pub fn embeds(graph: &Graph, tokens: &[u32], context: usize) -> Result<Pooling, SessionError> {
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
