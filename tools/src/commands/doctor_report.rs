//! The file that `kjit doctor` leaves to be sent: its verdicts, what `kjit devices -v` says, the system, and the variables that matter.

use super::devices;
use anyhow::Context;
use kjit_engine::Engine;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Its name where none was given, in the current folder.
const NAME: &str = "kjit-report.txt";

/// Beginnings of the names of variables that change what kjit finds or does. No others are told: a report is sent to strangers.
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

/// Writes the report; where it is.
///
/// # Errors
/// The file that was asked for cannot be written, or neither the current folder nor that for temporary files takes one.
pub fn write(to: Option<&Path>, verdicts: &[String], engine: &Engine) -> anyhow::Result<PathBuf> {
    let text = text(verdicts, engine)?;
    if let Some(path) = to {
        return put(File::create(path), path, &text).with_context(|| format!("cannot write {}", path.display()));
    }
    let here = std::env::current_dir().map(|d| d.join(NAME)).unwrap_or_else(|_| PathBuf::from(NAME));
    put(File::create(&here), &here, &text).or_else(|_| {
        // Many share that folder: a new file there, and no link that somebody laid out.
        let other = std::env::temp_dir().join(format!("kjit-report-{}.txt", std::process::id()));
        put(File::create_new(&other), &other, &text)
            .with_context(|| format!("no report written: neither {} nor {} can be", here.display(), other.display()))
    })
}

fn put(file: io::Result<File>, path: &Path, text: &[u8]) -> io::Result<PathBuf> {
    file?.write_all(text)?;
    Ok(path.to_owned())
}

fn text(verdicts: &[String], engine: &Engine) -> anyhow::Result<Vec<u8>> {
    let mut out = vec![];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    writeln!(out, "kjit {} doctor, {now} s after 1970 began\n\n[checks]", env!("CARGO_PKG_VERSION"))?;
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
        text.lines().filter(|l| l.starts_with(wanted)).try_for_each(|line| writeln!(out, "{file}: {line}"))?;
    }
    writeln!(out, "\n[environment]")?;
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if VARIABLES.iter().any(|v| name.starts_with(v)) {
            writeln!(out, "{name}={}", value.to_string_lossy())?;
        }
    }
    Ok(out)
}
