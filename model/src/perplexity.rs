//! Perplexity of a text: exp of the mean negative log-likelihood of its tokens.

use crate::session::{SequenceId, Session, SessionError, Want, check_scores};
use crate::tokenizer::{EncodeOptions, Tokenizer};

/// A measured perplexity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexity {
    /// exp of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Tokens of the text.
    pub tokens: usize,
    /// Number of scored predictions.
    pub scored: usize,
}

/// The error of a perplexity measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerplexityError {
    /// The session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The text is shorter than one window.
    #[error(
        "the text has {tokens} tokens, fewer than one window of {window}: \
         use a longer text or a smaller -c"
    )]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// The window is too small to score a prediction.
    #[error("a window of {0} tokens is too small to score a prediction: use -c 3 or more")]
    Window(usize),
}

/// Tokenises `text` once and cuts it into windows. An incomplete last window is dropped. Each
/// window starts an empty sequence, with BOS if the vocabulary adds it. The predictions of its
/// second half are scored. After each window `progress` is called with the number of finished
/// windows, the total number, and the perplexity so far.
///
/// # Errors
/// The text is shorter than a window, or the session returns an error.
pub fn perplexity(
    session: &mut Session,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    text: &[u8],
    window: usize,
    progress: &mut dyn FnMut(usize, usize, f64),
) -> Result<Perplexity, PerplexityError> {
    let ids = tokenizer.encode(text, EncodeOptions::RAW_PROMPT);
    perplexity_of_ids(session, sequence, tokenizer, &ids, window, progress)
}

/// As [`perplexity`], of a text's token ids.
///
/// # Errors
/// See [`perplexity`].
pub fn perplexity_of_ids(
    session: &mut Session,
    sequence: SequenceId,
    tokenizer: &Tokenizer,
    ids: &[u32],
    window: usize,
    progress: &mut dyn FnMut(usize, usize, f64),
) -> Result<Perplexity, PerplexityError> {
    // The scored tokens are window/2 + 1 .. window, each with at least half a window before it.
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
        // The logits of the first half are not requested: they would take most of the memory.
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
    fn equal_scores_cost_log_of_their_count() {
        assert!((negative_log_likelihood(&[1e4; 8], 3) - 8f64.ln()).abs() < 1e-12);
    }
}
