//! Paged keys and values on simulated AMD devices: bit for bit equal to the results without pages,
//! regardless of which pages are shared, and the same answers as the host's for requests that share
//! pages or are preempted.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gguf::Gguf;
use kjit_model::sample::{SampleOptions, TokenMask};
use kjit_model::serve::{Constraint, Failure, Reason, Scheduler, SchedulerOptions};
use kjit_model::session::{DecodeControl, KvType, OpenOptions, SequenceId, Session};
use kjit_tests::files::model_path;
use kjit_tests::paged::{self, PAGE, text};
use kjit_tests::returning;
use kjit_tests::side_by_side::gap;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use kjit_tests::submitted_request::{Got, SubmittedRequest, ask};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn the_same(test: &str, name: &str, arch: &str, kv: KvType) {
    let Some(path) = model_path(name) else { return };
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let [plain, in_pages] = paged::options(OpenOptions { kv, ..OpenOptions::default() });
        let mut want = Session::on_gpu(&engine, &device, &gguf, graph.clone(), &plain).unwrap();
        let mut got = Session::on_gpu(&engine, &device, &gguf, graph, &in_pages).unwrap();
        paged::assert_matches_unpaged(&mut want, &mut got);
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn pages_on_simulated_gfx1100_change_no_result() {
    the_same(
        "simulated_pages::pages_on_simulated_gfx1100_change_no_result",
        "tiny/tiny-llama-q4_k_m.gguf",
        "gfx1100",
        KvType::F16,
    );
}

#[test]
fn q8_0_pages_on_simulated_gfx942_change_no_result() {
    let (test, arch) = (
        "simulated_pages::q8_0_pages_on_simulated_gfx942_change_no_result",
        "gfx942:sramecc+:xnack-",
    );
    if !kjit_tests::all("sequences") {
        eprintln!(
            "SKIPPED: whole models with pages of bytes, waves of 64 (KJIT_TEST_ALL=sequences)"
        );
        return;
    }
    the_same(test, "tiny/tiny-qwen2-f16.gguf", arch, KvType::Q8_0);
}

fn prompt(number: usize, len: usize) -> Vec<u32> {
    text(number, len, 250)
}

#[test]
fn requests_sharing_and_losing_pages_match_host() {
    let test = "simulated_pages::requests_sharing_and_losing_pages_match_host";
    let Some(path) = model_path("tiny/tiny-llama-q4_k_m.gguf") else { return };
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions {
            sequences: 6,
            paged: Some(6 * PAGE),
            prefill_chunk: Some(160),
            threads: 2,
            ..OpenOptions::new(300)
        };
        let mut host = SoloSession::cpu(
            &gguf,
            &graph,
            &OpenOptions { precise: true, paged: None, ..options.clone() },
        );
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let before = Simulated::here().alive();
        let session = Session::on_gpu(&engine, &device, &gguf, graph, &options).unwrap();
        let scheduler = Scheduler::start(session, SchedulerOptions::default()).unwrap();
        let mut near = |name: &str, prompt: &[u32], got: &Got, n: usize| {
            assert_eq!((got.reason(), got.ids.len()), (Reason::Length, n), "{name}");
            let gap = gap(&mut host, &[prompt, &got.ids].concat(), prompt.len());
            assert!(gap < 0.05, "{name}: a token is {gap} below the host's choice");
        };
        // A conversation and its next turn.
        let system = prompt(77, 200);
        let first = [&system[..], &prompt(1, 9)].concat();
        let one = ask(&scheduler, &first, 4, |_| {}).got();
        near("the first", &first, &one, 4);
        let turn = [&first[..], &one.ids, &[7, 8, 9]].concat();
        let two = ask(&scheduler, &turn, 4, |_| {}).got();
        near("its next turn", &turn, &two, 4);
        assert_eq!((one.cached(), two.cached()), (0, first.len() + 3));
        let status = scheduler.status();
        // The longer text replaces its own prefix among the stored texts.
        let pages = status.pages.unwrap();
        assert_eq!(
            (pages.total, pages.used, pages.shared, status.kept_tokens),
            (6, 2, 0, turn.len() + 3),
            "{status:?}"
        );
        // Other requests with this system prompt, which ends inside a page. Each request computes
        // only the rest of its prompt.
        let others: Vec<Vec<u32>> = (2..5).map(|i| [&system[..], &prompt(i, 9)].concat()).collect();
        let asked: Vec<SubmittedRequest> =
            others.iter().map(|p| ask(&scheduler, p, 4, |_| {})).collect();
        for (i, (asked, p)) in asked.into_iter().zip(&others).enumerate() {
            let got = asked.got();
            near(&format!("with the system prompt {i}"), p, &got, 4);
            assert!(got.cached() >= 200, "{} cached", got.cached());
        }
        // As they grow, the requests need more pages than exist: the newest are preempted, and no
        // token is lost.
        let many: Vec<Vec<u32>> = (10..16).map(|i| prompt(i, 95)).collect();
        let asked: Vec<SubmittedRequest> =
            many.iter().map(|p| ask(&scheduler, p, 38, |_| {})).collect();
        for (i, (asked, p)) in asked.into_iter().zip(&many).enumerate() {
            near(&format!("of many {i}"), p, &asked.got(), 38);
        }
        let status = scheduler.status();
        assert!(status.preempted > 0, "{status:?}");
        assert_eq!(
            (status.done, status.failed, status.held_tokens),
            (11, 0, status.kept_tokens),
            "{status:?}"
        );
        // A prompt and answer that need all pages except the last stored one.
        let long = prompt(30, 290);
        near("a whole context", &long, &ask(&scheduler, &long, 10, |_| {}).got(), 10);
        assert!(scheduler.stop(Duration::from_secs(60)));
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(
            Simulated::here().alive().bytes,
            before.bytes,
            "memory of the device is given back"
        );
    });
}

/// Models with recurrent states, which cannot be rolled back, in addition to paged keys and values.
fn returning(test: &str, names: &[&str], arch: &str) {
    let paths: Vec<PathBuf> = names.iter().filter_map(|name| model_path(name)).collect();
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    let one = |path: &PathBuf| {
        let gguf = Arc::new(Gguf::open(path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = returning::options(OpenOptions { threads: 2, ..OpenOptions::default() });
        let mut host = SoloSession::cpu(
            &gguf,
            &graph,
            &OpenOptions { precise: true, paged: None, ..options.clone() },
        );
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let before = Simulated::here().alive();
        let session = Session::on_gpu(&engine, &device, &gguf, graph, &options).unwrap();
        assert_eq!(session.gpu().unwrap().plan().copies(), returning::COPIES);
        let scheduler = Scheduler::start(session, returning::scheduling()).unwrap();
        // More texts than copies of states: the test on a card covers that.
        returning::assert_matches_host(&scheduler, &mut host, 0.05, false);
        assert!(scheduler.stop(Duration::from_secs(60)));
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(
            Simulated::here().alive().bytes,
            before.bytes,
            "memory of the device is given back"
        );
    };
    setup.run(test, TEMPORARY, || paths.iter().for_each(one));
}

#[test]
fn recurrent_states_are_saved_on_simulated_gfx1100() {
    let test = "simulated_pages::recurrent_states_are_saved_on_simulated_gfx1100";
    returning(test, &["archs/falcon-h1.gguf"], "gfx1100");
}

#[test]
fn pure_and_delta_states_on_simulated_gfx942_are_saved() {
    if !kjit_tests::all("sequences") {
        eprintln!(
            "SKIPPED: models of states alone, \
             and of delta rules, waves of 64 (KJIT_TEST_ALL=sequences)"
        );
        return;
    }
    let test = "simulated_pages::pure_and_delta_states_on_simulated_gfx942_are_saved";
    returning(test, &["archs/mamba.gguf", "archs/qwen3next.gguf"], "gfx942:sramecc+:xnack-");
}

/// A constraint that allows no token.
struct Nothing(usize);

impl Constraint for Nothing {
    fn allowed(&mut self) -> Result<TokenMask, String> {
        Ok(TokenMask::new(self.0, []))
    }

    fn accept(&mut self, _: u32) -> Result<bool, String> {
        Ok(true)
    }
}

/// A session of a model with a scan beside attention, with three sequences and four pages, and the
/// session of the host.
fn scan_in_few_pages(test: &str, go: impl FnOnce(Session, SoloSession)) {
    let Some(path) = model_path("archs/falcon-h1.gguf") else { return };
    let setup = Setup::devices("gfx1100").set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions {
            threads: 2,
            sequences: 3,
            paged: Some(4 * PAGE),
            ..returning::options(OpenOptions::default())
        };
        let host = SoloSession::cpu(
            &gguf,
            &graph,
            &OpenOptions { precise: true, paged: None, ..options.clone() },
        );
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        go(Session::on_gpu(&engine, &device, &gguf, graph, &options).unwrap(), host);
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn paused_sequence_keeps_states_of_pipelined_sequences() {
    let test = "simulated_pages::paused_sequence_keeps_states_of_pipelined_sequences";
    scan_in_few_pages(test, |mut session, mut host| {
        let vocab = host.n_vocab();
        let ids = [1, 2].map(|_| session.add(SampleOptions::default()).unwrap());
        let (first, second) = (text(1, 5, vocab), text(2, 9, vocab));
        let decode = |session: &mut Session, starts: &[(SequenceId, &[u32])], most: usize| {
            let mut came = [vec![], vec![]];
            let sink = &mut |id: SequenceId, token| {
                let came = &mut came[usize::from(id != ids[0])];
                came.push(token);
                if id == ids[0] && came.len() == most {
                    DecodeControl::Pause
                } else {
                    DecodeControl::Go
                }
            };
            session.decode(starts, sink).unwrap();
            came
        };
        // The other sequence also keeps the token that its states already contain.
        let begun = decode(&mut session, &[(ids[0], &first), (ids[1], &second)], 3);
        assert_eq!(begun.each_ref().map(Vec::len), [3, 3]);
        assert_eq!(ids.map(|id| session.len(id).unwrap()), [first.len() + 2, second.len() + 2]);
        let went = decode(&mut session, &[(ids[0], &begun[0][2..]), (ids[1], &begun[1][2..])], 3);
        for (i, prompt) in [&first, &second].into_iter().enumerate() {
            let all = [&prompt[..], &begun[i], &went[i]].concat();
            let gap = gap(&mut host, &all, prompt.len());
            assert!(gap < 0.05, "sequence {i}: a token is {gap} below the host's choice");
        }
    });
}

#[test]
fn failed_step_keeps_recurrent_states_when_pages_are_short() {
    let test = "simulated_pages::failed_step_keeps_recurrent_states_when_pages_are_short";
    scan_in_few_pages(test, |session, mut host| {
        let vocab = host.n_vocab();
        // All four pages are in use: one is shared by two texts, each text has another one, and the
        // request that will fail has one.
        let scheduler = Scheduler::start(session, returning::scheduling()).unwrap();
        let system = text(77, PAGE + 12, vocab);
        let texts = [3, 4].map(|i| [&system[..], &text(i, 9, vocab)].concat());
        let asked: Vec<SubmittedRequest> =
            texts.iter().map(|p| ask(&scheduler, p, 30, |_| {})).collect();
        asked.iter().for_each(|asked| _ = asked.tokens(2));
        let fails = ask(&scheduler, &text(5, 5, vocab), 4, |r| {
            r.constraint = Some(Box::new(Nothing(vocab)))
        })
        .got();
        assert!(
            matches!(&fails.end, Err(Failure::Request(why)) if why.contains("no token is allowed")),
            "{fails:?}"
        );
        let status = scheduler.status();
        assert_eq!((status.done, status.running), (0, 2), "it failed beside them: {status:?}");
        for (i, (asked, prompt)) in asked.into_iter().zip(&texts).enumerate() {
            let got = asked.got();
            assert_eq!((got.reason(), got.ids.len()), (Reason::Length, 30), "{i}");
            let gap = gap(&mut host, &[&prompt[..], &got.ids].concat(), prompt.len());
            assert!(gap < 0.05, "{i}: a token is {gap} below the host's choice");
        }
        let status = scheduler.status();
        assert_eq!((status.failed, status.done, status.reopened), (1, 2, 0), "{status:?}");
        assert!(scheduler.stop(Duration::from_secs(60)));
    });
}
