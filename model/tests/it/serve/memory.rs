//! Cached prefixes, and requests for which memory is short.

use super::{TINY, all, prompt, scheduler, session, until};
use crate::it::support::files::model_path;
use crate::it::support::returning;
use crate::it::support::solo_session::SoloSession;
use crate::it::support::submitted_request::{Got, SubmittedRequest, ask};
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::serve::{Event, Failure, Owner, Reason, Scheduler, SchedulerOptions, State};
use kjit_model::session::{OpenOptions, Session};
use std::sync::Arc;

#[test]
fn cached_prefix_is_reused_without_changing_answers() {
    let off = SchedulerOptions { reuse: false, ..SchedulerOptions::default() };
    let Some(plain) = scheduler(4, 200, off) else { return };
    let scheduler = super::scheduler(4, 200, SchedulerOptions::default()).unwrap();
    let answer = |tokens: &[u32]| {
        let got = ask(&scheduler, tokens, 9, |_| {}).got();
        let want = ask(&plain, tokens, 9, |_| {}).got();
        assert_eq!((&got.ids, want.cached()), (&want.ids, 0));
        got
    };
    // The next turn of a conversation continues where the last answer ended. The answer's last
    // token was not fed, so it is not cached.
    let mut talk = prompt(1, 40);
    let first = answer(&talk);
    assert_eq!(first.cached(), 0);
    talk.extend(&first.ids);
    let whole = talk.len() - 1;
    talk.extend(prompt(2, 7));
    let second = answer(&talk);
    assert_eq!(second.cached(), whole);
    // The question is repeated: its cached beginning is still available.
    assert_eq!(answer(&prompt(1, 40)).cached(), 39);
    let mut other = prompt(1, 40);
    other.extend(prompt(3, 11));
    assert_eq!(answer(&other).cached(), 40);
    talk.extend(&second.ids);
    assert_eq!(answer(&talk).cached(), talk.len() - 1, "the conversation is still cached");
    // Prompts without a common prefix, until they occupy all slots.
    for i in 10..16 {
        assert_eq!(answer(&prompt(i, 40)).cached(), 0);
    }
    assert_eq!(answer(&talk).cached(), 0, "the least recently used one was dropped");
    let status = scheduler.status();
    assert_eq!(status.kept_slots, 4, "{status:?}");
    assert_eq!(status.cached_tokens, (whole + 39 + 40 + talk.len() - 1) as u64, "{status:?}");
    assert_eq!(plain.status().kept_slots, 0);
}

#[test]
fn requests_with_common_prefix_wait_for_the_first() {
    let off = SchedulerOptions { reuse: false, ..SchedulerOptions::default() };
    let Some(plain) = scheduler(8, 400, off) else { return };
    let options = SchedulerOptions { token_budget: Some(32), ..SchedulerOptions::default() };
    let scheduler = super::scheduler(8, 400, options).unwrap();
    let with_system = |i: usize| [prompt(77, 300), prompt(i, 20)].concat();
    let go = |s: &Scheduler| all((0..20).map(|i| ask(s, &with_system(i), 8, |_| {})).collect());
    let (shared, alone) = (go(&scheduler), go(&plain));
    for (i, (shared, alone)) in shared.iter().zip(&alone).enumerate() {
        assert_eq!(shared.ids, alone.ids, "request {i}");
    }
    let status = scheduler.status();
    assert!(
        status.prompt_tokens <= 300 + 20 * 21,
        "{} tokens of prompts were computed",
        status.prompt_tokens
    );
    assert_eq!(status.prompt_tokens + status.cached_tokens, 20 * 320);
}

#[test]
fn owners_neither_share_nor_await_prefixes() {
    // One model has keys and values only. The other has a scan beside attention; its states are
    // cached only at the borders of pieces.
    for name in [TINY, "../archs/falcon-h1.gguf"] {
        let Some(session) = session(name, 6, 400) else { return };
        let text: Vec<u32> =
            prompt(5, 300).into_iter().map(|id| id % session.n_vocab() as u32).collect();
        let options = SchedulerOptions { token_budget: Some(16), ..SchedulerOptions::default() };
        let scheduler = Scheduler::start(session, options).unwrap();
        let ask = |owner: u8| ask(&scheduler, &text, 2, |r| r.owner = Owner([owner; 32]));
        // Three simultaneous requests: owner 2 must not wait for owner 1's prompt; the second
        // request of owner 1 must.
        let cached: Vec<usize> =
            all(vec![ask(1), ask(2), ask(1)]).iter().map(Got::cached).collect();
        assert!(cached[..2] == [0, 0] && cached[2] >= 256, "{name}: {cached:?}");
        // An owner finds its own text, even if other owners asked for it in between.
        let cached = [3, 1, 4, 2, 1].map(|owner| ask(owner).got().cached());
        assert!(cached[0] == 0 && cached[2] == 0, "{name}: {cached:?}");
        assert!([1, 3, 4].iter().all(|&i| cached[i] >= 256), "{name}: {cached:?}");
    }
}

#[test]
fn recurrent_states_are_saved_at_continuation_points() {
    // A model with a scan and attention in each layer.
    let Some(path) = model_path("archs/falcon-h1.gguf") else { return };
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = returning::options(OpenOptions {
        threads: 2,
        precise: true,
        paged: None,
        ..OpenOptions::default()
    });
    let mut host = SoloSession::cpu(&gguf, &graph, &OpenOptions { paged: None, ..options.clone() });
    let session = Session::on_cpu(gguf, graph, &OpenOptions { sequences: 4, ..options }).unwrap();
    returning::assert_matches_host(
        &Scheduler::start(session, SchedulerOptions::default()).unwrap(),
        &mut host,
        1e-3,
        false,
    );
}

#[test]
fn preempted_request_is_recomputed_without_loss() {
    let Some(plain) = scheduler(1, 120, SchedulerOptions::default()) else { return };
    let held = SchedulerOptions { held_tokens: Some(150), ..SchedulerOptions::default() };
    let scheduler = super::scheduler(6, 120, held).unwrap();
    let warm = |i: usize| SampleOptions {
        temperature: 1.5,
        seed: i as u64,
        frequency_penalty: 0.3,
        ..SampleOptions::default()
    };
    let go = |s: &Scheduler| {
        let ask = |i: usize| {
            ask(s, &prompt(i, 20), 50, |r| {
                if i % 2 == 1 {
                    r.sampling = warm(i)
                }
            })
        };
        all((0..7).map(ask).collect())
    };
    let (tight, alone) = (go(&scheduler), go(&plain));
    for (i, (tight, alone)) in tight.iter().zip(&alone).enumerate() {
        assert_eq!(tight.ids, alone.ids, "request {i}");
        let starts = tight.events.iter().filter(|e| matches!(e, Event::Started { .. })).count();
        assert_eq!((starts, tight.reason()), (1, Reason::Length));
    }
    let status = scheduler.status();
    assert!(status.preempted >= 2, "{status:?}");
    assert!(status.held_tokens <= 150, "{status:?}");
}

/// Runs in a separate process with a few hundred kilobytes of memory left.
#[test]
fn single_request_without_memory_may_retry_after_an_error() {
    const CHILD: &str = "TEST_LITTLE_MEMORY";
    const NAME: &str = "it::serve::memory::single_request_without_memory_may_retry_after_an_error";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        // One arena, so that freed memory is available to all threads.
        child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").env("MALLOC_ARENA_MAX", "1");
        let out = child.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        return;
    }
    let options = SchedulerOptions { token_budget: Some(512), ..SchedulerOptions::default() };
    let Some(scheduler) = scheduler(2, 4000, options) else { return };
    ask(&scheduler, &prompt(1, 4), 2, |_| {}).got();
    let of_process = std::fs::read_to_string("/proc/self/statm").unwrap();
    let size = of_process.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096;
    let limit = libc::rlimit { rlim_cur: size + (8 << 20), rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is valid for the call, which only reads the limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let mut taken: Vec<Vec<u8>> = Vec::with_capacity(4096);
    for bytes in [1 << 20, 64 << 10] {
        let mut one = vec![];
        while taken.len() < 4096 && one.try_reserve_exact(bytes).is_ok() {
            taken.push(std::mem::take(&mut one));
        }
    }
    taken.truncate(taken.len() - 4);
    let long = || ask(&scheduler, &prompt(2, 2000), 2, |_| {}).got();
    let failed = long();
    let state = scheduler.status().state;
    drop(taken);
    assert!(
        matches!(&failed.end, Err(Failure::Memory(why)) if why.contains("bytes")),
        "{:?}",
        failed.end
    );
    assert_eq!(state, State::Short);
    // The scheduler retries even if there is no request.
    until(&scheduler, |s| s.state == State::Ready);
    assert_eq!(long().reason(), Reason::Length);
}

#[test]
fn long_prompt_is_not_starved_when_memory_is_short() {
    let Some(plain) = scheduler(1, 120, SchedulerOptions::default()) else { return };
    let held = SchedulerOptions { held_tokens: Some(150), ..SchedulerOptions::default() };
    let scheduler = super::scheduler(6, 120, held).unwrap();
    let small =
        |i: usize| ask(&scheduler, &prompt(i, 10), 30, |r| r.client = Some("many".to_owned()));
    let mut many: Vec<SubmittedRequest> = (0..3).map(small).collect();
    until(&scheduler, |s| s.running == 3);
    let long = ask(&scheduler, &prompt(99, 100), 5, |r| r.client = Some("one".to_owned()));
    many.extend((3..40).map(small));
    let long = long.got();
    let queued = long.end.as_ref().unwrap().1.queued;
    assert_eq!(long.ids, ask(&plain, &prompt(99, 100), 5, |_| {}).got().ids);
    let many = all(many);
    for i in [0, 20, 39] {
        assert_eq!(many[i].ids, ask(&plain, &prompt(i, 10), 30, |_| {}).got().ids, "request {i}");
    }
    // All requests were submitted at about the same time.
    let before = many.iter().filter(|got| got.end.as_ref().unwrap().1.total < queued).count();
    assert!(
        (1..16).contains(&before),
        "{before} of 40 short answers ended before the long one began"
    );
}
