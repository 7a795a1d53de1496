//! Code objects: compiled machine code, and the properties of its kernels as stated in the file.

mod amd;
mod cubin;
mod info;
mod report;

pub use report::KernelReport;

use crate::error::{Error, Result};
pub use info::{ArgInfo, ArgKind, KernelInfo};
use kjit_cache::{Artefact, BuildKey, Digest, Entry, Key};
use std::sync::Arc;
use std::time::Duration;

/// How this process got a code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Compiled in this process.
    Compiled,
    /// Found in the named layer of the cache.
    Cached(String),
    /// Passed by the caller with its digest ([`CodeObject::verified`]).
    Given,
}

/// Verified machine code and its properties. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CodeObject {
    inner: Arc<Inner>,
    origin: Origin,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) name: String,
    pub(crate) compile_id: String,
    pub(crate) wave: u32,
    pub(crate) compiler: String,
    pub(crate) seconds: f64,
    pub(crate) kernels: Vec<KernelInfo>,
    /// The verified cache entry. The loaded bytes are the ones that were checked.
    pub(crate) entry: kjit_cache::Entry,
}

impl CodeObject {
    pub(crate) fn of(inner: Inner, origin: Origin) -> CodeObject {
        CodeObject { inner: Arc::new(inner), origin }
    }

    /// A code object that kjit did not compile here (for example from a proof bundle), with SHA-256
    /// `digest`. Its producer states `compile_id` and `wave`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the digest differs or this build cannot read the code object.
    pub fn verified(
        name: &str,
        compile_id: &str,
        wave: u32,
        bytes: Vec<u8>,
        digest: Digest,
    ) -> Result<CodeObject> {
        let corrupt = |why: String| Error::Corrupt { kernel: name.to_owned(), why };
        let found = Digest::of(&bytes);
        if found != digest {
            return Err(corrupt(format!("its SHA-256 is {found}, not {digest}")));
        }
        let kernels = inspect(name, &bytes)?;
        let key = Key::builder("kjit code from elsewhere").field("sha256", found.0).finish();
        let entry = Entry::encode(&BuildKey::new(&key, |build| build), &Artefact::new(bytes), 0);
        let inner = Inner {
            name: name.to_owned(),
            compile_id: compile_id.to_owned(),
            wave,
            compiler: "a compiler elsewhere".to_owned(),
            seconds: 0.0,
            kernels,
            entry: Entry::decode(entry).map_err(|e| corrupt(e.to_string()))?,
        };
        Ok(CodeObject::of(inner, Origin::Given))
    }

    pub(crate) fn with_origin(mut self, origin: Origin) -> CodeObject {
        self.origin = origin;
        self
    }

    pub(crate) fn entry(&self) -> &kjit_cache::Entry {
        &self.inner.entry
    }

    /// The source's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The architecture id of the compile: `sm_90a`, `gfx1100`.
    #[must_use]
    pub fn compile_id(&self) -> &str {
        &self.inner.compile_id
    }

    /// The wave width of the compile.
    #[must_use]
    pub fn wave(&self) -> u32 {
        self.inner.wave
    }

    /// The compiler and its version.
    #[must_use]
    pub fn compiler(&self) -> &str {
        &self.inner.compiler
    }

    /// Whether it was compiled now, found in the cache (and in which layer), or passed by the
    /// caller.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Duration of the compile, now or when the entry was stored.
    #[must_use]
    pub fn compile_time(&self) -> Duration {
        Duration::try_from_secs_f64(self.inner.seconds).unwrap_or_default()
    }

    /// The machine code, verified in this process.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.inner.entry.payload()
    }

    /// The kernels in the code object.
    #[must_use]
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.inner.kernels
    }

    /// Version of the code object's format, if it has one (AMD: 3 to 6).
    #[must_use]
    pub fn format_version(&self) -> Option<u32> {
        let machine = machine(self.bytes())?;
        VERSIONS
            .iter()
            .find(|(of, _)| *of == machine)
            .and_then(|(_, version)| version(self.bytes()))
    }

    /// The requirements for running it (such as a minimum `driver`), recorded at the compile.
    #[must_use]
    pub fn needs(&self) -> &std::collections::BTreeMap<String, String> {
        self.inner.entry.needs()
    }

    /// The digest of the build key, which is the entry's name in the cache.
    #[must_use]
    pub fn digest(&self) -> kjit_cache::Digest {
        self.inner.entry.key().digest()
    }
}

/// A reader of one kind of ELF file. The error is the reason why the bytes are invalid.
type Reader = fn(&[u8]) -> Result<Vec<KernelInfo>, String>;

/// Readers by ELF machine number.
const READERS: &[(u16, Reader)] = &[(cubin::MACHINE, cubin::read), (amd::MACHINE, amd::read)];

/// Reads the format version of one kind of ELF file.
type Version = fn(&[u8]) -> Option<u32>;

/// Version readers by ELF machine number.
const VERSIONS: &[(u16, Version)] = &[(amd::MACHINE, amd::version)];

/// `e_machine` of a little-endian 64-bit ELF file.
fn machine(bytes: &[u8]) -> Option<u16> {
    match (bytes.get(..6), bytes.get(18..20)) {
        (Some([0x7f, b'E', b'L', b'F', 2, 1]), Some([low, high])) => {
            Some(u16::from_le_bytes([*low, *high]))
        }
        _ => None,
    }
}

/// Reads the kernels of a code object. `name` is used in messages.
///
/// # Errors
/// [`Error::Corrupt`] if the bytes are not a complete, well-formed code object of a known machine.
pub fn inspect(name: &str, bytes: &[u8]) -> Result<Vec<KernelInfo>> {
    let corrupt = |why: String| Error::Corrupt { kernel: name.to_owned(), why };
    let Some(machine) = machine(bytes) else {
        return Err(corrupt(format!("{} bytes that are not a 64-bit ELF file", bytes.len())));
    };
    match READERS.iter().find(|(of, _)| *of == machine) {
        Some((_, read)) => read(bytes).map_err(corrupt),
        None => Err(corrupt(format!("this build does not support ELF machine {machine}"))),
    }
}
