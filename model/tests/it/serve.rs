//! Tests of the scheduler on the CPU: many requests in one session.

mod drafts;
mod memory;

use crate::it::support::files::tiny_model;
use crate::it::support::submitted_request::{Got, SubmittedRequest, ask};
use kjit_model::gguf::Gguf;
use kjit_model::sample::{SampleOptions, TokenMask};
use kjit_model::serve::{
    Constraint, Event, Failure, Reason, Refused, Request, Scheduler, SchedulerOptions, Status, Stop,
};
use kjit_model::session::{DecodeControl, OpenOptions, Session};
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
