//! Common habits of users, and how kjit answers: words of other programs, pipes, defaults, and
//! misleading errors.

use crate::support::{error_line, kjit, model, smollm2, stdout};
use kjit_tests::simulator::Setup;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Lines of stderr with this prefix.
fn said<'o>(output: &'o str, begin: &str) -> Vec<&'o str> {
    output.lines().filter(|l| l.starts_with(begin)).collect()
}

/// A machine without any GPU driver, and with only the named compilers.
fn bare(c: &mut Command) -> &mut Command {
    c.env("KJIT_HIP_LIBRARY", "/nowhere/libamdhip64.so")
        .env("NO_COLOR", "1")
        .env_remove("KJIT_CACHE_DIR")
}

#[test]
fn llama_cpp_and_ollama_words_get_one_line_advice() {
    for (arguments, wanted) in [
        (&["-m", "x.gguf", "-p", "hi"][..], "kjit run x.gguf"),
        (&["run", "x.gguf", "-i"], "is a chat"),
        (&["run", "x.gguf", "-p", "hi", "-tb", "4"], "--threads"),
        (&["run", "x.gguf", "-p", "hi", "-b", "512"], "--prefill-chunk"),
        (&["ls"], "kjit list"),
        (&["run", "https://example.org/a/b", "-p", "x"], "ORG/REPO"),
        (&["chat", "x.gguf"], "kjit run MODEL"),
        (&["pull", "smollm2"], "hf:ORG/REPO"),
        (&["fetch", "smollm2"], "kjit pull"),
        (&["server"], "kjit serve"),
        (&["x.gguf"], "kjit run x.gguf"),
    ] {
        let line = error_line(kjit().args(arguments), 2);
        assert!(line.contains(wanted), "{arguments:?}: {line}");
    }
    // clap explains a word that other programs do not have either, and --help prints help.
    assert!(
        error_line(kjit().args(["run", "x.gguf", "--no-such-flag"]), 2).contains("--no-such-flag")
    );
    assert!(stdout(kjit().args(["run", "-h"])).contains("Examples"));
}

#[test]
fn llama_cpp_and_ollama_flags_and_names_work() {
    let model = smollm2();
    let model = model.to_str().unwrap();
    let answer = |arguments: &[&str]| {
        let output = kjit().env("HF_HUB_OFFLINE", "1").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let ours = answer(&[
        "run",
        model,
        "-p",
        "Hi",
        "-n",
        "3",
        "-c",
        "64",
        "--temp",
        "0",
        "--seed",
        "1",
        "--threads",
        "1",
        "--system",
        "Be.",
        "--device",
        "cpu",
    ]);
    let theirs = answer(&[
        "run",
        "-p",
        "Hi",
        "--n-predict",
        "3",
        "--ctx-size",
        "64",
        "--temperature",
        "0",
        "-s",
        "1",
        "-t",
        "1",
        "-sys",
        "Be.",
        "-ngl",
        "99",
        "-fa",
        "on",
        "--no-mmap",
        "-m",
        model,
        "--device",
        "cpu",
    ]);
    assert_eq!(ours.0, theirs.0);
    assert_eq!(said(&theirs.1, "note: -ngl, -fa, --no-mmap ignored").len(), 1, "{}", theirs.1);
    let refused = |name: &str| {
        error_line(
            kjit().env("HF_HUB_OFFLINE", "1").args(["run", name, "-p", "x", "--device", "cpu"]),
            1,
        )
    };
    // Names on the hub. No request is sent to the hub.
    for name in ["a/b:Q4_0", "hf.co/a/b:Q4_0", "https://huggingface.co/a/b/blob/main/x.gguf"] {
        assert!(refused(name).contains("HF_HUB_OFFLINE"), "{name}: {}", refused(name));
    }
    assert!(refused("llama3.2").contains("kjit run bartowski/Llama-3.2-3B-Instruct-GGUF"));
    assert!(refused("nothing").contains("ORG/REPO"));
}

#[test]
fn positional_prompt_follows_file_or_pipe() {
    let tail = ["-n", "6", "--temp", "0", "--raw", "--json"];
    let answer = |arguments: &[&str], piped: Option<&str>| {
        let mut c = kjit();
        c.arg("run").arg(smollm2()).args(arguments).args(tail);
        if let Some(piped) = piped {
            c.write_stdin(piped);
        }
        let doc: serde_json::Value = serde_json::from_str(&stdout(&mut c)).unwrap();
        (doc["prompt_tokens"].clone(), doc["ids"].clone())
    };
    let whole = answer(&["-p", "One two three.\nFour five"], None);
    assert_eq!(answer(&["One two three.\nFour five"], None), whole);
    assert_eq!(answer(&["-p", "Four five"], Some("One two three.\n")), whole);
    // The last line may have no line end.
    assert_eq!(answer(&["Four five"], Some("One two three.")), whole);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "Four five").unwrap();
    assert_eq!(answer(&["-f", file.to_str().unwrap()], Some("One two three.\n")), whole);
    assert_ne!(answer(&["-p", "Four five"], None), whole);
    assert!(
        error_line(kjit().args(["run", "x.gguf", "one", "-p", "two"]), 2)
            .contains("cannot be used with")
    );
}

#[test]
fn auto_device_explains_cpu_and_explicit_cpu_does_not() {
    let run = |device: &[&str]| -> String {
        let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
        c.arg("run")
            .arg(model("tiny/tiny-llama-q8_0.gguf"))
            .args(["--raw", "-p", "hi", "-n", "1"])
            .args(device);
        let output = bare(&mut c).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        said(&text(&output.stderr), "device: ").concat()
    };
    let line = run(&[]);
    if line.contains("cuda:0") {
        eprintln!("SKIPPED: there is an NVIDIA GPU here, so auto takes it");
    } else {
        assert!(
            line.starts_with("device: cpu, ") && line.contains("no GPU") && line.contains("rocm: "),
            "{line}"
        );
        assert!(line.contains("libcuda") || line.contains("cuda: "), "{line}");
    }
    for device in ["cpu", "cpu:0"] {
        let line = run(&["--device", device]);
        assert!(line.starts_with("device: cpu, ") && !line.contains("no GPU"), "{line}");
    }
    assert!(error_line(kjit().args(["devices", "--device", "cpu:1"]), 2).contains("cpu:0"));
}

#[test]
fn closed_stdout_ends_commands_silently_with_exit_0() {
    let smollm2 = smollm2();
    let path = smollm2.to_str().unwrap();
    for arguments in [
        &["run", path, "-q", "--device", "cpu", "--temp", "0", "-n", "400", "Count to a thousand."]
            [..],
        &["inspect", path],
        &["inspect", path, "--json"],
        &["inspect", path, "--graph"],
        &["logits", path, "--ids", "1", "--top", "49152", "--device", "cpu", "-q"],
        &["bench", "--kernels", "--help"],
        &["devices", "--json"],
        &["--help"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kjit"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Like `head -c 1`: one byte is read, then the pipe is closed.
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut [0]).unwrap();
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn unwritable_trace_is_refused_before_work() {
    let mut c = kjit();
    // The model is missing too: the trace is checked first.
    let line = error_line(
        c.args(["run", "/no/such/model.gguf", "-p", "x", "--trace", "/no/such/folder/t.json"]),
        1,
    );
    assert!(line.contains("trace") && line.contains("/no/such/folder/t.json"), "{line}");
}

#[test]
fn warm_without_arch_uses_present_cards() {
    let tiny = model("tiny/tiny-llama-q8_0.gguf");
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    let output = bare(&mut c).args(["warm", "--no-cache"]).arg(&tiny).output().unwrap();
    let line = text(&output.stderr);
    if said(&line, "error").is_empty() {
        eprintln!("SKIPPED: there is an NVIDIA GPU here");
    } else {
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(
            line.contains("no --arch")
                && line.contains("no GPU was found")
                && line.contains("rocm: "),
            "{line}"
        );
    }
    let test = "habits::warm_without_arch_uses_present_cards";
    let setup = Setup::devices("gfx1100,gfx1201,gfx1100")
        .set("HIPSIM_CLANG", "none")
        .set("HIPSIM_OPTIMISE", "-O0");
    setup.run(test, TEMPORARY, || {
        for (device, archs) in
            [(&[][..], &["gfx1100", "gfx1201"][..]), (&["--device", "rocm:1"], &["gfx1201"])]
        {
            let mut c = kjit();
            c.arg("warm").arg(model("tiny/tiny-llama-q8_0.gguf")).args([
                "-c",
                "64",
                "--prefill-chunk",
                "16",
            ]);
            c.args(["--compiler", "hiprtc", "--no-cache", "--json"]).args(device);
            let doc: serde_json::Value = serde_json::from_str(&stdout(&mut c)).unwrap();
            let kernels = doc["kernels"].as_array().unwrap();
            let arch = |k: &serde_json::Value| {
                k["arch"].as_str().unwrap().split(':').next().unwrap().to_owned()
            };
            let mut found: Vec<String> = kernels.iter().map(arch).collect();
            found.sort();
            found.dedup();
            assert_eq!(found, archs, "{device:?}");
        }
    });
}

#[test]
fn bench_reports_one_cause_as_one_line() {
    let none = "/nowhere/nvrtc.so";
    let dir = tempfile::tempdir().unwrap();
    let mut c = kjit();
    c.args(["bench", "--kernels", "--arch", "sm_90", "--cache-dir"])
        .arg(dir.path())
        .env("KJIT_NVRTC_LIBRARY", none);
    let output = c.assert().failure().code(1).get_output().clone();
    let errors = text(&output.stderr);
    assert_eq!(said(&errors, "error").len(), 1, "{errors}");
    assert!(errors.contains("sm_90") && errors.contains(none), "{errors}");
}

fn warm_tiny(cache: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    c.arg("warm").arg(model("tiny/tiny-llama-q8_0.gguf")).args([
        "--arch",
        "gfx1100",
        "--compiler",
        "clang",
        "--cache-dir",
    ]);
    c.arg(cache);
    c
}

#[test]
fn unstartable_compiler_is_reported_as_found() {
    let dir = tempfile::tempdir().unwrap();
    // The content of the file does not matter: it is never opened as a library.
    let clang = dir.path().join("clang-19");
    std::fs::write(&clang, "#!/bin/sh\n").unwrap();
    let output: Output = warm_tiny(dir.path())
        .env("TMPDIR", "/no/such/folder")
        .env("KJIT_CLANG", &clang)
        .output()
        .unwrap();
    let errors = text(&output.stderr);
    let lines = said(&errors, "error");
    assert_eq!((output.status.code(), lines.len()), (Some(1), 1), "{errors}");
    for word in ["clang", "found, but cannot be started", "/no/such/folder", "TMPDIR"] {
        assert!(lines[0].contains(word), "{word}: {errors}");
    }
    assert!(!lines[0].contains("install"), "{errors}");
}

#[test]
fn invalid_hip_library_is_named_without_empty_places() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("libwrong.so");
    for (content, word) in [(None, "libwrong.so"), (Some(&b"no library"[..]), "libwrong.so")] {
        if let Some(content) = content {
            std::fs::write(&wrong, content).unwrap();
        }
        let line = error_line(
            kjit()
                .args(["run", "x.gguf", "-p", "x", "--device", "rocm:0"])
                .env("KJIT_HIP_LIBRARY", &wrong),
            1,
        );
        drop(line);
        let said = stdout(kjit().args(["devices"]).env("KJIT_HIP_LIBRARY", &wrong));
        assert!(
            said.contains(word) && !said.contains("tried ;") && !said.contains("tried,"),
            "{said}"
        );
    }
    // A library without HIP's functions.
    let libm = [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib64/libm.so.6",
        "/lib/aarch64-linux-gnu/libm.so.6",
    ];
    let Some(libm) = libm.into_iter().find(|p| Path::new(p).exists()) else {
        eprintln!("SKIPPED: no libm where it is looked for");
        return;
    };
    let said = stdout(kjit().args(["devices"]).env("KJIT_HIP_LIBRARY", libm));
    assert!(said.contains(libm) && !said.contains("tried ;"), "{said}");
}

#[test]
fn doctor_names_used_compiler_and_missing_device_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    let output = bare(&mut c)
        .args(["doctor", "--device", "rocm:0", "--cache-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let verdicts = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{verdicts}");
    assert_eq!(said(&verdicts, "FAIL rocm:0: not here").len(), 1, "{verdicts}");
    assert!(!verdicts.contains("the CPU computes"), "{verdicts}");
    // hiprtc of ROCm 5.2 is found first and does not know this card, so clang compiles the kernels.
    let old = "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5";
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    Setup::devices("gfx1100").apply(TEMPORARY, &mut c).env("KJIT_HIPRTC_LIBRARY", old);
    let verdicts =
        text(&c.args(["doctor", "--cache-dir"]).arg(dir.path()).output().unwrap().stdout);
    let found = stdout(kjit().args(["devices"]).env("KJIT_HIPRTC_LIBRARY", old));
    if found.contains("AMD: hiprtc 5.2") && found.contains("AMD: clang") {
        let lines = said(&verdicts, "ok   compiler for gfx1100: ");
        assert!(lines.len() == 1 && lines[0].contains("clang"), "{verdicts}");
        assert!(!verdicts.contains("hiprtc 5.2"), "{verdicts}");
    } else {
        eprintln!(
            "SKIPPED in part: no hiprtc 5.2 and clang beside each other here (Debian: \
             libamdhip64-5 clang-19 lld-19)"
        );
    }
    // An unwritable cache is one verdict, too.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_kjit"));
    let verdicts = text(
        &bare(&mut c)
            .args(["doctor", "--cache-dir"])
            .arg(file.join("cache"))
            .output()
            .unwrap()
            .stdout,
    );
    assert_eq!(said(&verdicts, "FAIL cache: ").len(), 1, "{verdicts}");
    assert!(said(&verdicts, "ok   cache").is_empty(), "{verdicts}");
}

#[test]
fn completions_and_manual_pages_are_generated() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(kjit().args(["completions", shell]));
        assert!(script.contains("kjit") && script.contains("prefill-chunk"), "{shell}: {script}");
    }
    assert!(error_line(kjit().args(["completions", "tcsh"]), 2).contains("tcsh"));
    let page = stdout(kjit().arg("man"));
    assert!(page.contains(".TH kjit 1") && page.contains("kjit\\-warm(1)"), "{page}");
    let page = stdout(kjit().args(["man", "run"]));
    for part in [".TH kjit-run 1", "prefill", "\\-\\-device", "Examples:"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(error_line(kjit().args(["man", "nothing"]), 1).contains("nothing"));
    if Command::new("bash").args(["--version"]).stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: no bash here to read the completions");
        return;
    }
    let script = stdout(kjit().args(["completions", "bash"]));
    let asked = format!(
        "{script}\nCOMP_WORDS=(kjit wa); COMP_CWORD=1; _kjit kjit wa kjit; echo \
         \"${{COMPREPLY[@]}}\""
    );
    // An argument may have at most 128 KiB.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("complete.bash");
    std::fs::write(&file, asked).unwrap();
    let output = Command::new("bash").arg("--norc").arg(&file).output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "warm", "{}", text(&output.stderr));
}

/// All flags and values of the command that are fixed.
#[test]
fn stable_flags_exist() {
    for (command, flags) in [
        (
            "run",
            "-p -f -n -c --prefill-chunk --wait-compile --system --raw --temp --top-k \
             --top-p --min-p --repeat-penalty --presence-penalty --frequency-penalty --seed --stop \
             --typical --top-nsigma --xtc-probability --xtc-threshold --dry-multiplier --dry-base \
             --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --dynatemp-range \
             --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent --kv-type --trace \
             --json --precise --device --cache-dir --no-cache -v -q --threads --compiler-path",
        ),
        ("warm", "--arch --jobs --compiler --tune --emit --json --prefill-chunk -c"),
        ("bench", "-p -n -d -b -r -o --kernels --filter --arch --prefill-chunk -c"),
        ("devices", "--json -v"),
        ("doctor", "--run --export --arch --bundle --report --json"),
        ("inspect", "--graph -c --json"),
        ("tokenize", "--jsonl --plain"),
        ("detokenize", "--jsonl --hex"),
        ("template", "--jsonl"),
        ("embed", "--jsonl --normalise --pooling --precise"),
        ("pull", "--json -q"),
        ("list", "--json"),
        ("rm", "--json"),
        ("logits", "--ids --top --device --json --precise"),
        ("perplexity", "-f -c --json --precise"),
        ("imatrix", "-f -o -c --chunks --force"),
        ("quantize", "--type --imatrix --keep --set --unset --dry-run --force --json"),
        ("dequant", "--type --hex"),
        ("cache list", "--json --arch --model --kernel --older --larger"),
        ("cache export", "--arch --model --sign"),
    ] {
        let help = stdout(kjit().args(command.split(' ')).arg("--help"));
        let words: Vec<&str> =
            help.split(|c: char| c.is_whitespace() || ",[]<>=.".contains(c)).collect();
        for flag in flags.split(' ') {
            assert!(words.contains(&flag), "{command} {flag}: {help}");
        }
    }
    for value in ["auto", "hiprtc", "nvrtc", "clang"] {
        assert!(stdout(kjit().args(["warm", "--help"])).contains(value), "{value}");
    }
    for refused in ["metal", "opencl"] {
        assert!(error_line(kjit().args(["devices", "--device", refused]), 2).contains(refused));
    }
}
