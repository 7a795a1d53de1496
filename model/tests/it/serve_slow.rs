//! Tests of constraints that pause at a later token: other answers continue meanwhile.

use crate::it::support::files::tiny_model;
use crate::it::support::submitted_request::{Got, SubmittedRequest, ask};
use kjit_model::gguf::Gguf;
use kjit_model::sample::TokenMask;
use kjit_model::serve::{
    Constraint, Event, Failure, Interrupt, Reason, Request, Scheduler, SchedulerOptions,
};
use kjit_model::session::{OpenOptions, Session};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const N_VOCAB: u32 = 250;

fn scheduler(longest_mask: Duration) -> Option<Scheduler> {
    let gguf = Arc::new(Gguf::open(tiny_model("tiny-llama-q4_k_m.gguf")?).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = OpenOptions { threads: 1, precise: true, sequences: 4, ..OpenOptions::new(4096) };
    let session = Session::on_cpu(gguf, graph, &options).unwrap();
    let options = SchedulerOptions { longest_mask, ..SchedulerOptions::default() };
    Some(Scheduler::start(session, options).unwrap())
}

/// A constraint that allows every third token. It pauses once, until the time is over or it is
/// interrupted.
struct Pauses {
    /// Number of tokens before the pause.
    at: usize,
    in_accept: bool,
    time: Duration,
    /// Number of tokens after which the answer is complete.
    complete: usize,
    accepted: usize,
    paused: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
}

impl Pauses {
    fn new(at: usize, in_accept: bool, time: Duration) -> Pauses {
        let (paused, interrupted) = Default::default();
        Pauses { at, in_accept, time, complete: usize::MAX, accepted: 0, paused, interrupted }
    }

    fn pause(&self, here: bool) -> Result<(), String> {
        let start = Instant::now();
        while here && self.at == self.accepted && start.elapsed() < self.time {
            self.paused.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(2));
            if self.interrupted.load(Ordering::Relaxed) {
                return Err("interrupted".to_owned());
            }
        }
        Ok(())
    }
}

impl Constraint for Pauses {
    fn allowed(&mut self) -> Result<TokenMask, String> {
        self.pause(!self.in_accept)?;
        Ok(TokenMask::new(N_VOCAB as usize, (0..N_VOCAB).filter(|id| id % 3 == 0)))
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        assert_eq!(token % 3, 0);
        self.accepted += 1;
        self.pause(self.in_accept)?;
        Ok(self.accepted == self.complete)
    }

    fn interrupt(&self) -> Option<Interrupt> {
        let interrupted = Arc::clone(&self.interrupted);
        Some(Arc::new(move || interrupted.store(true, Ordering::Relaxed)))
    }
}

fn with(scheduler: &Scheduler, n: usize, constraint: Pauses) -> SubmittedRequest {
    ask(scheduler, &[7, 8, 9], n, |r| r.constraint = Some(Box::new(constraint)))
}

fn until(so: &AtomicBool) {
    let start = Instant::now();
    while !so.load(Ordering::Relaxed) {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// While the constraint of one answer pauses, other answers get several tokens.
#[test]
fn other_answers_continue_while_a_constraint_is_slow() {
    let Some(scheduler) = scheduler(Duration::from_secs(60)) else { return };
    let quick = with(&scheduler, 9, Pauses::new(3, false, Duration::ZERO)).got();
    for in_accept in [false, true] {
        let order = Arc::new(Mutex::new(vec![]));
        let ask = |who: char, n: Option<usize>, constraint: Option<Pauses>| {
            let order = Arc::clone(&order);
            let sink = move |event| {
                if let Event::Token { id, .. } = event {
                    order.lock().unwrap().push((who, id));
                }
                ControlFlow::Continue(())
            };
            let mut request = Request::new(vec![7, 8, 9], Box::new(sink));
            request.max_tokens = n;
            request.constraint = constraint.map(|c| Box::new(c) as Box<dyn Constraint>);
            scheduler.submit(request).unwrap()
        };
        let others = [
            ask('f', None, None),
            ask('c', None, Some(Pauses::new(0, false, Duration::ZERO))),
            ask('s', Some(9), Some(Pauses::new(3, in_accept, Duration::from_millis(500)))),
        ];
        let start = Instant::now();
        let slow = || {
            let order = order.lock().unwrap();
            let at = order.iter().enumerate().filter(|(_, (who, _))| *who == 's');
            at.map(|(at, (_, id))| (at, *id)).collect::<Vec<_>>()
        };
        while slow().len() < 9 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
        let slow = slow();
        assert_eq!(slow.iter().map(|(_, id)| *id).collect::<Vec<_>>(), quick.ids);
        let order = order.lock().unwrap();
        for who in ['f', 'c'] {
            let meanwhile = &order[slow[2].0..slow[3].0];
            let n = meanwhile.iter().filter(|(of, _)| *of == who).count();
            assert!(n >= 4, "{who}: {n} tokens during the pause, in accept: {in_accept}");
        }
        drop(others);
    }
}

#[test]
fn slow_constraint_fails_its_request_and_is_interrupted() {
    let Some(scheduler) = scheduler(Duration::from_millis(200)) else { return };
    let hour = Duration::from_secs(3600);
    for in_accept in [false, true] {
        let slow = Pauses::new(2, in_accept, hour);
        let interrupted = Arc::clone(&slow.interrupted);
        let Got { ids, end, .. } = with(&scheduler, 9, slow).got();
        let Err(Failure::Constraint(why)) = end else { panic!("{end:?}") };
        assert!(why.starts_with("it took more than 0.2 s for one token: give a smaller"), "{why}");
        assert_eq!(ids.len(), 2);
        assert!(interrupted.load(Ordering::Relaxed));
    }
    // The last token of an answer needs no mask, and the answer is complete.
    let got = with(&scheduler, 2, Pauses::new(2, false, hour)).got();
    assert_eq!((got.reason(), got.ids.len()), (Reason::Length, 2));
    let got = with(&scheduler, 2, Pauses::new(2, true, hour)).got();
    assert_eq!((got.reason(), got.ids.len()), (Reason::Length, 2));
    // If a client leaves, the work for its constraint is interrupted.
    let slow = Pauses::new(1, false, hour);
    let (paused, interrupted) = (Arc::clone(&slow.paused), Arc::clone(&slow.interrupted));
    let mut left = with(&scheduler, 9, slow);
    until(&paused);
    drop(left.answer.take());
    until(&interrupted);
    assert_eq!(left.got().reason(), Reason::Cancelled);
}

#[test]
fn answer_is_complete_with_constraint_at_last_token() {
    let Some(scheduler) = scheduler(Duration::from_secs(60)) else { return };
    for (n, complete, reason) in
        [(4, 4, Reason::Constraint), (9, 4, Reason::Constraint), (4, 5, Reason::Length)]
    {
        let constraint = Pauses { complete, ..Pauses::new(0, false, Duration::ZERO) };
        let got = with(&scheduler, n, constraint).got();
        assert_eq!((got.reason(), got.ids.len()), (reason, 4));
    }
}
