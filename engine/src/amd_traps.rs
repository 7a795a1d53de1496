//! Known traps of machines with AMD GPUs, with their remedies. `kjit doctor` prints them as notes:
//! a trap is a likely cause if something fails, not a failure.

use crate::amd_system::KfdNode;
use std::fs;
use std::path::{Path, PathBuf};

/// The facts about a machine that the checks use.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Architectures of the GPUs, without flags, and whether each is inside the processor.
    pub gpus: Vec<(String, bool)>,
    /// Bytes of the system's memory.
    pub system: u64,
    /// Bytes of system memory that amdgpu allows GPUs to use (GTT), if it reports them.
    pub gtt: Option<u64>,
    /// Folders of ROCm releases.
    pub releases: Vec<PathBuf>,
    /// The file of the HIP runtime in use, and of the compiler in use.
    pub used: [Option<PathBuf>; 2],
    /// Whether this is a container.
    pub container: bool,
    /// Device files: whether `/dev/kfd` exists, and the number of `/dev/dri/renderD…`.
    pub files: (bool, usize),
    /// The variables that the checks use, with their values.
    pub variables: Vec<(String, String)>,
}

impl Facts {
    /// The facts of this machine about these GPUs.
    #[must_use]
    pub fn here(gpus: Vec<(String, bool)>, used: [Option<PathBuf>; 2]) -> Facts {
        let listed = |folder: &str, begins: &str| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let of = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with(begins);
            entries.filter(of).map(|e| e.path()).collect()
        };
        let gtt = listed(crate::sensors::PCI_DEVICES, "").into_iter().filter_map(|device| {
            fs::read_to_string(device.join("mem_info_gtt_total")).ok()?.trim().parse().ok()
        });
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = memory.lines().find_map(|l| l.strip_prefix("MemTotal:"));
        let kib = memory.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        let names = ["AMD_COMGR_CACHE", "AMD_COMGR_CACHE_DIR", "HSA_OVERRIDE_GFX_VERSION"];
        let variable = |name: &str| std::env::var(name).ok().map(|v| (name.to_owned(), v));
        Facts {
            gpus,
            system: kib.unwrap_or(0) << 10,
            gtt: gtt.max(),
            releases: listed("/opt", "rocm-"),
            used,
            container: ["/.dockerenv", "/run/.containerenv"].iter().any(|f| Path::new(f).exists()),
            files: (Path::new("/dev/kfd").exists(), listed("/dev/dri", "renderD").len()),
            variables: names.into_iter().filter_map(variable).collect(),
        }
    }
}

/// The GPUs of the kernel driver's nodes and of the runtime: architecture, and whether inside the
/// processor. Each kind once.
#[must_use]
pub fn gpus(nodes: &[KfdNode], devices: &[crate::DeviceInfo]) -> Vec<(String, bool)> {
    let plain = |id: &str| id.split(':').next().unwrap_or_default().to_owned();
    let shown = devices.iter().filter(|d| d.vendor == crate::Vendor::Amd);
    let shown = shown.map(|d| (plain(&d.arch_id), d.integrated));
    let mut all: Vec<_> =
        nodes.iter().map(|n| (n.arch.clone(), n.integrated)).chain(shown).collect();
    all.sort();
    all.dedup();
    all
}

/// The traps of a machine: a name, and a sentence with the remedy.
#[must_use]
pub fn traps(facts: &Facts) -> Vec<(&'static str, String)> {
    let mut all = vec![];
    let has = |archs: &[&str]| facts.gpus.iter().any(|(arch, _)| archs.contains(&arch.as_str()));
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    if has(&["gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1103"])
        && let Some(gtt) = facts.gtt.filter(|gtt| *gtt < facts.system / 10 * 7)
    {
        let pages = (facts.system / 10 * 8) >> 12;
        all.push((
            "GTT",
            format!(
                "amdgpu lets GPUs use {:.1} of the system's {:.1} GiB: larger models need the kernel parameter ttm.pages_limit={pages} (older kernels: amdgpu.gttsize in MiB), and a small reserved memory in the firmware's setup",
                gib(gtt),
                gib(facts.system)
            ),
        ));
    }
    if has(&["gfx90c", "gfx902"]) {
        let note = "is a Vega inside a Ryzen, not a CDNA card: ROCm does not support it; do not set HSA_OVERRIDE_GFX_VERSION, because kjit compiles for this chip";
        all.push(("gfx90c", note.to_owned()));
    }
    if has(&["gfx1012", "gfx1010", "gfx1011"]) {
        let note = "ROCm's libraries have no kernels for RX 5000 cards ('no kernel image is available'); kjit does not need these libraries and compiles its kernels for the card";
        all.push(("gfx101x", note.to_owned()));
    }
    if has(&["gfx906", "gfx900"]) {
        let note = "newer ROCm releases do not support Vega: if hiprtc refuses the card, install clang 19 and lld, or set KJIT_CLANG";
        all.push(("Vega", note.to_owned()));
    }
    let inside = facts.gpus.iter().find(|(_, inside)| *inside);
    let card = facts.gpus.iter().find(|(_, inside)| !*inside);
    if let (Some((inside, _)), Some((card, _))) = (inside, card) {
        all.push((
            "two GPUs",
            format!(
                "{inside} is an integrated GPU, {card} is a card: --device auto uses the card; if the runtime crashes or hangs, hide the integrated GPU by HIP_VISIBLE_DEVICES or in the firmware's setup"
            ),
        ));
    }
    all.extend(releases(facts));
    if facts.container && facts.files == (true, 0) {
        let note = "/dev/kfd exists but /dev/dri/renderD… does not: start the container with --device /dev/dri as well, and with --group-add of the groups that own both";
        all.push(("container", note.to_owned()));
    }
    let set = |name: &str| facts.variables.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    if set("AMD_COMGR_CACHE") != Some("0")
        && let Some(folder) = set("AMD_COMGR_CACHE_DIR")
        && !Path::new(folder).is_dir()
    {
        all.push((
            "comgr's cache",
            format!(
                "AMD_COMGR_CACHE_DIR={folder} is not a folder, so AMD's compiler cannot use its cache: unset the variable or create the folder (kjit has its own cache)"
            ),
        ));
    }
    all
}

/// Several ROCm releases, and a runtime and a compiler of two of them.
fn releases(facts: &Facts) -> Option<(&'static str, String)> {
    let of = |file: &Option<PathBuf>| {
        let file = file.as_ref()?;
        let file = file.canonicalize().unwrap_or_else(|_| file.clone());
        let of = |folder: &Path| facts.releases.iter().any(|release| release == folder);
        file.ancestors().find(|folder| of(folder)).map(Path::to_owned)
    };
    let names = |folder: &Path| {
        folder.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
    };
    let [runtime, compiler] = &facts.used;
    let note = match (of(runtime), of(compiler)) {
        (Some(runtime), Some(compiler)) if runtime != compiler => format!(
            "the runtime is from {} and the compiler from {}: set ROCM_PATH to one of them; two releases in one process may crash",
            names(&runtime),
            names(&compiler)
        ),
        _ if facts.releases.len() > 1 => {
            let mut all: Vec<String> = facts.releases.iter().map(|r| names(r)).collect();
            all.sort();
            format!(
                "{} are installed: set ROCM_PATH to the release to use, or KJIT_HIP_LIBRARY to the runtime's file",
                all.join(", ")
            )
        }
        _ => return None,
    };
    Some(("ROCm releases", note))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(facts: &Facts) -> Vec<&'static str> {
        traps(facts).into_iter().map(|(name, _)| name).collect()
    }

    fn with(gpus: &[(&str, bool)]) -> Facts {
        let gpus = gpus.iter().map(|(arch, inside)| ((*arch).to_owned(), *inside)).collect();
        Facts { gpus, system: 128 << 30, files: (true, 1), ..Facts::default() }
    }

    #[test]
    fn usual_card_has_no_trap() {
        assert!(names(&with(&[("gfx1100", false)])).is_empty());
        assert!(names(&Facts::default()).is_empty());
    }

    #[test]
    fn each_trap_is_named_with_what_to_do() {
        let strix = Facts { gtt: Some(64 << 30), ..with(&[("gfx1151", true)]) };
        let note = traps(&strix);
        assert!(note[0].0 == "GTT" && note[0].1.contains("64.0 of the system's 128.0"), "{note:?}");
        // Four fifths of 128 GiB in pages of 4 KiB.
        assert!(note[0].1.contains("ttm.pages_limit=26843"), "{note:?}");
        assert!(names(&Facts { gtt: Some(100 << 30), ..strix.clone() }).is_empty());
        assert_eq!(names(&with(&[("gfx90c", true)])), ["gfx90c"]);
        assert_eq!(names(&with(&[("gfx1012", false)])), ["gfx101x"]);
        assert_eq!(names(&with(&[("gfx906", false)])), ["Vega"]);
        assert_eq!(names(&with(&[("gfx1036", true), ("gfx1100", false)])), ["two GPUs"]);
        let inside = Facts { container: true, files: (true, 0), ..with(&[("gfx1100", false)]) };
        assert_eq!(names(&inside), ["container"]);
        assert!(names(&Facts { container: false, ..inside }).is_empty());
        let variables = |of: &[(&str, &str)]| {
            let all = of.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            names(&Facts { variables: all, ..with(&[("gfx1100", false)]) })
        };
        assert_eq!(variables(&[("AMD_COMGR_CACHE_DIR", "/nowhere/x")]), ["comgr's cache"]);
        assert!(variables(&[("AMD_COMGR_CACHE_DIR", "/")]).is_empty());
        let off = [("AMD_COMGR_CACHE_DIR", "/nowhere/x"), ("AMD_COMGR_CACHE", "0")];
        assert!(variables(&off).is_empty());
    }

    #[test]
    fn two_releases_are_reported_and_a_mixture_first() {
        let both = ["/opt/rocm-6.4.1", "/opt/rocm-7.0.2"].map(PathBuf::from);
        let facts = Facts { releases: both.to_vec(), ..with(&[("gfx1100", false)]) };
        let note = &traps(&facts)[0].1;
        assert!(note.starts_with("rocm-6.4.1, rocm-7.0.2 are installed"), "{note}");
        let file = |folder: &Path, name: &str| Some(folder.join("lib").join(name));
        let used = [file(&both[0], "libamdhip64.so.6"), file(&both[1], "libhiprtc.so.7")];
        let note = &traps(&Facts { used, ..facts.clone() })[0].1;
        assert!(
            note.contains("runtime is from rocm-6.4.1 and the compiler from rocm-7.0.2"),
            "{note}"
        );
        let one = Facts { releases: both[..1].to_vec(), ..facts };
        assert!(names(&one).is_empty());
    }

    #[test]
    fn gpus_of_both_lists_are_deduplicated() {
        let device = crate::driver::amd(0, "gfx90a:sramecc+:xnack-", false);
        let found = gpus(&[], &[device.clone(), device]);
        assert_eq!(found, [("gfx90a".to_owned(), false)]);
    }
}
