//! Reads the sensors of a working card from the system's files: clocks, power, temperature, link,
//! and memory sizes. Most exist only for amdgpu; every PCI device has the link.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of PCI devices.
pub const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// One reading; `None` if the system has no such file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The core's clock in MHz.
    pub core_mhz: Option<f64>,
    /// The memory's clock in MHz.
    pub memory_mhz: Option<f64>,
    /// Power in W.
    pub watts: Option<f64>,
    /// Temperature in °C of the card's hottest sensor.
    pub celsius: Option<f64>,
}

/// The files of a card.
#[derive(Clone, Debug)]
pub struct Sensors {
    folder: PathBuf,
    monitor: Option<PathBuf>,
}

impl Sensors {
    /// The sensors of the card at a PCI address (`0000:03:00.0`), below `root` ([`PCI_DEVICES`]).
    /// `None` if the system does not list it.
    #[must_use]
    pub fn of(root: &Path, pci: &str) -> Option<Sensors> {
        let plain = |c: char| c.is_ascii_hexdigit() || ":.".contains(c);
        let folder = root.join(pci.to_lowercase());
        if pci.is_empty() || !pci.chars().all(plain) || !folder.is_dir() {
            return None;
        }
        let monitors = fs::read_dir(folder.join("hwmon")).into_iter().flatten().flatten();
        let monitor = monitors.map(|entry| entry.path()).min();
        Some(Sensors { folder, monitor })
    }

    /// Reads all sensors.
    #[must_use]
    pub fn read(&self) -> Reading {
        let watched = |names: &[&str], unit: f64| {
            let folder = self.monitor.as_ref()?;
            let read = |name: &&str| number(&folder.join(name)).map(|n| n / unit);
            names.iter().filter_map(read).reduce(f64::max)
        };
        let level = |name: &str| current_level(&fs::read_to_string(self.folder.join(name)).ok()?);
        Reading {
            core_mhz: watched(&["freq1_input"], 1e6).or_else(|| level("pp_dpm_sclk")),
            memory_mhz: watched(&["freq2_input"], 1e6).or_else(|| level("pp_dpm_mclk")),
            watts: watched(&["power1_average", "power1_input"], 1e6),
            celsius: watched(&["temp1_input", "temp2_input", "temp3_input"], 1e3),
        }
    }

    /// Bytes of the card's own memory, and of the system's memory that the driver lets it use
    /// (GTT).
    #[must_use]
    pub fn memories(&self) -> (Option<u64>, Option<u64>) {
        let bytes = |name: &str| number(&self.folder.join(name)).map(|n| n as u64);
        (bytes("mem_info_vram_total"), bytes("mem_info_gtt_total"))
    }

    /// The link's speed and lanes, such as `16.0 GT/s PCIe x16`.
    #[must_use]
    pub fn link(&self) -> Option<String> {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).ok();
        let (speed, lanes) = (read("current_link_speed")?, read("current_link_width")?);
        let plain = |text: &str| -> String {
            text.trim()
                .chars()
                .filter(|c| c.is_ascii_alphanumeric() || " ./".contains(*c))
                .collect()
        };
        Some(format!("{} x{}", plain(&speed), plain(&lanes)))
    }
}

fn number(file: &Path) -> Option<f64> {
    let number = fs::read_to_string(file).ok()?.trim().parse::<f64>().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

/// The level that amdgpu marks with a star: `1: 2304Mhz *`.
fn current_level(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.trim_end().ends_with('*'))?;
    let (_, rest) = line.split_once(':')?;
    let rest = rest.trim();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_amdgpu_writes_them() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("0000:03:00.0");
        let monitor = folder.join("hwmon/hwmon4");
        fs::create_dir_all(&monitor).unwrap();
        let sensors = Sensors::of(root.path(), "0000:03:00.0").unwrap();
        assert_eq!((sensors.read(), sensors.memories()), (Reading::default(), (None, None)));
        for (file, text) in [
            ("pp_dpm_sclk", "0: 500Mhz \n1: 2304Mhz *\n"),
            ("pp_dpm_mclk", "0: 96Mhz\n1: 1249Mhz *"),
            ("mem_info_vram_total", "25753026560\n"),
            ("mem_info_gtt_total", "33607507968\n"),
            ("current_link_speed", "16.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        fs::write(monitor.join("power1_average"), "211000000\n").unwrap();
        fs::write(monitor.join("temp1_input"), "51000\n").unwrap();
        fs::write(monitor.join("temp2_input"), "68000\n").unwrap();
        let want = Reading {
            core_mhz: Some(2304.0),
            memory_mhz: Some(1249.0),
            watts: Some(211.0),
            celsius: Some(68.0),
        };
        assert_eq!(sensors.read(), want);
        assert_eq!(sensors.memories(), (Some(25_753_026_560), Some(33_607_507_968)));
        assert_eq!(sensors.link().as_deref(), Some("16.0 GT/s PCIe x16"));
        // The measured clock comes before the level.
        fs::write(monitor.join("freq1_input"), "2291000000\n").unwrap();
        assert_eq!(sensors.read().core_mhz, Some(2291.0));
    }

    #[test]
    fn invalid_addresses_and_values_are_ignored() {
        let root = tempfile::tempdir().unwrap();
        assert!(Sensors::of(root.path(), "").is_none());
        assert!(Sensors::of(root.path(), "..").is_none_or(|s| s.read() == Reading::default()));
        assert!(Sensors::of(root.path(), "0000:03:00.0").is_none());
        assert!(Sensors::of(root.path(), "../../etc").is_none());
        for text in ["", "0: 500Mhz", "*", "1: fast *", ":*", "1 2304Mhz *"] {
            assert_eq!(current_level(text), None, "{text}");
        }
    }
}
