//! Tensor parallelism (`--split tensor`) on several simulated AMD devices: results against the host
//! and against other splits, exchange through host memory if devices have no peer access, errors
//! for models that do not divide and for a device that never arrives, and the exchange kernel
//! alone.

use crate::common::{TEMPORARY, WORKER};
use kjit_engine::{Arg, Device, Geometry, Job};
use kjit_kernels::Family;
use kjit_kernels::reduce::{ReduceSpec, STRETCH, WORDS, words_of_stretches};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{DecodeControl, KvType, OpenOptions, Session, SessionError, Want};
use kjit_tests::files::model_path;
use kjit_tests::launch::TestLaunch;
use kjit_tests::several::{Several, options, setup};
use kjit_tests::side_by_side;
use kjit_tests::simulator::{Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

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
        self.these(&self.devices(n))
    }

    fn these(&self, devices: &[Device]) -> Result<Session, Result<String, SessionError>> {
        Session::on_gpus(
            &self.engine,
            devices,
            &self.gguf,
            self.graph.clone(),
            &options(KvType::F16),
        )
    }
}

/// Logits after prompts of several sequences, one of them longer than a chunk, and after the
/// following tokens. Then a greedy answer.
fn said(session: &mut Session) -> (Vec<Vec<f32>>, Vec<u32>) {
    let prompts: Vec<Vec<u32>> =
        [5u32, 37, 16].iter().map(|n| (0..*n).map(|i| 3 + i * 7 % 90).collect()).collect();
    let ids: Vec<_> =
        prompts.iter().map(|_| session.add(SampleOptions::default()).unwrap()).collect();
    let mut all = vec![];
    for (id, prompt) in ids.iter().zip(&prompts) {
        all.push(session.feed(*id, prompt, Want::Last).unwrap());
        all.push(session.feed(*id, &[9], Want::Last).unwrap());
    }
    let mut answer = vec![];
    let mut sink = |_, token| {
        answer.push(token);
        if answer.len() < 12 { DecodeControl::Go } else { DecodeControl::Pause }
    };
    session.decode(&[(ids[1], &[2])], &mut sink).unwrap();
    ids.into_iter().for_each(|id| session.remove(id).unwrap());
    (all, answer)
}

/// Compares a split over these devices with the host, for all kinds of steps.
fn as_the_host(test: &str, name: &'static str, devices: &str) {
    if model_path(name).is_none() {
        return;
    }
    setup(devices).run(test, TEMPORARY, || {
        let (b, n, start) = (Bench::new(name), devices.split(',').count(), Instant::now());
        let before = Simulated::here().alive();
        let mut host = SoloSession::cpu(
            &b.gguf,
            &b.graph,
            &OpenOptions { precise: true, sequences: 1, ..options(KvType::F16) },
        );
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
        assert_eq!(
            Simulated::here().alive().bytes,
            before.bytes,
            "memory of the devices is given back"
        );
        eprintln!("{name} on {devices}: {:.1?}", start.elapsed());
    });
}

#[test]
fn tensor_parallel_llama_on_two_simulated_gfx1100_matches_host() {
    as_the_host(
        "simulated_tensor::tensor_parallel_llama_on_two_simulated_gfx1100_matches_host",
        LLAMA,
        "gfx1100,gfx1100",
    );
}

#[test]
fn tensor_parallel_experts_on_two_simulated_gfx942_match_host() {
    let two = "gfx942:sramecc+:xnack-,gfx942:sramecc+:xnack-";
    as_the_host(
        "simulated_tensor::tensor_parallel_experts_on_two_simulated_gfx942_match_host",
        "tiny/tiny-moe-q8_0.gguf",
        two,
    );
}

/// Rewrites a tiny model with four heads of size 64 (two key heads) as one with eight heads of size
/// 32 (four key heads). The matrices are unchanged.
fn with_four_key_heads(model: &Path, to: &Path) {
    let mut bytes = std::fs::read(model).unwrap();
    for (key, was, is) in [
        ("attention.head_count", 4u32, 8u32),
        ("attention.head_count_kv", 2, 4),
        ("attention.key_length", 64, 32),
        ("attention.value_length", 64, 32),
        ("rope.dimension_count", 64, 32),
    ] {
        // The key, the type of its value (u32), the value.
        let entry =
            [format!("llama.{key}").as_bytes(), &4u32.to_le_bytes(), &was.to_le_bytes()].concat();
        let end = bytes.windows(entry.len()).position(|w| w == entry).unwrap() + entry.len();
        bytes[end - 4..end].copy_from_slice(&is.to_le_bytes());
    }
    std::fs::write(to, bytes).unwrap();
}

#[test]
fn tensor_parallel_llama_on_four_simulated_gfx1100_matches_host() {
    four("simulated_tensor::tensor_parallel_llama_on_four_simulated_gfx1100_matches_host", "");
}

#[test]
fn tensor_parallel_llama_through_host_memory_matches_host() {
    four("simulated_tensor::tensor_parallel_llama_through_host_memory_matches_host", "none");
}

fn four(test: &str, link: &'static str) {
    let Some(model) = model_path("tiny/tiny-tied-q8_0.gguf") else { return };
    setup("gfx1100,gfx1100,gfx1100,gfx1100").set("HIPSIM_LINK", link).run(test, TEMPORARY, || {
        let folder = tempfile::tempdir().unwrap();
        let (path, start) = (folder.path().join("four.gguf"), Instant::now());
        with_four_key_heads(&model, &path);
        let b = Several::of(&path, TEMPORARY, WORKER);
        let options = OpenOptions { sequences: 1, ..options(KvType::F16) };
        let mut host =
            SoloSession::cpu(&b.gguf, &b.graph, &OpenOptions { precise: true, ..options.clone() });
        let four = Session::on_gpus(&b.engine, &b.devices(4), &b.gguf, b.graph.clone(), &options);
        let mut four = four.map_err(|e| format!("{e:?}")).unwrap();
        assert_eq!(four.gpu().unwrap().ranks(), 4);
        let way =
            if link.is_empty() { "from device to device" } else { "through the host's memory" };
        assert_eq!(four.gpu().unwrap().sums_go(), Some(way));
        let seen = side_by_side::scores(&mut four, &mut host, 1);
        let gap = side_by_side::joining(&mut four, &mut host, 1);
        assert!(gap < 0.05, "a token is {gap} below the host's choice");
        assert!(seen.iter().all(|x| *x < 1e-2), "logits are off by {seen:?}");
        (0..4).for_each(|i| assert_eq!(Simulated::here().fault(i), ""));
        eprintln!("four: {:.1?}", start.elapsed());
    });
}

#[test]
fn row_sums_do_not_depend_on_device_timing() {
    let test = "simulated_tensor::row_sums_do_not_depend_on_device_timing";
    setup("gfx1100,gfx1100").run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let devices = ["rocm:0", "rocm:1"].map(|name| engine.device(name).unwrap());
        assert!(devices[0].reach(&devices[1]).unwrap() && devices[1].reach(&devices[0]).unwrap());
        // Several chunks for each of a few blocks, and a partial chunk.
        let (ranks, cols, rows, blocks) = (2, 1028, 41, 3u32);
        let (count, room) = (rows * cols, 11 * STRETCH);
        assert!(count > 10 * STRETCH && count < room);
        let spec = ReduceSpec {
            ranks,
            cols,
            join: false,
            residual: true,
            stretches: true,
            gathered: false,
        };
        let target = devices[0].target();
        let kernel = spec.kernel(target).unwrap();
        let job = Job::new(kernel.source, kernel.constants, kernel.options, target.clone());
        let streams = devices.each_ref().map(|d| d.stream().unwrap());
        let values = |from: usize, round: usize| -> Vec<f32> {
            (0..count)
                .map(|i| ((i * 7919 + from * 104_729 + round * 31) % 1009) as f32 / 7.0 - 71.0)
                .collect()
        };
        let kernels =
            devices.each_ref().map(|d| engine.load(d, &job).unwrap().kernel(kernel.entry).unwrap());
        let inboxes = devices
            .each_ref()
            .map(|d| d.shared_buffer::<u32>(words_of_stretches(ranks, room)).unwrap());
        let words = devices.each_ref().map(|d| d.buffer::<u32>(WORDS).unwrap());
        let late = devices.each_ref().map(|d| d.pinned::<u32>(1).unwrap());
        let held = devices.each_ref().map(|d| [(); 3].map(|()| d.buffer::<f32>(count).unwrap()));
        for i in [0, 1] {
            streams[i].fill(&inboxes[i], 0).unwrap();
            streams[i].fill(&words[i], 0).unwrap();
            late[i].write(|to| to.fill(0)).unwrap();
        }
        for round in 0..5 {
            for i in [round % 2, 1 - round % 2] {
                let [x, residual, y] = &held[i];
                streams[i].write(x, &values(1 + i, round)).unwrap();
                streams[i].write(residual, &values(0, round)).unwrap();
                streams[i].synchronize().unwrap();
                let word = late[i].on_device();
                let none = Arg::Null;
                let args = [
                    Arg::from(x),
                    Arg::from(residual),
                    Arg::from(y),
                    Arg::from(&words[i]),
                    Arg::from(&word),
                    Arg::from(&inboxes[i]),
                    Arg::from(&inboxes[1 - i]),
                    none,
                    none,
                    none,
                    none,
                    none,
                    none,
                    Arg::from(count as u64),
                    Arg::from(room as u64),
                    Arg::from(10_000_000_000u64),
                    Arg::from(i as u32),
                    Arg::from(blocks),
                ];
                streams[i].put(&kernels[i], &Geometry::new(blocks, kernel.block), &args).unwrap();
                // The other rank arrives while this one sends, or later, when this one only waits
                // for it.
                std::thread::sleep(Duration::from_millis(3 * (round as u64 % 3)));
            }
            let (parts, added) = ([values(1, round), values(2, round)], values(0, round));
            let want: Vec<f32> =
                (0..count).map(|i| added[i] + (parts[0][i] + parts[1][i])).collect();
            for i in [0, 1] {
                assert!(streams[i].read(&held[i][2]).unwrap() == want, "round {round}, device {i}");
                let all = streams[i].read(&words[i]).unwrap();
                assert_eq!(all, [round as u32 + 1, 0, 0], "round {round}, device {i}");
                assert_eq!(Simulated::here().fault(i as i32), "");
            }
        }
    });
}

#[test]
fn indivisible_model_is_reported() {
    let test = "simulated_tensor::indivisible_model_is_reported";
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100,gfx1100").run(test, TEMPORARY, || {
        let b = Bench::new(LLAMA);
        let three = b.together(3).map(drop).unwrap_err().unwrap_err().to_string();
        assert!(three.contains("cannot divide") && three.contains("by 3 devices"), "{three}");
        let gemma = Bench::new("tiny/tiny-gemma3-q8_0.gguf")
            .together(2)
            .map(drop)
            .unwrap_err()
            .unwrap_err();
        assert!(gemma.to_string().contains("cannot divide"), "{gemma}");
    });
}

#[test]
fn unreachable_devices_sum_through_host_memory() {
    let test = "simulated_tensor::unreachable_devices_sum_through_host_memory";
    if model_path(LLAMA).is_none() {
        return;
    }
    // Device 0 can access device 1 but not device 2.
    setup("gfx1100,gfx1100,gfx1100").set("HIPSIM_LINK", "pairs").run(test, TEMPORARY, || {
        let (b, start) = (Bench::new(LLAMA), Instant::now());
        let (before, all) = (Simulated::here().alive(), b.devices(3));
        let mut near = b.these(&all[..2]).map_err(|e| format!("{e:?}")).unwrap();
        assert_eq!(near.gpu().unwrap().sums_go(), Some("from device to device"));
        assert!(near.gpu().unwrap().remarks().is_empty(), "{:?}", near.gpu().unwrap().remarks());
        let want = said(&mut near);
        drop(near);
        let mut far =
            b.these(&[all[0].clone(), all[2].clone()]).map_err(|e| format!("{e:?}")).unwrap();
        let gpu = far.gpu().unwrap();
        assert_eq!((gpu.ranks(), gpu.sums_go()), (2, Some("through the host's memory")));
        let why = "sums go through the host's memory: rocm:0 cannot reach the memory of rocm:2";
        assert_eq!(gpu.remarks(), [why]);
        let got = said(&mut far);
        assert_eq!(got.1, want.1);
        assert!(got.0 == want.0, "logits are not bit for bit equal");
        assert_eq!((want.0.len(), want.1.len()), (6, 12));
        drop(far);
        (0..3).for_each(|i| assert_eq!(Simulated::here().fault(i), ""));
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory is given back");
        eprintln!("in the host's memory: {:.1?}", start.elapsed());
    });
}

#[test]
fn defective_host_memory_is_detected_before_use() {
    let test = "simulated_tensor::defective_host_memory_is_detected_before_use";
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100").set("HIPSIM_LINK", "nothing").run(test, TEMPORARY, || {
        let (b, start) = (Bench::new(LLAMA), Instant::now());
        let why = b.together(2).map(drop).unwrap_err().unwrap();
        let both = "rocm:0 cannot reach the memory of rocm:1, and in the host's memory rocm:";
        assert!(why.starts_with(both) && why.contains("waited longer than 10 s"), "{why}");
        assert!(start.elapsed() < Duration::from_secs(100), "after {:?}", start.elapsed());
        (0..2).for_each(|i| assert_eq!(Simulated::here().fault(i), ""));
    });
}

#[test]
fn refused_host_memory_does_not_lose_a_device() {
    let test = "simulated_tensor::refused_host_memory_does_not_lose_a_device";
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100").set("HIPSIM_LINK", "none").run(test, TEMPORARY, || {
        let b = Bench::new(LLAMA);
        let refused = |calls: &[(&std::ffi::CStr, u32)]| {
            calls.iter().for_each(|(call, n)| Simulated::here().fail(call, *n, 1));
            let why = b.together(2).map(drop).unwrap_err().unwrap();
            assert!(
                why.starts_with(
                    "rocm:0 cannot reach the memory of rocm:1, and in the host's memory "
                ),
                "{why}"
            );
        };
        // The second device cannot map host memory; then host memory cannot be allocated.
        refused(&[(c"hipHostGetDevicePointer", 3)]);
        refused(&[(c"hipHostMalloc", 1), (c"hipHostRegister", 1)]);
    });
}

#[test]
fn link_defective_for_kernels_is_detected_before_use() {
    let test = "simulated_tensor::link_defective_for_kernels_is_detected_before_use";
    if model_path(LLAMA).is_none() {
        return;
    }
    // Copies between the devices arrive, so only the test pattern of the kernel can detect the
    // fault.
    setup("gfx1100,gfx1100").set("HIPSIM_LINK", "kernels").run(test, TEMPORARY, || {
        let (b, start) = (Bench::new(LLAMA), Instant::now());
        let mut two = b.together(2).map_err(|e| format!("{e:?}")).unwrap();
        let remarks = two.gpu().unwrap().remarks().to_vec();
        let found = |line: &String| {
            line.starts_with("sums go through the host's") && line.contains("longer than 10 s")
        };
        assert!(matches!(&remarks[..], [line] if found(line)), "{remarks:?}");
        assert!(start.elapsed() < Duration::from_secs(100), "after {:?}", start.elapsed());
        assert_eq!(said(&mut two).1.len(), 12);
        (0..2).for_each(|i| assert_eq!(Simulated::here().fault(i), ""));
    });
}

#[test]
fn missing_device_is_one_error_within_seconds() {
    never_comes("simulated_tensor::missing_device_is_one_error_within_seconds", "");
}

#[test]
fn missing_device_in_host_memory_sum_is_one_error() {
    never_comes("simulated_tensor::missing_device_in_host_memory_sum_is_one_error", "none");
}

fn never_comes(test: &str, link: &'static str) {
    if model_path(LLAMA).is_none() {
        return;
    }
    setup("gfx1100,gfx1100").set("HIPSIM_LINK", link).run(test, TEMPORARY, || {
        let b = Bench::new(LLAMA);
        let mut two = b.together(2).map_err(|e| format!("{e:?}")).unwrap();
        let id = two.add(SampleOptions::default()).unwrap();
        two.feed(id, &[3, 1, 4, 1, 5], Want::Last).unwrap();
        two.feed(id, &[9], Want::Last).unwrap();
        let start = Instant::now();
        // One of the devices does not get its token.
        Simulated::here().fail(c"hipGraphLaunch", 1, 700);
        let error = two.decode(&[(id, &[2])], &mut |_, _| DecodeControl::Go).unwrap_err();
        assert!(matches!(&error, SessionError::Lost(why) if why.contains("rocm:")), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "after {:?}", start.elapsed());
        let again = two.feed(id, &[2], Want::Last).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
    });
}
