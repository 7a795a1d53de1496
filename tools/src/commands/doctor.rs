//! `kjit doctor`: whether this machine has what kjit needs, and whether its device computes right.

use crate::args::{self, Device as Asked, Shared};
use crate::commands::doctor_report;
use crate::engine;
use crate::report::{bytes, say};
use kjit_engine::{Engine, Target, Vendor};
use kjit_model::gpu::bundle;
use kjit_model::gpu::prove::{self, Verdict};
use kjit_model::host::Cpu;
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One line of the report.
struct Check {
    name: String,
    good: bool,
    said: String,
}

impl Check {
    fn line(&self) -> String {
        format!("{} {}: {}", if self.good { "ok  " } else { "FAIL" }, self.name, self.said)
    }
}

pub fn doctor(args: &args::Doctor, shared: &Shared) -> anyhow::Result<ExitCode> {
    let engine = engine::engine(shared);
    if let (Some(folder), Some(arch)) = (&args.export, &args.arch) {
        let checks = export(&engine, folder, arch, args.filter.as_deref().unwrap_or_default(), shared)?;
        return verdict(&checks, args.json);
    }
    if let Some(folder) = &args.bundle {
        let mut checks = vec![];
        bundle(&engine, folder, shared, &mut checks)?;
        return verdict(&checks, args.json);
    }
    let mut checks = vec![Check {
        name: "kjit".into(),
        good: true,
        said: format!("version {}, kernel ABI {}", env!("CARGO_PKG_VERSION"), kjit_engine::KERNEL_ABI),
    }];
    let cpu = Cpu::here();
    checks.push(Check {
        name: "cpu".into(),
        good: true,
        said: format!("{}, {} cores, {}", cpu.name, cpu.cores, cpu.path),
    });
    devices(&engine, shared, &mut checks);
    checks.extend(permissions(&nodes()));
    cache(&engine, &mut checks);
    if args.run {
        kernels(&engine, args.filter.as_deref().unwrap_or_default(), shared, &mut checks);
    }
    let code = verdict(&checks, args.json)?;
    // A JSON document is a report by itself.
    if args.report.is_some() || !args.json {
        let lines: Vec<String> = checks.iter().map(Check::line).collect();
        match doctor_report::write(args.report.as_deref(), &lines, &engine) {
            Ok(path) if shared.quiet => drop(path),
            Ok(path) => say(format_args!("report: {} has all this and more, to be sent", path.display())),
            // One that was asked for is part of the answer; the other is not.
            Err(e) if args.report.is_some() => return Err(e),
            Err(e) => say(format_args!("warning: {e:#}")),
        }
    }
    Ok(code)
}

fn verdict(checks: &[Check], json: bool) -> anyhow::Result<ExitCode> {
    let good = checks.iter().all(|c| c.good);
    let mut out = io::BufWriter::new(io::stdout().lock());
    if json {
        let all: Vec<_> = checks.iter().map(|c| json!({ "check": c.name, "ok": c.good, "detail": c.said })).collect();
        writeln!(out, "{}", json!({ "ok": good, "checks": all }))?;
    } else {
        for c in checks {
            writeln!(out, "{}", c.line())?;
        }
    }
    out.flush()?;
    Ok(ExitCode::from(u8::from(!good)))
}

/// Devices, their memory, what hides them, and a compiler for each. A machine without any is well: the CPU computes.
fn devices(engine: &Engine, shared: &Shared, checks: &mut Vec<Check>) {
    let found = engine.devices();
    if found.devices.is_empty() {
        let asked = !matches!(shared.device, Asked::Auto | Asked::Cpu);
        checks.push(Check { name: "gpu".into(), good: !asked, said: "none: the CPU computes".to_string() });
    }
    // Of one vendor's card the other's driver is no loss.
    let lost = |line: &String| Check { name: "not found".into(), good: true, said: line.clone() };
    checks.extend(found.missing.iter().map(lost));
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
        let said = format!("{} ({}), driver {}.{}, {clock}, {memory}", d.name, d.arch_id, d.driver.0, d.driver.1);
        checks.push(Check { name: d.label(), good: opened.is_ok() && d.target.is_some(), said });
    }
    for (name, value) in &found.visibility {
        checks.push(Check {
            name: name.clone(),
            good: true,
            said: format!("is {value}: decides which devices are seen, or as what"),
        });
    }
    for warning in found.warnings() {
        // A disguised card runs code for another: known to work for some, and the first thing to ask about when it does not.
        let good = !warning.starts_with("HSA_OVERRIDE_GFX_VERSION");
        checks.push(Check { name: "warning".into(), good, said: warning });
    }
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let needed = found.devices.iter().any(|d| d.vendor == vendor);
        let report = engine.compilers(vendor);
        let said = match report.found.first() {
            Some(c) => format!("{} {}.{} at {}", c.kind, c.version.0, c.version.1, c.file.display()),
            None => "none: kernels must come from a cache or pack".to_string(),
        };
        let good = !needed || !report.found.is_empty();
        checks.push(Check { name: format!("compiler for {}", vendor.name()), good, said });
        // One that cannot be used (a clang without AMD's target, say) is no loss beside one that can.
        report.unusable.iter().for_each(|line| {
            checks.push(Check { name: format!("compiler for {}", vendor.name()), good, said: line.clone() });
        });
    }
}

/// The kernel's own ends of the vendors' drivers, those that are there.
fn nodes() -> Vec<PathBuf> {
    let listed = |dir: &str, begins: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries.filter(|e| e.file_name().to_string_lossy().starts_with(begins)).collect();
        found.sort_by_key(std::fs::DirEntry::file_name);
        found.iter().map(std::fs::DirEntry::path).collect()
    };
    let mut all: Vec<PathBuf> = ["/dev/kfd", "/dev/nvidiactl", "/dev/nvidia-uvm"].map(PathBuf::from).into();
    all.retain(|p| p.exists());
    // Render nodes are ROCm's business where there is one; others belong to displays.
    if all.iter().any(|p| p.ends_with("kfd")) {
        all.extend(listed("/dev/dri", "renderD"));
    }
    all
}

/// Whether this user may use them, by opening: groups, modes and lists of rights all have their say.
fn permissions(nodes: &[PathBuf]) -> Vec<Check> {
    let open = |path: &PathBuf| std::fs::OpenOptions::new().read(true).write(true).open(path);
    let verdict = |path: &PathBuf| {
        let (good, said) = match open(path) {
            Ok(_) => (true, "can be opened".to_string()),
            Err(e) => (false, format!("cannot be opened: {e}: add the user to the group that owns it (render, video)")),
        };
        Check { name: path.display().to_string(), good, said }
    };
    nodes.iter().map(verdict).collect()
}

fn cache(engine: &Engine, checks: &mut Vec<Check>) {
    let cache = engine.cache();
    let said = match cache.home() {
        Some(home) => home.display().to_string(),
        None => "memory only: kernels are compiled again at every start".to_string(),
    };
    let warnings = cache.warnings();
    checks.push(Check { name: "cache".into(), good: cache.home().is_some(), said });
    checks.extend(warnings.iter().map(|w| Check { name: "cache".into(), good: false, said: w.to_string() }));
}

/// The inputs are random; another seed each time would make a report that nobody can repeat.
const SEED: u64 = 20_261_121;

/// Writes a proof bundle.
fn export(engine: &Engine, folder: &Path, arch: &str, filter: &str, shared: &Shared) -> anyhow::Result<Vec<Check>> {
    let target = Target::parse(arch)?;
    let wish = bundle::Wish { seed: SEED, filter: filter.to_owned(), limit: bundle::LIMIT };
    let progress = progress(shared, "kernels compiled");
    let done = bundle::export(engine, &target, &wish, folder, &progress)?;
    let said =
        format!("{} cases, {} code objects, {} in {}", done.cases, done.code, bytes(done.bytes), folder.display());
    let mut checks = vec![Check { name: format!("bundle for {target}"), good: true, said }];
    if !done.left_out.is_empty() {
        let said = format!("to stay below {}: {}", bytes(bundle::LIMIT), done.left_out.join("; "));
        checks.push(Check { name: format!("{} left out", done.left_out.len()), good: true, said });
    }
    Ok(checks)
}

/// Runs a proof bundle.
fn bundle(engine: &Engine, folder: &Path, shared: &Shared, checks: &mut Vec<Check>) -> anyhow::Result<()> {
    let bundle = bundle::Bundle::open(folder)?;
    let said = format!("whole, {} cases for {}", bundle.cases(), bundle.target());
    checks.push(Check { name: folder.display().to_string(), good: true, said });
    let device = engine.device(&label(shared))?;
    let progress = progress(shared, "cases of the bundle");
    verdicts(device.label(), bundle.run(&device, &progress)?, checks);
    Ok(())
}

fn label(shared: &Shared) -> String {
    match shared.device {
        Asked::Cuda(n) => format!("cuda:{n}"),
        Asked::Rocm(n) => format!("rocm:{n}"),
        Asked::Auto | Asked::Cpu => "auto".to_string(),
    }
}

/// Tells a person at a terminal how far it is.
fn progress(shared: &Shared, of: &'static str) -> impl Fn(usize, usize) + Sync + use<> {
    let show = io::stderr().is_terminal() && !shared.quiet;
    move |done, all| {
        if show && (done == all || done.is_multiple_of(50)) {
            say(format_args!("{done} of {all} {of}"));
        }
    }
}

/// Every kernel on the device, against the oracle.
fn kernels(engine: &Engine, filter: &str, shared: &Shared, checks: &mut Vec<Check>) {
    let device = match engine.device(&label(shared)) {
        Ok(device) => device,
        Err(e) => return checks.push(Check { name: "kernels".into(), good: false, said: e.to_string() }),
    };
    match prove::run_all(engine, &device, SEED, filter, &progress(shared, "kernel cases")) {
        Err(e) => checks.push(Check { name: "kernels".into(), good: false, said: e }),
        Ok(found) => verdicts(device.label(), found, checks),
    }
    if let Some(verdict) = prove::library(&device) {
        let good = verdict.is_ok();
        checks.push(Check { name: "vendor's matrix library".into(), good, said: verdict.unwrap_or_else(|why| why) });
    }
}

/// How many cases were right, and each that was not.
fn verdicts(device: &str, verdicts: Vec<Verdict>, checks: &mut Vec<Check>) {
    let failed = verdicts.iter().filter(|v| v.failure.is_some()).count();
    let said = format!("{} of {} cases right on {device}", verdicts.len() - failed, verdicts.len());
    checks.push(Check { name: "kernels".into(), good: failed == 0 && !verdicts.is_empty(), said });
    for v in verdicts {
        if let Some(failure) = v.failure {
            checks.push(Check { name: v.case, good: false, said: failure });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::permissions;
    use std::path::PathBuf;

    #[test]
    fn a_device_file_that_cannot_be_opened_is_a_failed_check_that_says_what_to_do() {
        // A folder can be opened for writing by nobody, not even by root.
        let found = permissions(&[PathBuf::from("/dev/null"), PathBuf::from("/dev")]);
        assert_eq!(found.iter().map(|c| c.good).collect::<Vec<_>>(), [true, false]);
        assert!(found[1].line().starts_with("FAIL /dev: cannot be opened") && found[1].said.contains("render"));
    }
}
