//! Devices by name: `cpu`, `cuda:0`, `rocm:1`. A program runs unchanged on each.

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use kjit_engine::{Config, Engine, Isolation};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The device of a tensor's elements and operations.
#[derive(Clone)]
pub enum Device {
    /// The host.
    Cpu,
    /// A GPU, opened once per process.
    Gpu(Arc<Gpu>),
}

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// `cuda:0`, `cpu`.
    pub device: String,
    /// The maker's name.
    pub name: String,
    /// `sm_90`, `gfx1100`; for the CPU its instruction set.
    pub architecture: String,
    /// Bytes of its memory; 0 if unknown.
    pub total_memory: u64,
    /// Number of streaming multiprocessors, compute units, or CPU threads.
    pub compute_units: u32,
}

static ENGINE: OnceLock<Engine> = OnceLock::new();
/// The program for compiler processes, if [`use_worker`] named one.
static WORKER: OnceLock<PathBuf> = OnceLock::new();
static OPEN: Mutex<Vec<Device>> = Mutex::new(Vec::new());
static DEFAULT: Mutex<Option<Device>> = Mutex::new(None);

/// The engine of this process, with the user's cache folder. It is created at the first call.
pub fn engine() -> &'static Engine {
    ENGINE.get_or_init(|| Engine::new(config()))
}

/// The configuration of engines of this process: the user's cache folder, and compilers in the
/// process that [`use_worker`] names.
#[must_use]
pub fn config() -> Config {
    let isolation = match WORKER.get() {
        None => return Config::new(),
        Some(file) if file.is_file() => Isolation::Worker(file.clone()),
        Some(_) => Isolation::InProcess,
    };
    Config::new().isolation(isolation)
}

/// Sets the path of `kjit-cc`, for a program that cannot be its own compiler process, such as an
/// interpreter. Compilers run in `kjit-cc` if the file exists, otherwise in this process. Returns
/// false if the engine exists already, or a path was set before.
pub fn use_worker(kjit_cc: &Path) -> bool {
    ENGINE.get().is_none() && WORKER.set(kjit_cc.to_owned()).is_ok()
}

/// Sets the engine of this process, before the first device is opened. False if there is one
/// already.
pub fn use_engine(engine: Engine) -> bool {
    ENGINE.set(engine).is_ok()
}

impl Device {
    /// Opens a device: `cpu`, `cuda`, `cuda:1`, `rocm:0`, or `auto`, the first GPU.
    ///
    /// # Errors
    /// [`Error::Engine`] with the requested and the available devices. A GPU is never replaced by
    /// the CPU.
    pub fn open(name: &str) -> Result<Device> {
        if name == "cpu" || name == "cpu:0" {
            return Ok(Device::Cpu);
        }
        let wanted = match name {
            "cuda" | "rocm" => format!("{name}:0"),
            other => other.to_owned(),
        };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.iter().find(|d| d.label() == wanted) {
            return Ok(device.clone());
        }
        let gpu = Gpu::open(engine(), &wanted)?;
        // `auto` may name a device that is already open.
        if let Some(device) = open.iter().find(|d| d.label() == gpu.label()) {
            return Ok(device.clone());
        }
        let device = Device::Gpu(Arc::new(gpu));
        open.push(device.clone());
        Ok(device)
    }

    /// `cpu`, `cuda:0`, `rocm:1`.
    #[must_use]
    pub fn label(&self) -> &str {
        match self {
            Device::Cpu => "cpu",
            Device::Gpu(gpu) => gpu.label(),
        }
    }

    /// The default device of new tensors: the CPU until it is set.
    #[must_use]
    pub fn default_one() -> Device {
        DEFAULT.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Device::Cpu)
    }

    /// Sets the default device of new tensors.
    pub fn set_default(&self) {
        *DEFAULT.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clone());
    }

    /// Waits for all work on the device.
    ///
    /// # Errors
    /// [`Error::Engine`], also for a fault of an earlier kernel.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Gpu(gpu) => gpu.synchronize(),
        }
    }

    /// Number of kernels launched on it so far; 0 for the CPU.
    #[must_use]
    pub fn launches(&self) -> u64 {
        match self {
            Device::Cpu => 0,
            Device::Gpu(gpu) => gpu.launches(),
        }
    }

    /// Its properties.
    #[must_use]
    pub fn info(&self) -> Info {
        match self {
            Device::Cpu => cpu_info(),
            Device::Gpu(gpu) => gpu.info(),
        }
    }

    /// A number that no other open device has.
    pub(crate) fn id(&self) -> usize {
        match self {
            Device::Cpu => 0,
            Device::Gpu(gpu) => Arc::as_ptr(gpu) as usize,
        }
    }

    pub(crate) fn same(op: &'static str, a: &Device, b: &Device) -> Result<()> {
        if a == b {
            return Ok(());
        }
        Err(Error::Devices { op, a: a.label().to_owned(), b: b.label().to_owned() })
    }
}

/// The GPUs that this process has opened.
pub(crate) fn open_ones() -> Vec<Device> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Number of devices of a kind that this process sees: `cuda`, `rocm`; 1 for `cpu`.
#[must_use]
pub fn device_count(word: &str) -> usize {
    match word {
        "cpu" => 1,
        _ => engine().devices().devices.iter().filter(|d| d.vendor.device_word() == word).count(),
    }
}

/// All devices, the CPU last.
#[must_use]
pub fn devices() -> Vec<Info> {
    let found = engine().devices();
    let gpus = found.devices.iter().map(|d| Info {
        device: d.label(),
        name: d.name.clone(),
        architecture: d.arch_id.clone(),
        total_memory: d.memory_total,
        compute_units: d.units,
    });
    gpus.chain([cpu_info()]).collect()
}

fn cpu_info() -> Info {
    let lines = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = lines
        .lines()
        .find_map(|l| l.strip_prefix("model name").and_then(|l| l.split_once(':')))
        .map_or_else(|| "CPU".to_owned(), |(_, name)| name.trim().to_owned());
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:"))
        .and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    Info {
        device: "cpu".to_owned(),
        name,
        architecture: std::env::consts::ARCH.to_owned(),
        total_memory: kib.unwrap_or(0) << 10,
        compute_units: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        // A GPU is opened once.
        self.id() == other.id()
    }
}

impl Eq for Device {}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label())
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.label())
    }
}
