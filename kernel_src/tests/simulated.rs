//! Every kernel on the simulated device, at wave 32 and at wave 64, against oracles in f64: see `sim/device.h`.
//!
//! Skipped, and says so, where no C++ compiler is found (`CXX`, g++, clang++).

use kjit_engine::Target;
use kjit_kernels::cases::{self, Case, CaseArg};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn compiler() -> Option<String> {
    let asked = std::env::var("CXX").ok();
    let names = asked.into_iter().chain(["g++", "clang++", "clang++-19"].map(String::from));
    names.into_iter().find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()))
}

fn run(compiler: &str, folder: &Path, case: &Case, seed: u64) -> Result<(), String> {
    let io = |e: std::io::Error| format!("{}: {e}", folder.display());
    for (name, text) in case.kernel.source.reached().map_err(|e| e.to_string())? {
        std::fs::write(folder.join(name), text).map_err(io)?;
    }
    let mut program = String::from("#include \"device.h\"\n");
    let text = case.kernel.source.render(&case.kernel.constants, &case.kernel.options);
    let (defines, rest) = text.split_once("#line").ok_or("the rendered source has no #line")?;
    let _ = write!(program, "{defines}#include \"device.h\"\n#line{rest}\nKJSIM_MAIN({})\n", case.kernel.entry);
    let program = program.replacen("#include \"device.h\"\n", "", 1); // the constants come first
    std::fs::write(folder.join("main.cpp"), program).map_err(io)?;
    let flags = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-o", "main", "main.cpp"];
    let include = format!("-I{}/tests/sim", env!("CARGO_MANIFEST_DIR"));
    let out = Command::new(compiler).args(flags).arg(include).current_dir(folder).output().map_err(io)?;
    if !out.status.success() {
        return Err(format!("{}: does not compile:\n{}", case.name, String::from_utf8_lossy(&out.stderr)));
    }

    let mut bytes = vec![];
    case.geometry.grid.iter().for_each(|g| bytes.extend(g.to_le_bytes()));
    bytes.extend(case.geometry.shared.to_le_bytes());
    bytes.extend(seed.to_le_bytes());
    bytes.extend((case.args.len() as u32).to_le_bytes());
    let mut arg = |kind: u32, data: &[u8]| {
        bytes.extend(kind.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend(data);
    };
    let mut sizes = vec![];
    for a in &case.args {
        match a {
            CaseArg::Buffer { before, .. } => {
                arg(1, before);
                sizes.push(before.len());
            }
            CaseArg::Null => arg(2, &[]),
            CaseArg::U32(v) => arg(0, &v.to_le_bytes()),
            CaseArg::U64(v) => arg(0, &v.to_le_bytes()),
            CaseArg::F32(v) => arg(0, &v.to_le_bytes()),
        }
    }
    std::fs::write(folder.join("in"), bytes).map_err(io)?;
    let out = Command::new("./main").args(["in", "out"]).current_dir(folder).output().map_err(io)?;
    if !out.status.success() {
        return Err(format!("{}: {}: {}", case.name, out.status, String::from_utf8_lossy(&out.stderr)));
    }
    let all = std::fs::read(folder.join("out")).map_err(io)?;
    let mut rest = all.as_slice();
    let mut after = vec![];
    for size in sizes {
        let (one, more) = rest.split_at_checked(size).ok_or("the output is too short")?;
        after.push(one.to_vec());
        rest = more;
    }
    case.check(&after)
}

/// Runs the cases of a target, `KJIT_CASES` (a part of the name) alone if that is set.
fn all(arch: &str, wave: u32) {
    let Some(compiler) = compiler() else {
        eprintln!("SKIPPED: no C++ compiler (CXX, g++, clang++), so nothing runs on the simulated device");
        return;
    };
    let seed = std::env::var("KJIT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20261121);
    let only = std::env::var("KJIT_CASES").unwrap_or_default();
    let cases = cases::all(&Target::parse(arch).unwrap(), wave, seed).unwrap();
    let cases: Vec<&Case> = cases.iter().filter(|c| c.name.contains(&only)).collect();
    assert!(!cases.is_empty(), "no case has '{only}' in its name");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("simulated-{arch}-{wave}"));
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(vec![]);
    std::thread::scope(|s| {
        for t in 0..2 {
            let (folder, cases, next, failed, compiler) =
                (folder.join(t.to_string()), &cases, &next, &failed, &compiler);
            s.spawn(move || {
                std::fs::create_dir_all(&folder).unwrap();
                while let Some(case) = cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    if let Err(why) = run(compiler, &folder, case, seed) {
                        failed.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seed {seed}: {} of {} cases failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

#[test]
fn every_case_is_right_at_wave_32() {
    all("gfx1100", 32);
}

#[test]
fn every_case_is_right_at_wave_64() {
    all("gfx942", 64);
}
