//! The requested device, parsed from text, and the device that was opened.

use kjit_engine::Vendor;
use std::fmt;
use std::str::FromStr;

/// A requested device: `auto`, `cpu`, `cpu:0`, `cuda:1`, `rocm:0`, or a list `cuda:0,cuda:1`.
/// `cuda` and `rocm` without a number are the first device of that vendor.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The first NVIDIA GPU. Without NVIDIA GPUs the first AMD GPU, and without any GPU the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, numbered among its vendor's devices.
    Gpu {
        /// The vendor.
        vendor: Vendor,
        /// The device's number.
        ordinal: u32,
    },
    /// Several devices share the model. They get its layers in this order; the CPU's layers come
    /// first.
    Several(Devices),
}

/// Two or more devices, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices(Vec<DeviceChoice>);

impl Devices {
    /// A list of devices.
    ///
    /// # Errors
    /// Fewer than two devices, a duplicate, or `auto`.
    pub fn new(all: Vec<DeviceChoice>) -> Result<Devices, DeviceError> {
        for (i, device) in all.iter().enumerate() {
            if matches!(device, DeviceChoice::Auto | DeviceChoice::Several(_)) {
                return Err(DeviceError::AutoAmong);
            }
            if all.iter().take(i).any(|before| before == device) {
                return Err(DeviceError::Twice(device.to_string()));
            }
        }
        if all.len() < 2 { Err(DeviceError::Unknown) } else { Ok(Devices(all)) }
    }

    /// The devices in order, each [`DeviceChoice::Cpu`] or [`DeviceChoice::Gpu`].
    pub fn all(&self) -> &[DeviceChoice] {
        &self.0
    }
}

/// The error for a text that does not name a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The text after the colon is not a number.
    #[error("'{0}' is not a device number")]
    Number(String),
    /// A CPU number other than 0.
    #[error("all CPU cores are one device: use cpu or cpu:0")]
    OneCpu,
    /// A backend that kjit does not have, such as `metal`.
    #[error("kjit has no {0} driver: use auto, cpu, cuda:N or rocm:N")]
    NoDriver(String),
    /// A device is named twice.
    #[error("{0} is named twice")]
    Twice(String),
    /// `auto` among others.
    #[error("auto is one device: to use several, name them (cuda:0,cuda:1)")]
    AutoAmong,
    /// Any other text.
    #[error("use auto, cpu, cuda:N or rocm:N, or a list (cuda:0,cuda:1)")]
    Unknown,
}

impl TryFrom<String> for DeviceChoice {
    type Error = DeviceError;

    fn try_from(text: String) -> Result<DeviceChoice, DeviceError> {
        text.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> String {
        choice.to_string()
    }
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceChoice, DeviceError> {
        if text.contains(',') {
            let all = text.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>()?;
            return Devices::new(all).map(DeviceChoice::Several);
        }
        let (word, number) =
            text.split_once(':').map_or((text, None), |(word, number)| (word, Some(number)));
        let ordinal = match number {
            None => 0,
            Some(n) => n.parse().map_err(|_| DeviceError::Number(n.to_owned()))?,
        };
        let gpu = [Vendor::Nvidia, Vendor::Amd].into_iter().find(|v| v.device_word() == word);
        match (word, gpu) {
            (_, Some(vendor)) => Ok(DeviceChoice::Gpu { vendor, ordinal }),
            ("auto", _) if number.is_none() => Ok(DeviceChoice::Auto),
            ("cpu", _) if ordinal == 0 => Ok(DeviceChoice::Cpu),
            ("cpu", _) => Err(DeviceError::OneCpu),
            ("metal" | "opencl" | "vulkan" | "sycl", _) => {
                Err(DeviceError::NoDriver(word.to_owned()))
            }
            _ => Err(DeviceError::Unknown),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Gpu { vendor, ordinal } => {
                write!(f, "{}:{ordinal}", vendor.device_word())
            }
            DeviceChoice::Several(Devices(all)) => {
                all.iter().enumerate().try_for_each(|(i, device)| {
                    f.write_str(if i == 0 { "" } else { "," })?;
                    write!(f, "{device}")
                })
            }
        }
    }
}

/// The device on which a model was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTaken {
    /// The label, such as `cuda:0` or `cpu`.
    pub label: String,
    /// `cuda`, `rocm` or `cpu`.
    pub kind: &'static str,
    /// Product name of the device.
    pub name: String,
    /// Target of the code: `sm_90`, `gfx1100`, `x86_64 avx512`.
    pub arch: String,
    /// Number of CPU threads; `None` on a GPU.
    pub threads: Option<usize>,
    /// The reason why [`DeviceChoice::Auto`] chose the CPU.
    pub why: Option<String>,
    /// Warnings about the choice, such as skipped devices or a chip that is not in kjit's table.
    pub remarks: Vec<String>,
    /// The layers of each device if there are several. The other fields describe the last device.
    pub stages: Vec<StageTaken>,
}

/// The layers of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageTaken {
    /// The label, such as `cuda:0`.
    pub label: String,
    /// The product name.
    pub name: String,
    /// Target of the code, as in [`DeviceTaken::arch`].
    pub arch: String,
    /// The first layer and the number of layers.
    pub layers: (usize, usize),
    /// `(rank, ranks)` with `--split tensor` and `--split ranks`: the device has this share of the
    /// heads and rows of each layer.
    pub share: Option<(usize, usize)>,
}

impl fmt::Display for StageTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, n) = self.layers;
        if let Some((rank, ranks)) = self.share {
            write!(f, "share {} of {ranks} of ", rank + 1)?;
        }
        match n {
            1 => write!(f, "layer {first}")?,
            n => write!(f, "layers {first} to {}", first + n.saturating_sub(1))?,
        }
        write!(f, " on {}, {} ({})", self.label, self.name, self.arch)
    }
}

impl DeviceTaken {
    /// Whether the device is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.threads.is_none()
    }
}

impl fmt::Display for DeviceTaken {
    /// `cuda:0, NVIDIA H200 (sm_90)`, or
    /// `cpu, AMD EPYC (x86_64 avx512), 16 threads (auto found no GPU: …)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, stage) in self.stages.iter().enumerate() {
            write!(f, "{}{stage}", if i == 0 { "" } else { "; " })?;
        }
        if self.stages.is_empty() {
            write!(f, "{}, {} ({})", self.label, self.name, self.arch)?;
        }
        if let Some(threads) = self.threads {
            write!(f, ", {threads} threads")?;
        }
        self.why.iter().chain(&self.remarks).try_for_each(|why| write!(f, " ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_is_printed_as_share_of_layers() {
        let stage = |layers, share| {
            let of = |s: &str| s.to_owned();
            StageTaken {
                label: of("cuda:1"),
                name: of("NVIDIA H200"),
                arch: of("sm_90"),
                layers,
                share,
            }
            .to_string()
        };
        assert_eq!(stage((16, 16), None), "layers 16 to 31 on cuda:1, NVIDIA H200 (sm_90)");
        assert_eq!(
            stage((0, 32), Some((1, 2))),
            "share 2 of 2 of layers 0 to 31 on cuda:1, NVIDIA H200 (sm_90)"
        );
        assert_eq!(
            stage((0, 1), Some((0, 4))),
            "share 1 of 4 of layer 0 on cuda:1, NVIDIA H200 (sm_90)"
        );
    }

    #[test]
    fn device_names_round_trip_and_invalid_names_are_refused() {
        for (text, shown) in [
            ("auto", "auto"),
            ("cpu", "cpu"),
            ("cpu:0", "cpu"),
            ("cuda", "cuda:0"),
            ("rocm:13", "rocm:13"),
            ("cuda:1, rocm,cpu", "cuda:1,rocm:0,cpu"),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), shown);
        }
        for (text, says) in [
            ("cpu:1", "one device"),
            ("auto:0", "use auto"),
            ("cuda:x", "'x' is not a device number"),
            ("cuda:-1", "not a device number"),
            ("metal", "no metal driver"),
            ("metal:0", "no metal driver"),
            ("banana", "use auto"),
            ("cuda:0,cuda", "cuda:0 is named twice"),
            ("cpu,cpu:0", "cpu is named twice"),
            ("cuda:0,auto", "auto is one device"),
            ("cuda:0,banana", "use auto"),
            ("cuda:0,", "use auto"),
            (",", "use auto"),
            ("", "use auto"),
        ] {
            assert!(text.parse::<DeviceChoice>().unwrap_err().to_string().contains(says), "{text}");
        }
    }
}
