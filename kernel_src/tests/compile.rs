//! Every kernel, at the sizes of real models, compiles for every family and spills nowhere.
//!
//! NVIDIA by nvrtc, where it is found (`pip install nvidia-cuda-nvrtc`); AMD by a clang with the AMDGPU target. What is not found is skipped,
//! and said to be. `KJIT_COMPILE_ALL=1`: every architecture instead of one a family. `KJIT_TABLE=FILE` writes what was measured.

use kjit_engine::arch::ARCHS;
use kjit_engine::{Config, Engine, Isolation, Job, Target, Vendor};
use kjit_kernels::Kernel;
use kjit_kernels::matrix::representative;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn targets(vendor: Vendor, few: &[&str]) -> Vec<Target> {
    let all = std::env::var_os("KJIT_COMPILE_ALL").is_some();
    let ids = ARCHS.iter().filter(|a| a.vendor == vendor && (all || few.contains(&a.id)));
    ids.map(|a| Target::parse(a.id).unwrap()).collect()
}

fn write_table(lines: &[String]) {
    if let Ok(file) = std::env::var("KJIT_TABLE") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        lines.iter().for_each(|l| writeln!(file, "{l}").unwrap());
    }
}

#[test]
fn no_kernel_spills_on_nvidia() {
    let folder = tempfile();
    let config = Config::new().cache_dir(&folder).isolation(Isolation::InProcess).jobs(2);
    let engine = Engine::new(config);
    if engine.compilers(Vendor::Nvidia).found.is_empty() {
        eprintln!("SKIPPED: no nvrtc (pip install nvidia-cuda-nvrtc), so nothing was compiled for NVIDIA");
        return;
    }
    let mut wrong = vec![];
    for target in targets(Vendor::Nvidia, &["sm_75", "sm_90"]) {
        let kernels = representative(&target).unwrap();
        let job = |k: &Kernel| Job::new(k.source.clone(), k.constants.clone(), k.options.clone(), target.clone());
        let jobs: Vec<Job> = kernels.iter().map(|(_, k)| job(k)).collect();
        let mut table = vec![];
        for ((name, kernel), code) in kernels.iter().zip(engine.compile_all(&jobs)) {
            let code = match code {
                Ok(code) => code,
                Err(e) => {
                    wrong.push(format!("{target}: {name}: {e}"));
                    continue;
                }
            };
            for k in code.kernels() {
                let occupancy =
                    target.occupancy(kernel.block, k.registers, k.shared + kernel.shared, kernel.options.wave);
                table.push(format!(
                    "{target}\t{name}\t{} registers\t{} LDS\t{} spills\t{} local\t{}/{} waves",
                    k.registers,
                    k.shared + kernel.shared,
                    k.spills.unwrap_or(0),
                    k.local,
                    occupancy.waves,
                    occupancy.max_waves
                ));
                if k.spills.unwrap_or(0) > 0 || k.local > 0 || occupancy.blocks == 0 {
                    wrong.push(format!("{name}: {}", table.last().unwrap()));
                }
            }
        }
        write_table(&table);
    }
    let _ = std::fs::remove_dir_all(&folder);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn tempfile() -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn clang() -> Option<String> {
    let names = ["clang-22", "clang-21", "clang-20", "clang-19", "clang"].map(String::from);
    let names = std::env::var("KJIT_CLANG").into_iter().chain(names);
    names.into_iter().find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()))
}

/// A figure of the assembly's metadata.
fn figure(assembly: &str, name: &str) -> Option<u32> {
    let line = assembly.lines().find_map(|l| l.trim().trim_start_matches("- ").strip_prefix(name))?;
    line.trim_start_matches(':').trim().parse().ok()
}

fn compile_amd(clang: &str, folder: &Path, target: &Target, kernel: &Kernel) -> Result<String, String> {
    std::fs::create_dir_all(folder).unwrap();
    for (name, text) in kernel.source.reached().unwrap() {
        std::fs::write(folder.join(name), text).unwrap();
    }
    std::fs::write(folder.join("main.hip"), kernel.source.render(&kernel.constants, &kernel.options)).unwrap();
    let mut command = Command::new(clang);
    command.current_dir(folder).args([
        "-x",
        "hip",
        "--offload-device-only",
        "--no-gpu-bundle-output",
        "-nogpuinc",
        "-nogpulib",
    ]);
    command.args(["-O3", "-std=c++17", "-S", "main.hip", "-o", "main.s", &format!("--offload-arch={}", target.id())]);
    if kernel.options.wave == 64 && target.waves().len() > 1 {
        command.arg("-mwavefrontsize64");
    }
    let out = command.output().unwrap();
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).lines().take(8).collect::<Vec<_>>().join("\n"));
    }
    Ok(std::fs::read_to_string(folder.join("main.s")).unwrap())
}

#[test]
fn no_kernel_spills_on_amd() {
    let Some(clang) = clang() else {
        eprintln!("SKIPPED: no clang with the AMDGPU target (Debian: clang-19), so nothing was compiled for AMD");
        return;
    };
    let wrong = Mutex::new(vec![]);
    for target in targets(Vendor::Amd, &["gfx900", "gfx942", "gfx1030", "gfx1100"]) {
        let probe = Command::new(&clang)
            .args(["--target=amdgcn-amd-amdhsa", "-nogpulib", &format!("-mcpu={}", target.id())])
            .args(["-x", "c", "-c", "-", "-o", "/dev/null"])
            .stdin(std::process::Stdio::null())
            .output();
        if !probe.is_ok_and(|o| o.status.success()) {
            eprintln!("SKIPPED: {clang} does not know {target}");
            continue;
        }
        let kernels = representative(&target).unwrap();
        let next = AtomicUsize::new(0);
        let table = Mutex::new(vec![String::new(); kernels.len()]);
        std::thread::scope(|s| {
            for thread in 0..2 {
                let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("amd-{thread}"));
                let (kernels, next, wrong, table, clang, target) = (&kernels, &next, &wrong, &table, &clang, &target);
                s.spawn(move || {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((name, kernel)) = kernels.get(at) else { break };
                        let assembly = match compile_amd(clang, &folder, target, kernel) {
                            Ok(a) => a,
                            Err(e) => {
                                wrong.lock().unwrap().push(format!("{target}: {name}: {e}"));
                                continue;
                            }
                        };
                        let get = |name| figure(&assembly, name).unwrap_or_else(|| panic!("no {name} in the metadata"));
                        let (registers, spills) =
                            (get(".vgpr_count"), get(".vgpr_spill_count") + get(".sgpr_spill_count"));
                        let (lds, scratch) =
                            (get(".group_segment_fixed_size") + kernel.shared, get(".private_segment_fixed_size"));
                        let occupancy = target.occupancy(kernel.block, registers, lds, kernel.options.wave);
                        let mut line = String::new();
                        let _ = write!(
                            line,
                            "{target}\t{name}\t{registers} registers\t{lds} LDS\t{spills} spills\t{scratch} local"
                        );
                        let _ = write!(line, "\t{}/{} waves", occupancy.waves, occupancy.max_waves);
                        if spills > 0 || scratch > 0 || occupancy.blocks == 0 {
                            wrong.lock().unwrap().push(line.clone());
                        }
                        table.lock().unwrap()[at] = line;
                    }
                });
            }
        });
        write_table(&table.into_inner().unwrap());
    }
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
