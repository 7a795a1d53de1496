//! The statistics of an answer.

use crate::load::weights;
use crate::report::{bytes, say};
use kjit_model::Model;
use kjit_model::generate::Answer;
use kjit_model::gpu::{BackgroundCompiling, BackgroundStatus};

/// Tokens per second; 0 if no time was measured.
pub(super) fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// Prompt tokens per second; 0 if no token was generated, because then the prompt was not computed.
pub(super) fn prompt_rate(a: &Answer, prompt: usize) -> f64 {
    if a.ids.is_empty() { 0.0 } else { rate(prompt, a.first_token.as_secs_f64()) }
}

/// The status of the early start, if there was one.
pub(super) fn early_of(model: &Model) -> Option<&BackgroundCompiling> {
    model.session.gpu().and_then(|gpu| gpu.early())
}

/// The counts of an early start, as messages.
pub(super) fn told(early: &BackgroundStatus) -> Vec<String> {
    let BackgroundStatus { late, single, .. } = early;
    let prompts = match early.swapped_at {
        Some(at) => format!(
            "{late} kernels for prompts were compiled in the background: \
             {single} tokens were computed one by one; the kernels were used from token {at} on"
        ),
        None => {
            format!(
                "{late} kernels for prompts were not ready in time: \
                 {single} tokens of the prompt were computed one by one"
            )
        }
    };
    let whole = match (early.one_launch_at, &early.one_launch_refused) {
        (Some(at), _) => {
            format!(
                "a token was many launches until its kernel was compiled; \
                from token {at} on it was one launch"
            )
        }
        (None, Some(why)) => {
            format!("--persistent on had no effect, each token was many launches: {why}")
        }
        (None, None) => {
            "the kernel for a whole token was not ready in time: each token was many launches"
                .to_owned()
        }
    };
    let lines = [(*late > 0).then_some(prompts), early.one_launch_late.then_some(whole)];
    lines.into_iter().flatten().collect()
}

/// Prints the statistics of an answer.
pub fn statistics(a: &Answer, prompt: usize, model: &Model) {
    say(format_args!(
        "prompt {prompt} tokens, {:.1} tok/s · answer {} tokens, \
         {:.1} tok/s · load {:.2} s · first token {:.2} s · weights {} · {}",
        prompt_rate(a, prompt),
        a.ids.len(),
        rate(a.ids.len().saturating_sub(1), a.decode.as_secs_f64()),
        model.took().as_secs_f64(),
        a.first_token.as_secs_f64(),
        bytes(weights(model).0),
        a.reason.as_str(),
    ));
}
