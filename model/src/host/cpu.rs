//! The processor, for people and scripts; and what this process took of the machine.

use super::Isa;
use std::fs;

/// What computes when nothing else does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// As the system names it.
    pub name: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The instruction set that kjit computes with here: `plain`, `avx2`, `avx512`, `amx` or `neon`.
    pub path: &'static str,
    /// All that it could compute with.
    pub paths: Vec<&'static str>,
}

impl Cpu {
    /// This machine's.
    pub fn here() -> Cpu {
        // Linux tells the name in /proc/cpuinfo, on x86 at least; elsewhere the architecture must do.
        let name = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|l| l.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_string())
        });
        Cpu {
            name: name.unwrap_or_else(|| std::env::consts::ARCH.to_string()),
            cores: default_threads(),
            path: Isa::best().name(),
            paths: Isa::available().into_iter().map(Isa::name).collect(),
        }
    }
}

/// As many threads as cores that this process may use.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The most memory that this process held at once, in bytes, pages of mapped files included; `None` where the
/// system does not say.
pub fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of memory that the system says it can give; `None` where it does not say.
pub fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_in_use_is_one_of_those_that_this_processor_has() {
        let cpu = Cpu::here();
        assert!(cpu.paths.contains(&cpu.path) && cpu.cores > 0 && !cpu.name.is_empty(), "{cpu:?}");
    }
}
