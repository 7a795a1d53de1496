//! The CPU's name and features, and the memory that this process used and may use.

use super::Isa;
use kjit_exec::default_threads;
use std::fs;
use std::path::{Path, PathBuf};

/// The CPU as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// The name that the system reports.
    pub name: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The instruction set in use: `plain`, `avx2`, `avx512`, `amx` or `neon`.
    pub path: &'static str,
    /// All instruction sets that could be used.
    pub paths: Vec<&'static str>,
}

impl Cpu {
    /// The CPU of this machine.
    pub fn here() -> Cpu {
        // Linux on x86 has the name in /proc/cpuinfo. On other systems the name of the architecture
        // is used.
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

/// The peak memory of this process in bytes. Pages of mapped files are included. `None` if the
/// system does not report it.
pub fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Maximum memory that this process may use, in bytes: the memory of the machine, or the limit of
/// the control groups if it is lower. It does not change while the process runs. `None` if the
/// system does not report it.
pub fn memory_limit() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let all = line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups)
        .into_iter()
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    Some(limits.fold(all, u64::min))
}

/// The files that may limit the memory of these control groups (`/proc/self/cgroup`): for each
/// group and all its parents, of cgroup versions 2 and 1. In a container with its own groups, the
/// top group is the container's group.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = vec![];
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = match kinds {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if kinds.split(',').any(|kind| kind == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let above = Path::new(group.trim_start_matches('/')).ancestors();
        files.extend(above.map(|group| Path::new(root).join(group).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_limits_cover_parent_cgroups_of_v1_and_v2() {
        let files = |groups| {
            limit_files(groups).iter().map(|f| f.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            files("0::/a/b\n"),
            [
                "/sys/fs/cgroup/a/b/memory.max",
                "/sys/fs/cgroup/a/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        let old = "5:cpu,cpuacct:/x\n4:memory:/x\nno line\n";
        assert_eq!(
            files(old),
            [
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
        assert_eq!(memory_limit(), memory_limit());
    }

    #[test]
    fn chosen_isa_is_supported_by_this_processor() {
        let cpu = Cpu::here();
        assert!(cpu.paths.contains(&cpu.path) && cpu.cores > 0 && !cpu.name.is_empty(), "{cpu:?}");
    }
}
