//! Reads a bundle, checks every byte, and runs it.

use super::{
    BufferSlot, BundleError, CHECK, Content, DATA, Entry, ExpectedContent, FORMAT, MANIFEST,
    Manifest, README, SUMS, SlotKind, Storage, VERSION, io,
};
use crate::launch;
use crate::prove::CaseResult;
use kjit_engine::{Arg, CodeObject, Device, DeviceBuffer, Digest, Geometry, Module, Target};
use kjit_kernel_cases::{self as cases, Expect, Tolerance};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slotted;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum bytes of a file. A whole bundle is smaller than [`super::LIMIT`].
const MAX_BYTES: u64 = 64 << 20;
/// Maximum bytes of a buffer. Filled buffers take no space in the bundle.
const MAX_BUFFER: u64 = 1 << 30;

/// A bundle whose files match their checksums.
#[derive(Debug)]
pub struct Bundle {
    folder: PathBuf,
    manifest: Manifest,
    target: Target,
    data: Vec<u8>,
    code: Vec<CodeObject>,
}

impl Bundle {
    /// Reads a bundle: checks every file's SHA-256, then the manifest against the files. The author
    /// of a bundle is trusted with the device, like the author of any program: checksums detect
    /// accidents, not attacks.
    ///
    /// # Errors
    /// [`BundleError::Io`], [`BundleError::Damaged`], [`BundleError::Foreign`],
    /// [`BundleError::Engine`].
    pub fn open(folder: &Path) -> Result<Bundle, BundleError> {
        let mut files = files(folder)?;
        let path = folder.join(MANIFEST);
        let mut take = |name: &str| {
            files.remove(name).ok_or_else(|| BundleError::Damaged {
                path: folder.join(SUMS),
                why: format!("{name} is not in the list of checksums"),
            })
        };
        take(README)?;
        take(CHECK)?;
        let (data, text) = (take(DATA)?, take(MANIFEST)?);
        let foreign = |why: String| BundleError::Foreign { path: path.clone(), why };
        // The version is checked first, because other fields may differ between versions.
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|e| foreign(e.to_string()))?;
        let (format, version) =
            (value.get("format"), value.get("version").and_then(serde_json::Value::as_u64));
        if format.and_then(|f| f.as_str()) != Some(FORMAT) {
            return Err(foreign(format!("the format is not \"{FORMAT}\"")));
        }
        if version != Some(u64::from(VERSION)) {
            let found = version.map_or("none".to_owned(), |v| v.to_string());
            return Err(foreign(format!(
                "format version {found} is not supported, only {VERSION}: \
                 use the version of kjit that wrote it"
            )));
        }
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|e| foreign(e.to_string()))?;
        let target = Target::parse(&manifest.arch)?;
        let mut code = vec![];
        for c in &manifest.code {
            let digest: Digest =
                c.sha256.parse().map_err(|e| foreign(format!("{}: {e}", c.file)))?;
            code.push(CodeObject::verified(
                &c.name,
                &c.compiled_for,
                c.wave,
                take(&c.file)?,
                digest,
            )?);
        }
        let bundle = Bundle { folder: folder.to_path_buf(), manifest, target, data, code };
        for entry in &bundle.manifest.cases {
            bundle.launch(entry).map_err(|why| foreign(format!("case {}: {why}", entry.name)))?;
        }
        Ok(bundle)
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The number of cases.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.manifest.cases.len()
    }

    /// Runs every case on a device. `progress` gets the number of finished cases and the total.
    ///
    /// # Errors
    /// [`BundleError::Arch`]. The failure of a case is in its verdict.
    pub fn run(
        &self,
        device: &Device,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<CaseResult>, BundleError> {
        if self.target.id() != device.target().id() {
            return Err(BundleError::Arch {
                bundle: self.target.to_string(),
                label: device.label().to_owned(),
                device: device.target().to_string(),
            });
        }
        let mut modules: HashMap<usize, Module> = HashMap::new();
        let mut verdicts = vec![];
        for entry in &self.manifest.cases {
            let failure = self.case(device, entry, &mut modules).err();
            verdicts.push(CaseResult { case: entry.name.clone(), failure });
            progress(verdicts.len(), self.cases());
        }
        Ok(verdicts)
    }

    /// Runs a case: load, upload, launch, read back, compare.
    fn case(
        &self,
        device: &Device,
        entry: &Entry,
        modules: &mut HashMap<usize, Module>,
    ) -> Result<(), String> {
        let text = |e: kjit_engine::Error| e.to_string();
        let launch = self.launch(entry)?;
        let module = match modules.entry(entry.code) {
            Slotted::Occupied(loaded) => loaded.into_mut(),
            Slotted::Vacant(free) => {
                let code = self.code.get(entry.code).ok_or("its code object is missing")?;
                free.insert(device.load(code).map_err(text)?)
            }
        };
        let kernel = module.kernel(&entry.symbol).map_err(text)?;
        let stream = device.stream().map_err(text)?;
        let before: Vec<Vec<u8>> = entry
            .buffers
            .iter()
            .map(|b| self.content(&b.before, b.bytes))
            .collect::<Result<_, _>>()?;
        let buffers: Vec<DeviceBuffer<u8>> = before
            .iter()
            .map(|bytes| stream.upload(bytes))
            .collect::<Result<_, _>>()
            .map_err(text)?;
        let arg = |value: &Value| -> Result<Arg<'_>, String> {
            Ok(match value {
                Value::Buffer(i) => {
                    Arg::from(buffers.get(*i).ok_or("an argument refers to a missing buffer")?)
                }
                Value::Null => Arg::Null,
                Value::U32(v) => Arg::from(*v),
                Value::U64(v) => Arg::from(*v),
                Value::F32(v) => Arg::from(*v),
            })
        };
        let args: Vec<Arg<'_>> = launch.args.iter().map(arg).collect::<Result<_, _>>()?;
        launch::launch(&stream, &kernel, &launch.geometry, &args).map_err(text)?;
        for (((buffer, expect), before), entry) in
            buffers.iter().zip(&launch.expect).zip(&before).zip(&entry.buffers)
        {
            let after = stream.read(buffer).map_err(text)?;
            expect.check(before, &after).map_err(|why| format!("buffer {}: {why}", entry.name))?;
        }
        Ok(())
    }

    /// Converts a manifest entry to a launch, and checks it against the files.
    fn launch(&self, entry: &Entry) -> Result<Launch, String> {
        if self.code.get(entry.code).is_none() {
            return Err(format!(
                "code object {} does not exist (the bundle has {})",
                entry.code,
                self.code.len()
            ));
        }
        let block =
            from_hex(&entry.arguments.hex).ok_or("the arguments are not hexadecimal bytes")?;
        let args = entry.arguments.slots.iter().enumerate();
        let args = args.map(|(i, slot)| {
            value(slot, &block, entry.buffers.len())
                .ok_or_else(|| format!("argument {i} is not in the argument block"))
        });
        let mut expect = vec![];
        for b in &entry.buffers {
            // Filled buffers are allocated when the case runs. Here only their size is checked.
            if b.bytes > MAX_BUFFER {
                return Err(format!(
                    "buffer {} has {} bytes, more than the limit of {MAX_BUFFER}",
                    b.name, b.bytes
                ));
            }
            if let Content::At(at) = b.before {
                self.slice(at, b.bytes)?;
            }
            expect.push(match &b.after {
                ExpectedContent::Unchanged => Expect::Same,
                ExpectedContent::Anything => Expect::Anything,
                ExpectedContent::Exactly { content } => {
                    Expect::Bytes(self.content(content, b.bytes)?)
                }
                ExpectedContent::Near { storage, at, values, norm, each, reason: _ } => {
                    let bytes = values.checked_mul(8).ok_or("too many values")?;
                    let want = self
                        .slice(*at, bytes)?
                        .as_chunks::<8>()
                        .0
                        .iter()
                        .map(|v| f64::from_le_bytes(*v))
                        .collect();
                    let storage = match storage {
                        Storage::F32 => cases::Storage::F32,
                        Storage::F16 => cases::Storage::F16,
                    };
                    let tolerance =
                        Tolerance { norm: *norm, each: *each, reason: "the bundle's tolerance" };
                    Expect::Real { storage, want, tolerance }
                }
            });
        }
        let geometry = Geometry::of(entry.grid, entry.block)
            .shared(entry.dynamic_lds)
            .cooperative(entry.cooperative);
        Ok(Launch { geometry, args: args.collect::<Result<_, _>>()?, expect })
    }

    fn content(&self, content: &Content, bytes: u64) -> Result<Vec<u8>, String> {
        match content {
            Content::At(at) => self.slice(*at, bytes).map(<[u8]>::to_vec),
            Content::Fill(byte) if bytes <= MAX_BUFFER => Ok(vec![*byte; bytes as usize]),
            Content::Fill(_) => Err(format!("{bytes} bytes, more than the limit of {MAX_BUFFER}")),
        }
    }

    fn slice(&self, at: u64, bytes: u64) -> Result<&[u8], String> {
        let end = at.checked_add(bytes).and_then(|end| usize::try_from(end).ok());
        let start = usize::try_from(at).ok();
        start.zip(end).and_then(|(start, end)| self.data.get(start..end)).ok_or_else(|| {
            let path = self.folder.join(DATA);
            format!(
                "{bytes} bytes at offset {at} exceed {} ({} bytes)",
                path.display(),
                self.data.len()
            )
        })
    }
}

/// A launch for the engine.
struct Launch {
    geometry: Geometry,
    args: Vec<Value>,
    expect: Vec<Expect>,
}

enum Value {
    Buffer(usize),
    Null,
    U32(u32),
    U64(u64),
    F32(f32),
}

fn value(slot: &BufferSlot, block: &[u8], buffers: usize) -> Option<Value> {
    let start = slot.offset as usize;
    let bytes = block.get(start..start.checked_add(slot.size as usize)?)?;
    Some(match slot.kind {
        SlotKind::Buffer => {
            Value::Buffer(slot.buffer.filter(|&b| b < buffers && bytes.len() == 8)?)
        }
        SlotKind::Null => (bytes == [0; 8]).then_some(Value::Null)?,
        SlotKind::U32 => Value::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
        SlotKind::U64 => Value::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
        SlotKind::F32 => Value::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |d: u8| char::from(d).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Reads all listed files and checks their sums.
fn files(folder: &Path) -> Result<HashMap<String, Vec<u8>>, BundleError> {
    let path = folder.join(SUMS);
    if !path.is_file() {
        return Err(BundleError::NoBundle(folder.to_path_buf()));
    }
    let damaged = |path: &Path, why: String| BundleError::Damaged { path: path.to_path_buf(), why };
    let sums = String::from_utf8(read(&path)?).map_err(|e| damaged(&path, e.to_string()))?;
    let mut files = HashMap::new();
    let mut total = 0u64;
    for (i, line) in sums.lines().enumerate() {
        let parsed =
            line.split_once("  ").and_then(|(sum, name)| Some((sum.parse::<Digest>().ok()?, name)));
        let Some((digest, name)) = parsed else {
            return Err(damaged(
                &path,
                format!("line {} is not a checksum and a file name", i + 1),
            ));
        };
        let plain = |part: &str| {
            !part.starts_with('.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b))
        };
        if !name.split('/').all(|part| !part.is_empty() && plain(part)) {
            return Err(damaged(&path, format!("line {} names a file outside the bundle", i + 1)));
        }
        let file = folder.join(name);
        let bytes = read(&file)?;
        total = total.saturating_add(bytes.len() as u64);
        if total > MAX_BYTES {
            return Err(damaged(&path, format!("the files have more than {MAX_BYTES} bytes")));
        }
        let found = Digest::of(&bytes);
        if found != digest {
            return Err(damaged(&file, format!("its SHA-256 is {found}, expected {digest}")));
        }
        files.insert(name.to_owned(), bytes);
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>, BundleError> {
    let file = std::fs::File::open(path).map_err(io(path))?;
    let mut bytes = vec![];
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io(path))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(BundleError::Damaged {
            path: path.to_path_buf(),
            why: format!("larger than {MAX_BYTES} bytes"),
        });
    }
    Ok(bytes)
}
