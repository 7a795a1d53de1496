//! The scheduler on a simulated AMD device: each of many requests gets the same answer as on the
//! host, with and without shared prefixes, drafts and penalties. After a fault of the device the
//! model is reopened and the queue continues.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{Engine, Target};
use kjit_kernels::tuning::Shipped;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::plan::{Request, plan};
use kjit_model::sample::{SampleOptions, Sampler, TokenMask};
use kjit_model::serve::{Constraint, Failure, Reason, Scheduler, SchedulerOptions, State};
use kjit_model::session::{OpenOptions, SequenceId, Session, SessionError, StepOutput, Want, Work};
use kjit_tests::files::model_path;
use kjit_tests::side_by_side::gap;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use kjit_tests::submitted_request::{Got, SubmittedRequest, ask};
use std::sync::Arc;
use std::time::Duration;

const ARCH: &str = "gfx1100";

fn setup() -> Setup {
    Setup::devices(ARCH).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og")
}

fn options() -> OpenOptions {
    OpenOptions {
        context: Some(64),
        precise: false,
        threads: 2,
        prefill_chunk: Some(16),
        sequences: 5,
        ..OpenOptions::default()
    }
}

fn open(engine: &Engine, gguf: &Arc<Gguf>) -> Session {
    let graph = kjit_model::arch::build(gguf).unwrap();
    let device = engine.device("rocm:0").unwrap();
    Session::on_gpu(engine, &device, gguf, graph, &options()).unwrap()
}

fn prompt(number: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| ((number * 131 + i * i * 7 + i * 37 + 5) % 250) as u32).collect()
}

fn all(asked: Vec<SubmittedRequest>) -> Vec<Got> {
    asked.into_iter().map(SubmittedRequest::got).collect()
}

#[test]
fn requests_on_simulated_gfx1100_match_host() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    setup().run("simulated_serve::requests_on_simulated_gfx1100_match_host", TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let mut host = SoloSession::cpu(&gguf, &graph, &OpenOptions { precise: true, ..options() });
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let before = Simulated::here().alive();
        let session = open(&engine, &gguf);
        let budget = SchedulerOptions { token_budget: Some(12), ..SchedulerOptions::default() };
        let scheduler = Scheduler::start(session, budget).unwrap();
        let mut near = |name: &str, prompt: &[u32], got: &Got| {
            let gap = gap(&mut host, &[prompt, &got.ids].concat(), prompt.len());
            // Keys, values and some products are f16: the log probability of a token may be
            // lower than that of the host's choice by this much.
            assert!(gap < 0.05, "{name}: a token is {gap} below the host's choice");
        };
        // A single request, which the device decodes ahead of the host.
        let first = prompt(1, 20);
        let one = ask(&scheduler, &first, 6, |_| {}).got();
        near("alone", &first, &one);
        // Its next turn, a request with the same prefix, and others: more requests than slots.
        let turn = [&first[..], &one.ids, &[7, 8, 9]].concat();
        let other = [&first[..18], &[3, 4, 5, 6]].concat();
        let mut prompts: Vec<Vec<u32>> = vec![turn, other];
        prompts.extend((2..6).map(|i| prompt(i, 3 + i * 4)));
        let asked = prompts.iter().map(|p| ask(&scheduler, p, 5, |_| {})).collect();
        let got = all(asked);
        assert_eq!((got[0].cached(), got[1].cached()), (25, 18));
        for (i, (p, got)) in prompts.iter().zip(&got).enumerate() {
            assert_eq!((got.reason(), got.ids.len()), (Reason::Length, 5));
            near(&format!("request {i}"), p, got);
        }
        // Drafts are computed like rows of a prompt. Drafts of a constant text are correct.
        let same = SampleOptions { bias: vec![(7, 1e4)], ..SampleOptions::default() };
        let drafted = ask(&scheduler, &first, 30, |r| (r.lookup, r.sampling) = (true, same)).got();
        assert!(drafted.ids.len() == 30 && drafted.ids.iter().all(|id| *id == 7), "{drafted:?}");
        let status = scheduler.status();
        assert!(status.drafted_tokens > 0 && status.accepted_tokens > 0, "{status:?}");
        // The host computes log probabilities.
        let known = ask(&scheduler, &first, 3, |r| r.logprobs = Some(2)).got();
        near("log probabilities", &first, &known);
        // A single request whose text repeats: the scheduler estimates the gain of drafts while
        // the device runs ahead, then it uses them.
        let round: Vec<u32> = (0..16).map(|i| [5, 60, 7, 80][i % 4]).collect();
        let plain = ask(&scheduler, &round, 40, |_| {}).got();
        let counted = scheduler.status();
        let drafted = ask(&scheduler, &round, 40, |r| r.lookup = true).got();
        let after = scheduler.status();
        near("round, without drafts", &round, &plain);
        near("round, with drafts", &round, &drafted);
        assert_eq!(drafted.ids.len(), 40);
        assert!(
            after.drafted_tokens > counted.drafted_tokens,
            "{counted:?} {after:?}: {:?}",
            plain.ids
        );
        // A seed draws the same tokens alone and in a batch.
        let warm =
            SampleOptions { temperature: 0.8, top_k: 40, seed: 11, ..SampleOptions::default() };
        let draw = |n| {
            all((0..n).map(|_| ask(&scheduler, &first, 6, |r| r.sampling = warm.clone())).collect())
        };
        let alone: Vec<Got> = draw(1);
        assert!(draw(3).iter().all(|got: &Got| got.ids == alone[0].ids));
        assert!(scheduler.stop(Duration::from_secs(60)));
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(
            Simulated::here().alive().bytes,
            before.bytes,
            "memory of the device is given back"
        );
    });
}

#[test]
fn fault_fails_running_requests_and_queue_continues() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    // An illegal access at the tenth step.
    let setup = setup().set("HIPSIM_FAIL", "hipGraphLaunch:10:700");
    setup.run(
        "simulated_serve::fault_fails_running_requests_and_queue_continues",
        TEMPORARY,
        || {
            let gguf = Arc::new(Gguf::open(&path).unwrap());
            let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
            let session = open(&engine, &gguf);
            let file = Arc::clone(&gguf);
            let reopen = Box::new(move || Ok(open(&engine, &file)));
            let options = SchedulerOptions { reopen: Some(reopen), ..SchedulerOptions::default() };
            let scheduler = Scheduler::start(session, options).unwrap();
            let prompts: Vec<Vec<u32>> = (0..9).map(|i| prompt(i, 5)).collect();
            let got = all(prompts.iter().map(|p| ask(&scheduler, p, 20, |_| {})).collect());
            let failed = got
                .iter()
                .filter(|g| matches!(&g.end, Err(Failure::Device(why)) if why.contains("lost")))
                .count();
            let done = got.iter().filter(|g| matches!(g.end, Ok((Reason::Length, _)))).count();
            assert!(
                (1..=5).contains(&failed) && failed + done == 9,
                "{failed} failed, {done} done: {:?}",
                got.iter().map(|g| &g.end).collect::<Vec<_>>()
            );
            let status = scheduler.status();
            assert_eq!((status.reopened, status.state), (1, State::Ready), "{status:?}");
            assert_eq!((status.failed, status.done), (failed as u64, done as u64));
        },
    );
}

#[test]
fn encoder_is_reopened_after_fault_with_equal_vectors() {
    let Some(path) = model_path("archs/bert.gguf") else { return };
    let test = "simulated_serve::encoder_is_reopened_after_fault_with_equal_vectors";
    setup().run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let options = OpenOptions { sequences: 1, ..options() };
        let open = move || {
            let (graph, device) =
                (kjit_model::arch::build(&gguf).unwrap(), engine.device("rocm:0").unwrap());
            Session::on_gpu(&engine, &device, &gguf, graph, &options)
        };
        let session = open().unwrap();
        let reopen = Box::new(move || open().map_err(|e| e.to_string()));
        let options = SchedulerOptions { reopen: Some(reopen), ..SchedulerOptions::default() };
        let scheduler = Scheduler::start(session, options).unwrap();
        let vector = || {
            let (made, vector) = std::sync::mpsc::channel();
            scheduler.embed(prompt(1, 9), move |got| made.send(got).unwrap()).unwrap();
            vector.recv_timeout(Duration::from_secs(60)).unwrap()
        };
        let before = vector().unwrap();
        // An illegal access that is detected at the next wait. The number of waits during opening
        // depends on which kernels were tested before.
        Simulated::here().fail(c"hipStreamSynchronize", 1, 700);
        let failed = (0..9).find_map(|_| vector().err()).unwrap();
        assert!(matches!(&failed, Failure::Device(why) if why.contains("lost")), "{failed:?}");
        assert_eq!(vector().unwrap(), before);
        let status = scheduler.status();
        assert_eq!(
            (status.reopened, status.failed, status.state),
            (1, 1, State::Ready),
            "{status:?}"
        );
    });
}

#[test]
fn sequence_count_is_reduced_to_fit_weights() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let gguf = Arc::new(Gguf::open(&path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let target = Target::parse(ARCH).unwrap();
    let options =
        |sequences| OpenOptions { sequences, fewer: true, context: Some(4096), ..options() };
    let needs = |sequences| {
        let options = &options(sequences);
        let request =
            Request { graph: &graph, target: &target, options, keep: &[], tuned: &Shipped };
        plan(&request).unwrap().memory.total()
    };
    let between = u64::midpoint(needs(4), needs(8));
    let test = "simulated_serve::sequence_count_is_reduced_to_fit_weights";
    setup().set("HIPSIM_MEMORY", between.to_string()).run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let open = |options: OpenOptions| {
            Session::on_gpu(&engine, &device, &gguf, graph.clone(), &options)
        };
        let session = open(options(8)).unwrap();
        let streamed = session.gpu().unwrap().statistics().streamed;
        assert_eq!((session.sequences(), streamed.is_none()), (4, true));
        drop(session);
        // `fewer: false` keeps the number of sequences: opening fails, or layers are streamed.
        let asked = open(OpenOptions { fewer: false, ..options(8) });
        assert!(
            asked.is_err() || asked.is_ok_and(|s| s.gpu().unwrap().statistics().streamed.is_some())
        );
    });
}

/// A constraint that allows every third token, with another offset after each token.
struct Thirds(u32, u32);

impl Constraint for Thirds {
    fn allowed(&mut self) -> Result<TokenMask, String> {
        Ok(TokenMask::new(self.1 as usize, (0..self.1).filter(|id| id % 3 == self.0 % 3)))
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        assert_eq!(token % 3, self.0 % 3, "what the mask let through");
        self.0 += 1;
        Ok(false)
    }
}

/// Samplers with biases, penalties and masks, one mask too long for the device's list, and a plain
/// sampler.
fn manners(n_vocab: usize) -> Vec<(SampleOptions, bool)> {
    let warm = |seed| SampleOptions {
        temperature: 0.9,
        top_k: 30,
        top_p: 0.95,
        seed,
        ..SampleOptions::default()
    };
    let repeated = SampleOptions { repeat_penalty: 1.3, window: 6, ..SampleOptions::default() };
    let counted =
        SampleOptions { presence_penalty: 0.4, frequency_penalty: 0.7, window: 64, ..warm(3) };
    let bias = vec![(5, 3.0), (9, f32::NEG_INFINITY), (200, 1.5), (n_vocab as u32 + 7, 100.0)];
    let many = (0..1500).map(|i| (i % n_vocab as u32, 0.01)).collect();
    vec![
        (warm(1), false),
        (repeated.clone(), false),
        (counted.clone(), true),
        (SampleOptions { bias: bias.clone(), ..counted }, true),
        (SampleOptions { bias, ..repeated }, true),
        (SampleOptions { bias: many, ..warm(4) }, true),
        (SampleOptions { temperature: 0.0, ..warm(2) }, false),
    ]
}

#[test]
fn device_biases_penalties_and_masks_match_host_sampler() {
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    setup().run(
        "simulated_serve::device_biases_penalties_and_masks_match_host_sampler",
        TEMPORARY,
        || {
            let gguf = Arc::new(Gguf::open(&path).unwrap());
            let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
            let mut session = open(&engine, &gguf);
            let n_vocab = session.n_vocab();
            let mask = |i: usize| {
                TokenMask::new(n_vocab, (0..n_vocab as u32).filter(|id| *id as usize % 4 == i % 4))
            };
            for pair in manners(n_vocab).chunks(2) {
                // Two sequences for which the device chooses tokens, and one whose logits are
                // copied to the host, with the same text as the first.
                let mut all: Vec<(SequenceId, Sampler, bool, Vec<u32>)> = vec![];
                for (i, (options, masked)) in pair.iter().enumerate() {
                    let id = session.add(options.clone()).unwrap();
                    all.push((id, Sampler::new(options.clone()), *masked, prompt(i, 5 + 6 * i)));
                }
                let twins: Vec<SequenceId> =
                    pair.iter().map(|_| session.add(SampleOptions::default()).unwrap()).collect();
                for step in 0..9 {
                    let work: Vec<Work<'_>> =
                        (all.iter().map(|(id, _, _, tokens)| (*id, tokens, Want::Choose)))
                            .chain(
                                all.iter()
                                    .zip(&twins)
                                    .map(|((_, _, _, tokens), twin)| (*twin, tokens, Want::Last)),
                            )
                            .map(|(sequence, tokens, want)| Work { sequence, tokens, want })
                            .collect();
                    let known = || {
                        (all.iter())
                            .filter(|(_, _, masked, _)| *masked)
                            .map(|(id, ..)| (*id, (step % 4 != 3).then(|| mask(step))))
                    };
                    let mut asked = 0;
                    let mut masks = || {
                        asked += 1;
                        known().collect()
                    };
                    let given = session.step_masked(&work, &mut masks).unwrap();
                    assert_eq!(asked, 1);
                    let (tokens, rows) = given.split_at(pair.len());
                    for ((one, token), row) in all.iter_mut().zip(tokens).zip(rows) {
                        let (id, sampler, masked, text) = one;
                        let StepOutput::Logits(row) = row else { panic!("{row:?}") };
                        // A mask that is not known in time: the logits come instead of a token.
                        let late = *masked && step % 4 == 3;
                        let token = match token {
                            StepOutput::Token(token) if !late => token,
                            StepOutput::Logits(mine) if late => {
                                assert_eq!(mine, row, "step {step}");
                                let position = session.len(*id).unwrap();
                                let own = session.sampler(*id).unwrap();
                                own.set_mask(Some(mask(step)));
                                &own.sample(position, &mut mine.clone())
                            }
                            other => panic!("{other:?}, late: {late}"),
                        };
                        if *masked {
                            sampler.set_mask(Some(mask(step)));
                        }
                        let last = row[row.len() - n_vocab..].to_vec();
                        let want = sampler.sample(session.len(*id).unwrap(), &mut last.clone());
                        assert_eq!(*token, want, "step {step}: {:?}", sampler.options());
                        *text = vec![*token];
                    }
                }
                // A mask that allows no token is an error, and no sequence continues.
                let (id, _, _, text) = &all[0];
                let before = session.len(*id).unwrap();
                let none = Work { sequence: *id, tokens: text, want: Want::Choose };
                let nothing = session
                    .step_masked(&[none], &mut || vec![(*id, Some(TokenMask::new(n_vocab, [])))]);
                assert!(matches!(nothing, Err(SessionError::NothingAllowed)), "{nothing:?}");
                assert_eq!(session.len(*id).unwrap(), before);
                all.iter()
                    .map(|(id, ..)| *id)
                    .chain(twins)
                    .for_each(|id| session.remove(id).unwrap());
            }
            // Normal steps before and after are replayed without the mask.
            let scheduler = Scheduler::start(session, SchedulerOptions::default()).unwrap();
            let constrained = |r: &mut kjit_model::serve::Request| {
                r.constraint = Some(Box::new(Thirds(0, n_vocab as u32)));
            };
            let plain =
                |n| all((0..n).map(|i| ask(&scheduler, &prompt(i, 7), 8, |_| {})).collect());
            let before = plain(3);
            let mut asked: Vec<SubmittedRequest> =
                (0..2).map(|i| ask(&scheduler, &prompt(i, 9), 12, constrained)).collect();
            asked.extend((0..3).map(|i| ask(&scheduler, &prompt(i, 7), 8, |_| {})));
            let got = all(asked);
            for one in &got[..2] {
                assert_eq!((one.reason(), one.ids.len()), (Reason::Length, 12));
                assert!(one.ids.iter().zip(0..).all(|(id, i)| id % 3 == i % 3), "{one:?}");
            }
            for (one, before) in got[2..].iter().zip(&before) {
                assert_eq!(one.ids, before.ids);
            }
            assert_eq!(Simulated::here().fault(0), "");
        },
    );
}
