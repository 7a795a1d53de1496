//! Every kernel, at the sizes of real models, compiles for every family without spills, according
//! to the code objects.
//!
//! NVIDIA with nvrtc, if it is found (`pip install nvidia-cuda-nvrtc`); a part of AMD with the real
//! hiprtc (with clang: the command's test `kernel_matrix`). Without a compiler the test reports
//! that it was skipped. `KJIT_TEST_ALL=compile`: every architecture instead of one per family,
//! every kernel. (Then use `cargo test`: nextest ends a test after its time limit.)
//! `KJIT_TEST_OUT=FILE` writes the measurements, `KJIT_TEST_ONLY=a,b` selects kernels whose names
//! begin with these texts.

use kjit_engine::arch::ARCHS;
use kjit_engine::{Config, Engine, Isolation, Job, Target, Vendor};
use kjit_kernel_cases::matrix::{Sample, representative};

fn all() -> bool {
    std::env::var("KJIT_TEST_ALL").is_ok_and(|all| all.split(',').any(|one| one == "compile"))
}

fn write_table(lines: &[String]) {
    if let Ok(file) = std::env::var("KJIT_TEST_OUT") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        lines.iter().for_each(|l| writeln!(file, "{l}").unwrap());
    }
}

/// Compiles with one kind of compiler: for the architectures in `few` every n-th kernel, or all if
/// requested.
fn none_spills(vendor: Vendor, kind: &str, isolation: Isolation, few: &[(&str, usize)]) {
    let folder =
        std::env::temp_dir().join(format!("compile-{kind}-{}-{}", few[0].0, std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let engine = Engine::new(
        Config::new().cache_dir(&folder).isolation(isolation).jobs(2).compiler_kind(kind),
    );
    let report = engine.compilers(vendor);
    let Some(compiler) = report.found.first() else {
        let why = match engine.compiler_for(&Target::parse(few[0].0).unwrap()) {
            Err(error) => error.to_string(),
            Ok(choice) => choice.reason,
        };
        eprintln!("SKIPPED: nothing was compiled by {kind}: {why}");
        return;
    };
    let mut wrong = vec![];
    for arch in ARCHS.iter().filter(|a| a.vendor == vendor) {
        let step = match few.iter().find(|(id, _)| *id == arch.id) {
            _ if all() => 1,
            Some((_, step)) => *step,
            None => continue,
        };
        let target = Target::parse(arch.id).unwrap();
        if !compiler.knows.iter().any(|id| id == arch.id) {
            eprintln!("SKIPPED: {kind} {:?} does not know {target}", compiler.version);
            continue;
        }
        let mut kernels = representative(&target).unwrap();
        if let Ok(asked) = std::env::var("KJIT_TEST_ONLY") {
            kernels.retain(|s| asked.split(',').any(|a| s.name.starts_with(a)));
        }
        let kernels: Vec<Sample> = kernels.into_iter().step_by(step).collect();
        let jobs: Vec<Job> = kernels.iter().map(|s| s.kernel.job(&target)).collect();
        let began = std::time::Instant::now();
        let mut table = vec![];
        for (Sample { name, kernel, .. }, code) in kernels.iter().zip(engine.compile_all(&jobs)) {
            let code = match code {
                Ok(code) => code,
                Err(e) => {
                    wrong.push(format!("{target}: {name}: {e}"));
                    continue;
                }
            };
            for k in code.kernels().iter().filter(|k| k.name == kernel.entry) {
                let occupancy =
                    k.occupancy(&target, kernel.block, kernel.shared, kernel.options.wave);
                table.push(format!(
                    "{target}\t{name}\t{} registers\t{} LDS\t{} spills\t{} local\t{}/{} waves\twave {}\t{} bytes\t{}",
                    k.all_registers(),
                    k.shared + kernel.shared,
                    k.spills.map_or("unknown".to_owned(), |n| n.to_string()),
                    k.local,
                    occupancy.waves,
                    occupancy.max_waves,
                    k.wave.unwrap_or(0),
                    code.bytes().len(),
                    code.compiler(),
                ));
                let another_wave = k.wave != Some(kernel.options.wave);
                if k.spills != Some(0) || k.local > 0 || occupancy.blocks == 0 || another_wave {
                    wrong.push(format!("{name}: {}", table.last().unwrap()));
                }
            }
        }
        eprintln!(
            "{} kernels for {target} by {kind} in {:.1} s",
            jobs.len(),
            began.elapsed().as_secs_f64()
        );
        write_table(&table);
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn kernels_do_not_spill_on_nvidia() {
    none_spills(Vendor::Nvidia, "nvrtc", Isolation::InProcess, &[("sm_75", 4), ("sm_90", 2)]);
}

#[test]
fn hiprtc_compiles_all_kernels_without_spills() {
    none_spills(Vendor::Amd, "hiprtc", Isolation::Children, &[("gfx90a", 4), ("gfx1030", 4)]);
}
