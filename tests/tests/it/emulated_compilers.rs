//! Code of other compilers than Debian 12's clang 19, on the emulator: an owner of a card has
//! another LLVM, or hiprtc of ROCm 6 or 7. `scripts/amd-compilers` fetches them, runs this test and
//! writes its table.

use crate::common::WORKER;
use crate::emulated_kernels::Tally;
use gfxemu::bundle::Bundle;
use kjit_engine::{Config, Engine, Isolation, Target};
use kjit_model::gpu::bundle::{ExportOptions, LIMIT, export};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// An architecture of each family that LLVM 19 can disassemble.
const ARCHS: [&str; 11] = [
    "gfx803", "gfx900", "gfx906", "gfx908", "gfx90a", "gfx942", "gfx1010", "gfx1030", "gfx1100",
    "gfx1151", "gfx1201",
];

/// Byte dots, LDS, exchanges of lanes, the last block's work, matrix units.
const CASES: [&str; 4] =
    ["matvec Q8_0×43", "attend 4/2 × 64 F16", "gemm Q8_0×67", "flash 4/2 heads of 64, F16"];

/// A compiler in `.tools`.
struct Found {
    name: String,
    kind: &'static str,
    file: PathBuf,
    folder: PathBuf,
}

/// The compilers that `scripts/fetch-clang` and `scripts/fetch-hiprtc` unpacked.
fn found() -> Vec<Found> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools");
    let mut all = vec![];
    for entry in std::fs::read_dir(&tools).into_iter().flatten().flatten() {
        let (folder, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let file = |path: PathBuf| path.is_file().then_some(path);
        let (kind, file) = match name.split_once('-') {
            Some(("clang", version)) => {
                ("clang", file(folder.join(format!("usr/lib/llvm-{version}/bin/clang"))))
            }
            Some(("hiprtc", version)) => {
                let library = format!("usr/lib/x86_64-linux-gnu/libhiprtc.so.{version}");
                ("hiprtc", file(folder.join(library)))
            }
            _ => continue,
        };
        all.extend(file.map(|file| Found { name, kind, file, folder }));
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// A copy of the compiler process's program that uses the C library beside hiprtc.
fn worker(found: &Found, place: &Path) -> PathBuf {
    if found.kind == "clang" {
        return PathBuf::from(WORKER);
    }
    let copy = place.join("kjit-cc");
    std::fs::copy(WORKER, &copy).unwrap();
    let libraries = found.folder.join("usr/lib/x86_64-linux-gnu");
    let done = Command::new("patchelf")
        .arg("--set-interpreter")
        .arg(libraries.join("ld-linux-x86-64.so.2"))
        .args(["--force-rpath", "--set-rpath"])
        .arg(&libraries)
        .arg(&copy)
        .status();
    assert!(done.is_ok_and(|status| status.success()), "patchelf (Debian: patchelf)");
    copy
}

fn engine(found: &Found, place: &Path) -> Engine {
    let cache = kjit_cache::Config::for_app("kjit").ignore_environment().dir(place.join("cache"));
    let config = Config::new().cache(cache).isolation(Isolation::Worker(worker(found, place)));
    Engine::new(config.compiler_kind(found.kind).compiler_path(&found.file))
}

/// A row of the table: cases that were right, and the others by name.
fn row(found: &Found, arch: &str) -> (String, Vec<String>) {
    let (place, start) = (tempfile::tempdir().unwrap(), Instant::now());
    let engine = engine(found, place.path());
    let target = Target::parse(arch).unwrap();
    let (mut tally, mut code) = (Tally::default(), String::new());
    let mut failed = vec![];
    let all = kjit_tests::all("emulate");
    for filter in if all { &[""][..] } else { &CASES[..] } {
        let folder = place.path().join(format!("bundle {filter}").replace('/', "-"));
        let wish =
            ExportOptions { seed: 20_261_128, filter: (*filter).to_owned(), limit: 4 * LIMIT };
        if let Err(why) = export(&engine, &target, &wish, &folder, &|_, _| {}) {
            failed.push(format!("{filter}: {why}"));
            continue;
        }
        let mut bundle = Bundle::open(&folder).unwrap();
        bundle.compiler().clone_into(&mut code);
        tally.add(&mut bundle, false);
    }
    let Tally { right, instructions, bad, excused } = tally;
    failed.extend(bad);
    let text = format!(
        "{}\t{code}\t{arch}\t{right}\t{}\t{excused}\t{instructions}\t{:.0}",
        found.name,
        failed.len(),
        start.elapsed().as_secs_f64()
    );
    (text, failed.into_iter().map(|why| format!("{} {arch}: {why}", found.name)).collect())
}

#[test]
#[ignore = "scripts/amd-compilers runs it: half an hour"]
fn code_of_other_compilers_is_correct() {
    let only = std::env::var("KJIT_TEST_ONLY").unwrap_or_default();
    let all = found();
    assert!(!all.is_empty(), "scripts/amd-compilers fetches compilers");
    let mut bad = vec![];
    for (found, arch) in all.iter().flat_map(|found| ARCHS.map(|arch| (found, arch))) {
        if !format!("{} {arch}.", found.name).contains(&only) {
            continue;
        }
        let (text, failed) = row(found, arch);
        eprintln!("ROW\t{text}");
        failed.iter().for_each(|why| eprintln!("BAD\t{}", why.replace('\n', " ")));
        bad.extend(failed);
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
