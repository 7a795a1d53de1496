//! `run_bundle.py` passes a proof bundle to an emulator. Tests what it passes, and how it judges
//! each answer. The emulator in this test computes nothing. It checks its input like a strict
//! emulator, and takes the expected results from the bundle.

use crate::support::{kjit, stdout};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const FRONT: &str = r#"
import json, struct, sys
from pathlib import Path

bundle = Path(sys.argv[1])
cases, data = json.loads((bundle / "manifest.json").read_text())["cases"], (bundle / "data.bin").read_bytes()

def wanted(buffer):
    after = buffer["after"]
    if after["must_be"] == "exactly":
        content = after["content"]
        return bytes([content["fill"]]) * buffer["bytes"] if "fill" in content else data[content["at"]:][:buffer["bytes"]]
    if after["must_be"] == "near":
        reals = struct.unpack_from(f"<{after['values']}d", data, after["at"])
        return struct.pack(f"<{len(reals)}{'f' if after['storage'] == 'f32' else 'e'}", *reals)

for line in sys.stdin:
    launch = json.loads(Path(line.strip()).read_text())
    n, (code, block, *buffers) = launch["case"], launch["memory"]
    case, content = cases[n], [Path(m["file"]).read_bytes() for m in launch["memory"]]
    assert [len(c) for c in content] == [m["bytes"] for m in launch["memory"]]
    spans = sorted((m["address"], m["address"] + m["bytes"]) for m in launch["memory"])
    assert all(end + 4096 < start for (_, end), (start, _) in zip(spans, spans[1:])), spans
    assert all(b["address"] % 256 == 0 and b["writable"] for b in buffers) and not code["writable"] and not block["writable"]
    for slot in case["arguments"]["slots"]:
        if slot["kind"] == "buffer":
            assert struct.unpack_from("<Q", content[1], slot["offset"])[0] == buffers[slot["buffer"]]["address"]
    assert launch["argument_pointer"]["value"] == block["address"]
    first = launch["entry"] - code["address"]
    assert content[0][first:first + 64] in Path(launch["code_object"]).read_bytes()
    assert content[0][launch["descriptor"] - code["address"]:][8:12] == struct.pack("<I", block["bytes"])
    assert launch["block_ids"]["x"].startswith("s") and launch["denormals"] == 15 and launch["wave"] == case["wave"]
    if n == 2:
        sys.exit(3)
    if n in (1, 3):
        print("cannot v_tomorrow_b32" if n == 1 else "hello", flush=True)
        continue
    for m, buffer in zip(buffers, case["buffers"]):
        result = wanted(buffer)
        if result:
            result = bytes([result[0] ^ (n == 0)]) + result[1:] if buffer["after"]["must_be"] == "exactly" else result
            Path(m["file"]).write_bytes(result)
    print("done", flush=True)
"#;

#[test]
fn emulator_front_receives_every_launch_and_answers_count() {
    let test = "emulator_front_receives_every_launch_and_answers_count";
    let devices: Value = serde_json::from_str(&stdout(kjit().args(["devices", "--json"]))).unwrap();
    if !devices["compilers"].as_array().unwrap().iter().any(|c| c["kind"] == "clang") {
        eprintln!("SKIPPED {test}: no clang with the AMDGPU target (Debian: clang-19 lld-19)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (bundle, front, results) =
        (dir.path().join("bundle"), dir.path().join("front.py"), dir.path().join("results"));
    std::fs::write(&front, FRONT).unwrap();
    let mut export = kjit();
    export.arg("--cache-dir").arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("bundle-front"));
    export
        .arg("doctor")
        .arg("--export")
        .arg(&bundle)
        .args(["--arch", "gfx1100", "--filter", "moe"]);
    export.assert().success();
    let run = |options: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(bundle.join("run_bundle.py")).args(options).arg(&bundle).arg(&results);
        let output = command.arg("python3").arg(&front).arg(&bundle).output().expect("python3");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said.clone() + &String::from_utf8_lossy(&output.stderr), said)
    };
    let (code, all, said) = run(&[]);
    assert_eq!(code, Some(1), "{all}");
    assert!(said.ends_with("gfx1100: 14 right, 1 wrong, 3 not run, 0 not asked for\n"), "{all}");
    for (case, word, why) in [
        (0, "wrong", "byte 0 is"),
        (1, "not run", "v_tomorrow_b32"),
        (2, "not run", "the command ended (exit code 3)"),
        (3, "not run", "the command said 'hello'"),
    ] {
        let line = said
            .lines()
            .find(|l| l.starts_with(&format!("{word:7} {case:4} ")))
            .unwrap_or_else(|| panic!("{all}"));
        assert!(line.contains(why), "{line}");
    }
    let (code, all, said) = run(&["--cases", "4-9,17", "--wave", "32"]);
    assert_eq!(code, Some(0), "{all}");
    assert!(said.contains(" right, 0 wrong, 0 not run, "), "{all}");
    // The run has left no files in the bundle.
    let checked =
        Command::new("python3").arg(bundle.join("check_bundle.py")).arg(&bundle).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let (code, all, _) = run(&["--cases", "99"]);
    assert_eq!(code, Some(1), "no case ran: {all}");
}
