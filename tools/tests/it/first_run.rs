//! The first run on an unknown card, runtime or system. Each call that is refused, hangs or fails
//! gives one clear line, and an answer follows if any device can still compute it.

use crate::support::machine::{Machine, document, err, failure, simulated};
use crate::support::model;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const TINY: &str = "tiny/tiny-llama-q8_0.gguf";

/// The card of most tests here. Its compiled kernels are kept between runs.
fn card() -> Machine {
    Machine::new("gfx1100", Path::new(TEMPORARY).join("hipsim/first-run"))
}

/// Generates five greedy tokens of a small llama, as JSON.
fn asks<'c>(command: &'c mut Command, device: &str) -> &'c mut Command {
    asks_within(command, device, "64")
}

/// Like `asks`, with another context size.
fn asks_within<'c>(command: &'c mut Command, device: &str, context: &str) -> &'c mut Command {
    let path = model(TINY);
    command.arg("run").arg(path).args([
        "--raw",
        "-p",
        "hello you",
        "-n",
        "5",
        "--temp",
        "0",
        "--json",
        "-v",
    ]);
    command.args(["-c", context, "--prefill-chunk", "16", "--device", device])
}

fn run_with(machine: &Machine, device: &str, set: &[(&str, &str)]) -> Output {
    asks(machine.command().envs(set.iter().copied()), device).output().unwrap()
}

fn host() -> Value {
    let output = asks(&mut card().command(), "cpu").arg("--precise").output().unwrap();
    document(&output)["ids"].clone()
}

/// Asserts that the tokens equal the CPU's tokens. Returns stderr.
#[track_caller]
fn right(output: &Output) -> String {
    assert_eq!(document(output)["ids"], host(), "{}", err(output));
    err(output)
}

#[test]
fn runtime_without_graphs_matches_host_with_one_note() {
    if !simulated("runtime_without_graphs_matches_host_with_one_note") {
        return;
    }
    for refused in
        ["hipStreamBeginCapture:*:900", "hipStreamEndCapture:*:901", "hipGraphInstantiate:*:801"]
    {
        let said = right(&run_with(&card(), "rocm:0", &[("HIPSIM_FAIL", refused)]));
        assert_eq!(
            said.matches("rocm:0 cannot capture launches in a graph").count(),
            1,
            "{refused}: {said}"
        );
        assert!(said.contains(refused.split(':').next().unwrap()), "{refused}: {said}");
    }
}

#[test]
fn runtime_without_cooperative_launches_matches_host() {
    if !simulated("runtime_without_cooperative_launches_matches_host") {
        return;
    }
    // The runtime has this function and refuses the call.
    let fail = [("HIPSIM_FAIL", "hipModuleLaunchCooperativeKernel:*:801")];
    let mut persistent = card().command();
    let said = right(
        &asks(persistent.envs(fail), "rocm:0").args(["--persistent", "on"]).output().unwrap(),
    );
    assert_eq!(said.matches("rocm:0 refuses to capture cooperative launches").count(), 1, "{said}");
    assert!(said.contains("--persistent on has no effect"), "{said}");
    // ROCm 5.2 does not have this function.
    let old = Machine { rocm5: true, ..card() };
    let said =
        right(&asks(&mut old.command(), "rocm:0").args(["--persistent", "on"]).output().unwrap());
    assert!(said.contains("this device does not support cooperative launches"), "{said}");
}

#[test]
fn refused_page_locked_memory_is_replaced_by_own_pages() {
    if !simulated("refused_page_locked_memory_is_replaced_by_own_pages") {
        return;
    }
    right(&run_with(&card(), "rocm:0", &[("HIPSIM_FAIL", "hipHostMalloc:*:2")]));
    // Only the upload buffers are used: the file is copied from its memory map.
    right(&run_with(
        &card(),
        "rocm:0",
        &[("HIPSIM_FAIL", "hipHostRegister:*:1,hipHostMalloc:1:2")],
    ));
    // Both ways fail, and no other is left.
    let both = "hipHostRegister:*:1,hipHostMalloc:*:2";
    let line = failure(&run_with(&card(), "rocm:0", &[("HIPSIM_FAIL", both)]));
    assert!(
        line.contains("rocm:0: page-locked memory was refused") && line.contains("memlock"),
        "{line}"
    );
}

#[test]
fn hanging_or_crashing_driver_is_reported_and_cpu_answers() {
    if !simulated("hanging_or_crashing_driver_is_reported_and_cpu_answers") {
        return;
    }
    for (how, word) in [
        ("HIPSIM_HANG", "did not answer within 1 s"),
        ("HIPSIM_ABORT", "crashes when it lists devices"),
    ] {
        // The runtime has never answered since the machine started.
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::new("gfx1100", dir.path().to_owned());
        let set = [(how, "hipInit"), ("KJIT_DISCOVERY_SECONDS", "1")];
        let said = right(&run_with(&machine, "auto", &set));
        assert!(said.contains("device: cpu") && said.contains(word), "{how}: {said}");
        let line = failure(&run_with(&machine, "rocm:0", &set));
        assert!(line.contains("rocm") && line.contains(word), "{how}: {line}");
        let listed = machine.command().envs(set).arg("devices").output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains("not found: ") && listed.contains(word), "{how}: {listed}");
    }
}

#[test]
fn known_good_driver_is_queried_directly() {
    if !simulated("known_good_driver_is_queried_directly") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new("gfx1100", dir.path().to_owned());
    // No child process can be started, so the stored answer is used.
    let listed = |set: &[(&str, &str)]| {
        let output = machine
            .command()
            .envs(set.iter().copied())
            .args(["devices", "--json"])
            .output()
            .unwrap();
        document(&output)["devices"].as_array().unwrap().len()
    };
    assert_eq!(listed(&[]), 2);
    assert_eq!(listed(&[("TMPDIR", "/nowhere")]), 2);
    let records = || walk(dir.path()).len();
    let before = records();
    assert!(before > 0, "the download was discarded");
    assert_eq!((listed(&[]), records()), (2, before));
    // For another set of devices the query is repeated.
    assert_eq!(listed(&[("HIP_VISIBLE_DEVICES", "0")]), 2);
    assert!(records() > before);
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[test]
fn two_cards_of_different_families_match_host() {
    if !simulated("two_cards_of_different_families_match_host") {
        return;
    }
    let both = Machine { devices: "gfx1030,gfx942:sramecc+:xnack-", ..card() };
    for (device, arch) in
        [("rocm:0", "gfx1030"), ("rocm:1", "gfx942:sramecc+:xnack-"), ("auto", "gfx1030")]
    {
        let output = run_with(&both, device, &[]);
        right(&output);
        assert_eq!(document(&output)["device"]["arch"], arch, "{device}");
    }
    // Both devices together, each with some of the layers.
    let said = right(&run_with(&both, "rocm:1,rocm:0", &[]));
    let line = said.lines().find(|l| l.starts_with("device: ")).unwrap_or_default();
    assert!(
        line.contains("layers 0 to ") && line.contains("on rocm:1") && line.contains(" on rocm:0"),
        "{said}"
    );
    assert!(said.contains("rows arrive device to device"), "{said}");
    let output = asks(&mut both.command(), "rocm:0").args(["--host-layers", "1"]).output().unwrap();
    assert!(right(&output).contains("layer 0 on cpu"), "{}", err(&output));
    // A model that fits needs no layers on the CPU; a larger one does.
    assert!(right(&run_with(&both, "rocm:0,cpu", &[])).contains("device: rocm:0, "));
    for (device, flags, says) in [
        ("rocm:0", &["--split", "tensor"][..], "--split tensor needs several GPUs"),
        ("rocm:0,rocm:1", &["--persistent", "on"], "--persistent on cannot be combined"),
        ("rocm:0,rocm:7", &[], "rocm:7"),
        ("rocm:0", &["--host-layers", "99"], "--host-layers 99: the model has"),
        ("cpu", &["--host-layers", "1"], "--host-layers needs a GPU for the other layers"),
        ("rocm:0", &["--host-experts", "1"], "has no experts"),
        (
            "cpu",
            &["--host-experts", "1"],
            "--host-experts needs exactly one GPU for the rest of the model",
        ),
        (
            "rocm:0",
            &["--host-experts", "1", "--stream"],
            "--host-experts needs exactly one GPU for the rest of the model: remove --stream",
        ),
        (
            "rocm:0",
            &["--host-experts", "0", "--hot-experts", "1MB"],
            "--hot-experts needs --host-experts N",
        ),
        (
            "cpu",
            &["--host-ffn", "1"],
            "--host-ffn needs exactly one GPU for the rest of the model: --device names no GPU",
        ),
        (
            "rocm:0",
            &["--host-ffn", "1", "--stream"],
            "--host-ffn needs exactly one GPU for the rest of the model: remove --stream",
        ),
        ("rocm:0", &["--host-ffn", "1", "--host-layers", "1"], "remove --host-layers"),
        ("rocm:0", &["--host-ffn", "1", "--host-experts", "1"], "remove --host-experts"),
        (
            "rocm:0,rocm:1",
            &["--host-ffn", "1"],
            "--host-ffn needs exactly one GPU for the rest of the model: \
             name one GPU with --device",
        ),
    ] {
        let line = failure(&asks(&mut both.command(), device).args(flags).output().unwrap());
        assert!(line.contains(says), "{device} {flags:?}: {line}");
    }
    let line =
        failure(&both.command().args(["doctor", "--device", "rocm:0,rocm:1"]).output().unwrap());
    assert!(line.contains("this command takes one device"), "{line}");
}

#[test]
fn missing_memory_error_names_the_helpful_flag() {
    if !simulated("missing_memory_error_names_the_helpful_flag") {
        return;
    }
    // The size is known before the model is loaded.
    let small = [("HIPSIM_MEMORY", "36700160")];
    let ask = |context: &str| {
        let mut command = card().command();
        let output = asks_within(command.envs(small), "rocm:0", context).output().unwrap();
        (output.status.success(), err(&output))
    };
    let (fits, said) = ask("60000");
    let line = said.lines().find(|l| l.starts_with("error")).unwrap_or_default().to_owned();
    let context =
        line.split("; -c ").nth(1).and_then(|l| l.split(' ').next()).unwrap_or_default().to_owned();
    assert!(!fits && line.contains(" fits"), "{said}");
    let (fits, said) = ask(&context);
    assert!(fits, "the message says that -c {context} fits: {said}");
    // The allocation is refused, although the memory should be enough.
    for refused in ["hipMalloc:1:2", "hipMalloc:*:2"] {
        let line = failure(&run_with(&card(), "rocm:0", &[("HIPSIM_FAIL", refused)]));
        let helps = ["a smaller -c or --kv-type q8_0", "MiB to stream layers"];
        assert!(
            line.contains("MiB") && helps.iter().any(|flag| line.contains(flag)),
            "{refused}: {line}"
        );
    }
}

#[test]
fn kernel_faulting_in_verification_is_skipped() {
    if !simulated("kernel_faulting_in_verification_is_skipped") {
        return;
    }
    for (faults, entry) in [("", "matvec"), ("abort", "matvec")] {
        // A separate cache, because in other tests this card passes.
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::new("gfx1100", dir.path().to_owned());
        let broken = format!("{entry}:wave32:fault");
        let set = [("HIPSIM_BREAK", broken.as_str()), ("HIPSIM_FAULTS", faults)];
        let mut output = run_with(&machine, "rocm:0", &set);
        // AMD's runtime may abort the process. Then the next start knows about it.
        if faults == "abort" {
            assert_eq!(output.status.code(), None, "{}", err(&output));
            output = run_with(&machine, "rocm:0", &set);
        }
        let said = right(&output);
        assert!(said.contains("gives wrong results on rocm:0"), "{faults}: {said}");
        assert!(said.contains("trying gfx1100:wave64"), "{faults}: {said}");
        // The result was stored.
        assert!(right(&run_with(&machine, "rocm:0", &set)).contains("trying gfx1100:wave64"));
    }
}
