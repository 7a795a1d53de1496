//! Loaded code objects and their kernels.

use super::api::{FaultKind, Raw};
use super::counters::add;
use super::device::Device;
use crate::code_object::{CodeObject, KernelInfo};
use crate::error::{Error, Result};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A code object loaded on a device. Cheap to clone. It is unloaded when the last kernel and graph
/// that use it are dropped.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: Device,
    raw: Raw,
    code: CodeObject,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (device, raw) = (self.device.clone(), self.raw);
        self.device.outside_capture(move || {
            // Unloading a module under a running kernel is undefined. It is rare, so this waits for
            // all running work.
            add(&device.inner.counters.synchronisations, 1);
            // SAFETY: the last user was dropped, and the device is idle after the wait.
            let _ =
                unsafe { device.raw().wait_all().and_then(|()| device.raw().module_unload(raw)) };
        });
    }
}

impl Device {
    /// Loads a code object.
    ///
    /// # Errors
    /// [`Error::Load`] if the code object is for a different target, or the driver refuses it. If
    /// the driver refuses, the message names both versions.
    pub fn load(&self, code: &CodeObject) -> Result<Module> {
        let fail = |why: String| Error::Load {
            kernel: code.name().to_owned(),
            device: self.label().to_owned(),
            why,
        };
        if !self.target().runs(code.compile_id()) {
            return Err(fail(format!(
                "it was compiled for {}, but the device is {}",
                code.compile_id(),
                self.target()
            )));
        }
        // SAFETY: the bytes are from a compiler of this process, or were verified by hash. Their
        // headers were checked when the code object was created.
        let raw = unsafe { self.raw().module(code.bytes()) }.map_err(|fault| {
            let (major, minor) = self.info().driver;
            match fault.kind {
                FaultKind::BadImage => fail(format!(
                    "the driver ({major}.{minor}) refuses code of {}: {} (code {}); update the driver, or use a compiler that is not newer than the driver",
                    code.compiler(),
                    fault.says,
                    fault.code
                )),
                FaultKind::OutOfMemory => self.out_of_memory(code.bytes().len() as u64, "a module"),
                FaultKind::Lost => fault.on(self.label()),
                FaultKind::Other => fail(format!("{} (code {})", fault.says, fault.code)),
            }
        })?;
        add(&self.inner.counters.modules, 1);
        Ok(Module { inner: Arc::new(Inner { device: self.clone(), raw, code: code.clone() }) })
    }
}

impl Module {
    /// The loaded code object.
    #[must_use]
    pub fn code(&self) -> &CodeObject {
        &self.inner.code
    }

    /// Returns a kernel by its symbol.
    ///
    /// # Errors
    /// [`Error::Load`] if the module lacks a kernel with this name. The message lists the kernels.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let code = &self.inner.code;
        let fail = |why: String| Error::Load {
            kernel: code.name().to_owned(),
            device: self.inner.device.label().to_owned(),
            why,
        };
        let Some(index) = code.kernels().iter().position(|k| k.name == name) else {
            let names: Vec<&str> = code.kernels().iter().map(|k| k.name.as_str()).collect();
            return Err(fail(format!("it has no kernel '{name}'; it has {}", names.join(", "))));
        };
        let symbol = CString::new(name)
            .map_err(|_| fail(format!("'{}' is not a symbol", name.escape_default())))?;
        // SAFETY: the module is alive; the name is terminated.
        let raw = unsafe { self.inner.device.raw().function(self.inner.raw, &symbol) };
        let raw = self.inner.device.ok(raw)?;
        Ok(Kernel {
            inner: Arc::new(KernelInner {
                module: self.clone(),
                raw,
                index,
                shared: AtomicU32::new(0),
            }),
        })
    }
}

/// A kernel that can be launched. Cheap to clone.
#[derive(Clone)]
pub struct Kernel {
    inner: Arc<KernelInner>,
}

struct KernelInner {
    module: Module,
    raw: Raw,
    index: usize,
    /// Bytes of dynamic shared memory that the function may use so far.
    shared: AtomicU32,
}

static NOTHING: KernelInfo = KernelInfo::empty();

impl Kernel {
    /// Arguments and resources of the kernel.
    #[must_use]
    pub fn info(&self) -> &KernelInfo {
        // The index was found in this list.
        self.inner.module.code().kernels().get(self.inner.index).unwrap_or(&NOTHING)
    }

    /// The module that contains it.
    #[must_use]
    pub fn module(&self) -> &Module {
        &self.inner.module
    }

    /// Number of blocks that can be resident on a compute unit, according to the driver. A block
    /// has `threads` threads and `shared` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn resident_blocks(&self, threads: u32, shared: u32) -> Result<u32> {
        self.allow_shared(shared)?;
        let device = self.device();
        // SAFETY: the function lives as long as its module, which self holds.
        device.ok(unsafe { device.raw().function_blocks(self.inner.raw, threads, shared) })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.inner.module.inner.device
    }

    pub(crate) fn raw(&self) -> Raw {
        self.inner.raw
    }

    pub(crate) fn keep(&self) -> Arc<Inner> {
        Arc::clone(&self.inner.module.inner)
    }

    /// Enables launches with this much dynamic shared memory.
    pub(crate) fn allow_shared(&self, bytes: u32) -> Result<()> {
        let arch = self.device().target().arch();
        if bytes.saturating_add(self.info().shared) <= arch.shared_static
            || bytes <= self.inner.shared.load(Ordering::Relaxed)
        {
            return Ok(());
        }
        // SAFETY: the function lives as long as its module, which self holds.
        self.device().ok(unsafe { self.device().raw().function_shared(self.inner.raw, bytes) })?;
        self.inner.shared.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({})", self.info().name)
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({})", self.inner.code.name())
    }
}
