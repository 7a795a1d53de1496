//! Requests to a model with recurrent states, which cannot be truncated. The requests are turns of
//! conversations, prompts with a common system prompt, and more texts than stored copies of states.
//! Each answer must equal the answer of the CPU. Only the tokens after a stored copy may be
//! computed. For any device.

use super::paged::{PAGE, text};
use super::side_by_side::gap;
use super::solo_session::SoloSession;
use super::submitted_request::{Got, SubmittedRequest, ask};
use kjit_model::serve::{Reason, Scheduler, SchedulerOptions};
use kjit_model::session::OpenOptions;

/// Number of copies of states that two sequences in pages may store.
pub const COPIES: usize = 8;

/// Options with two sequences and more pages than they need.
pub fn options(options: OpenOptions) -> OpenOptions {
    OpenOptions {
        sequences: 2,
        context: Some(300),
        paged: Some(12 * PAGE),
        prefill_chunk: Some(160),
        ..options
    }
}

/// A step has as many tokens as a page. So each prompt has a copy of the states at the end of its
/// last whole page, also on a GPU.
pub fn scheduling() -> SchedulerOptions {
    SchedulerOptions { token_budget: Some(PAGE), ..SchedulerOptions::default() }
}

/// Submits the requests and compares each answer with the CPU's. `all`: also submits more texts
/// than copies.
pub fn assert_matches_host(scheduler: &Scheduler, host: &mut SoloSession, near: f32, all: bool) {
    let vocab = host.n_vocab();
    let paged = scheduler.status().pages.is_some();
    let mut fine = |name: &str, prompt: &[u32], got: &Got, n: usize| {
        assert_eq!((got.reason(), got.ids.len()), (Reason::Length, n), "{name}");
        let gap = gap(host, &[prompt, &got.ids].concat(), prompt.len());
        assert!(gap < near, "{name}: a token is {gap} below the choice of the CPU");
    };
    let one = |prompt: &[u32], n| ask(scheduler, prompt, n, |_| {}).got();
    let cached = |got: &Got, least: usize| match paged {
        // With pages, a text continues from a copy, and only the tokens after the copy are fed.
        true => assert_eq!(got.cached(), least),
        // On the CPU the tokens after the copy are run again and count as cached.
        false => assert!(got.cached() >= least, "{} of {least}", got.cached()),
    };
    // A conversation and its next turn, which continues where the answer ended.
    let system = text(77, PAGE + 12, vocab);
    let first = [&system[..], &text(1, 9, vocab)].concat();
    let begun = one(&first, 4);
    fine("the first", &first, &begun, 4);
    cached(&begun, 0);
    let turn = [&first[..], &begun.ids, &[7, 8, 9]].concat();
    let next = one(&turn, 4);
    fine("its next turn", &turn, &next, 4);
    cached(&next, first.len() + 3);
    // The client changed the answer, so the text continues from the end of the prompt's last page.
    let told = [&first[..], &[3, 2, 1]].concat();
    let again = one(&told, 3);
    fine("another answer", &told, &again, 3);
    cached(&again, PAGE);
    // Three simultaneous requests with another system prompt. The first one computes its whole
    // pages; the others wait for it.
    let system = text(88, PAGE + 30, vocab);
    let texts: Vec<Vec<u32>> = (2..5).map(|i| [&system[..], &text(i, 9, vocab)].concat()).collect();
    let before = scheduler.status();
    let asked: Vec<SubmittedRequest> = texts.iter().map(|p| ask(scheduler, p, 3, |_| {})).collect();
    for (i, (asked, p)) in asked.into_iter().zip(&texts).enumerate() {
        let got = asked.got();
        fine(&format!("with the system prompt {i}"), p, &got, 3);
        cached(&got, if i == 0 { 0 } else { PAGE });
    }
    let status = scheduler.status();
    let computed = (status.prompt_tokens - before.prompt_tokens) as usize;
    assert!(
        computed <= texts[0].len() + 2 * (texts[0].len() - PAGE),
        "{computed} tokens were computed"
    );
    if !paged || !all {
        return;
    }
    // More texts than copies: the least recently used copies are dropped and computed again.
    let kept = |scheduler: &Scheduler| scheduler.status().kept_states;
    assert!((4..=COPIES).contains(&kept(scheduler)), "{}", kept(scheduler));
    for i in 10..14 {
        let other = text(i, PAGE + 2, vocab);
        fine(&format!("other {i}"), &other, &one(&other, 1), 1);
    }
    assert_eq!(kept(scheduler), COPIES);
    let anew = one(&turn, 4);
    assert_eq!((anew.cached(), &anew.ids), (0, &next.ids));
    let status = scheduler.status();
    assert_eq!((status.failed, status.held_tokens), (0, status.kept_tokens), "{status:?}");
}
