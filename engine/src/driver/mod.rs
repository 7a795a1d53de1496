//! Devices and all that lives on them. All unsafe calls of the engine into drivers are in this folder.

mod api;
mod blas;
mod call;
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
mod pinned;
mod pool;
mod stream;

pub(crate) use api::Driver;
pub use blas::Blas;
pub use call::HostArg;
pub use counters::Counts;
pub use device::Device;
pub use event::Event;
pub use graph::Graph;
pub use info::{DeviceInfo, Inventory};
pub use memory::{DeviceBuffer, Memory};
pub use module::{Kernel, Module};
pub use pinned::{HostMap, PinnedBuffer};
pub use pool::{Arena, Pool, PoolStats};
pub use stream::Stream;

use crate::error::{Error, Result};
use crate::trace::Trace;

/// Opens a vendor's driver, or says why not.
type Open = fn() -> Result<Box<dyn Driver>>;

/// The drivers there are, in the order in which `auto` prefers their devices.
const DRIVERS: &[(&str, Open)] =
    &[("cuda", || Ok(Box::new(cuda::Cuda::open()?))), ("rocm", || Ok(Box::new(hip::HipRuntime::open()?)))];

/// Words for devices that are no GPU of ours, refused by name.
const REFUSED: &[&str] = &["metal", "opencl", "vulkan", "sycl"];

/// Everything that can be seen.
pub(crate) fn inventory() -> Inventory {
    let mut inventory = Inventory { visibility: info::visibility(), ..Inventory::default() };
    for (word, open) in DRIVERS {
        let driver = match open() {
            Ok(driver) => driver,
            Err(error) => {
                inventory.missing.push(error.to_string());
                inventory.none.push(format!("{word}: {}", error.brief()));
                continue;
            }
        };
        let (major, minor) = driver.version();
        inventory.drivers.push(format!("{word}: {} {major}.{minor} ({})", driver.vendor().name(), driver.library()));
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

/// The newest API version of a vendor's driver, if it opens: compilers must not be newer.
pub(crate) fn driver_version(vendor: crate::arch::Vendor) -> Option<(u32, u32)> {
    DRIVERS
        .iter()
        .find(|(word, _)| *word == vendor.device_word())
        .and_then(|(_, open)| open().ok())
        .map(|d| d.version())
}

/// The file that a vendor's driver was opened from, if it opens; by its path in this process where the loader
/// was given a name.
pub(crate) fn library(vendor: crate::arch::Vendor) -> Option<std::path::PathBuf> {
    let driver = DRIVERS.iter().find(|(word, _)| *word == vendor.device_word()).and_then(|(_, open)| open().ok())?;
    let name = std::path::PathBuf::from(driver.library());
    if name.is_absolute() {
        return Some(name);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let stem = driver.library().split(".so").next().unwrap_or_default().to_owned();
    let line = maps.lines().find_map(|l| l.find('/').and_then(|at| l.get(at..)).filter(|p| p.contains(&stem)));
    line.map(std::path::PathBuf::from)
}

/// Opens `cuda:0`, `cuda`, `rocm:1`, or with `auto` the first there is.
pub(crate) fn open(asked: &str, trace: Option<Trace>) -> Result<Device> {
    let fail = |why: String| Error::NoDevice { asked: asked.to_owned(), why };
    // A processor's own GPU waits for the cards behind it. Nothing opens it if the first device is a card:
    // then no other is described.
    if asked == "auto"
        && let Some(preferred) = inventory().preferred()
    {
        return open(&preferred.label(), trace);
    }
    let (word, ordinal) = match asked.split_once(':') {
        Some((word, n)) => (word, n.parse::<u32>().map_err(|_| fail(format!("'{n}' is no device number")))?),
        None => (asked, 0),
    };
    if REFUSED.contains(&word) {
        return Err(fail("kjit has no driver for it; there are cuda:N, rocm:N and cpu".to_owned()));
    }
    let mut reasons = Vec::new();
    for (name, open) in DRIVERS.iter().filter(|(name, _)| word == *name || word == "auto") {
        match open().and_then(|driver| open_one(&*driver, ordinal, asked, trace.clone())) {
            Ok(device) => return Ok(device),
            Err(error) if word == "auto" => reasons.push(format!("{name}: {error}")),
            Err(error) => return Err(error),
        }
    }
    if reasons.is_empty() {
        return Err(fail(format!("no driver of that name in this build; there are {}", names().join(", "))));
    }
    Err(fail(reasons.join("; ")))
}

fn names() -> Vec<&'static str> {
    DRIVERS.iter().map(|(name, _)| *name).collect()
}

fn open_one(driver: &dyn Driver, ordinal: u32, asked: &str, trace: Option<Trace>) -> Result<Device> {
    let fail = |why: String| Error::NoDevice { asked: asked.to_owned(), why };
    let count = driver.count()?;
    if ordinal >= count {
        let hidden: Vec<String> = info::visibility().iter().map(|(n, v)| format!("{n}={v}")).collect();
        let hint = if hidden.is_empty() { String::new() } else { format!(" (set: {})", hidden.join(", ")) };
        return Err(fail(format!("the {} driver shows {count} device(s){hint}", driver.vendor().name())));
    }
    let info = driver.describe(ordinal)?;
    let target = info
        .target
        .clone()
        .ok_or_else(|| fail(format!("{} is {}, which kjit cannot compile for", info.name, info.arch_id)))?;
    Ok(Device::new(driver.open(ordinal)?, info, target, trace))
}
