//! Machine code as a compiler made it, and what the file itself says of its kernels.

mod amd;
mod cubin;
mod report;

pub use report::KernelReport;

use crate::error::{Error, Result};
use kjit_cache::{Artefact, BuildKey, Digest, Entry, Key};
use std::sync::Arc;
use std::time::Duration;

/// What the code object says an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// A device address.
    Buffer,
    /// Bytes by value.
    Value,
}

/// One argument of a kernel, in the order of its declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgInfo {
    /// Bytes from the start of the argument block.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
    /// Pointer or value, where the format tells (AMD's does; a cubin does not).
    pub kind: Option<ArgKind>,
}

/// A kernel in a code object: its arguments and what it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its symbol.
    pub name: String,
    /// Its arguments; hidden ones that the runtime fills in are not among them.
    pub args: Vec<ArgInfo>,
    /// Bytes of the whole argument block, hidden arguments included, where the code object tells
    /// (AMD's does).
    pub arg_bytes: Option<u32>,
    /// Vector registers a lane uses (AMD: VGPRs without AGPRs).
    pub registers: u32,
    /// Accumulation registers a lane uses (AMD CDNA).
    pub agprs: u32,
    /// Whether the two share one register file (AMD gfx90a and later CDNA).
    pub one_file: bool,
    /// Scalar registers a wave uses (AMD).
    pub sgprs: u32,
    /// Static LDS / shared memory of a block, in bytes.
    pub shared: u32,
    /// Local (scratch) memory of a lane, in bytes: arrays that could not be registers, and spills.
    pub local: u32,
    /// Registers spilled, where it is known (AMD: vector and scalar ones; NVIDIA: bytes of spill
    /// stores / 4 as the compiler told it).
    pub spills: Option<u32>,
    /// Lanes of a wave, where the code object tells.
    pub wave: Option<u32>,
    /// Threads a block may have at most, where the code object tells.
    pub max_threads: Option<u32>,
}

impl KernelInfo {
    pub(crate) const fn empty() -> KernelInfo {
        KernelInfo {
            name: String::new(),
            args: Vec::new(),
            arg_bytes: None,
            registers: 0,
            agprs: 0,
            one_file: false,
            sgprs: 0,
            shared: 0,
            local: 0,
            spills: None,
            wave: None,
            max_threads: None,
        }
    }

    /// Vector registers that count against occupancy: VGPRs and AGPRs together where they share a
    /// file, else the larger.
    #[must_use]
    pub fn all_registers(&self) -> u32 {
        if self.one_file {
            self.registers.saturating_add(self.agprs)
        } else {
            self.registers.max(self.agprs)
        }
    }
}

/// Where a code object came from in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Compiled just now.
    Compiled,
    /// Found in the cache, in the layer named.
    Cached(String),
    /// Handed over by the caller with its digest ([`CodeObject::verified`]).
    Given,
}

/// Verified machine code with what is known of it. Cheap to clone.
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
    /// The entry of the cache as it was verified: what was checked is what is loaded.
    pub(crate) entry: kjit_cache::Entry,
}

impl CodeObject {
    pub(crate) fn of(inner: Inner, origin: Origin) -> CodeObject {
        CodeObject { inner: Arc::new(inner), origin }
    }

    /// Machine code from elsewhere (a proof bundle, say), whose SHA-256 must be `digest`;
    /// `compile_id` and `wave` are what its maker says it was compiled for.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the digest is another, or the bytes are no code object that this
    /// build reads.
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

    /// What it was compiled for: `sm_90a`, `gfx1100`.
    #[must_use]
    pub fn compile_id(&self) -> &str {
        &self.inner.compile_id
    }

    /// Lanes of a wave that it was compiled for.
    #[must_use]
    pub fn wave(&self) -> u32 {
        self.inner.wave
    }

    /// Compiler and version that made it, here or elsewhere.
    #[must_use]
    pub fn compiler(&self) -> &str {
        &self.inner.compiler
    }

    /// Compiled now, or found, and where.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What the compile took, here or when the entry was made.
    #[must_use]
    pub fn compile_time(&self) -> Duration {
        Duration::try_from_secs_f64(self.inner.seconds).unwrap_or_default()
    }

    /// The machine code, checked in this process.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.inner.entry.payload()
    }

    /// The kernels in it.
    #[must_use]
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.inner.kernels
    }

    /// Version of the code object's format, where it has one (AMD: 3 to 6).
    #[must_use]
    pub fn format_version(&self) -> Option<u32> {
        let machine = machine(self.bytes())?;
        VERSIONS
            .iter()
            .find(|(of, _)| *of == machine)
            .and_then(|(_, version)| version(self.bytes()))
    }

    /// What a machine must have to run it (`driver` at least …), as recorded when it was made.
    #[must_use]
    pub fn needs(&self) -> &std::collections::BTreeMap<String, String> {
        self.inner.entry.needs()
    }

    /// The build key's digest: the entry's name in the cache.
    #[must_use]
    pub fn digest(&self) -> kjit_cache::Digest {
        self.inner.entry.key().digest()
    }
}

/// A reader of one kind of ELF file: kernels, or what is wrong with the bytes.
type Reader = fn(&[u8]) -> Result<Vec<KernelInfo>, String>;

/// Readers by ELF machine.
const READERS: &[(u16, Reader)] = &[(cubin::MACHINE, cubin::read), (amd::MACHINE, amd::read)];

/// The version of one kind of ELF file's format.
type Version = fn(&[u8]) -> Option<u32>;

/// Readers of the version by ELF machine.
const VERSIONS: &[(u16, Version)] = &[(amd::MACHINE, amd::version)];

/// `e_machine` of a little-endian ELF file of 64 bits.
fn machine(bytes: &[u8]) -> Option<u16> {
    match (bytes.get(..6), bytes.get(18..20)) {
        (Some([0x7f, b'E', b'L', b'F', 2, 1]), Some([low, high])) => {
            Some(u16::from_le_bytes([*low, *high]))
        }
        _ => None,
    }
}

/// Reads what a code object says of its kernels; `name` is for messages.
///
/// # Errors
/// [`Error::Corrupt`] for anything that is not a whole, well-formed code object of a machine that
/// we know.
pub fn inspect(name: &str, bytes: &[u8]) -> Result<Vec<KernelInfo>> {
    let corrupt = |why: String| Error::Corrupt { kernel: name.to_owned(), why };
    let Some(machine) = machine(bytes) else {
        return Err(corrupt(format!("{} bytes that are no 64-bit ELF file", bytes.len())));
    };
    match READERS.iter().find(|(of, _)| *of == machine) {
        Some((_, read)) => read(bytes).map_err(corrupt),
        None => Err(corrupt(format!("ELF machine {machine} is none that this build reads"))),
    }
}
