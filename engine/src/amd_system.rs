//! Facts about AMD GPUs without AMD's runtime: the kernel driver's nodes, the ROCm release of a
//! library, and the names of a distribution's packages.

use crate::driver::DeviceInfo;
use std::path::Path;

/// A GPU in the kernel driver's list (`/sys/class/kfd/kfd/topology/nodes/N/properties`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KfdNode {
    /// Number of the node.
    pub node: u32,
    /// Architecture of the GPU, such as `gfx90a`.
    pub arch: String,
    /// Number of SIMDs.
    pub simds: u32,
    /// Whether the GPU is part of a processor (an APU). The processor's cores are then in the same
    /// node.
    pub integrated: bool,
    /// The number in `/dev/dri/renderD…`.
    pub render: u32,
}

/// The GPUs that the kernel driver lists in this folder. Empty without the driver.
#[must_use]
pub fn kfd_nodes(folder: &Path) -> Vec<KfdNode> {
    let mut nodes: Vec<KfdNode> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let node = entry.file_name().to_str()?.parse().ok()?;
            kfd_node(node, &std::fs::read_to_string(entry.path().join("properties")).ok()?)
        })
        .collect();
    nodes.sort_by_key(|n| n.node);
    nodes
}

/// The folder of the kernel driver's nodes.
pub const KFD_NODES: &str = "/sys/class/kfd/kfd/topology/nodes";

fn kfd_node(node: u32, properties: &str) -> Option<KfdNode> {
    let number = |name: &str| {
        let value = properties.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|v| v.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    // 90402 is major, minor and stepping: gfx942. The last two are one hexadecimal digit each.
    let version = number("gfx_target_version");
    if version == 0 {
        return None; // the node is a CPU
    }
    let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
    let arch = format!("gfx{major}{minor:x}{stepping:x}");
    let small = |name| u32::try_from(number(name)).unwrap_or(u32::MAX);
    let integrated = number("cpu_cores_count") > 0;
    Some(KfdNode {
        node,
        arch,
        simds: small("simd_count"),
        integrated,
        render: small("drm_render_minor"),
    })
}

/// Differences between the runtime and the kernel driver about the devices, one sentence each.
/// Settings that hide devices or change how they are reported (`visibility`, see
/// [`Inventory`](crate::Inventory)) may be intended.
#[must_use]
pub fn disagreements(
    devices: &[DeviceInfo],
    nodes: &[KfdNode],
    visibility: &[(String, String)],
) -> Vec<String> {
    let shown: Vec<&str> =
        devices.iter().map(|d| d.arch_id.split(':').next().unwrap_or_default()).collect();
    let set: Vec<String> =
        visibility.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let because =
        if set.is_empty() { String::new() } else { format!(" (set: {})", set.join(", ")) };
    let count =
        |list: &mut dyn Iterator<Item = &str>, arch: &str| list.filter(|a| *a == arch).count();
    let mut archs: Vec<&str> =
        nodes.iter().map(|n| n.arch.as_str()).chain(shown.iter().copied()).collect();
    archs.sort_unstable();
    archs.dedup();
    let mut notes = vec![];
    for arch in archs {
        let there = count(&mut nodes.iter().map(|n| n.arch.as_str()), arch);
        let here = count(&mut shown.iter().copied(), arch);
        if there > here {
            notes.push(format!(
                "the kernel driver lists {there} × {arch}, the HIP runtime shows {here}{because}"
            ));
        } else if here > there {
            notes.push(format!(
                "the HIP runtime shows {here} × {arch}, the kernel driver lists {there}: the runtime reports a wrong architecture{because}"
            ));
        }
    }
    notes
}

/// The ROCm release of a library, and where it was found: the folder of the library
/// (`/opt/rocm-6.4.1`) or `.info/version` of the installation.
#[must_use]
pub fn rocm_release(library: &Path) -> Option<(String, String)> {
    let file = library.canonicalize().ok()?;
    for folder in file.ancestors().skip(1) {
        let info = folder.join(".info/version");
        if let Ok(version) = std::fs::read_to_string(&info) {
            let version = version.trim();
            if !version.is_empty() {
                return Some((version.to_owned(), info.display().to_string()));
            }
        }
        let named =
            folder.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("rocm-"));
        if let Some(version) = named.filter(|v| v.starts_with(|c: char| c.is_ascii_digit())) {
            return Some((version.to_owned(), folder.display().to_string()));
        }
    }
    None
}

/// Packages for AMD GPUs by distribution: ids in `/etc/os-release` (`ID` or `ID_LIKE`), and what to
/// do. A distribution precedes the one from which it is derived.
pub const PACKAGES: &[(&[&str], &str)] = &[
    (
        &["ubuntu"],
        "Ubuntu: apt install libamdhip64-5 clang-19 lld-19 (24.04 and later), or ROCm by AMD's amdgpu-install",
    ),
    (&["debian"], "Debian: apt install libamdhip64-5 clang-19 lld-19"),
    (&["fedora", "rhel"], "Fedora: dnf install rocm-hip rocm-comgr clang lld"),
    (&["arch"], "Arch: pacman -S hip-runtime-amd clang lld"),
];

/// Advice for a container of any distribution.
pub const IN_A_CONTAINER: &str = "in a container: start it with --device /dev/kfd --device /dev/dri and --group-add of the groups that own them, and have libamdhip64 in the image (rocm/dev-… images have it)";

/// Advice for any other system.
pub const ELSEWHERE: &str = "ROCm's runtime (libamdhip64) by the distribution's packages or AMD's installer; clang 19 or newer with lld";

/// The packages to install for AMD GPUs, given the contents of `/etc/os-release` and whether this
/// is a container.
#[must_use]
pub fn install(os_release: &str, container: bool) -> &'static str {
    if container {
        return IN_A_CONTAINER;
    }
    let names = os_release
        .lines()
        .filter_map(|l| l.strip_prefix("ID=").or_else(|| l.strip_prefix("ID_LIKE=")));
    let names: Vec<&str> = names.flat_map(|l| l.trim_matches('"').split(' ')).collect();
    let of = PACKAGES.iter().find(|(ids, _)| ids.iter().any(|id| names.contains(id)));
    of.map_or(ELSEWHERE, |(_, how)| how)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{Target, Vendor};

    fn device(arch: &str) -> DeviceInfo {
        DeviceInfo {
            vendor: Vendor::Amd,
            ordinal: 0,
            name: String::new(),
            target: Target::parse(arch).ok(),
            arch_id: arch.to_owned(),
            memory_total: 0,
            memory_free: None,
            units: 1,
            clock_khz: 0,
            l2_bytes: 0,
            pci: String::new(),
            uuid: String::new(),
            driver: (6, 2),
            cooperative: false,
            registers_read_only: false,
            integrated: false,
        }
    }

    #[test]
    fn kfd_nodes_are_parsed_and_cpus_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let node = |n: &str, text: &str| {
            std::fs::create_dir(folder.path().join(n)).unwrap();
            std::fs::write(folder.path().join(n).join("properties"), text).unwrap();
        };
        node("0", "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\n");
        node(
            "1",
            "cpu_cores_count 0\nsimd_count 440\ndrm_render_minor 129\ngfx_target_version 90010\n",
        );
        node(
            "2",
            "cpu_cores_count 8\nsimd_count 4\ndrm_render_minor 128\ngfx_target_version 100306\n",
        );
        let found = kfd_nodes(folder.path());
        let short: Vec<_> =
            found.iter().map(|n| (n.node, n.arch.as_str(), n.integrated, n.render)).collect();
        assert_eq!(short, [(1, "gfx90a", false, 129), (2, "gfx1036", true, 128)]);
        assert!(kfd_nodes(Path::new("/nowhere")).is_empty());
        for (version, arch) in
            [("90402", "gfx942"), ("120001", "gfx1201"), ("90012", "gfx90c"), ("80003", "gfx803")]
        {
            let node = kfd_node(0, &format!("gfx_target_version {version}\n")).unwrap();
            assert_eq!(node.arch, arch);
        }
    }

    #[test]
    fn hidden_and_overridden_cards_are_disagreements() {
        let nodes = [
            kfd_node(1, "gfx_target_version 100302\n").unwrap(),
            kfd_node(2, "gfx_target_version 110000\n").unwrap(),
        ];
        assert!(disagreements(&[device("gfx1032"), device("gfx1100")], &nodes, &[]).is_empty());
        let notes = disagreements(&[device("gfx1100")], &nodes, &[]);
        assert!(
            notes.len() == 1 && notes[0].contains("lists 1 × gfx1032, the HIP runtime shows 0"),
            "{notes:?}"
        );
        let over = [("HSA_OVERRIDE_GFX_VERSION".to_owned(), "10.3.0".to_owned())];
        let notes = disagreements(&[device("gfx1030"), device("gfx1100")], &nodes, &over);
        assert!(
            notes.len() == 2
                && notes[0].contains("wrong architecture")
                && notes[0].contains("10.3.0"),
            "{notes:?}"
        );
    }

    #[test]
    fn rocm_release_is_read_from_folder_or_version_file() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("rocm-6.4.1/lib");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::write(lib.join("libamdhip64.so.6"), "").unwrap();
        assert_eq!(rocm_release(&lib.join("libamdhip64.so.6")).unwrap().0, "6.4.1");
        std::fs::create_dir(root.path().join("rocm-6.4.1/.info")).unwrap();
        std::fs::write(root.path().join("rocm-6.4.1/.info/version"), "6.4.1-83\n").unwrap();
        assert_eq!(rocm_release(&lib.join("libamdhip64.so.6")).unwrap().0, "6.4.1-83");
        std::fs::write(root.path().join("libamdhip64.so.5"), "").unwrap();
        assert_eq!(rocm_release(&root.path().join("libamdhip64.so.5")), None);
    }

    #[test]
    fn each_distribution_gets_its_own_package_names() {
        for (text, word) in [
            ("ID=debian\n", "Debian: apt"),
            ("ID=ubuntu\nID_LIKE=debian\n", "Ubuntu"),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "Ubuntu"),
            ("ID=fedora\n", "dnf"),
            ("ID=arch\n", "pacman"),
            ("ID=void\n", "libamdhip64"),
        ] {
            assert!(install(text, false).contains(word), "{text}: {}", install(text, false));
        }
        assert!(install("ID=debian\n", true).contains("/dev/kfd"));
    }
}
