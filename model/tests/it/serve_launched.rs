//! Steps that the scheduler launches ahead, on a device that computes a token from all tokens
//! before it. It fails if a slot changes hands while a launched step uses it.

use crate::exec::{CHOSEN, HiddenStatesSink, MaskCallback, Runner, StepAhead, Task, TokenSpan};
use crate::it::support::files::tiny_model;
use crate::it::support::submitted_request::{SubmittedRequest, ask};
use kjit_model::graph::Graph;
use kjit_model::sample::SampleOptions;
use kjit_model::serve::{Reason, Scheduler, SchedulerOptions, Stop};
use kjit_model::session::{KvType, Session, SessionError, StepOutput, Want};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The token after these.
fn next_of(tokens: &[u32], n_vocab: usize) -> u32 {
    let mix =
        |h: u64, &t: &u32| (h ^ u64::from(t)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    (tokens.iter().fold(7, mix) % n_vocab as u64) as u32
}

/// Duration of the first step.
const FIRST: Duration = Duration::from_millis(300);

/// Steps of the device: all, and those launched while another was in flight.
#[derive(Default)]
struct Counts {
    steps: AtomicUsize,
    ahead: AtomicUsize,
}

struct Device {
    graph: Graph,
    slots: Vec<Vec<u32>>,
    /// Slots and results of launched steps, and when each ends.
    launched: VecDeque<(Vec<usize>, Vec<Option<u32>>, Instant)>,
    step: Duration,
    counts: Arc<Counts>,
}

impl Device {
    fn run(&mut self, task: &Task<'_>) -> Option<u32> {
        let n_vocab = self.graph.n_vocab();
        let slot = &mut self.slots[task.slot];
        assert!(slot.len() >= task.first, "{} of {}", slot.len(), task.first);
        slot.truncate(task.first);
        let chosen = next_of(slot, n_vocab);
        slot.extend(task.tokens.iter().map(|&t| if t == CHOSEN { chosen } else { t }));
        (task.want == Want::Choose).then(|| next_of(slot, n_vocab))
    }

    /// Duration of the next step. More requests arrive during the first one.
    fn duration(&self) -> Duration {
        match self.counts.steps.load(Ordering::Relaxed) {
            0 => FIRST,
            _ => self.step,
        }
    }

    fn unused(&self, slot: usize) {
        let used = self.launched.iter().any(|(slots, ..)| slots.contains(&slot));
        assert!(!used, "slot {slot} is in a launched step");
    }
}

impl Runner for Device {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn before(&self) -> Option<&dyn Runner> {
        None
    }

    fn add(&mut self, slot: usize) -> Result<(), SessionError> {
        self.unused(slot);
        self.slots[slot].clear();
        Ok(())
    }

    fn adapt(&mut self, _: usize, _: &[f32]) -> Result<(), SessionError> {
        Ok(())
    }

    fn write_tensor(&mut self, _: &str, _: &[u8]) -> Result<(), SessionError> {
        Ok(())
    }

    fn remove(&mut self, slot: usize) {
        self.unused(slot);
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) -> Result<usize, SessionError> {
        self.slots[to] = self.slots[from][..len].to_vec();
        Ok(len)
    }

    fn truncate(&mut self, slot: usize, len: usize, _: usize) -> usize {
        self.unused(slot);
        len
    }

    fn rows(
        &mut self,
        _: &[TokenSpan<'_>],
        _: &mut HiddenStatesSink<'_>,
    ) -> Result<(), SessionError> {
        Err(SessionError::Device("no stage follows".to_owned()))
    }

    fn step(
        &mut self,
        tasks: &mut [Task<'_>],
        _: Option<MaskCallback<'_>>,
    ) -> Result<Vec<StepOutput>, SessionError> {
        assert!(self.launched.is_empty());
        std::thread::sleep(self.duration());
        self.counts.steps.fetch_add(1, Ordering::Relaxed);
        let n_vocab = self.graph.n_vocab();
        let given = tasks.iter_mut().map(|task| match (self.run(task), task.want) {
            (Some(token), _) => {
                task.sampler.accept(token);
                StepOutput::Token(token)
            }
            (None, Want::Last) => {
                let best = next_of(&self.slots[task.slot], n_vocab) as usize;
                StepOutput::Logits((0..n_vocab).map(|i| f32::from(i == best)).collect())
            }
            (None, Want::Nothing) => StepOutput::Nothing,
            (None, want) => panic!("{want:?}"),
        });
        Ok(given.collect())
    }

    fn embed(&mut self, _: &[u32]) -> Result<Vec<f32>, SessionError> {
        Err(SessionError::Device("this model makes text".to_owned()))
    }

    fn step_ahead(&mut self) -> Option<&mut dyn StepAhead> {
        Some(self)
    }

    fn steps_ahead(&self) -> bool {
        true
    }
}

impl StepAhead for Device {
    fn launch(&mut self, tasks: &mut [Task<'_>]) -> Result<(), SessionError> {
        let duration = self.duration();
        self.counts.steps.fetch_add(1, Ordering::Relaxed);
        self.counts.ahead.fetch_add(usize::from(!self.launched.is_empty()), Ordering::Relaxed);
        let given = tasks.iter().map(|task| self.run(task)).collect();
        let begin = self.launched.back().map_or_else(Instant::now, |(.., end)| *end);
        let end = begin.max(Instant::now()) + duration;
        self.launched.push_back((tasks.iter().map(|t| t.slot).collect(), given, end));
        assert!(self.launched.len() <= 2, "{} steps ahead", self.launched.len());
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Option<u32>>, SessionError> {
        let (_, given, end) = self.launched.pop_front().expect("a launched step");
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        Ok(given)
    }
}

fn scheduler(
    sequences: usize,
    context: usize,
    step: Duration,
) -> Option<(Scheduler, Arc<Counts>, usize)> {
    let gguf = kjit_model::gguf::Gguf::open(tiny_model("tiny-llama-q4_k_m.gguf")?).unwrap();
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let (counts, n_vocab) = (Arc::new(Counts::default()), graph.n_vocab());
    let slots = vec![vec![]; sequences];
    let device =
        Device { graph, slots, launched: VecDeque::new(), step, counts: Arc::clone(&counts) };
    let session =
        Session::with(Box::new(device), sequences, context, n_vocab, usize::MAX, KvType::F16);
    let options = SchedulerOptions { max_queue: 2000, ..SchedulerOptions::default() };
    Some((Scheduler::start(session, options).unwrap(), counts, n_vocab))
}

/// The answer of `n` tokens.
fn answer(prompt: &[u32], n: usize, n_vocab: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..n {
        all.push(next_of(&all, n_vocab));
    }
    all.split_off(prompt.len())
}

fn prompt(number: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| ((number * 131 + i * i * 7 + i * 37 + 5) % 250) as u32).collect()
}

#[test]
fn answers_ending_anywhere_are_exact_when_steps_run_ahead() {
    const CONTEXT: usize = 700;
    let Some((scheduler, counts, n_vocab)) = scheduler(16, CONTEXT, Duration::from_micros(300))
    else {
        return;
    };
    let len = |i: usize| if i.is_multiple_of(7) { 500 + i } else { 1 + i * 5 % 60 };
    let n = |i: usize| 5 + i * 13 % 40;
    let asked: Vec<SubmittedRequest> = (0..120)
        .map(|i| {
            let p = prompt(i, len(i));
            let whole = answer(&p, n(i), n_vocab);
            let mut asked = ask(&scheduler, &p, n(i), |r| match i % 6 {
                // A stop token in the middle, and an answer that fills its context.
                0 => r.stop = Stop::Ids(vec![whole[whole.len() / 2]]),
                1 => r.max_tokens = Some(1),
                2 if i.is_multiple_of(7) => r.max_tokens = None,
                // Draws are seeds of the device, which has none here.
                3 => r.sampling = SampleOptions { temperature: 0.7, ..SampleOptions::default() },
                // The host needs the logits: then no step runs ahead.
                4 if i > 90 => r.logprobs = Some(1),
                _ => {}
            });
            if i % 6 == 5 {
                // The client leaves at some time.
                asked.tokens(i % 4);
                drop(asked.answer.take());
            } else {
                asked.answer.take().unwrap().detach();
            }
            asked
        })
        .collect();
    for (i, asked) in asked.into_iter().enumerate() {
        let (p, got) = (prompt(i, len(i)), asked.got());
        let whole = answer(&p, CONTEXT, n_vocab);
        assert_eq!(got.ids, whole[..got.ids.len()], "request {i}");
        let (stop, most) = (whole[n(i) / 2], n(i));
        let (reason, tokens) = match i % 6 {
            0 => (Reason::Stop, whole.iter().position(|t| *t == stop).unwrap() + 1),
            1 => (Reason::Length, 1),
            2 if i.is_multiple_of(7) => (Reason::ContextFull, CONTEXT - p.len() + 1),
            5 if got.reason() == Reason::Cancelled => (Reason::Cancelled, got.ids.len()),
            _ => (Reason::Length, most),
        };
        assert_eq!((got.reason(), got.ids.len()), (reason, tokens), "request {i}");
    }
    let status = scheduler.status();
    assert_eq!((status.failed, status.running, status.waiting), (0, 0, 0), "{status:?}");
    let (steps, ahead) = (&counts.steps, &counts.ahead);
    let (steps, ahead) = (steps.load(Ordering::Relaxed), ahead.load(Ordering::Relaxed));
    assert!(2 * ahead > steps, "{ahead} of {steps} steps were launched ahead");
}

#[test]
fn thousand_clients_keep_256_sequences_busy() {
    let cost = |step: Duration| {
        let (scheduler, counts, _) = scheduler(256, 256, step)?;
        let start = Instant::now();
        let asked: Vec<SubmittedRequest> =
            (0..1024).map(|i| ask(&scheduler, &prompt(i, 64), 32 + i % 8, |_| {})).collect();
        for (i, asked) in asked.into_iter().enumerate() {
            assert_eq!(asked.got().ids.len(), 32 + i % 8);
        }
        let took = (start.elapsed().saturating_sub(FIRST)).as_secs_f64();
        let (steps, ahead) = (&counts.steps, &counts.ahead);
        let (steps, ahead) = (steps.load(Ordering::Relaxed), ahead.load(Ordering::Relaxed));
        assert!(5 * ahead > 4 * steps, "{ahead} of {steps} steps were launched ahead");
        Some(took / steps as f64)
    };
    let (Some(host), Some(with)) = (cost(Duration::ZERO), cost(Duration::from_millis(10))) else {
        return;
    };
    eprintln!(
        "256 sequences: the host takes {:.0} µs a step; a step of 10 ms takes {:.2} ms",
        1e6 * host,
        1e3 * with
    );
    // Unoptimised, and beside other tests.
    assert!(host < 0.02, "{host} s a step");
}
