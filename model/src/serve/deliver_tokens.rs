//! Passes the tokens of a step to their answers.

use super::running::{End, Running};

/// Passes a token to the request. Returns the end, if it was the last token.
pub(super) fn hand_out(
    seen: &mut super::status::Status,
    r: &mut Running,
    id: u32,
    logprobs: Option<super::request::Logprobs>,
    full: bool,
) -> Option<End> {
    let first = r.job.usage.generated_tokens == 0;
    let (took, end) = r.job.token(id, logprobs, full);
    seen.generated_tokens += 1;
    if first {
        seen.first_token.add(took)
    } else {
        seen.between_tokens.add(took)
    }
    end
}
