//! Which device computes: parsed once, at the edge.

use kjit_engine::Vendor;
use std::fmt;
use std::str::FromStr;

/// What is asked for: `auto`, `cpu`, `cpu:0`, `cuda:1`, `rocm:0`; a vendor's word alone is its first device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first NVIDIA GPU, else the first AMD one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, by its number among its vendor's.
    Gpu {
        /// Whose.
        vendor: Vendor,
        /// Which.
        ordinal: u32,
    },
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let (word, number) = text.split_once(':').map_or((text, None), |(word, number)| (word, Some(number)));
        let ordinal = match number {
            None => 0,
            Some(n) => n.parse().map_err(|_| format!("'{n}' is no device number"))?,
        };
        let gpu = [Vendor::Nvidia, Vendor::Amd].into_iter().find(|v| v.device_word() == word);
        match (word, gpu) {
            (_, Some(vendor)) => Ok(DeviceChoice::Gpu { vendor, ordinal }),
            ("auto", _) if number.is_none() => Ok(DeviceChoice::Auto),
            ("cpu", _) if ordinal == 0 => Ok(DeviceChoice::Cpu),
            ("cpu", _) => Err("all cores together are one device: give cpu, or cpu:0".to_owned()),
            ("metal" | "opencl" | "vulkan" | "sycl", _) => {
                Err(format!("kjit has no {word} driver: give auto, cpu, cuda:N or rocm:N"))
            }
            _ => Err("give auto, cpu, cuda:N or rocm:N".to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Gpu { vendor, ordinal } => write!(f, "{}:{ordinal}", vendor.device_word()),
        }
    }
}

/// The device that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTaken {
    /// Its label, `cuda:0`; `cpu` for the CPU.
    pub label: String,
    /// `cuda`, `rocm` or `cpu`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// What code is made for: `sm_90`, `gfx1100`, `x86_64 avx512`.
    pub arch: String,
    /// Threads, of the CPU.
    pub threads: Option<usize>,
    /// Why the CPU, where [`DeviceChoice::Auto`] took it.
    pub why: Option<String>,
    /// What else there is to say of the choice: devices that were passed over, a chip that kjit has no row
    /// for.
    pub remarks: Vec<String>,
}

impl DeviceTaken {
    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.threads.is_none()
    }
}

impl fmt::Display for DeviceTaken {
    /// `cuda:0, NVIDIA H200 (sm_90)`, `cpu, AMD EPYC (x86_64 avx512), 16 threads (auto found no GPU: …)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} ({})", self.label, self.name, self.arch)?;
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
    fn a_device_is_named_in_one_way_and_what_is_none_is_told_so() {
        for (text, shown) in
            [("auto", "auto"), ("cpu", "cpu"), ("cpu:0", "cpu"), ("cuda", "cuda:0"), ("rocm:13", "rocm:13")]
        {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), shown);
        }
        for (text, says) in [
            ("cpu:1", "one device"),
            ("auto:0", "give auto"),
            ("cuda:x", "'x' is no device number"),
            ("cuda:-1", "no device number"),
            ("metal", "no metal driver"),
            ("metal:0", "no metal driver"),
            ("banana", "give auto"),
            ("", "give auto"),
        ] {
            assert!(text.parse::<DeviceChoice>().unwrap_err().contains(says), "{text}");
        }
    }
}
