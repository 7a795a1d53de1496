//! The opened driver of CUDA: its devices and their properties.

use super::symbols::Symbols;
use crate::arch::{Target, Vendor};
use crate::driver::api::{Fault, FaultKind, Try, text};
use crate::driver::info::DeviceInfo;
use crate::driver::lost::Contexts;
use crate::error::{Error, Result};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::{CUdevice, CUuuid};
use hip_sys::for_loader;
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

pub(super) const OUT_OF_MEMORY: u32 = 2;

pub(super) const NO_DEVICE: u32 = 100;

pub(super) const INVALID_IMAGE: u32 = 200;

pub(super) const NO_BINARY_FOR_GPU: u32 = 209;

pub(super) const UNSUPPORTED_PTX_VERSION: u32 = 222;

pub(super) const INVALID_SOURCE: u32 = 300;

pub(super) const NOT_READY: u32 = 600;

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
pub(super) const PEER_ALREADY: u32 = 704;

pub(super) const PEER_UNSUPPORTED: u32 = 217;

pub(super) const TOO_MANY_PEERS: u32 = 711;

/// After these codes every call on the context fails (documented in cuda.h): uncorrectable memory
/// errors, illegal address, launch timeout, assertion, stack fault, illegal instruction, misaligned
/// address, wrong address space, wrong program counter, unspecified failure.
pub(super) const LOST: [u32; 11] = [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719];

/// File names and paths, in search order.
pub(super) const PLACES: &[&str] = &[
    "libcuda.so.1",
    "libcuda.so",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
    "/run/opengl-driver/lib/libcuda.so.1",
    "/usr/local/cuda/compat/libcuda.so.1",
];

/// The opened driver.
pub(crate) struct Cuda {
    pub(super) symbols: Symbols,
    pub(super) contexts: Contexts,
    pub(super) library: String,
    pub(super) version: (u32, u32),
}

/// Advice if the driver is missing.
const DRIVER_PACKAGE: &str =
    "NVIDIA's display driver, version 525 or newer, installs it (Debian: nvidia-driver, libcuda1)";

impl Cuda {
    /// Opens the driver once per process; later calls return the same result.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] with the searched paths; [`Error::NoDevice`] if the driver has no
    /// device.
    pub fn open() -> Result<Arc<Cuda>> {
        static OPENED: OnceLock<Result<Arc<Cuda>>> = OnceLock::new();
        OPENED.get_or_init(Cuda::open_now).clone()
    }

    fn open_now() -> Result<Arc<Cuda>> {
        let mut tried = Vec::new();
        let missing = |why: String, tried: Vec<String>| Error::NoLibrary {
            library: "the NVIDIA driver (libcuda.so.1)".to_owned(),
            why,
            tried,
            package: DRIVER_PACKAGE.to_owned(),
        };
        let by_name = |place: &&str| {
            if place.starts_with('/') { vec![PathBuf::from(place)] } else { for_loader(place) }
        };
        let Some((library, place)) = PLACES.iter().flat_map(by_name).find_map(|place| {
            let shown = place.display().to_string();
            // SAFETY: loading runs the library's initialisers; its name is that of NVIDIA's driver.
            match unsafe { libloading::Library::new(&place) } {
                Ok(library) => Some((library, shown)),
                Err(_) => {
                    tried.push(shown);
                    None
                }
            }
        }) else {
            return Err(missing("the loader finds none".to_owned(), tried));
        };
        // The library is never closed: drivers have their own threads and exit handlers.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let symbols = Symbols::load(library).map_err(|names| {
            missing(
                format!("{place} lacks {} (older than 12.0)", names.join(", ")),
                vec![place.clone()],
            )
        })?;
        let mut cuda = Cuda {
            symbols,
            contexts: Contexts::default(),
            library: place.clone(),
            version: (0, 0),
        };
        let mut version: c_int = 0;
        // SAFETY: writes one int, and is allowed before cuInit.
        let code = unsafe { (cuda.symbols.cuDriverGetVersion)(&mut version) };
        cuda.check("cuDriverGetVersion", code).map_err(|f| f.on("cuda"))?;
        let version = u32::try_from(version).unwrap_or(0);
        cuda.version = (version / 1000, version % 1000 / 10);
        // SAFETY: takes only the flags, which must be 0.
        let code = unsafe { (cuda.symbols.cuInit)(0) };
        cuda.check("cuInit", code).map_err(|fault| Error::NoDevice {
            asked: "cuda".to_owned(),
            why: format!(
                "the driver {place} ({}.{}) does not start: {} (code {code})",
                cuda.version.0, cuda.version.1, fault.says
            ),
        })?;
        Ok(Arc::new(cuda))
    }

    /// Converts a result code to a fault with the driver's message.
    pub(super) fn check(&self, call: &'static str, code: u32) -> Try<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: writes a pointer to a static string, or null for an unknown code.
        unsafe { (self.symbols.cuGetErrorString)(code, &mut text) };
        let says = if text.is_null() {
            "unknown error".to_owned()
        } else {
            // SAFETY: not null, so it is the driver's static, terminated string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let kind = match code {
            OUT_OF_MEMORY => FaultKind::OutOfMemory,
            _ if LOST.contains(&code) => FaultKind::Lost,
            INVALID_IMAGE | NO_BINARY_FOR_GPU | UNSUPPORTED_PTX_VERSION | INVALID_SOURCE => {
                FaultKind::BadImage
            }
            _ => FaultKind::Other,
        };
        Err(Fault { call, code, says, kind })
    }

    pub(super) fn device(&self, ordinal: u32) -> Try<CUdevice> {
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: writes one handle; a wrong ordinal gives an error code.
        self.check("cuDeviceGet", unsafe { (self.symbols.cuDeviceGet)(&mut device, ordinal) })?;
        Ok(device)
    }

    fn attribute(&self, device: CUdevice, attribute: Attribute) -> Try<u32> {
        let mut value = 0;
        // SAFETY: writes one int; an unknown attribute gives an error code.
        let code =
            unsafe { (self.symbols.cuDeviceGetAttribute)(&mut value, attribute as u32, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    pub(super) fn facts(&self, ordinal: u32) -> Try<DeviceInfo> {
        let device = self.device(ordinal)?;
        let mut name = [0 as c_char; 256];
        // SAFETY: writes at most 256 bytes, terminated.
        self.check("cuDeviceGetName", unsafe {
            (self.symbols.cuDeviceGetName)(name.as_mut_ptr(), 256, device)
        })?;
        let mut pci = [0 as c_char; 32];
        // SAFETY: writes at most 32 bytes, terminated.
        self.check("cuDeviceGetPCIBusId", unsafe {
            (self.symbols.cuDeviceGetPCIBusId)(pci.as_mut_ptr(), 32, device)
        })?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        self.check("cuDeviceGetUuid", unsafe {
            (self.symbols.cuDeviceGetUuid_v2)(&mut uuid, device)
        })?;
        let mut total = 0usize;
        // SAFETY: writes one size.
        self.check("cuDeviceTotalMem", unsafe {
            (self.symbols.cuDeviceTotalMem_v2)(&mut total, device)
        })?;
        let major =
            self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor =
            self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        // Attributes that older or newer drivers do not support are 0. They are only displayed.
        let shown = |attribute| self.attribute(device, attribute).unwrap_or(0);
        Ok(DeviceInfo {
            vendor: Vendor::Nvidia,
            ordinal,
            name: text(&name),
            target: Target::from_compute_capability(major, minor).ok(),
            arch_id: format!("sm_{major}{minor}"),
            memory_total: total as u64,
            memory_free: None,
            units: self.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            clock_khz: shown(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            l2_bytes: u64::from(shown(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)),
            pci: text(&pci).to_lowercase(),
            uuid: uuid_text(&uuid),
            driver: self.version,
            cooperative: shown(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) == 1,
            registers_read_only: shown(
                Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
            ) == 1,
            integrated: shown(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED) == 1,
        })
    }
}

/// `GPU-` and the UUID with dashes, as nvidia-smi prints it.
pub(super) fn uuid_text(uuid: &CUuuid) -> String {
    let mut out = String::from("GPU");
    for (i, byte) in uuid.bytes.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{:02x}", byte.to_ne_bytes()[0]));
    }
    out
}
