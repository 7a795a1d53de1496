//! Embeddings: vectors of texts, from encoder models.

use super::GpuRunner;
use kjit_exec::{HiddenStates, Runner, SessionError, TokenSpan, embeds};

impl GpuRunner {
    /// Computes a text's vector.
    ///
    /// # Errors
    /// The model computes logits; there are no tokens, too many tokens, or ids outside the
    /// vocabulary; a device fault.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        let pooling = embeds(&self.graph, tokens, self.context)?;
        let (width, mut all) = (self.graph.value(self.graph.logits).width, vec![]);
        // An encoder's sequences have no tokens, so any slot is free.
        self.rows(&[TokenSpan { slot: 0, first: 0, tokens }], &mut |_, made| {
            if let HiddenStates::Device(stream, rows) = made {
                all.append(&mut stream.read(&rows)?);
            }
            Ok(())
        })?;
        Ok(pooling.of(&all, width))
    }
}
