//! Records of the fastest form of a model's token: launches, a graph, or one launch. A record is a
//! line whose format its writer defines. The engine stores it by device, driver, build of kjit and
//! plan.

use crate::arch::Vendor;
use crate::driver::DeviceInfo;
use crate::engine::Engine;
use kjit_cache::Key;

/// Must be incremented when older records are no longer valid.
const REVISION: &str = "1";

fn key(device: &DeviceInfo, plan: &str) -> Key {
    let (major, minor) = device.driver;
    Key::builder("kjit launch form")
        .field("revision", REVISION)
        .field("kjit", env!("CARGO_PKG_VERSION"))
        .field("abi", crate::key::KERNEL_ABI.to_string())
        .field("name", device.name.as_str())
        .field("arch", device.arch_id.as_str())
        .field("units", device.units.to_string())
        .field("driver", format!("{major}.{minor}"))
        .field("plan", plan)
        .finish()
}

impl Engine {
    /// Whether the forms are measured on devices of this vendor. For NVIDIA they were measured
    /// before release.
    #[must_use]
    pub fn tries_forms(&self, vendor: Vendor) -> bool {
        let config = &self.inner.config;
        config.trial && (vendor == Vendor::Amd || config.prove_all)
    }

    /// The record of a plan on this kind of device and driver, if there is one.
    #[must_use]
    pub fn launch_form(&self, device: &DeviceInfo, plan: &str) -> Option<String> {
        let bytes = self.cache().record(&key(device, plan))?;
        String::from_utf8(bytes).ok()
    }

    /// Stores a record.
    pub fn keep_launch_form(&self, device: &DeviceInfo, plan: &str, record: &str) {
        self.cache().put_record(&key(device, plan), record.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn record_depends_on_driver_device_and_plan() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Engine::new(Config::new().cache_dir(dir.path()));
        let device = crate::driver::amd(0, "gfx1100", false);
        assert_eq!(engine.launch_form(&device, "plan"), None);
        engine.keep_launch_form(&device, "plan", "graph");
        assert_eq!(engine.launch_form(&device, "plan").as_deref(), Some("graph"));
        assert_eq!(engine.launch_form(&device, "another"), None);
        let later = DeviceInfo { driver: (6, 3), ..device.clone() };
        assert_eq!(engine.launch_form(&later, "plan"), None);
        let other = DeviceInfo { arch_id: "gfx1101".to_owned(), ..device };
        assert_eq!(engine.launch_form(&other, "plan"), None);
    }

    #[test]
    fn only_amd_devices_are_measured_by_default() {
        let asked = |config: Config| {
            let engine = Engine::new(config.no_cache());
            [Vendor::Amd, Vendor::Nvidia].map(|vendor| engine.tries_forms(vendor))
        };
        assert_eq!(asked(Config::new()), [true, false]);
        assert_eq!(asked(Config::new().prove_all()), [true, true]);
        assert_eq!(asked(Config::new().prove_all().without_trial()), [false, false]);
    }
}
