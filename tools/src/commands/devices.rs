//! `kjit devices`: lists devices, variables that hide devices, compilers, and missing libraries.

use crate::args::{self, Shared};
use crate::engine::engine;
use crate::report::bytes;
use kjit_engine::{CompilerReport, DeviceInfo, Engine, Inventory, Vendor};
use kjit_model::host::Cpu;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

const VENDORS: [Vendor; 2] = [Vendor::Nvidia, Vendor::Amd];

pub fn devices(args: &args::Json, shared: &Shared) -> anyhow::Result<ExitCode> {
    let engine = engine(shared);
    let mut out = io::BufWriter::new(io::stdout().lock());
    match args.json {
        true => writeln!(out, "{}", document(&engine, &engine.devices(), &compilers(&engine)))?,
        false => describe(&engine, shared.verbose > 0, &mut out)?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the list. With `verbose`, also each place that was searched.
pub fn describe(engine: &Engine, verbose: bool, out: &mut impl Write) -> anyhow::Result<()> {
    print(engine, &engine.devices(), &compilers(engine), verbose, out)
}

fn compilers(engine: &Engine) -> Vec<(Vendor, CompilerReport)> {
    VENDORS.iter().map(|&v| (v, engine.compilers(v))).collect()
}

/// Free bytes of memory. With some drivers they are only known for an opened device.
fn free(engine: &Engine, device: &DeviceInfo) -> Option<u64> {
    device
        .memory_free
        .or_else(|| engine.device(&device.label()).ok()?.memory().ok().map(|(free, _)| free))
}

fn document(engine: &Engine, found: &Inventory, compilers: &[(Vendor, CompilerReport)]) -> Value {
    let cpu = Cpu::here();
    let mut devices: Vec<Value> = found
        .devices
        .iter()
        .map(|d| {
            let free = free(engine, d);
            json!({
                "device": d.label(), "kind": d.vendor.name(), "name": d.name, "arch": d.arch_id,
                "waves": d.target.as_ref().map(|t| t.waves().to_vec()), "memory_total": d.memory_total, "memory_free": free,
                "memory_used": free.map(|f| d.memory_total.saturating_sub(f)), "units": d.units, "pci": d.pci, "uuid": d.uuid,
                "driver": format!("{}.{}", d.driver.0, d.driver.1),
            })
        })
        .collect();
    devices.push(json!({
        "device": "cpu", "kind": "cpu", "name": cpu.name, "arch": std::env::consts::ARCH, "cores": cpu.cores, "path": cpu.path,
        "paths": cpu.paths,
    }));
    let compilers: Vec<Value> = compilers
        .iter()
        .flat_map(|(vendor, report)| report.found.iter().map(move |c| (vendor, c)))
        .map(|(vendor, c)| {
            json!({
                "vendor": vendor.name(), "kind": c.kind, "version": format!("{}.{}", c.version.0, c.version.1),
                "file": c.file.display().to_string(), "found_by": c.via,
            })
        })
        .collect();
    let hidden: Vec<Value> =
        found.visibility.iter().map(|(k, v)| json!({ "variable": k, "value": v })).collect();
    json!({ "devices": devices, "drivers": found.drivers, "compilers": compilers, "visibility": hidden, "warnings": found.warnings(), "missing": found.missing })
}

fn print(
    engine: &Engine,
    found: &Inventory,
    compilers: &[(Vendor, CompilerReport)],
    verbose: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for d in &found.devices {
        write!(out, "{}: {} ({}), {} compute units", d.label(), d.name, d.arch_id, d.units)?;
        match d.target.as_ref().map(|t| t.waves()) {
            Some(waves) => write!(
                out,
                ", waves of {}",
                waves.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
            )?,
            None => write!(out, ", an architecture that kjit does not know")?,
        }
        match free(engine, d) {
            Some(free) => write!(
                out,
                ", memory {} ({} free, {} used)",
                bytes(d.memory_total),
                bytes(free),
                bytes(d.memory_total.saturating_sub(free))
            )?,
            None => write!(out, ", memory {}", bytes(d.memory_total))?,
        }
        writeln!(out, ", PCI {}, {}", d.pci, d.uuid)?;
    }
    let cpu = Cpu::here();
    writeln!(
        out,
        "cpu: {}, {}, {} cores, computes with {}",
        cpu.name,
        std::env::consts::ARCH,
        cpu.cores,
        cpu.path
    )?;
    for line in &found.drivers {
        writeln!(out, "driver: {line}")?;
    }
    for (vendor, report) in compilers {
        for c in &report.found {
            let (major, minor) = c.version;
            writeln!(
                out,
                "compiler for {}: {} {major}.{minor} at {} (by {})",
                vendor.name(),
                c.kind,
                c.file.display(),
                c.via
            )?;
        }
        if report.found.is_empty() {
            writeln!(out, "compiler for {}: none found", vendor.name())?;
        }
        report.unusable.iter().try_for_each(|line| writeln!(out, "  unusable: {line}"))?;
        if verbose {
            for t in &report.tried {
                let found =
                    t.found.as_ref().map_or("nothing".to_string(), |f| f.display().to_string());
                writeln!(out, "  tried {} ({}): {found}", t.place.display(), t.via)?;
            }
        }
    }
    for (name, value) in &found.visibility {
        writeln!(out, "set: {name}={value}")?;
    }
    found.warnings().iter().try_for_each(|line| writeln!(out, "warning: {line}"))?;
    found.missing.iter().try_for_each(|line| writeln!(out, "not found: {line}"))?;
    Ok(())
}
