//! Tests of the scheduler on the CPU: many requests in one session.

use crate::it::support::files::tiny_model;
use crate::it::support::returning;
use crate::it::support::solo_session::SoloSession;
use crate::it::support::submitted_request::{Got, SubmittedRequest, ask};
use kjit_model::gguf::Gguf;
use kjit_model::prompt_lookup::{self, Drafts};
use kjit_model::sample::{SampleOptions, TokenMask};
use kjit_model::serve::{
    Constraint, Event, Failure, Owner, Reason, Refused, Request, Scheduler, SchedulerOptions,
    State, Status, Stop,
};
use kjit_model::session::{
    DecodeControl, OpenOptions, Session, SessionError, StepOutput, Want, Work,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const TINY: &str = "tiny-llama-q4_k_m.gguf";

fn session(name: &str, sequences: usize, context: usize) -> Option<Session> {
    let gguf = Arc::new(Gguf::open(tiny_model(name)?).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = OpenOptions { threads: 2, precise: true, sequences, ..OpenOptions::new(context) };
    Some(Session::on_cpu(gguf, graph, &options).unwrap())
}

fn scheduler(sequences: usize, context: usize, options: SchedulerOptions) -> Option<Scheduler> {
    Some(Scheduler::start(session(TINY, sequences, context)?, options).unwrap())
}

fn prompt(number: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| ((number * 131 + i * i * 7 + i * 37 + 5) % 250) as u32).collect()
}

fn all(asked: Vec<SubmittedRequest>) -> Vec<Got> {
    asked.into_iter().map(SubmittedRequest::got).collect()
}

/// Waits until the status satisfies `so`.
fn until(scheduler: &Scheduler, so: impl Fn(&Status) -> bool) {
    let start = std::time::Instant::now();
    while !so(&scheduler.status()) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", scheduler.status());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn sixty_four_parallel_requests_match_single_ones() {
    let Some(one) = scheduler(1, 64, SchedulerOptions::default()) else { return };
    let options = SchedulerOptions { token_budget: Some(40), ..SchedulerOptions::default() };
    let many = scheduler(16, 64, options).unwrap();
    let asked: Vec<SubmittedRequest> =
        (0..64).map(|i| ask(&many, &prompt(i, 1 + i * 5 % 31), 3 + i % 9, |_| {})).collect();
    let together = all(asked);
    for (i, got) in together.into_iter().enumerate() {
        let alone = ask(&one, &prompt(i, 1 + i * 5 % 31), 3 + i % 9, |_| {}).got();
        assert_eq!(got.ids, alone.ids, "request {i}");
        assert_eq!(got.reason(), Reason::Length);
        assert_eq!(got.ids.len(), 3 + i % 9);
        assert!(
            matches!(got.events[0], Event::Started { prompt_tokens, .. } if prompt_tokens == 1 + i * 5 % 31)
        );
    }
    let status = many.status();
    assert_eq!(
        (status.taken, status.done, status.running, status.waiting),
        (64, 64, 0, 0),
        "{status:?}"
    );
    assert_eq!(status.generated_tokens, (0..64).map(|i| 3 + i % 9).sum::<u64>());
    assert!(many.stop(Duration::from_secs(5)));
    let refused = many.submit(Request::new(vec![1], Box::new(|_| ControlFlow::Continue(()))));
    assert!(matches!(refused, Err(Refused::Stopping)));
}

#[test]
fn cached_prefix_is_reused_without_changing_answers() {
    let off = SchedulerOptions { reuse: false, ..SchedulerOptions::default() };
    let Some(plain) = scheduler(4, 200, off) else { return };
    let scheduler = self::scheduler(4, 200, SchedulerOptions::default()).unwrap();
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
    let scheduler = self::scheduler(8, 400, options).unwrap();
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
    let Some(path) = crate::it::support::files::model_path("archs/falcon-h1.gguf") else { return };
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
    let scheduler = self::scheduler(6, 120, held).unwrap();
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
    const NAME: &str = "it::serve::single_request_without_memory_may_retry_after_an_error";
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
    let scheduler = self::scheduler(6, 120, held).unwrap();
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

/// Options that always choose this token.
fn always(token: u32) -> SampleOptions {
    SampleOptions { bias: vec![(token, 1e4)], ..SampleOptions::default() }
}

#[test]
fn drafted_tokens_do_not_change_answers() {
    let Some(scheduler) = scheduler(4, 300, SchedulerOptions::default()) else { return };
    // A random model does not continue repetitions, so its drafts are wrong. Drafts are right if
    // the model always repeats one token.
    let text = |i: usize| prompt(i, 12).repeat(4);
    let warm = SampleOptions {
        temperature: 0.7,
        seed: 3,
        repeat_penalty: 1.1,
        ..SampleOptions::default()
    };
    let mut drafted = 0;
    for sampling in [SampleOptions::default(), warm, always(7)] {
        let go = |lookup| {
            let ask = |i| {
                ask(&scheduler, &text(i), 60 + i, |r| {
                    (r.lookup, r.sampling, r.logprobs) =
                        (lookup, sampling.clone(), (i == 2).then_some(3));
                })
            };
            all((0..6).map(ask).collect())
        };
        let (plain, with) = (go(false), go(true));
        for (i, (plain, with)) in plain.iter().zip(&with).enumerate() {
            assert_eq!(plain.ids, with.ids, "request {i}");
            assert_eq!(with.reason(), Reason::Length);
            drafted += with.end.as_ref().unwrap().1.drafted_tokens;
        }
    }
    let status = scheduler.status();
    assert!(
        drafted > 0 && status.accepted_tokens > 0 && status.accepted_tokens < status.drafted_tokens,
        "{status:?}"
    );
}

/// The loop of `run --lookup on`.
#[test]
fn drafts_do_not_change_a_single_sequence() {
    let Some(mut session) = session(TINY, 1, 300) else { return };
    let warm = SampleOptions { temperature: 0.7, seed: 3, ..SampleOptions::default() };
    let mut drafts = Drafts::default();
    for (i, sampling) in [SampleOptions::default(), warm, always(7)].into_iter().enumerate() {
        let text = prompt(i, 12).repeat(4);
        let mut plain = vec![];
        let id = session.add(sampling.clone()).unwrap();
        let until = |ids: &mut Vec<u32>, n: usize, id| {
            ids.push(id);
            if ids.len() == n { DecodeControl::End } else { DecodeControl::Go }
        };
        session.decode(&[(id, &text)], &mut |_, id| until(&mut plain, 150, id)).unwrap();
        session.remove(id).unwrap();
        let mut with = vec![];
        let id = session.add(sampling).unwrap();
        let fed = session.feed(id, &text[..20], Want::Nothing).unwrap();
        assert!(fed.is_empty());
        let found = prompt_lookup::decode(&mut session, id, text.clone(), 28, &mut |id| {
            until(&mut with, 150, id)
        })
        .unwrap();
        assert_eq!(
            (&with, session.len(id).unwrap()),
            (&plain, 48 + 149),
            "the last token is not fed"
        );
        drafts.drafted += found.drafted;
        drafts.accepted += found.accepted;
        // Until the context is full.
        let rest = [&text[..], &with].concat();
        prompt_lookup::decode(&mut session, id, rest, 1, &mut |id| {
            until(&mut with, usize::MAX, id)
        })
        .unwrap();
        assert_eq!(with.len(), 300 - 48 + 1);
        session.remove(id).unwrap();
    }
    assert!(drafts.accepted > 0 && drafts.accepted < drafts.drafted, "{drafts:?}");
}

/// The next turn of a conversation: tokens drawn for drafts after the end are not in the sampler's
/// history. After 24 sevens another token is more likely.
#[test]
fn answer_ending_within_drafts_leaves_sampler_history_exact() {
    let Some(mut session) = session(TINY, 1, 120) else { return };
    let warm = SampleOptions { temperature: 0.7, seed: 3, frequency_penalty: 420.0, ..always(7) };
    let text = prompt(1, 9).repeat(3);
    let mut within = 0;
    for n in (8..30).step_by(3) {
        let mut ends = [(vec![], vec![]), (vec![], vec![])];
        for (with, (ids, after)) in [false, true].into_iter().zip(&mut ends) {
            let id = session.add(warm.clone()).unwrap();
            let mut until = |id| {
                ids.push(id);
                if ids.len() == n { DecodeControl::End } else { DecodeControl::Go }
            };
            match with {
                false => session.decode(&[(id, &text)], &mut |_, id| until(id)).unwrap(),
                true => {
                    let found = prompt_lookup::decode(
                        &mut session,
                        id,
                        text.clone(),
                        text.len(),
                        &mut until,
                    )
                    .unwrap();
                    within += usize::from(found.accepted > 0);
                }
            }
            let next = [&ids[n - 1..], &[5, 6]].concat();
            let third = &mut |_, token| {
                after.push(token);
                if after.len() == 3 { DecodeControl::End } else { DecodeControl::Go }
            };
            session.decode(&[(id, &next)], third).unwrap();
            session.remove(id).unwrap();
        }
        assert_eq!(ends[0], ends[1], "{n} tokens");
    }
    assert!(within > 2, "{within} answers had accepted drafts");
}

#[test]
fn failed_draft_step_draws_nothing() {
    let Some(mut session) = session(TINY, 2, 60) else { return };
    // After five sevens in the history another token is more likely.
    let warm = SampleOptions { temperature: 0.9, seed: 5, frequency_penalty: 2100.0, ..always(7) };
    let (one, other) = (session.add(warm).unwrap(), session.add(SampleOptions::default()).unwrap());
    session.feed(one, &[1, 2], Want::Nothing).unwrap();
    session.feed(other, &[1, 2], Want::Nothing).unwrap();
    session.sampler(other).unwrap().set_mask(Some(TokenMask::new(250, [])));
    let drafts = |sequence| Work { sequence, tokens: &[3, 7, 7], want: Want::Drafted(2) };
    for _ in 0..2 {
        let failed = session.step(&[drafts(one), drafts(other)]);
        assert!(matches!(failed, Err(SessionError::NothingAllowed)), "{failed:?}");
        assert_eq!((session.len(one).unwrap(), session.len(other).unwrap()), (2, 2));
    }
    session.sampler(other).unwrap().set_mask(Some(TokenMask::new(250, [9])));
    let given = session.step(&[drafts(one), drafts(other)]).unwrap();
    assert_eq!(given, [StepOutput::Tokens(vec![7, 7, 7]), StepOutput::Tokens(vec![9])]);
}

#[test]
fn invalid_requests_are_refused_with_reason() {
    let options = SchedulerOptions { max_queue: 2, ..SchedulerOptions::default() };
    let Some(scheduler) = scheduler(1, 40, options) else { return };
    let refused = |tokens: Vec<u32>, logprobs| {
        let sink = Box::new(|event| panic!("{event:?} of a refused request"));
        let request = Request { logprobs, ..Request::new(tokens, sink) };
        scheduler.submit(request).err().unwrap()
    };
    assert_eq!(refused(vec![], None), Refused::NoTokens);
    assert_eq!(refused(vec![1; 41], None), Refused::Context { tokens: 41, context: 40 });
    assert!(refused(vec![1; 41], None).to_string().contains("41 tokens, the context 40"));
    assert!(matches!(refused(vec![1, 1 << 30], None), Refused::Token { .. }));
    assert!(matches!(refused(vec![1], Some(21)), Refused::Logprobs { asked: 21, most: 20 }));
    assert!(matches!(scheduler.embed(vec![1], |_| {}), Err(Refused::NoEncoder { .. })));
    // One request runs and cannot end yet, because its sink waits.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let sink = Box::new(move |_| {
        let _ = gate.recv_timeout(Duration::from_secs(20));
        ControlFlow::Continue(())
    });
    let first = scheduler
        .submit(Request { max_tokens: Some(1), ..Request::new(vec![1, 2], sink) })
        .unwrap();
    until(&scheduler, |s| s.waiting == 0);
    let waiting: Vec<SubmittedRequest> =
        (0..2).map(|i| ask(&scheduler, &prompt(i, 4), 2, |_| {})).collect();
    let full = refused(vec![1], None);
    assert!(
        matches!(full, Refused::QueueFull { waiting: 2, retry_after } if retry_after >= Duration::from_secs(1))
    );
    drop(go);
    for got in all(waiting) {
        assert_eq!(got.reason(), Reason::Length);
    }
    drop(first);
    assert_eq!(scheduler.status().refused, 1);
}

#[test]
fn options_and_usage_round_trip_as_json() {
    let text = r#"{"device": "cuda:1", "context": 100, "kv": "Q8_0", "output": {"Vector": null}}"#;
    let options: OpenOptions = serde_json::from_str(text).unwrap();
    let want = OpenOptions {
        device: "cuda:1".parse().unwrap(),
        kv: kjit_model::session::KvType::Q8_0,
        output: kjit_model::session::Output::Vector(None),
        ..OpenOptions::new(100)
    };
    assert_eq!(options, want);
    assert_eq!(
        serde_json::from_str::<OpenOptions>(&serde_json::to_string(&options).unwrap()).unwrap(),
        want
    );
    assert!(serde_json::from_str::<OpenOptions>(r#"{"device": "nonsense"}"#).is_err());
    let sampling: SampleOptions =
        serde_json::from_str(r#"{"temperature": 0.5, "bias": [[3, 1.5]]}"#).unwrap();
    assert_eq!(
        sampling,
        SampleOptions { temperature: 0.5, bias: vec![(3, 1.5)], ..SampleOptions::default() }
    );
    let usage = kjit_model::serve::Usage { prompt_tokens: 3, ..Default::default() };
    assert_eq!(
        serde_json::from_str::<kjit_model::serve::Usage>(&serde_json::to_string(&usage).unwrap())
            .unwrap(),
        usage
    );
}

#[test]
fn answer_ends_at_end_token_unless_ignored() {
    let Some(mut plain) = session(TINY, 2, 24) else { return };
    let scheduler = |ends: Vec<u32>| {
        let mut session = session(TINY, 2, 24).unwrap();
        session.set_end_ids(ends);
        Scheduler::start(session, SchedulerOptions::default()).unwrap()
    };
    let whole = ask(&scheduler(vec![]), &prompt(3, 5), 100, |_| {}).got();
    let end = whole.ids[2];
    let at = whole.ids.iter().position(|&id| id == end).unwrap();
    let ending = scheduler(vec![end]);
    let ended = ask(&ending, &prompt(3, 5), 100, |_| {}).got();
    assert_eq!((ended.reason(), &ended.ids[..]), (Reason::Stop, &whole.ids[..=at]));
    let past = ask(&ending, &prompt(3, 5), 100, |r| r.stop = Stop::Never).got();
    assert_eq!((past.reason(), &past.ids), (Reason::ContextFull, &whole.ids));
    // A session without a scheduler ends at the same token.
    plain.set_end_ids(vec![end]);
    let start = prompt(3, 5);
    let (mut to_end, mut all) = (vec![], vec![]);
    let id = plain.add(SampleOptions::default()).unwrap();
    plain
        .decode(&[(id, &start)], &mut |_, id| {
            to_end.push(id);
            DecodeControl::Go
        })
        .unwrap();
    let id = plain.add(SampleOptions::default()).unwrap();
    plain
        .decode_past_ends(&[(id, &start)], &mut |_, id| {
            all.push(id);
            DecodeControl::Go
        })
        .unwrap();
    assert_eq!((&to_end[..], &all[..]), (&whole.ids[..=at], &whole.ids[..]));
}

#[test]
fn answers_report_each_finish_reason() {
    let Some(scheduler) = scheduler(2, 24, SchedulerOptions::default()) else { return };
    let whole = ask(&scheduler, &prompt(3, 5), 100, |_| {}).got();
    assert_eq!((whole.reason(), whole.ids.len()), (Reason::ContextFull, 24 - 5 + 1));
    let third = whole.ids[2];
    let at = whole.ids.iter().position(|&id| id == third).unwrap();
    let stopped = ask(&scheduler, &prompt(3, 5), 100, |r| r.stop = Stop::Ids(vec![third])).got();
    assert_eq!((stopped.reason(), &stopped.ids[..]), (Reason::Stop, &whole.ids[..=at]));
    let none = ask(&scheduler, &prompt(3, 5), 0, |_| {}).got();
    assert_eq!((none.reason(), none.ids.len()), (Reason::Length, 0));
    let (tell, events) = std::sync::mpsc::channel();
    let mut seen = 0;
    let sink = Box::new(move |event| {
        seen += usize::from(matches!(event, Event::Token { .. }));
        tell.send(event).unwrap();
        if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let answer = Some(scheduler.submit(Request::new(prompt(3, 5), sink)).unwrap());
    let ended = SubmittedRequest { answer, events, seen: Default::default() }.got();
    assert_eq!((ended.reason(), &ended.ids[..]), (Reason::Ended, &whole.ids[..2]));
}

#[test]
fn cancel_frees_the_slot_immediately() {
    let Some(scheduler) = scheduler(1, 4096, SchedulerOptions::default()) else { return };
    let mut long = ask(&scheduler, &prompt(1, 5), 4000, |_| {});
    let next = ask(&scheduler, &prompt(2, 5), 3, |_| {});
    let mut queued = ask(&scheduler, &prompt(2, 5), 3, |_| {});
    long.tokens(2);
    drop(queued.answer.take());
    assert_eq!(queued.got().reason(), Reason::Cancelled, "it did not run");
    long.answer.as_ref().unwrap().cancel();
    drop(long.answer.take());
    let got = long.got();
    assert_eq!(got.reason(), Reason::Cancelled);
    assert!(got.ids.len() < 3000, "{} tokens after it was cancelled", got.ids.len());
    assert_eq!(next.got().reason(), Reason::Length);
    assert_eq!(scheduler.status().cancelled, 2);
}

#[test]
fn long_prompt_does_not_block_decoding() {
    let options = SchedulerOptions { token_budget: Some(8), ..SchedulerOptions::default() };
    let Some(scheduler) = scheduler(2, 600, options) else { return };
    let talker = ask(&scheduler, &prompt(1, 3), 500, |_| {});
    talker.tokens(2);
    let before = scheduler.status().generated_tokens;
    let long = ask(&scheduler, &prompt(2, 560), 1, |_| {});
    long.tokens(1);
    // The 560 tokens are run in pieces of 7, each with one token of the other answer.
    let meanwhile = scheduler.status().generated_tokens - before;
    assert!(meanwhile >= 60, "{meanwhile} tokens while the prompt was computed");
    drop(talker);
}

#[test]
fn clients_are_scheduled_in_turns() {
    let Some(scheduler) = scheduler(1, 64, SchedulerOptions::default()) else { return };
    let order = Arc::new(std::sync::Mutex::new(vec![]));
    let mut asked = vec![];
    for (client, n) in [("greedy", 6), ("modest", 2)] {
        for i in 0..n {
            let order = Arc::clone(&order);
            asked.push(ask(&scheduler, &prompt(i, 30), 4, |r| {
                r.client = Some(client.to_owned());
                let mut sink =
                    std::mem::replace(&mut r.sink, Box::new(|_| ControlFlow::Continue(())));
                r.sink = Box::new(move |event| {
                    if matches!(event, Event::Started { .. }) {
                        order.lock().unwrap().push(client);
                    }
                    sink(event)
                });
            }));
        }
    }
    all(asked);
    let order = order.lock().unwrap().clone();
    let last = order.iter().rposition(|c| *c == "modest").unwrap();
    assert!(last <= 4, "{order:?}");
}

#[test]
fn logprobs_match_model_and_top_token_is_greedy() {
    let Some(scheduler) = scheduler(2, 64, SchedulerOptions::default()) else { return };
    let plain = ask(&scheduler, &prompt(5, 9), 6, |_| {}).got();
    let with = ask(&scheduler, &prompt(5, 9), 6, |r| r.logprobs = Some(20)).got();
    assert_eq!(plain.ids, with.ids);
    for event in &with.events {
        let Event::Token { id, logprobs } = event else { continue };
        let logprobs = logprobs.as_ref().unwrap();
        assert_eq!(logprobs.top.len(), 20);
        assert_eq!((logprobs.top[0].id, logprobs.top[0].logprob), (*id, logprobs.chosen));
        assert!(logprobs.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        let sum: f32 = logprobs.top.iter().map(|a| a.logprob.exp()).sum();
        assert!(sum > 0.0 && sum < 1.0 + 1e-5, "{sum}");
    }
    // Log probabilities are those of the model: a bias changes the choice, but not the
    // probabilities.
    let bias = SampleOptions { bias: vec![(7, 1e4)], ..SampleOptions::default() };
    let biased =
        ask(&scheduler, &prompt(5, 9), 1, |r| (r.logprobs, r.sampling) = (Some(1), bias)).got();
    let Event::Token { id: 7, logprobs: Some(logprobs) } = &biased.events[1] else {
        panic!("{biased:?}")
    };
    assert!(logprobs.chosen < logprobs.top[0].logprob && logprobs.top[0].id == plain.ids[0]);
}

/// A constraint that allows every third token, five times.
struct Thirds {
    n_vocab: usize,
    left: usize,
    fails: bool,
}

impl Constraint for Thirds {
    fn allowed(&mut self) -> Result<TokenMask, String> {
        if self.fails && self.left < 4 {
            return Err("on purpose".to_owned());
        }
        Ok(TokenMask::new(self.n_vocab, (0..self.n_vocab as u32).filter(|id| id % 3 == 0)))
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        assert_eq!(token % 3, 0);
        self.left -= 1;
        Ok(self.left == 0)
    }
}

#[test]
fn constraint_ends_answer_and_its_failure_is_isolated() {
    let Some(scheduler) = scheduler(4, 64, SchedulerOptions::default()) else { return };
    let thirds =
        |fails| Some(Box::new(Thirds { n_vocab: 250, left: 5, fails }) as Box<dyn Constraint>);
    let free = ask(&scheduler, &prompt(1, 9), 8, |_| {});
    let kept = ask(&scheduler, &prompt(1, 9), 8, |r| r.constraint = thirds(false));
    let warm = SampleOptions { temperature: 2.0, seed: 5, ..SampleOptions::default() };
    let drawn =
        ask(&scheduler, &prompt(1, 9), 8, |r| (r.constraint, r.sampling) = (thirds(false), warm));
    let fails = ask(&scheduler, &prompt(1, 9), 8, |r| r.constraint = thirds(true)).got();
    assert_eq!(fails.end, Err(Failure::Constraint("on purpose".to_owned())));
    assert_eq!(fails.ids.len(), 2);
    for got in [kept.got(), drawn.got()] {
        assert_eq!((got.reason(), got.ids.len()), (Reason::Constraint, 5));
        assert!(got.ids.iter().all(|id| id % 3 == 0));
    }
    assert_eq!(free.got().reason(), Reason::Length);
}

#[test]
fn panic_in_sink_ends_only_its_request() {
    let Some(scheduler) = scheduler(2, 64, SchedulerOptions::default()) else { return };
    let sink = Box::new(|event| match event {
        Event::Token { .. } => panic!("on purpose"),
        _ => ControlFlow::Continue(()),
    });
    let bad = scheduler.submit(Request::new(prompt(1, 5), sink)).unwrap();
    let good = ask(&scheduler, &prompt(2, 5), 8, |_| {}).got();
    assert_eq!(good.reason(), Reason::Length);
    until(&scheduler, |s| s.failed == 1 && s.running == 0);
    drop(bad);
}

#[test]
fn stop_finishes_running_requests_or_reports_timeout() {
    let Some(scheduler) = scheduler(1, 64, SchedulerOptions::default()) else { return };
    let asked: Vec<SubmittedRequest> =
        (0..3).map(|i| ask(&scheduler, &prompt(i, 5), 5, |_| {})).collect();
    assert!(scheduler.stop(Duration::from_secs(60)));
    assert!(all(asked).iter().all(|got| got.reason() == Reason::Length));
    let scheduler = self::scheduler(1, 8192, SchedulerOptions::default()).unwrap();
    let asked: Vec<SubmittedRequest> =
        (0..2).map(|i| ask(&scheduler, &prompt(i, 5), 8000, |_| {})).collect();
    asked[0].tokens(1);
    assert!(!scheduler.stop(Duration::from_millis(1)));
    for got in all(asked) {
        assert_eq!(got.end, Err(Failure::Stopped));
    }
    // Dropping the last handle stops the scheduler, too.
    let scheduler = self::scheduler(1, 64, SchedulerOptions::default()).unwrap();
    let asked = ask(&scheduler, &prompt(1, 5), 5000, |_| {});
    drop(scheduler);
    assert_eq!(asked.got().end, Err(Failure::Stopped));
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}

#[test]
fn five_hundred_mixed_requests_end_once_without_leaks() {
    let options = SchedulerOptions {
        held_tokens: Some(250),
        token_budget: Some(24),
        ..SchedulerOptions::default()
    };
    let Some(scheduler) = scheduler(6, 96, options) else { return };
    let mut random = 1u64;
    let mut next = |n: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let mut before = 0;
    for round in 0..10 {
        let mut asked = vec![];
        for _ in 0..50 {
            let shared = prompt(next(3) as usize, [0, 20, 40][next(3) as usize]);
            let text = [shared, prompt(next(1000) as usize, 1 + next(20) as usize)].concat();
            let warm = SampleOptions {
                temperature: next(2) as f32,
                seed: next(9),
                ..SampleOptions::default()
            };
            let (kind, client) = (next(8), format!("client {}", next(4)));
            let mut one = ask(&scheduler, &text, 1 + next(12) as usize, |r| {
                (r.sampling, r.client, r.lookup) = (warm, Some(client), kind == 0);
                r.logprobs = (kind == 1).then_some(5);
                r.constraint = (kind == 2 || kind == 3).then(|| {
                    Box::new(Thirds { n_vocab: 250, left: 5, fails: kind == 3 })
                        as Box<dyn Constraint>
                });
            });
            match next(8) {
                0 => drop(one.answer.take()),
                1 => one.answer.as_ref().unwrap().cancel(),
                2 => {
                    // It is cancelled some tokens later.
                    let cancel = one.answer.take();
                    std::thread::sleep(Duration::from_micros(next(2000)));
                    drop(cancel);
                }
                _ => {}
            }
            asked.push(one);
        }
        // Each request has exactly one end and nothing after it.
        for got in all(asked) {
            assert!(matches!(got.end, Ok(_) | Err(Failure::Constraint(_))), "{got:?}");
        }
        until(&scheduler, |s| s.running == 0 && s.waiting == 0);
        let s = scheduler.status();
        assert_eq!(s.taken, s.done + s.cancelled + s.failed, "{s:?}");
        assert!(s.held_tokens <= 250 && s.kept_slots <= 6, "{s:?}");
        if round == 2 {
            before = resident();
        }
    }
    let s = scheduler.status();
    assert!(s.cancelled > 20 && s.failed > 20 && s.cached_tokens > 0 && s.taken == 500, "{s:?}");
    // This is measured after seven more rounds. The system's allocator retains some megabytes.
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more than after 150 requests");
}
