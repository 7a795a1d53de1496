//! `kjit cache` with caches that this test fills: filters, repairs, packs, and one clear line per
//! error.

use crate::support::{error_line, kjit, model, stdout};
use kjit_cache::{Artefact, BuildKey, Cache, Config, Key, SecretKey};
use kjit_engine::{Engine, Source, Target, TuningSubject};
use kjit_model::gguf::Gguf;
use kjit_model::session::{KvType, OpenOptions};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn open(dir: &Path) -> Cache {
    Cache::open(Config::for_app("kjit").ignore_environment().dir(dir))
}

fn put(cache: &Cache, arch: &str, kernel: &str, bytes: usize) {
    let source =
        Key::builder("command test").field("kernel", kernel).field("target", arch).finish();
    let artefact = Artefact::new(vec![7; bytes])
        .meta("arch", arch)
        .meta("kernel", kernel)
        .meta("compiler", "none 1.0");
    cache.put(&BuildKey::new(&source, |key| key.field("maker", "test")), &artefact);
}

/// A cache of five entries and a record.
pub fn filled() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let cache = open(&home);
    for (arch, kernel, bytes) in [
        ("gfx1100", "matvec", 30_000),
        ("gfx1100", "norm", 2_000),
        ("gfx90a:xnack+", "matvec", 40_000),
        ("sm_90a", "matvec", 50_000),
        ("sm_90a", "attend", 1_000),
    ] {
        put(&cache, arch, kernel, bytes);
    }
    cache.put_record(&Key::builder("tuning").finish(), b"{}");
    (dir, home)
}

pub fn cache(home: &Path, args: &[&str]) -> assert_cmd::Command {
    let mut command = kjit();
    command.arg("cache").args(args).arg("--cache-dir").arg(home);
    command.env_remove("KJIT_PACK_PATH");
    command
}

pub fn json(command: &mut assert_cmd::Command) -> Value {
    let text = stdout(command);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

pub fn listed(home: &Path, filter: &[&str]) -> Vec<String> {
    let doc = json(&mut cache(home, &[&["list", "--json"], filter].concat()));
    let mut all: Vec<String> = doc
        .as_array()
        .unwrap()
        .iter()
        .map(|e| format!("{} {}", e["arch"].as_str().unwrap(), e["kernel"].as_str().unwrap()))
        .collect();
    all.sort();
    all
}

#[test]
fn filters_combine_architecture_kernel_size_and_age() {
    let (_dir, home) = filled();
    assert_eq!(listed(&home, &[]).len(), 5);
    assert_eq!(listed(&home, &["--arch", "sm_90"]), ["sm_90a attend", "sm_90a matvec"]);
    assert_eq!(listed(&home, &["--arch", "gfx90a"]), ["gfx90a:xnack+ matvec"]);
    assert_eq!(listed(&home, &["--arch", "gfx1100,sm_90a"]).len(), 4);
    let line = error_line(&mut cache(&home, &["list", "--arch", "gfx110"]), 1);
    assert!(line.contains("'gfx110'"), "a prefix is not an architecture: {line}");
    assert_eq!(
        listed(&home, &["--kernel", "matvec", "--larger", "40kB"]),
        ["gfx90a:xnack+ matvec", "sm_90a matvec"]
    );
    assert_eq!(listed(&home, &["--older", "0s"]).len(), 5);
    assert_eq!(listed(&home, &["--older", "1h"]).len(), 0);
    let doc = json(&mut cache(&home, &["stat", "--json", "--arch", "gfx1100"]));
    assert_eq!(
        (&doc["picked"]["entries"], &doc["picked"]["archs"][0]["arch"]),
        (&2.into(), &"gfx1100".into())
    );
    assert!(doc["picked"]["bytes"].as_u64().unwrap() > 32_000);
}

#[test]
fn list_has_every_documented_field() {
    let (_dir, home) = filled();
    let doc = json(&mut cache(&home, &["list", "--json", "--kernel", "norm"]));
    let [entry] = doc.as_array().unwrap().as_slice() else { panic!("{doc}") };
    for field in ["key", "path", "arch", "kernel", "bytes", "compiler", "created", "used", "layer"]
    {
        assert!(entry.get(field).is_some_and(|value| !value.is_null()), "{field}: {entry}");
    }
    assert!(Path::new(entry["path"].as_str().unwrap()).is_file());
    // Without --json, one line per entry.
    let text = stdout(&mut cache(&home, &["list", "--kernel", "norm"]));
    assert!(
        text.lines().count() == 1 && text.contains("gfx1100") && text.contains("none 1.0"),
        "{text}"
    );
}

#[test]
fn invalid_filter_values_are_usage_errors() {
    let (_dir, home) = filled();
    for wrong in [
        &["clear", "--older", "banana"][..],
        &["clear", "--older", "30"],
        &["clear", "--older", "-1d"],
        &["clear", "--larger", "lots"],
        &["clear", "--kernel", ""],
        &["clear", "--records", "--arch", "sm_90"],
        &["list", "-c", "512"],
        &["import", "x.kjitpack", "--signer", "abc"],
        &["export", "--arch", "sm_90"],
        &["frobnicate"],
    ] {
        let output = cache(&home, wrong).assert().code(2).get_output().clone();
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{wrong:?}");
    }
    for command in ["stat", "list", "verify", "clear"] {
        let line = error_line(&mut cache(&home, &[command, "--arch", "gfx9999"]), 1);
        assert!(line.contains("gfx9999") && line.contains("supported"), "{line}");
    }
    assert_eq!(listed(&home, &[]).len(), 5, "something was removed");
}

#[test]
fn clear_reports_removals_keeps_records_and_has_dry_run() {
    let (_dir, home) = filled();
    let dry = stdout(&mut cache(&home, &["clear", "--arch", "sm_90", "--dry-run"]));
    assert!(dry.starts_with("would remove 2 of 5 entries"), "{dry}");
    assert_eq!(listed(&home, &[]).len(), 5);
    let doc = json(&mut cache(&home, &["clear", "--arch", "sm_90", "--json"]));
    assert_eq!((&doc["removed"], &doc["records"]), (&2.into(), &0.into()), "{doc}");
    assert_eq!(listed(&home, &["--arch", "sm_90"]).len(), 0);
    assert!(
        stdout(&mut cache(&home, &["clear", "--older", "2w"]))
            .starts_with("removed 0 of 3 entries")
    );
    let all = stdout(&mut cache(&home, &["clear"]));
    assert!(all.starts_with("removed 3 of 3 entries") && all.contains("1 records stay"), "{all}");
    assert!(stdout(&mut cache(&home, &["clear", "--records"])).contains("1 of 1 records"));
    let doc = json(&mut cache(&home, &["stat", "--json"]));
    assert_eq!(
        (&doc["layers"][0]["entries"], &doc["layers"][0]["records"]),
        (&0.into(), &0.into()),
        "{doc}"
    );
}

#[test]
fn verify_quarantines_flipped_byte_and_then_succeeds() {
    let (_dir, home) = filled();
    let doc = json(&mut cache(&home, &["list", "--json", "--kernel", "norm"]));
    let path = PathBuf::from(doc[0]["path"].as_str().unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    // Corrupt entries are reported with any filter, because their architecture is unknown.
    let output = cache(&home, &["verify", "--arch", "sm_90"]).assert().code(1).get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("2 good"), "{text}");
    assert!(text.contains("1 bad, set aside"), "{text}");
    let again = stdout(&mut cache(&home, &["verify"]));
    assert!(again.starts_with("5 good") && again.contains(" 0 bad"), "{again}");
}

/// Stores the jobs of a small model as entries without code: all, or all except one.
fn put_model(home: &Path, arch: &str, without: usize) -> PathBuf {
    let path = model("tiny/tiny-llama-q4_k_m.gguf");
    let graph = kjit_model::arch::build(&Gguf::open(&path).unwrap()).unwrap();
    let context = graph.context.min(8192);
    let options = OpenOptions {
        context: Some(context),
        kv: KvType::F16,
        precise: false,
        threads: 1,
        prefill_chunk: Some(2048),
        ..OpenOptions::default()
    };
    let target = Target::parse(arch).unwrap();
    let engine = Engine::new(
        kjit_engine::Config::new().cache(Config::for_app("kjit").ignore_environment().dir(home)),
    );
    let cache = engine.cache();
    for job in
        kjit_model::gpu::jobs_for(&engine, &graph, &target, &options).unwrap().iter().skip(without)
    {
        let key = BuildKey::new(&job.source_key().unwrap(), |key| key.field("maker", "test"));
        let meta = Artefact::new("code")
            .meta("arch", job.compile_id().unwrap())
            .meta("kernel", job.source.name());
        cache.put(&key, &meta);
    }
    path
}

#[test]
fn model_filter_selects_planned_kernels_and_names_missing_ones() {
    let (dir, home) = filled();
    let model = put_model(&home, "gfx1100", 0);
    put_model(&home, "gfx942", 1);
    let model = model.to_str().unwrap();
    let doc = json(&mut cache(&home, &["stat", "--model", model, "--json"]));
    let by_arch = |arch: &str| {
        doc["model"].as_array().unwrap().iter().find(|m| m["arch"] == arch).unwrap().clone()
    };
    assert_eq!(by_arch("gfx1100")["missing"].as_array().unwrap().len(), 0, "{doc}");
    assert_eq!(by_arch("gfx942")["missing"].as_array().unwrap().len(), 1, "{doc}");
    // Entries of other models are not listed.
    let of_model = listed(&home, &["--model", model, "--arch", "gfx1100"]).len() as u64;
    assert_eq!(of_model, by_arch("gfx1100")["kernels"].as_u64().unwrap());
    assert!(listed(&home, &["--arch", "gfx1100"]).len() as u64 == of_model + 2);

    cache(&home, &["verify", "--model", model, "--arch", "gfx1100"]).assert().success();
    let output = cache(&home, &["verify", "--model", model, "--arch", "gfx942"])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("kjit warm") && said.contains("gfx942"), "{said}");

    // A pack of a model has all of its kernels. If one is missing, no pack is written.
    let pack = dir.path().join("x.kjitpack");
    let pack = pack.to_str().unwrap();
    let line = error_line(
        &mut cache(&home, &["export", "--model", model, "--arch", "gfx942", "-o", pack]),
        1,
    );
    assert!(line.contains("missing") && line.contains("kjit warm"), "{line}");
    assert!(!Path::new(pack).exists());
    let doc = json(&mut cache(
        &home,
        &["export", "--model", model, "--arch", "gfx1100", "-o", pack, "--json"],
    ));
    assert_eq!(
        (doc["entries"].as_u64().unwrap(), &doc["archs"]),
        (of_model, &serde_json::json!(["gfx1100"]))
    );

    let removed =
        json(&mut cache(&home, &["clear", "--model", model, "--arch", "gfx1100", "--json"]));
    assert_eq!(removed["removed"].as_u64().unwrap(), of_model);
    assert_eq!(listed(&home, &["--arch", "gfx1100"]), ["gfx1100 matvec", "gfx1100 norm"]);
    let line = error_line(&mut cache(&home, &["list", "--model", "/no/such.gguf"]), 1);
    assert!(line.contains("/no/such.gguf"), "{line}");
}

#[test]
fn pack_moves_between_machines_with_required_signer() {
    let (dir, home) = filled();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (key, plain, signed, foreign) =
        (at("key"), at("plain.kjitpack"), at("signed.kjitpack"), at("foreign.kjitpack"));
    let keys = [(key.as_str(), 1u8), (&*at("other"), 2)].map(|(file, number)| {
        let hex = format!("{number:02x}").repeat(32);
        std::fs::write(file, &hex).unwrap();
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
        (file.to_owned(), SecretKey::from_bytes([number; 32]).public().to_string())
    });
    let text = stdout(&mut cache(&home, &["export", "--arch", "gfx1100", "-o", &plain]));
    assert!(text.contains("2 entries") && text.contains("for gfx1100"), "{text}");
    let text = stdout(&mut cache(
        &home,
        &["export", "--arch", "gfx1100", "-o", &signed, "--sign", &keys[0].0],
    ));
    assert!(text.contains(&format!("signed by {}", keys[0].1)), "{text}");
    stdout(&mut cache(
        &home,
        &["export", "--arch", "gfx1100", "-o", &foreign, "--sign", &keys[1].0],
    ));

    let new = dir.path().join("new");
    for (pack, why) in [(&plain, "not signed"), (&foreign, "signed by")] {
        let line = error_line(&mut cache(&new, &["import", pack, "--signer", &keys[0].1]), 1);
        assert!(line.contains(why) && line.contains(pack), "{line}");
        assert!(!new.exists(), "a refused pack left something");
    }
    let doc = json(&mut cache(&new, &["import", &signed, "--signer", &keys[0].1, "--json"]));
    assert_eq!(
        (&doc["taken"], &doc["signer"], &doc["archs"]),
        (&2.into(), &keys[0].1.clone().into(), &"gfx1100".into())
    );
    assert_eq!(listed(&new, &[]), ["gfx1100 matvec", "gfx1100 norm"]);
    let again = stdout(&mut cache(&new, &["import", &signed]));
    assert!(again.starts_with("imported 0, already cached 2"), "{again}");
    // A pack that is used in place is listed and verified, and cannot be cleared.
    let third = dir.path().join("third");
    let with_pack = |args: &[&str]| {
        let mut command = cache(&third, args);
        command.env("KJIT_PACK_PATH", &plain);
        command
    };
    let doc = json(&mut with_pack(&["list", "--json"]));
    assert_eq!((doc.as_array().unwrap().len(), &doc[0]["layer"]), (2, &plain.clone().into()));
    assert!(stdout(&mut with_pack(&["verify"])).starts_with("2 good"));
    let output = with_pack(&["clear"]).assert().success().get_output().clone();
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("removed 0 of 0"));
    assert!(String::from_utf8(output.stderr).unwrap().contains("2 more in read-only layers"));
    // A key file that others can read is a warning; an invalid key is an error.
    std::fs::set_permissions(&keys[0].0, PermissionsExt::from_mode(0o644)).unwrap();
    let output = cache(&home, &["export", "-o", &plain, "--sign", &keys[0].0])
        .assert()
        .success()
        .get_output()
        .clone();
    assert!(String::from_utf8(output.stderr).unwrap().contains("chmod 600"));
    std::fs::write(&keys[0].0, "no key").unwrap();
    let line = error_line(&mut cache(&home, &["export", "-o", &plain, "--sign", &keys[0].0]), 1);
    assert!(line.contains("does not contain a secret key") && !line.contains("no key\""), "{line}");
}

#[test]
fn pack_contains_tuning_of_its_architectures() {
    let (dir, home) = filled();
    let engine = Engine::new(
        kjit_engine::Config::new().cache(Config::for_app("kjit").ignore_environment().dir(&home)),
    );
    let source = Source::new("k", "k.hip", "int x;");
    for arch in ["sm_90", "gfx1100"] {
        let target = Target::parse(arch).unwrap();
        let subject = TuningSubject { target: &target, source: &source, what: "4096 rows" };
        engine.keep_tuning_choice(&subject, arch.as_bytes()).unwrap();
    }
    let (pack, new) = (dir.path().join("x.kjitpack"), dir.path().join("new"));
    let doc = json(&mut cache(
        &home,
        &["export", "--arch", "sm_90", "-o", pack.to_str().unwrap(), "--json"],
    ));
    assert_eq!((&doc["entries"], &doc["records"]), (&2.into(), &1.into()), "{doc}");
    stdout(&mut cache(&new, &["import", pack.to_str().unwrap()]));
    let values: Vec<Vec<u8>> = open(&new).records().into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, [b"sm_90"]);
}

#[test]
fn import_refuses_damaged_entries_individually() {
    let (dir, home) = filled();
    let pack = dir.path().join("x.kjitpack");
    stdout(&mut cache(&home, &["export", "-o", pack.to_str().unwrap()]));
    let mut bytes = std::fs::read(&pack).unwrap();
    let near_the_end = bytes.len() - 500;
    bytes[near_the_end] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let new = dir.path().join("new");
    let output =
        cache(&new, &["import", pack.to_str().unwrap()]).assert().code(1).get_output().clone();
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(out.starts_with("imported 4, already cached 0, refused 1"), "{out}");
    assert!(err.contains("refused ") && err.contains("error: ") && err.contains("1 of 5"), "{err}");
    assert_eq!(listed(&new, &[]).len(), 4);
}

#[test]
fn export_overwrites_only_packs_and_lists_entries_without_match() {
    let (dir, home) = filled();
    let pack = dir.path().join("x.kjitpack");
    let to = |path: &Path, arch: &str| {
        cache(&home, &["export", "--arch", arch, "-o", path.to_str().unwrap()])
    };
    stdout(&mut to(&pack, "gfx1100"));
    let small = pack.metadata().unwrap().len();
    stdout(&mut to(&pack, "sm_90"));
    assert_ne!(pack.metadata().unwrap().len(), small);
    let letter = dir.path().join("letter.txt");
    std::fs::write(&letter, "Dear pack,").unwrap();
    for (path, why) in [
        (letter.clone(), "is not a pack"),
        (dir.path().to_owned(), "is a directory"),
        (dir.path().join("none/x.kjitpack"), "No such file"),
    ] {
        let line = error_line(&mut to(&path, "sm_90"), 1);
        assert!(line.contains(why) && line.contains(path.to_str().unwrap()), "{line}");
        assert_eq!(
            line.matches("os error").count(),
            usize::from(why.starts_with("No")),
            "said twice: {line}"
        );
    }
    assert_eq!(std::fs::read_to_string(&letter).unwrap(), "Dear pack,");
    let line = error_line(&mut to(&pack, "gfx1201"), 1);
    for word in ["nothing to export", "gfx1100 (2)", "sm_90a (2)"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    let line = error_line(
        &mut cache(&dir.path().join("none"), &["export", "-o", pack.to_str().unwrap()]),
        1,
    );
    assert!(line.contains("empty") && line.contains("kjit warm"), "{line}");
}

#[test]
fn pack_is_never_writable_by_others() {
    let (dir, home) = filled();
    let pack = dir.path().join("x.kjitpack");
    let exe = assert_cmd::cargo::cargo_bin("kjit");
    let script = "umask 000; exec \"$0\" cache export --cache-dir \"$1\" -o \"$2\"";
    let status = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(exe)
        .arg(&home)
        .arg(&pack)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(pack.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    assert!(
        stdout(cache(&dir.path().join("new"), &["list"]).env("KJIT_PACK_PATH", &pack))
            .lines()
            .count()
            == 5
    );
}

#[test]
fn ctrl_c_in_export_exits_130_without_leftovers() {
    // The cache is in RAM if possible, because each entry is synced.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let home = dir.path().join("home");
    let many = open(&home);
    (0..500).for_each(|n| put(&many, "gfx1100", &format!("kernel {n}"), 100_000));
    let folder = dir.path().join("out");
    std::fs::create_dir(&folder).unwrap();
    let pack = folder.join("x.kjitpack");
    let mut interrupted = 0;
    // The delays differ, so that some signals arrive during a write.
    for pause in [60, 100, 140, 180, 220, 260, 300, 400] {
        let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("kjit"))
            .args(["cache", "export", "--cache-dir"])
            .arg(&home)
            .arg("-o")
            .arg(&pack)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        // SAFETY: kill takes two numbers; the child was not waited for yet, so its id is still
        // valid.
        unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
        let start = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(start.elapsed() < Duration::from_secs(20));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(130) => {
                assert!(said.contains("interrupted") && said.lines().count() == 1, "{said}");
                assert!(!pack.exists());
                interrupted += 1;
            }
            // The process has already ended, or does not handle signals yet.
            Some(0) => std::fs::remove_file(&pack).unwrap(),
            None => {}
            other => panic!("{other:?}: {said}"),
        }
        assert_eq!(
            std::fs::read_dir(&folder).unwrap().count(),
            0,
            "after {pause} ms: a part of a pack stayed"
        );
    }
    assert!(interrupted > 0, "no signal came in time");
    // The next export removes the temporary file of a killed process.
    std::fs::write(folder.join(".kjit-export-1-1-1"), "half a pack").unwrap();
    stdout(&mut cache(&home, &["export", "-o", pack.to_str().unwrap()]));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}
