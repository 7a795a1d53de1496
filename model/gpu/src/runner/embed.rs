//! Vectors of texts.

use super::GpuRunner;
use kjit_exec::{Made, Piece, Runner, SessionError, embeds};

impl GpuRunner {
    /// A text's vector.
    ///
    /// # Errors
    /// A model that makes logits, ids outside the vocabulary, more tokens than fit, none at all; a
    /// device that failed.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SessionError> {
        let pooling = embeds(&self.graph, tokens, self.context)?;
        let (width, mut all) = (self.graph.value(self.graph.logits).width, vec![]);
        // No sequence of a model that makes vectors has tokens, so any slot is free.
        self.rows(&[Piece { slot: 0, first: 0, tokens }], &mut |_, made| {
            if let Made::Device(stream, rows) = made {
                all.append(&mut stream.read(&rows)?);
            }
            Ok(())
        })?;
        Ok(pooling.of(&all, width))
    }
}
