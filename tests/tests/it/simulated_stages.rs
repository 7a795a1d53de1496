//! A model's layers on several simulated AMD devices: bit for bit equal to one device for every way
//! of copying hidden states, the same results as the host's if the CPU has some layers, and the
//! errors when a device is lost.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::placement::{Layers, StageDevice};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{DecodeControl, KvType, OpenOptions, Session, SessionError, Want};
use kjit_tests::files::model_path;
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::Simulated;
use kjit_tests::solo_session::SoloSession;
use kjit_tests::story::{same, story};
use std::ops::Deref;
use std::time::Instant;

const LLAMA: &str = "tiny/tiny-llama-q4_k_m.gguf";

/// A model and an engine.
struct Bench {
    all: Several,
    layers: usize,
}

impl Deref for Bench {
    type Target = Several;

    fn deref(&self) -> &Several {
        &self.all
    }
}

impl Bench {
    fn new(name: &str) -> Bench {
        let all = Several::new(name, TEMPORARY, WORKER);
        let layers = Layers::of(&all.graph).unwrap().len();
        Bench { all, layers }
    }

    fn gpu(&self, label: &str) -> StageDevice {
        StageDevice::Gpu(self.engine.device(label).unwrap())
    }

    fn one(&self, options: &OpenOptions) -> Session {
        let device = self.engine.device("rocm:0").unwrap();
        Session::on_gpu(&self.engine, &device, &self.gguf, self.graph.clone(), options).unwrap()
    }

    /// Opens with the first layer on the first of these devices and the last layer on the last.
    fn several(&self, places: &[StageDevice], options: &OpenOptions) -> Session {
        let more = self.layers - places.len();
        let counts = (0..places.len()).map(|i| if i == 1 { 1 + more } else { 1 });
        let stages: Vec<(StageDevice, usize)> = places.iter().cloned().zip(counts).collect();
        Session::on_stages(&self.engine, &stages, &self.gguf, self.graph.clone(), options).unwrap()
    }
}

/// Greedy answers of two sequences, decoded together.
fn greedy(session: &mut Session, n: usize) -> Vec<Vec<u32>> {
    let ids: Vec<_> = (0..2).map(|_| session.add(SampleOptions::default()).unwrap()).collect();
    let starts = [(ids[0], &[5u32, 9, 2, 6, 3][..]), (ids[1], &[8u32][..])];
    let mut said = vec![vec![]; 2];
    session
        .decode(&starts, &mut |id, token| {
            let answer = &mut said[usize::from(id == ids[1])];
            answer.push(token);
            if answer.len() == n { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    ids.into_iter().for_each(|id| session.remove(id).unwrap());
    said
}

/// A prompt of two chunks and a token, then a rollback and the same again.
fn short(session: &mut Session) -> Vec<Vec<f32>> {
    let id = session.add(SampleOptions::default()).unwrap();
    let prompt: Vec<u32> = (0..20).map(|i| i * 7 + 3).collect();
    let mut rows = vec![session.feed(id, &prompt, Want::Last).unwrap()];
    rows.push(session.feed(id, &[5], Want::Last).unwrap());
    session.truncate(id, 18).unwrap();
    rows.push(session.feed(id, &[9, 8], Want::All).unwrap());
    session.remove(id).unwrap();
    rows
}

/// On one device a decoded token is one replay, without other calls of the driver.
fn a_token_is_one_replay(session: &mut Session) {
    let device = session.gpu().unwrap().opened().clone();
    let id = session.add(SampleOptions::default()).unwrap();
    let (mut seen, mut counts) = (0, vec![]);
    session
        .decode(&[(id, &[1, 2, 3])], &mut |_, _| {
            seen += 1;
            if seen == 3 || seen == 9 {
                counts.push(device.counts());
            }
            if seen == 10 { DecodeControl::End } else { DecodeControl::Go }
        })
        .unwrap();
    session.remove(id).unwrap();
    let spent = counts[1] - counts[0];
    let rest = [
        spent.launches,
        spent.copies_in,
        spent.copies_out,
        spent.copies_within,
        spent.synchronisations,
    ];
    assert_eq!(
        (spent.replays, rest, spent.allocations + spent.pinned),
        (6, [0; 5], 0),
        "{spent:?}"
    );
}

/// Compares two devices with one, bit for bit.
fn as_one_device(test: &str, name: &'static str, devices: &str, kv: KvType) {
    if model_path(name).is_none() {
        return;
    }
    setup(devices).run(test, TEMPORARY, || {
        let (b, options, start) = (Bench::new(name), options(kv), Instant::now());
        let before = Simulated::here().alive();
        let mut one = b.one(&options);
        // One model runs the whole test; the others run a prompt in chunks and tokens.
        let story: fn(&mut Session) -> Vec<Vec<f32>> = if name == LLAMA { story } else { short };
        let (answers, want) = (greedy(&mut one, 4), story(&mut one));
        a_token_is_one_replay(&mut one);
        drop(one);
        let mut two = b.several(&[b.gpu("rocm:0"), b.gpu("rocm:1")], &options);
        assert_eq!(two.gpu().unwrap().link(), Some("device to device"));
        assert_eq!(greedy(&mut two, 4), answers, "{name}: greedy answers");
        same(name, &want, &story(&mut two));
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(Simulated::here().fault(1), "");
        drop(two);
        assert_eq!(
            Simulated::here().alive().bytes,
            before.bytes,
            "memory of the devices is given back"
        );
        eprintln!("{name} on {devices}: {:.1?}", start.elapsed());
    });
}

#[test]
fn llama_on_two_simulated_gfx1100_is_bit_identical() {
    let test = "simulated_stages::llama_on_two_simulated_gfx1100_is_bit_identical";
    as_one_device(test, LLAMA, "gfx1100,gfx1100", KvType::F16);
}

#[test]
fn head_norms_on_two_simulated_gfx1100_are_bit_identical() {
    let test = "simulated_stages::head_norms_on_two_simulated_gfx1100_are_bit_identical";
    as_one_device(test, "tiny/tiny-qwen3-q4_k_m.gguf", "gfx1100,gfx1100", KvType::F16);
}

#[test]
fn q8_0_kv_on_two_simulated_gfx942_is_identical() {
    let test = "simulated_stages::q8_0_kv_on_two_simulated_gfx942_is_identical";
    let two = "gfx942:sramecc+:xnack-,gfx942:sramecc+:xnack-";
    as_one_device(test, "tiny/tiny-qwen2-f16.gguf", two, KvType::Q8_0);
}

#[test]
fn experts_on_two_simulated_gfx90a_are_bit_identical() {
    let test = "simulated_stages::experts_on_two_simulated_gfx90a_are_bit_identical";
    let two = "gfx90a:sramecc+:xnack-,gfx90a:sramecc+:xnack-";
    as_one_device(test, "tiny/tiny-moe-q4_k_m.gguf", two, KvType::F16);
}

#[test]
fn windows_on_two_simulated_gfx1201_are_bit_identical() {
    let test = "simulated_stages::windows_on_two_simulated_gfx1201_are_bit_identical";
    as_one_device(test, "tiny/tiny-gemma3-q8_0.gguf", "gfx1201,gfx1201", KvType::F16);
}

/// Compares a real model on two devices with one. Runs only on request.
#[test]
fn smollm2_on_two_simulated_gfx1100_is_bit_identical() {
    let test = "simulated_stages::smollm2_on_two_simulated_gfx1100_is_bit_identical";
    if !kjit_tests::all("stages") {
        return eprintln!("SKIPPED: KJIT_TEST_ALL=stages runs SmolLM2 on two simulated devices");
    }
    as_one_device(test, "SmolLM2-135M-Instruct.Q4_1.gguf", "gfx1100,gfx1100", KvType::F16);
}

#[test]
fn corrupting_link_is_replaced_by_copies_through_host() {
    let test = "simulated_stages::corrupting_link_is_replaced_by_copies_through_host";
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100").set("HIPSIM_LINK", "lies").run(test, TEMPORARY, || {
        let (b, options) = (Bench::new(LLAMA), options(KvType::F16));
        let want = story(&mut b.one(&options));
        let mut two = b.several(&[b.gpu("rocm:0"), b.gpu("rocm:1")], &options);
        let gpu = two.gpu().unwrap();
        assert_eq!(gpu.link(), Some("through the host"));
        let said = gpu.remarks().join("; ");
        assert!(
            said.contains("from rocm:0 to rocm:1 go through the host")
                && said.contains("did not arrive"),
            "{said}"
        );
        same(LLAMA, &want, &story(&mut two));
    });
}

#[test]
fn cpu_stages_around_simulated_devices_match_host_logits() {
    let test = "simulated_stages::cpu_stages_around_simulated_devices_match_host_logits";
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let (b, options) = (Bench::new(LLAMA), options(KvType::F16));
        let precise = OpenOptions { precise: true, sequences: 1, ..options.clone() };
        let mut host = SoloSession::cpu(&b.gguf, &b.graph, &precise);
        let (first, second) = (b.gpu("rocm:0"), b.gpu("rocm:1"));
        for places in [
            vec![StageDevice::Cpu, first.clone()],
            vec![first.clone(), StageDevice::Cpu],
            vec![first.clone(), StageDevice::Cpu, second.clone()],
        ] {
            let mut session = b.several(&places, &options);
            let mut seen = side_by_side::scores(&mut session, &mut host, 3);
            if places.len() == 3 {
                seen.extend(side_by_side::mixed(&mut session, &mut host));
                let gap = side_by_side::joining(&mut session, &mut host, 2);
                assert!(gap < 0.05, "{places:?}: a token is {gap} below the host's choice");
            }
            assert!(seen.iter().all(|x| *x < 5e-2), "{places:?}: logits are off by {seen:?}");
            seen.sort_by(f64::total_cmp);
            assert!(seen[seen.len() / 2] < 4e-3, "{places:?}: logits are off by {seen:?}");
        }
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(Simulated::here().fault(1), "");
    });
}

#[test]
fn lost_device_is_one_error_with_its_name() {
    let test = "simulated_stages::lost_device_is_one_error_with_its_name";
    if model_path(LLAMA).is_none() {
        return;
    }
    let (first, fault) = ("TEST_LOST", 700);
    // A lost device stays lost, so each case runs in a new process.
    let lost = std::env::var(first).ok().and_then(|n| n.parse::<u32>().ok());
    let body = |lost: u32| {
        let (b, options) = (Bench::new(LLAMA), options(KvType::F16));
        let mut two = b.several(&[b.gpu("rocm:0"), b.gpu("rocm:1")], &options);
        let id = two.add(SampleOptions::default()).unwrap();
        two.feed(id, &[3, 1, 4, 1, 5], Want::Last).unwrap();
        two.feed(id, &[9], Want::Last).unwrap();
        // A token is one replay on each device, in the order of the devices.
        Simulated::here().fail(c"hipGraphLaunch", 1 + lost, fault);
        let error = two.feed(id, &[2], Want::Last).unwrap_err();
        assert!(
            matches!(&error, SessionError::Lost(why) if why.contains(&format!("rocm:{lost}"))),
            "{error:?}"
        );
        assert_eq!(two.len(id).unwrap(), 6, "no token more than before");
        let again = two.feed(id, &[2], Want::Last).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
    };
    match lost {
        Some(lost) => setup("gfx1100,gfx1100").run(test, TEMPORARY, || body(lost)),
        None => {
            for lost in ["0", "1"] {
                setup("gfx1100,gfx1100").set(first, lost).run(test, TEMPORARY, || {});
            }
        }
    }
}
