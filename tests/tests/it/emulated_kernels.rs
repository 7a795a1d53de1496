//! The kernels' cases as machine code: compiled by clang 19, run on `gfxemu`. A normal run takes
//! some cases, `KJIT_TEST_ALL=emulate` takes all, and `KJIT_TEST_ONLY=TEXT` takes those whose names
//! contain TEXT.

use crate::common::WORKER;
use gfxemu::bundle::{Bundle, CaseResult};
use kjit_engine::{Config, Engine, Isolation, Target, Vendor};
use kjit_model::gpu::bundle::{ExportOptions, LIMIT, export};
use kjit_tests::simulator::engine;
use std::path::{Path, PathBuf};

/// Cases of the families whose matrix units differ most.
const MANY: &[&str] = &[
    "softmax",
    "norm_rows Rms · 3 × 576",
    "matvec Q4_K×49",
    "attend 4/2 × 64 F16",
    "gemm Q8_0×67",
    "flash 4/2 heads of 64, F16",
    "argmax 4",
    // The number of rows does not fill the blocks.
    "LinearSpec { heads: 3, keys: 19",
];
/// Cases of the other families: byte dots, LDS, exchanges of lanes, the last block's work.
const FEW: &[&str] = &["matvec Q8_0×43", "attend 4/2 × 64 F16"];
/// Addresses of eight ranks.
const EIGHT: &str = "reduce ReduceSpec { ranks: 8";
/// An extra case for CDNA 2 and later.
const WIDE: &str = "block 1024";
/// Matrix products whose results are read after a branch (`products_settle`).
const BRANCHING: &str = "latent_flash 3 heads of 160, values of 128, Q8_0";
/// Atomics of system scope, across processes.
const SYSTEM: &str = "reduce ReduceSpec { ranks: 4";
/// Cases without dot products of bytes. Eight columns of one case spill registers into scratch
/// memory.
const SPILLING: &[&str] = &["matvec Q8_0×43", "matvec Q4_1×31", "attend 4/2 × 64 F16"];

/// Number of seeds for the order in which stores of a case become visible.
const LOOSE: u64 = 3;

/// Attention that keeps its results between tiles.
const KEEPING: &str = "flash 4/2 heads of 64, Q8_0, 65 tokens";

/// A bundle of the cases whose names contain `filter`, or `None` without a compiler.
fn bundle(arch: &str, filter: &str) -> Option<(tempfile::TempDir, Bundle)> {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder.path().join("cache"), WORKER, "clang");
    bundle_by(&engine, folder, arch, filter)
}

/// A bundle made by the given engine.
fn bundle_by(
    engine: &Engine,
    folder: tempfile::TempDir,
    arch: &str,
    filter: &str,
) -> Option<(tempfile::TempDir, Bundle)> {
    let found = engine.compilers(Vendor::Amd).found;
    let why = gfxemu::llvm::available().err();
    if let Some(why) = why.or(found
        .is_empty()
        .then(|| "no clang with the AMDGPU target (Debian: clang-19 lld-19)".into()))
    {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let place = folder.path().join("bundle");
    // The size limit is larger than for a mailed bundle, so that all cases fit.
    let wish = ExportOptions { seed: 20_261_122, filter: filter.to_owned(), limit: 4 * LIMIT };
    let made = export(engine, &Target::parse(arch).unwrap(), &wish, &place, &|_, _| {}).unwrap();
    assert_eq!(made.left_out, Vec::<String>::new());
    let bundle = Bundle::open(&place).unwrap();
    Some((folder, bundle))
}

/// Verdicts of the cases that ran.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) right: usize,
    pub(crate) instructions: u64,
    pub(crate) bad: Vec<String>,
    /// Number of cases that ran again without gfx12's rule of cached scalar registers.
    pub(crate) excused: usize,
}

impl Tally {
    /// Runs the cases of a bundle, each with another order of blocks and waves. If `few`, each also
    /// runs with several orders of stores.
    pub(crate) fn add(&mut self, bundle: &mut Bundle, few: bool) {
        let bad = &mut self.bad;
        for case in 0..bundle.len() {
            let name = format!("{} (wave {})", bundle.name(case), bundle.wave(case));
            let mut verdict = bundle.run(case, case as u64 + 1);
            // LLVM 19 does not handle this gfx12 hazard (docs/amd-kernels.md). All other rules are
            // checked.
            if matches!(&verdict, CaseResult::Fault(why) if why.contains("and kept before")) {
                bundle.excused = true;
                verdict = bundle.run(case, case as u64 + 1);
                bundle.excused = false;
                self.excused += 1;
            }
            match verdict {
                CaseResult::Right(n) => {
                    assert!(n > 0, "{name} ran nothing");
                    self.right += 1;
                    self.instructions += n;
                    // Tries other orders of stores, and checks the paths that this run did not
                    // take.
                    for seed in (1..=LOOSE).filter(|_| few) {
                        // The run above checked the hazards.
                        (bundle.loose, bundle.excused) = (true, true);
                        let loose = bundle.run(case, case as u64 + 7 * seed);
                        (bundle.loose, bundle.excused) = (false, false);
                        if !matches!(loose, CaseResult::Right(_)) {
                            bad.push(format!("{name}: stores in an order by seed: {loose:?}"));
                        }
                    }
                    if let Ok(machine) = bundle.machine(case) {
                        bad.extend(machine.too_early().iter().map(|why| format!("{name}: {why}")));
                    }
                }
                other => bad.push(format!("{name}: {other:?}")),
            }
        }
    }

    /// Checks that at least `least` cases were right and none was wrong.
    fn check(&self, arch: &str, least: usize) {
        let Tally { right, instructions, bad, excused } = self;
        if *excused > 0 {
            eprintln!(
                "SKIPPED: {arch}: {excused} cases without the rule of scalar registers \
                 that are kept (LLVM before 20)"
            );
        }
        eprintln!("{arch}: {right} cases right, {instructions} instructions");
        assert!(
            bad.is_empty(),
            "{arch}: {} of {} cases:\n{}",
            bad.len(),
            right + bad.len(),
            bad.join("\n")
        );
        assert!(*right >= least, "{right} cases ran");
    }
}

/// The text that selects cases by name, if a variable requests more than the usual ones.
fn asked() -> Option<String> {
    let only = std::env::var("KJIT_TEST_ONLY").ok();
    only.or_else(|| kjit_tests::all("emulate").then(String::new))
}

/// Runs the selected cases.
fn check(arch: &str, some: &[&str]) {
    let all = asked();
    if all.is_none() {
        eprintln!(
            "SKIPPED: {arch}: all cases but those of {} (KJIT_TEST_ALL=emulate runs all)",
            some.join(", ")
        );
    }
    let mut tally = Tally::default();
    let wanted = all.as_deref().map(|text| [text]);
    for filter in wanted.as_ref().map_or(some, |one| &one[..]) {
        let Some((_folder, mut bundle)) = bundle(arch, filter) else { return };
        tally.add(&mut bundle, all.is_none());
    }
    tally.check(arch, if all.is_some() { 1 } else { some.len() });
}

/// Folder where `scripts/fetch-clang` stores clang 22 and the C library that it needs.
fn clang_22() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/clang-22");
    let there = folder.join("usr/lib/llvm-22/bin/clang").is_file();
    if !there {
        eprintln!("SKIPPED: no clang 22 (scripts/fetch-clang)");
    }
    there.then_some(folder)
}

/// An engine that compiles with clang 22 only.
fn engine_22(folder: &Path, place: &Path) -> Engine {
    let cache = kjit_cache::Config::for_app("kjit").ignore_environment().dir(place.join("cache"));
    let isolation = Isolation::Worker(PathBuf::from(WORKER));
    let clang = folder.join("usr/lib/llvm-22/bin/clang");
    Engine::new(Config::new().cache(cache).isolation(isolation).compiler_path(clang))
}

/// Environment variable with the bundle's folder, for the process that emulates it.
const BUNDLE: &str = "TEST_BUNDLE";

/// Runs cases for architectures that clang 19 does not know. LLVM 22's disassembler needs a newer C
/// library than Debian 12's, so this program runs again with the C library that came with LLVM 22.
fn check_22(arch: &str, some: &[&str]) {
    let Some(clang) = clang_22() else { return };
    let all = asked();
    if all.is_none() {
        eprintln!(
            "SKIPPED: {arch}: all cases but those of {} (KJIT_TEST_ALL=emulate runs all)",
            some.join(", ")
        );
    }
    let libraries = clang.join("usr/lib/x86_64-linux-gnu");
    let wanted = all.as_deref().map(|text| [text]);
    for filter in wanted.as_ref().map_or(some, |one| &one[..]) {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine_22(&clang, folder.path());
        let Some((folder, _)) = bundle_by(&engine, folder, arch, filter) else { return };
        let out = std::process::Command::new(libraries.join("ld-linux-x86-64.so.2"))
            .args(["--inhibit-cache", "--library-path"])
            .arg(&libraries)
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "emulated_kernels::child_process_runs_given_bundle",
                "--ignored",
                "--nocapture",
            ])
            .env("KJIT_LIBLLVM", libraries.join("libLLVM.so.22.1"))
            .env(BUNDLE, folder.path().join("bundle"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success() && said.contains(" cases right, "),
            "{said}{}",
            String::from_utf8_lossy(&out.stdout)
        );
        said.lines()
            .filter(|line| line.contains(" cases right, "))
            .for_each(|line| eprintln!("{line}"));
    }
}

#[test]
#[ignore = "check_22 starts it"]
fn child_process_runs_given_bundle() {
    let place = std::env::var_os(BUNDLE).expect("a bundle's place");
    let mut bundle = Bundle::open(Path::new(&place)).unwrap();
    let mut tally = Tally::default();
    tally.add(&mut bundle, asked().is_none());
    tally.check(bundle.arch(), 1);
}

#[test]
fn gfx1100_machine_code_is_correct() {
    check("gfx1100", &[MANY, &[EIGHT]].concat());
}

#[test]
fn gfx942_machine_code_is_correct() {
    check("gfx942", &[MANY, &[WIDE]].concat());
}

#[test]
fn gfx1201_machine_code_is_correct() {
    check("gfx1201", FEW);
}

#[test]
fn gfx90a_machine_code_is_correct() {
    check("gfx90a", &[FEW, &[WIDE, BRANCHING, SYSTEM, EIGHT, "gemm Q8_0×67"]].concat());
}

/// MI350: the matrix instructions of MI300 with other wait states after them.
#[test]
fn gfx950_machine_code_is_correct() {
    check_22("gfx950", &["matvec Q8_0×43", BRANCHING]);
}

/// MI450: WMMA is twice as deep, and stores must be written back.
#[test]
fn gfx1250_machine_code_is_correct() {
    check_22("gfx1250", &["gemm Q8_0×67", "attend 4/2 × 64 F16"]);
}

#[test]
fn gfx908_machine_code_is_correct() {
    // clang 19 miscompiles the flash kernels with matrix instructions for gfx908, so they use other
    // instructions (`Product::of_attention`).
    check("gfx908", &["matvec Q8_0×43", "attend 4/2 × 64 F16", "flash 4/2 heads of 64, F16"]);
}

/// clang 19 copies gfx908's accumulation registers through a register that was never written. The
/// test shows the fault that `kjit_kernels::copies` avoids.
#[test]
fn clang_19_miscompiles_gfx908_matrix_attention() {
    let Some((_folder, bundle)) = bundle("gfx908:sound-copies", KEEPING) else { return };
    assert_eq!(bundle.len(), 1);
    match bundle.run(0, 1) {
        CaseResult::Fault(why) => assert!(why.contains("an undefined value"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// A compiler without that fault is recognised (`kjit_kernels::copies`), and attention uses the
/// matrix unit.
#[test]
fn gfx908_matrix_attention_is_correct_with_sound_compiler() {
    let Some(clang) = clang_22() else { return };
    let folder = tempfile::tempdir().unwrap();
    let engine = engine_22(&clang, folder.path());
    let plain = Target::parse("gfx908").unwrap();
    assert_eq!(kjit_model::gpu::settled(&engine, &plain), plain.with_sound_copies());
    let all = asked();
    let filter =
        all.as_deref().map_or(KEEPING, |text| if text.is_empty() { "flash" } else { text });
    let Some((_folder, bundle)) = bundle_by(&engine, folder, "gfx908", filter) else { return };
    for case in 0..bundle.len() {
        let mut machine = bundle.machine(case).unwrap();
        let verdict = bundle.run_on(&mut machine, case, 7);
        assert!(matches!(verdict, CaseResult::Right(_)), "{}: {verdict:?}", bundle.name(case));
        let text = |(at, inst): (u64, Result<gfxemu::inst::Inst, String>)| {
            inst.ok().filter(|_| machine.executed(at))
        };
        if !bundle.name(case).starts_with("flash") {
            continue;
        }
        let matrix =
            machine.listing().into_iter().filter_map(text).any(|i| i.text.starts_with("v_mfma"));
        assert!(matrix, "{}: no matrix instruction ran", bundle.name(case));
    }
}

#[test]
fn gfx1030_machine_code_is_correct() {
    check("gfx1030", FEW);
}

#[test]
fn gfx906_machine_code_is_correct() {
    check("gfx906", FEW);
}

#[test]
fn gfx1010_machine_code_is_correct() {
    check("gfx1010", SPILLING);
}

#[test]
fn gfx900_machine_code_is_correct() {
    check("gfx900", SPILLING);
}

/// `flat_` instructions, additions with a carry, and M0 as the limit of LDS.
#[test]
fn gfx803_machine_code_is_correct() {
    check("gfx803", FEW);
}

/// The last variant: no instruction has an f16 operand or result.
#[test]
fn f32_alone_machine_code_has_no_f16_instruction() {
    let all = asked();
    for (arch, few) in [("gfx1100:f32", "gemm Q8_0×67"), ("gfx900:f32", "attend 4/2 × 64 F16")] {
        let filter = all.as_deref().unwrap_or(few);
        let Some((_folder, bundle)) = bundle(arch, filter) else { return };
        for case in 0..bundle.len() {
            let mut machine = bundle.machine(case).unwrap();
            match bundle.run_on(&mut machine, case, 7) {
                CaseResult::Right(_) => {}
                other => panic!("{arch}: {}: {other:?}", bundle.name(case)),
            }
            for (at, inst) in machine.listing() {
                let Ok(inst) = inst else { continue };
                let halves =
                    ["f16", "_mix", "v_pk_", "v_dot"].iter().any(|part| inst.text.contains(part));
                assert!(!halves, "{arch}: {} at {at:#x}: {}", bundle.name(case), inst.text);
            }
        }
    }
}
