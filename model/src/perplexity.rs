//! How well a model predicts a text: exp of the mean negative log-likelihood of its tokens.

use crate::session::{SequenceId, Session, SessionError, Want, check_scores};
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// A measured perplexity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexity {
    /// exp of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Tokens of the text.
    pub tokens: usize,
    /// Predictions that were scored.
    pub scored: usize,
}

/// Why a perplexity could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerplexityError {
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Not even one window.
    #[error(
        "the text has {tokens} tokens, fewer than one window of {window}: give a longer text, or \
         a smaller -c"
    )]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// No prediction would be scored.
    #[error("a window of {0} tokens scores no prediction: give -c 3 or more")]
    Window(usize),
}

/// Tokenises `text` once, cuts it into windows (a last partial one is dropped), puts BOS first in
/// each where the vocabulary adds it, and scores the predictions of the second half of each window,
/// every window from the start of the sequence. After each window `progress` gets the windows done,
/// the windows in all, and the perplexity so far.
///
/// # Errors
/// A text shorter than a window, and the session's.
pub fn perplexity(
    session: &mut Session,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    text: &[u8],
    window: usize,
    progress: &mut dyn FnMut(usize, usize, f64),
) -> Result<Perplexity, PerplexityError> {
    let ids = tokenizer.encode(text, EncodeOptions::RAW_PROMPT);
    // Predictions of tokens window/2 + 1 .. window: by what stands before them, half a window at
    // least.
    let first = window / 2;
    if first + 1 >= window {
        return Err(PerplexityError::Window(window));
    }
    let windows = ids.len() / window;
    if windows == 0 {
        return Err(PerplexityError::TooShort { tokens: ids.len(), window });
    }
    let (mut sum, mut scored) = (0.0f64, 0usize);
    let n_vocab = session.n_vocab();
    for (done, part) in ids.chunks_exact(window).enumerate() {
        let mut part = part.to_vec();
        if let (true, Some(bos), Some(slot)) =
            (tokenizer.add_bos(), tokenizer.bos(), part.first_mut())
        {
            *slot = bos;
        }
        session.truncate(sequence, 0)?;
        // The first half's logits are not wanted: they would be most of the memory.
        let (before, after) = part.split_at(first);
        session.feed(sequence, before, Want::Nothing)?;
        let logits = session.feed(sequence, after, Want::All)?;
        logits.chunks_exact(n_vocab).try_for_each(check_scores)?;
        for (row, &next) in logits.chunks_exact(n_vocab).zip(after.iter().skip(1)) {
            sum += negative_log_likelihood(row, next as usize);
            scored += 1;
        }
        progress(done + 1, windows, (sum / scored as f64).exp());
    }
    Ok(Perplexity { perplexity: (sum / scored as f64).exp(), tokens: ids.len(), scored })
}

/// −ln softmax(row)[id], in f64.
fn negative_log_likelihood(row: &[f32], id: usize) -> f64 {
    let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|&v| (f64::from(v) - max).exp()).sum();
    max + sum.ln() - f64::from(row.get(id).copied().unwrap_or(f32::NEG_INFINITY))
}

#[cfg(test)]
mod tests {
    use super::negative_log_likelihood;

    #[test]
    fn equal_scores_cost_the_logarithm_of_their_number() {
        assert!((negative_log_likelihood(&[1e4; 8], 3) - 8f64.ln()).abs() < 1e-12);
    }
}
