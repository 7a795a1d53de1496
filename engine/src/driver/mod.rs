//! Devices and the objects on them. All unsafe driver calls of the engine are in this folder.

mod api;
mod blas;
mod call;
mod captures;
mod checked;
mod collective;
mod copy;
mod counters;
mod cuda;
mod device;
mod event;
mod graph;
mod hip;
mod info;
mod lost;
mod memory;
mod module;
mod page_locked;
mod pinned;
mod pool;
mod pool_inner;
mod shared_host;
mod shared_pages;
mod stream;
mod stream_inner;
mod tensor_map;

pub(crate) use api::Driver;
pub use blas::Blas;
pub use call::HostArg;
pub use checked::CheckedKernel;
pub use collective::{COLLECTIVE_ID, Collective, CollectiveLibrary};
pub use copy::CopyEvents;
pub use counters::Counts;
pub use device::{Device, exit_if_abandoned};
pub use event::Event;
pub use graph::Graph;
#[cfg(test)]
pub(crate) use info::tests::amd;
pub(crate) use info::visibility;
pub use info::{DeviceInfo, Inventory};
pub use memory::{DeviceBuffer, Memory};
pub use module::{Kernel, Module};
pub use pinned::{HostMap, PinnedBuffer};
pub use pool::{Arena, Pool};
pub use pool_inner::PoolStats;
pub use stream::Stream;
pub use tensor_map::{Matrices, TensorMap};

use crate::error::{Error, Result};
use crate::trace::Trace;
use std::sync::{Mutex, PoisonError};

/// The driver of a vendor.
struct Row {
    /// Prefix of the device names.
    word: &'static str,
    /// Common name of the library.
    name: &'static str,
    /// Opens the driver. The error states the reason.
    open: fn() -> Result<Box<dyn Driver>>,
    /// Whether devices are first queried in a separate process, because the driver may hang.
    apart: fn() -> bool,
}

/// All drivers. `auto` prefers the devices of earlier ones.
const DRIVERS: &[Row] = &[
    Row {
        word: "cuda",
        name: "the NVIDIA driver",
        open: || Ok(Box::new(cuda::runtime::Cuda::open()?)),
        apart: || false,
    },
    Row {
        word: "rocm",
        name: "the HIP runtime",
        open: || Ok(Box::new(hip::runtime::HipRuntime::open()?)),
        apart: hip::runtime::HipRuntime::may_hang,
    },
];

/// Drivers that did not answer in a separate process, with the reason. This process does not use
/// them.
static HANGING: Mutex<Vec<(&'static str, String)>> = Mutex::new(Vec::new());

impl Row {
    fn open(&self) -> Result<Box<dyn Driver>> {
        let hanging = HANGING.lock().unwrap_or_else(PoisonError::into_inner);
        match hanging.iter().find(|(word, _)| *word == self.word) {
            Some((word, why)) => {
                Err(Error::NoDevice { asked: (*word).to_owned(), why: why.clone() })
            }
            None => {
                drop(hanging);
                (self.open)()
            }
        }
    }
}

/// Excludes a driver from further use.
pub(crate) fn refuse(word: &'static str, why: String) {
    HANGING.lock().unwrap_or_else(PoisonError::into_inner).push((word, why));
}

/// The drivers that must first be queried in a separate process.
pub(crate) fn probed_in_child() -> Vec<&'static str> {
    DRIVERS.iter().filter(|row| (row.apart)()).map(|row| row.word).collect()
}

/// The common name of a driver's library.
pub(crate) fn runtime_name(word: &str) -> &'static str {
    DRIVERS.iter().find(|row| row.word == word).map_or("the driver", |row| row.name)
}

/// Makes all driver calls of [`inventory`].
pub(crate) fn ask(word: &str) {
    if let Some(driver) =
        DRIVERS.iter().find(|row| row.word == word).and_then(|row| row.open().ok())
    {
        (0..driver.count().unwrap_or(0)).for_each(|ordinal| drop(driver.describe(ordinal)));
    }
}

/// Known device names for which kjit has no driver.
const REFUSED: &[&str] = &["metal", "opencl", "vulkan", "sycl"];

/// All visible devices.
pub(crate) fn inventory() -> Inventory {
    let mut inventory = Inventory { visibility: info::visibility(), ..Inventory::default() };
    for row in DRIVERS {
        let word = row.word;
        let driver = match row.open() {
            Ok(driver) => driver,
            Err(error) => {
                inventory.missing.push(error.to_string());
                inventory.none.push(format!("{word}: {}", error.brief()));
                continue;
            }
        };
        let (major, minor) = driver.version();
        inventory.drivers.push(format!(
            "{word}: {} {major}.{minor} ({})",
            driver.vendor().name(),
            driver.library()
        ));
        let count = driver.count().unwrap_or_else(|error| {
            inventory.missing.push(error.to_string());
            0
        });
        if count == 0 {
            inventory.missing.push(format!("{word}: the driver shows no device"));
            inventory.none.push(format!("{word}: the driver shows no device"));
        }
        for ordinal in 0..count {
            match driver.describe(ordinal) {
                Ok(info) => inventory.devices.push(info),
                Err(error) => inventory.missing.push(error.to_string()),
            }
        }
    }
    inventory
}

/// The API version of a vendor's driver, if it can be opened. Compilers must not be newer.
pub(crate) fn driver_version(vendor: crate::arch::Vendor) -> Option<(u32, u32)> {
    DRIVERS
        .iter()
        .find(|row| row.word == vendor.device_word())
        .and_then(|row| row.open().ok())
        .map(|d| d.version())
}

/// The file of a vendor's driver, if it can be opened. If the loader found it by name, its path is
/// read from the mappings of this process.
pub(crate) fn library(vendor: crate::arch::Vendor) -> Option<std::path::PathBuf> {
    let driver = DRIVERS
        .iter()
        .find(|row| row.word == vendor.device_word())
        .and_then(|row| row.open().ok())?;
    let name = std::path::PathBuf::from(driver.library());
    if name.is_absolute() {
        return Some(name);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let stem = driver.library().split(".so").next().unwrap_or_default().to_owned();
    let line = maps
        .lines()
        .find_map(|l| l.find('/').and_then(|at| l.get(at..)).filter(|p| p.contains(&stem)));
    line.map(std::path::PathBuf::from)
}

/// Opens `cuda:0`, `cuda`, `rocm:1`, or the preferred device for `auto`.
pub(crate) fn open(asked: &str, trace: Option<Trace>) -> Result<Device> {
    let fail = |why: String| Error::NoDevice { asked: asked.to_owned(), why };
    // Discrete cards come before an integrated GPU. If the first device is a card, the others are
    // not described.
    if asked == "auto"
        && let Some(preferred) = inventory().preferred()
    {
        return open(&preferred.label(), trace);
    }
    let (word, ordinal) = match asked.split_once(':') {
        Some((word, n)) => {
            (word, n.parse::<u32>().map_err(|_| fail(format!("'{n}' is not a device number")))?)
        }
        None => (asked, 0),
    };
    if REFUSED.contains(&word) {
        return Err(fail("not supported; use cuda:N, rocm:N or cpu".to_owned()));
    }
    let mut reasons = Vec::new();
    for row in DRIVERS.iter().filter(|row| word == row.word || word == "auto") {
        let name = row.word;
        match row.open().and_then(|driver| open_one(&*driver, ordinal, asked, trace.clone())) {
            Ok(device) => return Ok(device),
            Err(error) if word == "auto" => reasons.push(format!("{name}: {error}")),
            Err(error) => return Err(error),
        }
    }
    if reasons.is_empty() {
        return Err(fail(format!("this build has no such driver; it has {}", names().join(", "))));
    }
    Err(fail(reasons.join("; ")))
}

fn names() -> Vec<&'static str> {
    DRIVERS.iter().map(|row| row.word).collect()
}

fn open_one(
    driver: &dyn Driver,
    ordinal: u32,
    asked: &str,
    trace: Option<Trace>,
) -> Result<Device> {
    let fail = |why: String| Error::NoDevice { asked: asked.to_owned(), why };
    let count = driver.count()?;
    if ordinal >= count {
        let hidden: Vec<String> =
            info::visibility().iter().map(|(n, v)| format!("{n}={v}")).collect();
        let hint = if hidden.is_empty() {
            String::new()
        } else {
            format!(" (set: {})", hidden.join(", "))
        };
        return Err(fail(format!(
            "the {} driver shows {count} device(s){hint}",
            driver.vendor().name()
        )));
    }
    let info = driver.describe(ordinal)?;
    let target = info.target.clone().ok_or_else(|| {
        fail(format!("{} is {}, which kjit cannot compile for", info.name, info.arch_id))
    })?;
    Ok(Device::new(driver.open(ordinal)?, info, target, trace))
}
