//! `kjit probe`: measures a card without a model, for a report that its owner sends.

use super::probe_models;
use super::probe_report::{Kernels, Report};
use crate::args::{self, Shared};
use crate::engine;
use crate::load::named_gpu;
use crate::report::say;
use kjit_engine::sensors::{PCI_DEVICES, Reading, Sensors};
use kjit_engine::{Device, Engine, Vendor, amd_system};
use kjit_model::gpu::card::{self, Figure};
use kjit_model::gpu::prove;
use kjit_model::host::Cpu;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The seed of the kernels' cases, as in `kjit doctor --run`.
const SEED: u64 = 20_261_121;

pub fn probe(args: &args::Probe, shared: &Shared) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let engine = engine::engine(shared);
    let device = engine.device(&named_gpu(shared).unwrap_or_else(|| "auto".to_owned()))?;
    if args.run_for_parent {
        let wish = (SEED, args.filter.as_deref().unwrap_or_default());
        prove::serve(&engine, &device, wish, io::stdin().lock(), io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    }
    let show = io::stderr().is_terminal() && !shared.quiet;
    let step = |what: &str| {
        if show {
            say(format_args!("{what} …"));
        }
    };
    let sensors = Sensors::of(Path::new(PCI_DEVICES), &device.info().pci);
    let mut report = Report::new(args.quick, about(&engine, &device, sensors.as_ref()));
    step("launches, memory, LDS, copies");
    let (figures, idle) = watched(sensors.as_ref(), || card::measure(&engine, &device, args.quick));
    report.figures = figures.map_err(anyhow::Error::msg)?;
    report.figures.extend(driver_memory(sensors.as_ref()));
    step("three models with random weights, each in three forms");
    let read = report.value("read, whole").unwrap_or(1.0) * 1e9;
    let (models, busy) =
        watched(sensors.as_ref(), || probe_models::measure(&engine, &device, read, args.quick));
    report.figures.extend(models);
    report.figures.extend(readings("during rates", &idle));
    report.figures.extend(readings("during models", &busy));
    report.kernels = if args.quick && args.filter.is_none() {
        Kernels::NotRun("not run with --quick")
    } else {
        step("every kernel against the CPU's result");
        kernels(&engine, &device, args)
    };
    report.seconds = began.elapsed().as_secs_f64();
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", report.json())?,
        false => out.write_all(report.text().as_bytes())?,
    }
    out.flush()?;
    Ok(ExitCode::from(u8::from(!report.good())))
}

/// The card, its software and the system: names and versions only.
fn about(
    engine: &Engine,
    device: &Device,
    sensors: Option<&Sensors>,
) -> Vec<(&'static str, String)> {
    let info = device.info();
    let found = engine.devices();
    let file = |text: &str| {
        Path::new(text.trim_end_matches(')')).file_name().map(|n| n.to_string_lossy().into_owned())
    };
    let library = found
        .drivers
        .iter()
        .find(|line| line.starts_with(info.vendor.device_word()))
        .and_then(|line| file(line.split_once('(')?.1));
    let release = engine.amd_library().filter(|_| info.vendor == Vendor::Amd);
    let release = release.and_then(|library| amd_system::rocm_release(&library));
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel: String = read("/proc/sys/kernel/osrelease")
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let system = read("/etc/os-release");
    let system = system.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    let cpu = Cpu::here();
    let compiler = match engine.compiler_for(device.target()) {
        Ok(choice) => {
            let (major, minor) = choice.compiler.version;
            format!("{} {major}.{minor}", choice.compiler.kind)
        }
        Err(_) => "none found: kernels from the cache".to_owned(),
    };
    let inside = if info.integrated { ", inside the processor" } else { "" };
    let together = if info.cooperative { "" } else { ", no cooperative launches" };
    let (major, minor) = info.driver;
    let mut driver = format!("{major}.{minor}");
    if let Some(library) = library {
        driver += &format!(" ({library})");
    }
    if let Some((version, _)) = release {
        driver += &format!(", ROCm {version}");
    }
    let said = match sensors.and_then(Sensors::link) {
        Some(link) => link,
        None => "not reported by the system".to_owned(),
    };
    vec![
        (
            "card",
            format!("{} ({}), {} units{inside}{together}", info.name, info.arch_id, info.units),
        ),
        ("driver", driver),
        ("compiler", compiler),
        ("link", said),
        ("system", format!("{}, Linux {kernel}", system.trim_matches('"'))),
        ("processor", format!("{}, {} cores", cpu.name, cpu.cores)),
    ]
}

/// Memory sizes that amdgpu reports.
fn driver_memory(sensors: Option<&Sensors>) -> Vec<Figure> {
    let (own, system) = sensors.map_or((None, None), Sensors::memories);
    let gib = |name: &'static str, bytes: Option<u64>| match bytes {
        Some(bytes) => Figure::new(name, bytes as f64 / (1u64 << 30) as f64, "GiB"),
        None => Figure::none(name, "GiB", "not reported by the system"),
    };
    vec![gib("amdgpu: card memory", own), gib("amdgpu: GTT", system)]
}

/// Runs `work` and reads the sensors meanwhile.
fn watched<T>(sensors: Option<&Sensors>, work: impl FnOnce() -> T) -> (T, Vec<Reading>) {
    let (ended, all) = (AtomicBool::new(false), Mutex::new(vec![]));
    let done = std::thread::scope(|scope| {
        if let Some(sensors) = sensors {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    if let Ok(mut all) = all.lock() {
                        all.push(sensors.read());
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
        let done = work();
        ended.store(true, Ordering::Relaxed);
        done
    });
    (done, all.into_inner().unwrap_or_default())
}

/// The largest readings.
fn readings(when: &str, all: &[Reading]) -> Vec<Figure> {
    type Of = fn(&Reading) -> Option<f64>;
    let kinds: [(&str, &'static str, Of); 4] = [
        ("core clock", "MHz", |r| r.core_mhz),
        ("memory clock", "MHz", |r| r.memory_mhz),
        ("power", "W", |r| r.watts),
        ("temperature", "°C", |r| r.celsius),
    ];
    let figure = |(name, unit, of): (&str, &'static str, Of)| {
        let name = format!("{name} {when}, at most");
        match all.iter().filter_map(of).reduce(f64::max) {
            Some(most) => Figure::new(name, most, unit),
            None => Figure::none(name, unit, "not reported by the system"),
        }
    };
    kinds.into_iter().map(figure).collect()
}

/// Runs every kernel's cases in child processes.
fn kernels(engine: &Engine, device: &Device, args: &args::Probe) -> Kernels {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => return Kernels::Failed(format!("cannot find this program's file: {e}")),
    };
    // The same arguments choose the same device; a second --device would be wrong usage.
    let spawn = || {
        let mut child = Command::new(&program);
        child.args(std::env::args_os().skip(1)).arg("--run-for-parent");
        child
    };
    let filter = args.filter.as_deref().unwrap_or_default();
    match prove::run_all(engine, device.target(), SEED, filter, &spawn, &|_, _| {}) {
        Err(why) => Kernels::Failed(why),
        Ok(all) => {
            let wrong = all.iter().filter(|v| v.failure.is_some()).map(|v| v.case.clone());
            Kernels::Run { all: all.len(), wrong: wrong.collect() }
        }
    }
}
