//! A model whose layers several simulated AMD devices compute together (`--split tensor`): against the host, and
//! each other; what is said of devices that do not reach each other, of models that do not divide, and of a
//! device that never comes.

use kjit_model::sample::SampleOptions;
use kjit_model::session::{After, KvType, OpenOptions, Session, SessionError, Want};
use kjit_tests::files::model_path;
use kjit_tests::one::One;
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::Simulated;
use std::ops::Deref;
use std::time::{Duration, Instant};

const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const LLAMA: &str = "tiny/tiny-llama-q8_0.gguf";

/// A model and an engine.
struct Bench(Several);

impl Deref for Bench {
    type Target = Several;

    fn deref(&self) -> &Several {
        &self.0
    }
}

impl Bench {
    fn new(name: &str) -> Bench {
        Bench(Several::new(name, TEMPORARY, WORKER))
    }

    fn together(&self, n: usize) -> Result<Session, Result<String, SessionError>> {
        Session::on_gpus(&self.engine, &self.devices(n), &self.gguf, self.graph.clone(), &options(KvType::F16))
    }
}

/// So many devices against the host, in all the ways in which sequences go.
fn as_the_host(test: &str, name: &'static str, devices: &str) {
    if model_path(name).is_none() {
        return;
    }
    setup(devices).run(test, TEMPORARY, || {
        let (b, n, start) = (Bench::new(name), devices.split(',').count(), Instant::now());
        let before = Simulated::here().alive();
        let mut host =
            One::cpu(&b.gguf, &b.graph, &OpenOptions { precise: true, sequences: 1, ..options(KvType::F16) });
        let mut session = b.together(n).map_err(|e| format!("{e:?}")).unwrap();
        assert_eq!(session.gpu().unwrap().ranks(), n);
        let mut seen = side_by_side::scores(&mut session, &mut host, 3);
        if name == LLAMA {
            seen.extend(side_by_side::mixed(&mut session, &mut host));
        }
        let gap = side_by_side::joining(&mut session, &mut host, 2);
        assert!(gap < 0.05, "{name}: a token is {gap} below the host's choice");
        assert!(seen.iter().all(|x| *x < 5e-2), "{name}: logits are off by {seen:?}");
        seen.sort_by(f64::total_cmp);
        assert!(seen[seen.len() / 2] < 4e-3, "{name}: logits are off by {seen:?}");
        (0..n).for_each(|i| assert_eq!(Simulated::here().fault(i as i32), ""));
        drop(session);
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory of the devices is given back");
        eprintln!("{name} on {devices}: {:.1?}", start.elapsed());
    });
}

#[test]
fn a_llama_on_two_simulated_gfx1100_together_is_the_hosts() {
    as_the_host("a_llama_on_two_simulated_gfx1100_together_is_the_hosts", LLAMA, "gfx1100,gfx1100");
}

#[test]
fn experts_on_two_simulated_gfx942_together_are_the_hosts() {
    let two = "gfx942:sramecc+:xnack-,gfx942:sramecc+:xnack-";
    as_the_host("experts_on_two_simulated_gfx942_together_are_the_hosts", "tiny/tiny-moe-q8_0.gguf", two);
}

#[test]
fn what_does_not_divide_or_is_not_reached_is_said() {
    let test = "what_does_not_divide_or_is_not_reached_is_said";
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100,gfx1100").set("KJIT_HIPSIM_LINK", "none").run(test, TEMPORARY, || {
        let b = Bench::new(LLAMA);
        let apart = b.together(2).map(drop).unwrap_err().unwrap();
        assert!(apart.contains("rocm:0 cannot reach the memory of rocm:1"), "{apart}");
        let three = b.together(3).map(drop).unwrap_err().unwrap_err().to_string();
        assert!(three.contains("cannot divide") && three.contains("by 3 devices"), "{three}");
        let gemma = Bench::new("tiny/tiny-gemma3-q8_0.gguf").together(2).map(drop).unwrap_err().unwrap_err();
        assert!(gemma.to_string().contains("cannot divide"), "{gemma}");
    });
}

#[test]
fn a_link_that_lies_to_kernels_alone_is_found_before_it_is_used() {
    let test = "a_link_that_lies_to_kernels_alone_is_found_before_it_is_used";
    if model_path(LLAMA).is_none() {
        return;
    }
    // Copies between the devices arrive, so nothing but the kernel's own pattern can tell.
    setup("gfx1100,gfx1100").set("KJIT_HIPSIM_LINK", "kernels").run(test, TEMPORARY, || {
        let (b, start) = (Bench::new(LLAMA), Instant::now());
        let why = b.together(2).map(drop).unwrap_err().unwrap();
        assert!(why.contains("waited longer than 10 s"), "{why}");
        assert!(start.elapsed() < Duration::from_secs(100), "after {:?}", start.elapsed());
        (0..2).for_each(|i| assert_eq!(Simulated::here().fault(i), ""));
    });
}

#[test]
fn a_device_that_never_comes_is_one_error_within_seconds() {
    let test = "a_device_that_never_comes_is_one_error_within_seconds";
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let b = Bench::new(LLAMA);
        let mut two = b.together(2).map_err(|e| format!("{e:?}")).unwrap();
        let id = two.add(SampleOptions::default()).unwrap();
        two.feed(id, &[3, 1, 4, 1, 5], Want::Last).unwrap();
        two.feed(id, &[9], Want::Last).unwrap();
        let start = Instant::now();
        // One of them is not given its token.
        Simulated::here().fail(c"hipGraphLaunch", 1, 700);
        let error = two.decode(&[(id, &[2])], &mut |_, _| After::Go).unwrap_err();
        assert!(matches!(&error, SessionError::Lost(why) if why.contains("rocm:")), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "after {:?}", start.elapsed());
        let again = two.feed(id, &[2], Want::Last).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
    });
}
