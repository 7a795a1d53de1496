//! The opened runtime of HIP: its devices and their properties.

use crate::arch::{Target, Vendor};
use crate::compiler::discover::python_sites;
use crate::driver::api::{Fault, FaultKind, Try, text};
use crate::driver::info::DeviceInfo;
use crate::driver::lost::Contexts;
use crate::error::{Error, Result};
use hip_sys::{Hip, attribute, codes, hipDeviceProp_t, hipUUID, prop};
use std::ffi::{c_char, c_int};
use std::sync::{Arc, OnceLock};

/// The opened runtime.
pub(crate) struct HipRuntime {
    pub(super) hip: Hip,
    pub(super) contexts: Contexts,
    pub(super) library: String,
    pub(super) version: (u32, u32),
}

/// Converts a call's error to a fault.
pub(super) fn fault(error: hip_sys::Error) -> Fault {
    match error {
        hip_sys::Error::Code { call, code, name, says } => {
            let kind = match code {
                codes::hipErrorOutOfMemory => FaultKind::OutOfMemory,
                codes::hipErrorInvalidImage
                | codes::hipErrorNoBinaryForGpu
                | codes::hipErrorInvalidKernelFile
                | codes::hipErrorInvalidSource => FaultKind::BadImage,
                codes::hipErrorECCNotCorrectable
                | codes::hipErrorIllegalAddress
                | codes::hipErrorLaunchTimeOut
                | codes::hipErrorAssert
                | codes::hipErrorLaunchFailure => FaultKind::Lost,
                _ => FaultKind::Other,
            };
            Fault { call, code, says: format!("{says} ({name})"), kind }
        }
        hip_sys::Error::Missing { symbol, .. } => {
            Fault { call: symbol, code: 0, says: error.to_string(), kind: FaultKind::Other }
        }
        other => Fault { call: "HIP", code: 0, says: other.to_string(), kind: FaultKind::Other },
    }
}

/// Whether an error means that a GPU is missing: `hipInit` of ROCm 5 returns 101, other calls 100.
pub(super) fn no_device(error: &hip_sys::Error) -> bool {
    matches!(error.code(), Some(codes::hipErrorNoDevice | codes::hipErrorInvalidDevice))
}

impl HipRuntime {
    /// Opens the runtime once per process; later calls return the same result.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] with the searched paths; [`Error::NoDevice`] if the runtime finds no
    /// GPU.
    pub fn open() -> Result<Arc<HipRuntime>> {
        static OPENED: OnceLock<Result<Arc<HipRuntime>>> = OnceLock::new();
        OPENED.get_or_init(HipRuntime::open_now).clone()
    }

    /// Whether opening may hang: there is a kernel driver, or a library was named.
    pub fn may_hang() -> bool {
        std::env::var_os("KJIT_HIP_LIBRARY").is_some() || std::path::Path::new("/dev/kfd").exists()
    }

    fn open_now() -> Result<Arc<HipRuntime>> {
        let wheels = || {
            python_sites()
                .iter()
                .flat_map(|site| hip_sys::WHEEL_FOLDERS.iter().map(move |f| site.join(f)))
                .collect()
        };
        let hip = Hip::open(wheels).map_err(|error| match error {
            hip_sys::Error::NotFound { library, tried, package } => Error::NoLibrary {
                library: library.to_owned(),
                why: "the loader finds none".to_owned(),
                tried: tried.iter().map(ToString::to_string).collect(),
                package: package.to_owned(),
            },
            // The file can be opened but is not a HIP runtime. The error names it.
            other => Error::NoLibrary {
                library: hip_sys::SEARCH.library.to_owned(),
                why: other.to_string(),
                tried: Vec::new(),
                package: hip_sys::SEARCH.package.to_owned(),
            },
        })?;
        let library = hip.opened().place.display().to_string();
        // SAFETY: takes only the flags, which are 0.
        if let Err(error) = unsafe { hip.hipInit(0) } {
            let hint = match std::path::Path::new("/dev/kfd").exists() {
                true => "is this user in the groups render and video?",
                false => "the kernel driver's /dev/kfd is not there",
            };
            let why = if no_device(&error) {
                format!("the HIP runtime ({library}) finds no AMD GPU; {hint}")
            } else {
                format!("the HIP runtime ({library}) does not start: {error}; {hint}")
            };
            return Err(Error::NoDevice { asked: "rocm".to_owned(), why });
        }
        let mut version: c_int = 0;
        // SAFETY: writes one int.
        unsafe { hip.hipRuntimeGetVersion(&mut version) }.map_err(|e| fault(e).on("rocm"))?;
        let version = u32::try_from(version).unwrap_or(0);
        let version = (version / 10_000_000, version / 100_000 % 100);
        Ok(Arc::new(HipRuntime { hip, contexts: Contexts::default(), library, version }))
    }

    pub(super) fn attribute(&self, ordinal: c_int, attribute: u32) -> Try<u32> {
        let mut value = 0;
        // SAFETY: writes one int; an unknown attribute or device gives an error code.
        unsafe { self.hip.hipDeviceGetAttribute(&mut value, attribute, ordinal) }.map_err(fault)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// The architecture with its flags, such as `gfx90a:sramecc+:xnack-`. It is read from the
    /// layout of the properties that this runtime fills: the layout of ROCm 6 with its own symbol,
    /// the older layout with its own or the plain symbol.
    fn arch_id(&self, ordinal: c_int) -> Try<String> {
        let mut properties = Box::new(hipDeviceProp_t([0; 4096]));
        let mut last = None;
        for (offset, layout) in
            [(prop::ARCH_NAME_R0600, 0), (prop::ARCH_NAME_R0000, 1), (prop::ARCH_NAME_R0000, 2)]
        {
            properties.0.fill(0);
            let p: *mut hipDeviceProp_t = &mut *properties;
            // SAFETY: writes its layout, at most 1472 bytes, into 4096 bytes.
            let answer = unsafe {
                match layout {
                    0 => self.hip.hipGetDevicePropertiesR0600(p, ordinal),
                    1 => self.hip.hipGetDevicePropertiesR0000(p, ordinal),
                    _ => self.hip.hipGetDeviceProperties(p, ordinal),
                }
            };
            if let Err(error) = answer {
                last = Some(fault(error));
                continue;
            }
            let field = properties.0.get(offset..offset + prop::ARCH_NAME_LEN).unwrap_or_default();
            let name = text(bytemuck::cast_slice(field));
            if name.starts_with("gfx") {
                return Ok(name);
            }
        }
        Err(last.unwrap_or_else(|| Fault {
            call: "hipGetDeviceProperties",
            code: 0,
            says:
                "no known struct layout contains a gfx architecture: the runtime is newer than kjit"
                    .to_owned(),
            kind: FaultKind::Other,
        }))
    }

    pub(super) fn facts(&self, ordinal: u32) -> Try<DeviceInfo> {
        let device = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let mut name = [0 as c_char; 256];
        // SAFETY: writes at most 256 bytes, terminated.
        unsafe { self.hip.hipDeviceGetName(name.as_mut_ptr(), 256, device) }.map_err(fault)?;
        let mut pci = [0 as c_char; 64];
        // SAFETY: writes at most 64 bytes, terminated.
        unsafe { self.hip.hipDeviceGetPCIBusId(pci.as_mut_ptr(), 64, device) }.map_err(fault)?;
        let mut total = 0usize;
        // SAFETY: writes one size.
        unsafe { self.hip.hipDeviceTotalMem(&mut total, device) }.map_err(fault)?;
        let mut uuid = hipUUID::default();
        // SAFETY: writes 16 bytes. A runtime without UUIDs leaves it empty; it is only shown.
        let uuid = match unsafe { self.hip.hipDeviceGetUuid(&mut uuid, device) } {
            Ok(()) => uuid_text(&uuid),
            Err(_) => String::new(),
        };
        let arch_id = self.arch_id(device)?;
        let shown = |attribute| self.attribute(device, attribute).unwrap_or(0);
        let mut name = text(&name);
        if name.is_empty() {
            // ROCm has no marketing name for some cards. It has no names if its table of names is
            // missing.
            name = format!("AMD {}", arch_id.split(':').next().unwrap_or_default());
        }
        let target = match std::env::var(WAVE) {
            Err(_) => Target::parse(&arch_id).ok(),
            Ok(wave) => Some(Target::parse(&format!("{arch_id}:wave{wave}")).map_err(|e| {
                Fault { call: WAVE, code: 0, says: e.to_string(), kind: FaultKind::Other }
            })?),
        };
        let inside = target.as_ref().is_some_and(|t| t.arch().has("integrated"));
        Ok(DeviceInfo {
            vendor: Vendor::Amd,
            ordinal,
            name,
            target,
            arch_id,
            memory_total: total as u64,
            memory_free: None,
            units: self.attribute(device, attribute::hipDeviceAttributeMultiprocessorCount)?,
            clock_khz: shown(attribute::hipDeviceAttributeClockRate),
            l2_bytes: u64::from(shown(attribute::hipDeviceAttributeL2CacheSize)),
            pci: text(&pci).to_lowercase(),
            uuid,
            driver: self.version,
            // This call exists from ROCm 5.5 on; a plain launch does not guarantee that all blocks
            // are resident.
            cooperative: shown(attribute::hipDeviceAttributeCooperativeLaunch) == 1
                && !self.hip.missing().contains(&"hipModuleLaunchCooperativeKernel"),
            // HIP page-locks through the kernel driver, which accepts writable mappings only.
            registers_read_only: false,
            // Some runtimes do not report this for all devices. The table lists chips that exist
            // only inside processors.
            integrated: inside || shown(attribute::hipDeviceAttributeIntegrated) == 1,
        })
    }
}

/// The variable that sets the wave width on RDNA, 64 or 32, for kernels that do not request one.
pub(super) const WAVE: &str = "KJIT_WAVE";

/// `GPU-` and the UUID, as rocminfo prints it. ROCm's 16 bytes are hexadecimal digits; other bytes
/// are converted.
pub(super) fn uuid_text(uuid: &hipUUID) -> String {
    if uuid.bytes.iter().all(u8::is_ascii_hexdigit) {
        return format!("GPU-{}", String::from_utf8_lossy(&uuid.bytes));
    }
    if uuid.bytes == [0; 16] {
        return String::new();
    }
    uuid.bytes.iter().fold("GPU-".to_owned(), |text, b| format!("{text}{b:02x}"))
}
