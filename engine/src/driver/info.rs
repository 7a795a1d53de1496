//! Properties of devices, as `kjit devices` prints them.

use crate::arch::{Target, Vendor};

/// A device as its driver describes it.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Vendor of the device.
    pub vendor: Vendor,
    /// Index among the vendor's visible devices.
    pub ordinal: u32,
    /// Marketing name.
    pub name: String,
    /// The compilation target; `None` if the architecture is not in the table.
    pub target: Option<Target>,
    /// The architecture's id as the device reports it (`sm_90`, `gfx90a:sramecc+:xnack-`).
    pub arch_id: String,
    /// Size of the device memory in bytes.
    pub memory_total: u64,
    /// Free bytes, if this is known without opening the device.
    pub memory_free: Option<u64>,
    /// Number of compute units (SMs, CUs).
    pub units: u32,
    /// Highest core clock in kHz, 0 if unknown.
    pub clock_khz: u32,
    /// Size of the level-2 cache in bytes, 0 if unknown.
    pub l2_bytes: u64,
    /// PCI address `0000:c1:00.0`.
    pub pci: String,
    /// UUID in the vendor's format (`GPU-…`); empty if unknown.
    pub uuid: String,
    /// Version of the driver's API.
    pub driver: (u32, u32),
    /// Whether all blocks of a grid can be resident together (cooperative launch).
    pub cooperative: bool,
    /// Whether read-only host mappings can be page-locked.
    pub registers_read_only: bool,
    /// Whether the device shares memory with the CPU.
    pub integrated: bool,
}

impl DeviceInfo {
    /// Name of the device: `cuda:0`, `rocm:1`.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}:{}", self.vendor.device_word(), self.ordinal)
    }
}

/// Devices, settings that hide devices, and missing libraries.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Devices, NVIDIA first.
    pub devices: Vec<DeviceInfo>,
    /// A line for each vendor whose driver was opened: library and version.
    pub drivers: Vec<String>,
    /// A line for each missing driver library and for each device that could not be described.
    pub missing: Vec<String>,
    /// A clause for each vendor without a device: the reason.
    pub none: Vec<String>,
    /// Variables that hide devices or change how they are reported, with their values, such as
    /// `CUDA_VISIBLE_DEVICES=1`.
    pub visibility: Vec<(String, String)>,
}

impl Inventory {
    /// The device that `auto` selects: the first discrete card, or the first device if there is no
    /// card. An integrated GPU shares the processor's memory bandwidth, about a tenth of a card's
    /// bandwidth.
    #[must_use]
    pub fn preferred(&self) -> Option<&DeviceInfo> {
        self.devices.iter().find(|d| !d.integrated).or_else(|| self.devices.first())
    }

    /// The devices before the one that `auto` selects, and the reason for not using them.
    #[must_use]
    pub fn skipped_devices(&self) -> Option<String> {
        let preferred = self.preferred()?.label();
        let before: Vec<String> = self
            .devices
            .iter()
            .map(DeviceInfo::label)
            .take_while(|label| *label != preferred)
            .collect();
        (!before.is_empty())
            .then(|| format!("{} is not used: an integrated GPU", before.join(", ")))
    }

    /// The reason why a GPU is missing, in one line: for each vendor, with the variables that hide
    /// devices.
    #[must_use]
    pub fn why_none(&self) -> String {
        self.none.iter().cloned().chain(self.warnings()).collect::<Vec<_>>().join("; ")
    }

    /// Warnings about settings that may cause errors, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let set =
            |name: &str| self.visibility.iter().find(|(n, _)| n == name).map(|(_, value)| value);
        let mut warnings = Vec::new();
        for device in &self.devices {
            if let Some(row) = device.target.as_ref().and_then(Target::fallback_row) {
                let (label, id) = (device.label(), device.target.as_ref().map_or("", Target::id));
                warnings.push(format!(
                    "{label}: {id} is not in kjit's table; its kernels are compiled for {id} with the common properties of {row}'s family, and are not tuned"
                ));
            }
        }
        if let Some(version) = set("HSA_OVERRIDE_GFX_VERSION") {
            warnings.push(format!(
                "HSA_OVERRIDE_GFX_VERSION={version}: the AMD runtime reports a wrong architecture; kernels are compiled for it and may give wrong results or fault"
            ));
        }
        let hidden = |(name, value): &&(String, String)| {
            name.ends_with("VISIBLE_DEVICES")
                && ["", "-1", "none", "void", "NoDevFiles"].contains(&value.as_str())
        };
        for (name, value) in self.visibility.iter().filter(hidden) {
            warnings.push(format!("{name}='{value}' hides every device of its vendor"));
        }
        if let (Some(hip), Some(rocr)) = (set("HIP_VISIBLE_DEVICES"), set("ROCR_VISIBLE_DEVICES")) {
            warnings.push(format!(
                "ROCR_VISIBLE_DEVICES={rocr} is applied first; HIP_VISIBLE_DEVICES={hip} numbers the remaining devices"
            ));
        }
        warnings
    }
}

/// Variables that hide devices or change how they are reported.
pub(crate) const VISIBILITY: &[&str] = &[
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HSA_OVERRIDE_GFX_VERSION",
];

/// The variables that are set.
pub(crate) fn visibility() -> Vec<(String, String)> {
    VISIBILITY
        .iter()
        .filter_map(|name| {
            std::env::var_os(name).map(|v| ((*name).to_owned(), v.to_string_lossy().into_owned()))
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An AMD device for tests.
    pub(crate) fn amd(ordinal: u32, id: &str, integrated: bool) -> DeviceInfo {
        DeviceInfo {
            vendor: Vendor::Amd,
            ordinal,
            name: String::new(),
            target: Target::parse(id).ok(),
            arch_id: id.to_owned(),
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
            integrated,
        }
    }

    #[test]
    fn discrete_card_is_preferred_and_unknown_chip_is_reported() {
        let device = amd;
        let found = |devices| Inventory { devices, ..Inventory::default() };
        let both = found(vec![
            device(0, "gfx1036", true),
            device(1, "gfx1100", false),
            device(2, "gfx1100", false),
        ]);
        assert_eq!(both.preferred().unwrap().ordinal, 1);
        assert_eq!(found(vec![device(0, "gfx1151", true)]).preferred().unwrap().ordinal, 0);
        assert!(found(vec![]).preferred().is_none() && both.warnings().is_empty());
        let said = found(vec![device(0, "gfx1033", true)]).warnings();
        assert!(
            said.len() == 1 && said[0].contains("gfx1033") && said[0].contains("gfx1030's family"),
            "{said:?}"
        );
    }

    #[test]
    fn overridden_or_hidden_device_gives_a_warning() {
        let with = |set: &[(&str, &str)]| {
            let visibility = set.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            Inventory { visibility, ..Inventory::default() }.warnings()
        };
        assert!(with(&[("HSA_OVERRIDE_GFX_VERSION", "10.3.0")])[0].contains("10.3.0"));
        assert!(with(&[("HIP_VISIBLE_DEVICES", "-1")])[0].contains("hides every device"));
        assert!(
            with(&[("HIP_VISIBLE_DEVICES", "1"), ("ROCR_VISIBLE_DEVICES", "2,3")])[0]
                .contains("ROCR_VISIBLE_DEVICES=2,3")
        );
        assert!(with(&[("CUDA_VISIBLE_DEVICES", "0"), ("HIP_VISIBLE_DEVICES", "0,1")]).is_empty());
    }
}
