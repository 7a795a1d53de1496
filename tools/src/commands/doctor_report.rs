//! Writes the file of `kjit doctor --report FILE`: the verdicts, the output of `kjit devices -v`,
//! the system, and relevant variables. A user can send this file to others.

use super::devices;
use anyhow::Context;
use kjit_engine::Engine;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Prefixes of the names of variables that affect kjit. Only these are written, but never the
/// secret of ranks, because a report is sent to strangers.
const VARIABLES: [&str; 10] = [
    "KJIT_",
    "CUDA_",
    "NVIDIA_",
    "HIP_",
    "ROCR_",
    "ROCM_",
    "HSA_",
    "GPU_DEVICE_ORDINAL",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
];

/// Writes the report.
///
/// # Errors
/// The file cannot be written.
pub fn write(to: &Path, verdicts: &[String], engine: &Engine) -> anyhow::Result<()> {
    fs::write(to, text(verdicts, engine)?).with_context(|| format!("cannot write {}", to.display()))
}

fn text(verdicts: &[String], engine: &Engine) -> anyhow::Result<Vec<u8>> {
    let mut out = vec![];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    writeln!(
        out,
        "kjit {} doctor, {now} s after 1970 began\n\n[checks]",
        env!("CARGO_PKG_VERSION")
    )?;
    verdicts.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out, "\n[devices]")?;
    devices::describe(engine, true, &mut out)?;
    writeln!(out, "\n[system]")?;
    for (file, wanted) in [
        ("/proc/version", ""),
        ("/etc/os-release", "PRETTY_NAME="),
        ("/proc/meminfo", "Mem"),
        ("/proc/driver/nvidia/version", ""),
    ] {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines()
            .filter(|l| l.starts_with(wanted))
            .try_for_each(|line| writeln!(out, "{file}: {line}"))?;
    }
    writeln!(out, "\n[environment]")?;
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if VARIABLES.iter().any(|v| name.starts_with(v)) && name != kjit_model::ranks::SECRET {
            writeln!(out, "{name}={}", value.to_string_lossy())?;
        }
    }
    Ok(out)
}
