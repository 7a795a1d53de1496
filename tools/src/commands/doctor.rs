//! `kjit doctor`: checks whether this machine has what kjit needs, and whether its devices compute
//! correctly.

use crate::args::{self, Shared};
use crate::commands::{doctor_models, doctor_report};
use crate::engine;
use crate::load::named_gpu;
use crate::report::{bytes, say};
use kjit_engine::{CompilerInfo, Engine, Error, Inventory, Target, Vendor, amd_system, amd_traps};
use kjit_model::gpu::bundle;
use kjit_model::gpu::prove::{self, CaseResult};
use kjit_model::host::Cpu;
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A line of the report.
struct Check {
    name: String,
    /// The verdict. `None`: the line is only information.
    good: Option<bool>,
    said: String,
}

impl Check {
    fn new(name: impl Into<String>, good: bool, said: impl Into<String>) -> Check {
        Check { name: name.into(), good: Some(good), said: said.into() }
    }

    fn note(name: impl Into<String>, said: impl Into<String>) -> Check {
        Check { name: name.into(), good: None, said: said.into() }
    }

    fn verdict(&self) -> &'static str {
        match self.good {
            Some(true) => "ok",
            Some(false) => "FAIL",
            None => "note",
        }
    }

    fn line(&self) -> String {
        format!("{:<4} {}: {}", self.verdict(), self.name, self.said)
    }
}

pub fn doctor(args: &args::Doctor, shared: &Shared) -> anyhow::Result<ExitCode> {
    if let (Some(model), Some(device)) = (&args.model_for_parent, &args.device_for_parent) {
        return doctor_models::serve(args, shared, model, device);
    }
    if !args.models.is_empty() {
        return doctor_models::doctor(args, shared);
    }
    let engine = engine::engine(shared);
    if let (Some(folder), Some(arch)) = (&args.export, &args.arch) {
        let checks =
            export(&engine, folder, arch, args.filter.as_deref().unwrap_or_default(), shared)?;
        return verdict(&checks, args.json);
    }
    if let Some(folder) = &args.bundle {
        let mut checks = vec![];
        bundle(&engine, folder, shared, &mut checks)?;
        return verdict(&checks, args.json);
    }
    if args.run_for_parent {
        let device = engine.device(&label(shared))?;
        let wish = (SEED, args.filter.as_deref().unwrap_or_default());
        prove::serve(&engine, &device, wish, io::stdin().lock(), io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    }
    let said =
        format!("version {}, kernel ABI {}", env!("CARGO_PKG_VERSION"), kjit_engine::KERNEL_ABI);
    let mut checks = vec![Check::new("kjit", true, said)];
    let cpu = Cpu::here();
    checks.push(Check::new(
        "cpu",
        true,
        format!("{}, {} cores, {}", cpu.name, cpu.cores, cpu.path),
    ));
    let found = engine.devices();
    devices(&engine, &found, shared, &mut checks);
    compilers(&engine, &found, &mut checks);
    checks.extend(amd(&engine, &found));
    checks.extend(permissions(&nodes()));
    checks.push(cache(&engine));
    if args.run {
        kernels(&engine, args.filter.as_deref().unwrap_or_default(), shared, &mut checks);
    }
    let code = verdict(&checks, args.json)?;
    if let Some(file) = &args.report {
        let lines: Vec<String> = checks.iter().map(Check::line).collect();
        doctor_report::write(file, &lines, &engine)?;
        if !shared.quiet {
            say(format_args!(
                "report: {} has these checks and the details, ready to send",
                file.display()
            ));
        }
    }
    Ok(code)
}

fn verdict(checks: &[Check], json: bool) -> anyhow::Result<ExitCode> {
    let good = checks.iter().all(|c| c.good != Some(false));
    let mut out = io::BufWriter::new(io::stdout().lock());
    if json {
        let all: Vec<_> = checks
            .iter()
            .map(|c| json!({ "check": c.name, "ok": c.good != Some(false), "verdict": c.verdict(), "detail": c.said }))
            .collect();
        writeln!(out, "{}", json!({ "ok": good, "checks": all }))?;
    } else {
        for c in checks {
            writeln!(out, "{}", c.line())?;
        }
    }
    out.flush()?;
    Ok(ExitCode::from(u8::from(!good)))
}

/// Checks devices, their memory, and variables that hide them. A machine without a GPU passes,
/// since the CPU computes. A device that a flag names must exist.
fn devices(engine: &Engine, found: &Inventory, shared: &Shared, checks: &mut Vec<Check>) {
    match named_gpu(shared) {
        Some(label) if !found.devices.iter().any(|d| d.label() == label) => {
            let why = if found.devices.is_empty() {
                found.why_none()
            } else {
                "`kjit devices` lists those that are".into()
            };
            checks.push(Check::new(label, false, format!("not here: {why}")));
        }
        None if found.devices.is_empty() => {
            checks.push(Check::note("gpu", "none: the CPU computes"))
        }
        _ => {}
    }
    // If one vendor's card is present, a missing driver of the other vendor is not a fault.
    checks.extend(found.missing.iter().map(|line| Check::note("not here", line)));
    for d in &found.devices {
        let opened = engine.device(&d.label()).and_then(|device| device.memory());
        let memory = match &opened {
            Ok((free, total)) => format!("{} of {} free", bytes(*free), bytes(*total)),
            Err(e) => e.to_string(),
        };
        let clock = match d.clock_khz {
            0 => "clock unknown".to_string(),
            khz => format!("clock up to {} MHz", khz / 1000),
        };
        let said = format!(
            "{} ({}), driver {}.{}, {clock}, {memory}",
            d.name, d.arch_id, d.driver.0, d.driver.1
        );
        checks.push(Check::new(d.label(), opened.is_ok() && d.target.is_some(), said));
    }
    for (name, value) in &found.visibility {
        checks.push(Check::note(
            name,
            format!("is {value}: decides which devices are seen, or as what"),
        ));
    }
    for warning in found.warnings() {
        // With `HSA_OVERRIDE_GFX_VERSION`, a card runs another architecture's code. It works for
        // some cards. If something fails, it is the most likely cause.
        match warning.starts_with("HSA_OVERRIDE_GFX_VERSION") {
            true => checks.push(Check::new("warning", false, warning)),
            false => checks.push(Check::note("warning", warning)),
        }
    }
}

/// For each architecture here, checks the compiler that will be used: the first compiler found may
/// not know the architecture. For a vendor without a card, it only lists the compilers.
fn compilers(engine: &Engine, found: &Inventory, checks: &mut Vec<Check>) {
    let one = |c: &CompilerInfo| {
        format!("{} {}.{} at {}", c.kind, c.version.0, c.version.1, c.file.display())
    };
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let report = engine.compilers(vendor);
        let mut targets: Vec<Target> = vec![];
        for target in
            found.devices.iter().filter(|d| d.vendor == vendor).filter_map(|d| d.target.clone())
        {
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        for target in &targets {
            let name = format!("compiler for {target}");
            checks.push(match engine.compiler_for(target) {
                Ok(choice) => Check::new(name, true, one(&choice.compiler)),
                Err(Error::Miss { why, .. }) => Check::new(name, false, why),
                Err(e) => Check::new(name, false, e.to_string()),
            });
        }
        let name = format!("compiler for {}", vendor.name());
        if targets.is_empty() {
            checks.push(match report.found.is_empty() {
                true => {
                    Check::note(&name, "none here: kernels would have to come from a cache or pack")
                }
                false => Check::new(
                    &name,
                    true,
                    report.found.iter().map(one).collect::<Vec<_>>().join(", "),
                ),
            });
        }
        // An unusable compiler, for instance a clang without AMD's target, does not matter if
        // another compiler is usable.
        checks.extend(report.unusable.iter().map(|line| Check::note(&name, line)));
    }
}

/// Checks the AMD software besides the runtime: its release, devices that the kernel driver lists
/// and the runtime does not, and packages to install if a card has no runtime.
fn amd(engine: &Engine, found: &Inventory) -> Vec<Check> {
    let (nodes, mut checks) = (amd_system::kfd_nodes(Path::new(amd_system::KFD_NODES)), vec![]);
    let gpus = amd_traps::gpus(&nodes, &found.devices);
    if let Some((first, _)) = gpus.first() {
        let target = Target::parse(first).ok();
        let compiler = target.and_then(|target| engine.compiler_for(&target).ok());
        let used = [engine.amd_library(), compiler.map(|choice| choice.compiler.file)];
        let traps = amd_traps::traps(&amd_traps::Facts::here(gpus.clone(), used));
        checks.extend(traps.into_iter().map(|(name, said)| Check::note(name, said)));
    }
    for n in &nodes {
        let inside = if n.integrated { ", inside the processor" } else { "" };
        let said = format!("{}, {} SIMDs{inside}, /dev/dri/renderD{}", n.arch, n.simds, n.render);
        checks.push(Check::note(format!("kernel driver's node {}", n.node), said));
    }
    let runtime = found.drivers.iter().any(|line| line.starts_with("rocm:"));
    if runtime {
        let library = engine.amd_library();
        let release = library.as_deref().and_then(amd_system::rocm_release);
        checks.extend(
            release.map(|(version, from)| Check::note("ROCm", format!("{version} (by {from})"))),
        );
        let devices: Vec<_> =
            found.devices.iter().filter(|d| d.vendor == Vendor::Amd).cloned().collect();
        if !nodes.is_empty() {
            let said = amd_system::disagreements(&devices, &nodes, &found.visibility);
            checks.extend(said.into_iter().map(|line| Check::note("AMD", line)));
        }
    } else if let Some(why) = found.none.iter().find(|why| why.starts_with("rocm: the HIP runtime"))
    {
        // The runtime is installed but does not work, for example because a driver hangs.
        if !nodes.is_empty() {
            checks.push(Check::new("AMD", false, why));
        }
    } else if !nodes.is_empty() {
        let system = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let container = ["/.dockerenv", "/run/.containerenv"].iter().any(|f| Path::new(f).exists());
        let install = amd_system::install(&system, container);
        checks.push(Check::new(
            "AMD",
            false,
            format!("this machine has an AMD card, but no HIP runtime: {install}"),
        ));
    }
    checks
}

/// The device files of the vendors' kernel drivers.
fn nodes() -> Vec<PathBuf> {
    let listed = |dir: &str, begins: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut found: Vec<_> =
            entries.filter(|e| e.file_name().to_string_lossy().starts_with(begins)).collect();
        found.sort_by_key(std::fs::DirEntry::file_name);
        found.iter().map(std::fs::DirEntry::path).collect()
    };
    let mut all: Vec<PathBuf> =
        ["/dev/kfd", "/dev/nvidiactl", "/dev/nvidia-uvm"].map(PathBuf::from).into();
    all.retain(|p| p.exists());
    // Render nodes only matter for ROCm. Others belong to displays.
    if all.iter().any(|p| p.ends_with("kfd")) {
        all.extend(listed("/dev/dri", "renderD"));
    }
    all
}

/// Whether this user may use the device files. Each file is opened, because groups, modes and ACLs
/// all decide.
fn permissions(nodes: &[PathBuf]) -> Vec<Check> {
    let open = |path: &PathBuf| std::fs::OpenOptions::new().read(true).write(true).open(path);
    let verdict = |path: &PathBuf| {
        let (good, said) = match open(path) {
            Ok(_) => (true, "can be opened".to_string()),
            Err(e) => (
                false,
                format!(
                    "cannot be opened: {e}: add the user to the group that owns it (render, video)"
                ),
            ),
        };
        Check::new(path.display().to_string(), good, said)
    };
    nodes.iter().map(verdict).collect()
}

/// Checks the cache and gives one verdict. The check fails if the folder cannot be written.
fn cache(engine: &Engine) -> Check {
    let cache = engine.cache();
    // Warnings are read now: the cache has been used by this time.
    let unusable = cache.check_home().err().into_iter();
    let mut faults: Vec<String> = unusable.chain(cache.warnings()).map(|w| w.to_string()).collect();
    faults.dedup();
    match cache.home() {
        Some(home) if faults.is_empty() => Check::new("cache", true, home.display().to_string()),
        _ if !faults.is_empty() => Check::new("cache", false, faults.join("; ")),
        _ => Check::note("cache", "memory only: kernels are compiled again at every start"),
    }
}

/// The inputs are random, with a constant seed, so that a report can be repeated.
const SEED: u64 = 20_261_121;

/// Writes a proof bundle.
fn export(
    engine: &Engine,
    folder: &Path,
    arch: &str,
    filter: &str,
    shared: &Shared,
) -> anyhow::Result<Vec<Check>> {
    let target = Target::parse(arch)?;
    let wish =
        bundle::ExportOptions { seed: SEED, filter: filter.to_owned(), limit: bundle::LIMIT };
    let progress = progress(shared, "kernels compiled");
    let done = bundle::export(engine, &target, &wish, folder, &progress)?;
    let said = format!(
        "{} cases, {} code objects, {} in {}",
        done.cases,
        done.code,
        bytes(done.bytes),
        folder.display()
    );
    let mut checks = vec![Check::new(format!("bundle for {target}"), true, said)];
    if !done.left_out.is_empty() {
        let said = format!("to stay below {}: {}", bytes(bundle::LIMIT), done.left_out.join("; "));
        checks.push(Check::note(format!("{} left out", done.left_out.len()), said));
    }
    Ok(checks)
}

/// Runs a proof bundle.
fn bundle(
    engine: &Engine,
    folder: &Path,
    shared: &Shared,
    checks: &mut Vec<Check>,
) -> anyhow::Result<()> {
    let bundle = bundle::Bundle::open(folder)?;
    let said = format!("whole, {} cases for {}", bundle.cases(), bundle.target());
    checks.push(Check::new(folder.display().to_string(), true, said));
    let device = engine.device(&label(shared))?;
    let progress = progress(shared, "cases of the bundle");
    verdicts(device.label(), bundle.run(&device, &progress)?, checks);
    Ok(())
}

fn label(shared: &Shared) -> String {
    named_gpu(shared).unwrap_or_else(|| "auto".to_string())
}

/// Shows progress on a terminal.
fn progress(shared: &Shared, of: &'static str) -> impl Fn(usize, usize) + Sync + use<> {
    let show = io::stderr().is_terminal() && !shared.quiet;
    move |done, all| {
        if show && (done == all || done.is_multiple_of(50)) {
            say(format_args!("{done} of {all} {of}"));
        }
    }
}

/// Runs every kernel on the device and compares it with the oracle.
fn kernels(engine: &Engine, filter: &str, shared: &Shared, checks: &mut Vec<Check>) {
    let device = match engine.device(&label(shared)) {
        Ok(device) => device,
        Err(e) => return checks.push(Check::new("kernels", false, e.to_string())),
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => {
            let said = format!(
                "cannot find this program's file, which is needed to start a child process: {e}"
            );
            return checks.push(Check::new("kernels", false, said));
        }
    };
    let spawn = || {
        let mut child = Command::new(&program);
        child.args(std::env::args_os().skip(1)).arg("--run-for-parent");
        child
    };
    match prove::run_all(
        engine,
        device.target(),
        SEED,
        filter,
        &spawn,
        &progress(shared, "kernel cases"),
    ) {
        Err(e) => checks.push(Check::new("kernels", false, e)),
        Ok(found) => verdicts(device.label(), found, checks),
    }
    if let Some(verdict) = prove::library(&device) {
        let good = verdict.is_ok();
        checks.push(Check::new("vendor's matrix library", good, verdict.unwrap_or_else(|why| why)));
    }
}

/// Adds the number of correct cases, and a line for each wrong case.
fn verdicts(device: &str, verdicts: Vec<CaseResult>, checks: &mut Vec<Check>) {
    let failed = verdicts.iter().filter(|v| v.failure.is_some()).count();
    let said = format!("{} of {} cases right on {device}", verdicts.len() - failed, verdicts.len());
    checks.push(Check::new("kernels", failed == 0 && !verdicts.is_empty(), said));
    for v in verdicts {
        if let Some(failure) = v.failure {
            checks.push(Check::new(v.case, false, failure));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::permissions;
    use std::path::PathBuf;

    #[test]
    fn unopenable_device_file_fails_check_with_advice() {
        // A folder cannot be opened for writing, even by root.
        let found = permissions(&[PathBuf::from("/dev/null"), PathBuf::from("/dev")]);
        assert_eq!(found.iter().map(|c| c.good).collect::<Vec<_>>(), [Some(true), Some(false)]);
        assert!(
            found[1].line().starts_with("FAIL /dev: cannot be opened")
                && found[1].said.contains("render")
        );
    }
}
