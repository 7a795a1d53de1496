//! Writes a proof bundle.

use super::{
    Arguments, Buffer, BufferSlot, BundleError, CHECK, Code, Content, DATA, Entry, ExpectedContent,
    FORMAT, MANIFEST, Manifest, README, RUN, SUMS, SkippedCase, SlotKind, Storage, VERSION, io,
};
use crate::settled;
use kjit_engine::{CodeObject, Digest, Engine, Job, KernelInfo, Target};
use kjit_kernel_cases::{self as cases, Case, CaseArg, Expect};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Maximum bytes of a bundle, so that it can be sent by mail.
pub const LIMIT: u64 = 50_000_000;

/// Options of [`export`].
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// The seed of the random inputs.
    pub seed: u64,
    /// Only cases whose name contains this text; empty for all.
    pub filter: String,
    /// Maximum bytes of the folder. The largest cases are omitted and listed until the rest fits.
    pub limit: u64,
}

/// The content of a written bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The number of cases.
    pub cases: usize,
    /// The number of code objects.
    pub code: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Cases that were omitted because of their size.
    pub left_out: Vec<String>,
}

/// Compiles every case's kernel for `target` at each of its wave widths, and writes a bundle into
/// `folder`. The folder is created if needed. No device is needed. `progress` gets the number of
/// finished code objects and the total.
///
/// # Errors
/// [`BundleError::NotEmpty`], [`BundleError::NoCase`], [`BundleError::Io`]. If one kernel does not
/// compile, the export fails.
pub fn export(
    engine: &Engine,
    target: &Target,
    wish: &ExportOptions,
    folder: &Path,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Exported, BundleError> {
    // The folder is checked first, because compiling takes minutes. It is created later, when there
    // is content.
    if std::fs::read_dir(folder).is_ok_and(|mut inside| inside.next().is_some()) {
        return Err(BundleError::NotEmpty(folder.to_path_buf()));
    }
    let target = &settled(engine, target);
    let mut all: Vec<(String, Case)> = vec![];
    let mut seen = HashSet::new();
    for &wave in target.waves() {
        for case in cases::all(target, wave, wish.seed)? {
            // Some cases are equal at every width.
            let name = format!("{} at wave {}", case.name, case.kernel.options.wave);
            if name.contains(&wish.filter) && seen.insert(name.clone()) {
                all.push((name, case));
            }
        }
    }
    if all.is_empty() {
        return Err(BundleError::NoCase(wish.filter.clone()));
    }
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    let codes = compile(engine, target, &all, progress)?;
    let always = FIXED_FILES.iter().map(|(_, content)| content.len() as u64).sum();
    let mut writer = Writer { limit: wish.limit, other: always, ..Writer::default() };
    // The smallest cases come first, so that the largest cases are omitted.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&i| all.get(i).map_or(0, |(_, case)| weight(case)));
    let mut taken: Vec<(usize, Entry)> = vec![];
    for i in order {
        let (Some((name, case)), Some(code)) = (all.get(i), codes.get(i)) else { continue };
        if let Some(entry) = writer.take(name, case, code)? {
            taken.push((i, entry));
        }
    }
    taken.sort_by_key(|(i, _)| *i);
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        version: VERSION,
        kjit: env!("CARGO_PKG_VERSION").to_owned(),
        kernel_abi: kjit_engine::KERNEL_ABI,
        // Properties of the compiler do not matter for a GPU or an emulator.
        arch: target.without_sound_copies().to_string(),
        seed: wish.seed,
        code: writer.listed,
        cases: taken.into_iter().map(|(_, entry)| entry).collect(),
        left_out: writer.left_out,
    };
    publish(folder, &manifest, &writer.data, &writer.code)
}

/// Compiles the code object of each case.
fn compile(
    engine: &Engine,
    target: &Target,
    all: &[(String, Case)],
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<CodeObject>, BundleError> {
    let jobs: Vec<Job> = all.iter().map(|(_, case)| case.kernel.job(target)).collect();
    let done = std::sync::atomic::AtomicUsize::new(0);
    let codes = engine.compile_each(&jobs, &|_, _| {
        progress(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1, jobs.len());
    });
    Ok(codes.into_iter().collect::<Result<_, _>>()?)
}

/// Bytes of a case's data before deduplication.
fn weight(case: &Case) -> u64 {
    let of = |arg: &CaseArg| match arg {
        CaseArg::Buffer { before, expect, .. } => {
            let after = match expect {
                Expect::Same | Expect::Anything => 0,
                Expect::Bytes(want) => want.len(),
                Expect::Real { want, .. } | Expect::Columns { want, .. } => {
                    want.len().saturating_mul(8)
                }
            };
            before.len().saturating_add(after) as u64
        }
        _ => 0,
    };
    case.args.iter().map(of).sum()
}

/// Files that every bundle has.
const FIXED_FILES: [(&str, &[u8]); 3] = [
    (README, include_bytes!("README.txt")),
    (CHECK, include_bytes!("check_bundle.py")),
    (RUN, include_bytes!("run_bundle.py")),
];

/// A bundle being written.
#[derive(Default)]
struct Writer {
    limit: u64,
    /// Approximate bytes of all files except `data.bin`.
    other: u64,
    data: Vec<u8>,
    /// Offsets in `data` by digest: cases of two wave widths have the same inputs.
    at: HashMap<Digest, u64>,
    code: Vec<CodeObject>,
    listed: Vec<Code>,
    index: HashMap<Digest, usize>,
    left_out: Vec<SkippedCase>,
}

impl Writer {
    /// Adds a case with its code and data. `None` if it does not fit.
    fn take(
        &mut self,
        name: &str,
        case: &Case,
        code: &CodeObject,
    ) -> Result<Option<Entry>, BundleError> {
        // Upper bounds of manifest text: 512 bytes for a buffer and an argument, 2048 for the rest
        // of a case.
        let text = 2048 + 512 * case.args.len() as u64;
        let need = weight(case).saturating_add(code.bytes().len() as u64).saturating_add(text);
        if self.other.saturating_add(self.data.len() as u64).saturating_add(need) > self.limit {
            let why = format!("the bundle would be larger than {} bytes", self.limit);
            self.left_out.push(SkippedCase { name: name.to_owned(), bytes: weight(case), why });
            return Ok(None);
        }
        let wrong = |why: String| BundleError::Case { case: name.to_owned(), why };
        let entry = case.kernel.entry;
        let found = code.kernels().iter().find(|k| k.name == entry);
        let info =
            found.ok_or_else(|| wrong(format!("its code object has no kernel '{entry}'")))?;
        let arguments = arguments(case, info).map_err(wrong)?;
        let mut buffers = vec![];
        for arg in &case.args {
            let CaseArg::Buffer { name, before, expect } = arg else { continue };
            buffers.push(Buffer {
                name: (*name).to_owned(),
                bytes: before.len() as u64,
                before: self.content(before),
                after: self.after(expect),
            });
        }
        let kernel = &case.kernel;
        self.other = self.other.saturating_add(text);
        Ok(Some(Entry {
            name: name.to_owned(),
            code: self.code(code),
            symbol: kernel.entry.to_owned(),
            wave: kernel.options.wave,
            grid: case.geometry.grid,
            block: case.geometry.block,
            dynamic_lds: case.geometry.shared,
            static_lds: info.shared,
            kernarg_bytes: info.arg_bytes,
            cooperative: case.geometry.cooperative,
            arguments,
            buffers,
        }))
    }

    fn code(&mut self, code: &CodeObject) -> usize {
        let digest = Digest::of(code.bytes());
        if let Some(&at) = self.index.get(&digest) {
            return at;
        }
        self.other = self.other.saturating_add(code.bytes().len() as u64);
        let sha256 = digest.hex();
        self.listed.push(Code {
            file: format!("code/{sha256}.co"),
            sha256,
            name: code.name().to_owned(),
            compiled_for: code.compile_id().to_owned(),
            code_object_version: code.format_version(),
            compiler: code.compiler().to_owned(),
            wave: code.wave(),
        });
        self.code.push(code.clone());
        let at = self.code.len() - 1;
        self.index.insert(digest, at);
        at
    }

    fn content(&mut self, bytes: &[u8]) -> Content {
        match bytes.first() {
            None => Content::Fill(0),
            Some(first) if bytes.iter().all(|b| b == first) => Content::Fill(*first),
            Some(_) => Content::At(self.put(bytes)),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> u64 {
        let digest = Digest::of(bytes);
        if let Some(&at) = self.at.get(&digest) {
            return at;
        }
        // Aligned, so that readers can map the file and use f64 in place.
        self.data.resize(self.data.len().next_multiple_of(16), 0);
        let at = self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.at.insert(digest, at);
        at
    }

    fn after(&mut self, expect: &Expect) -> ExpectedContent {
        match expect {
            Expect::Same => ExpectedContent::Unchanged,
            // A bundle has no format for columns, and no bundled case uses columns.
            Expect::Anything | Expect::Columns { .. } => ExpectedContent::Anything,
            Expect::Bytes(want) => ExpectedContent::Exactly { content: self.content(want) },
            Expect::Real { storage, want, tolerance } => {
                let bytes: Vec<u8> = want.iter().flat_map(|v| v.to_le_bytes()).collect();
                ExpectedContent::Near {
                    storage: match storage {
                        cases::Storage::F32 => Storage::F32,
                        cases::Storage::F16 => Storage::F16,
                    },
                    at: self.put(&bytes),
                    values: want.len() as u64,
                    norm: tolerance.norm,
                    each: tolerance.each,
                    reason: tolerance.reason.to_owned(),
                }
            }
        }
    }
}

/// The argument block in the code object's layout.
fn arguments(case: &Case, info: &KernelInfo) -> Result<Arguments, String> {
    if info.args.len() != case.args.len() {
        return Err(format!("{} arguments, but its code has {}", case.args.len(), info.args.len()));
    }
    let end = |offset: u32, size: u32| u64::from(offset) + u64::from(size);
    let total = info.args.iter().map(|a| end(a.offset, a.size)).max().unwrap_or(0);
    let mut block = vec![0u8; usize::try_from(total).map_err(|e| e.to_string())?];
    let (mut slots, mut buffers) = (vec![], 0);
    for (i, (arg, place)) in case.args.iter().zip(&info.args).enumerate() {
        let (kind, bytes) = match arg {
            CaseArg::Buffer { .. } => (SlotKind::Buffer, vec![0; 8]),
            CaseArg::Null => (SlotKind::Null, vec![0; 8]),
            CaseArg::U32(v) => (SlotKind::U32, v.to_le_bytes().to_vec()),
            CaseArg::U64(v) => (SlotKind::U64, v.to_le_bytes().to_vec()),
            CaseArg::F32(v) => (SlotKind::F32, v.to_le_bytes().to_vec()),
        };
        let start = place.offset as usize;
        match block.get_mut(start..start.saturating_add(bytes.len())) {
            Some(slot) if bytes.len() == place.size as usize => slot.copy_from_slice(&bytes),
            _ => {
                return Err(format!(
                    "argument {i} has {} bytes, but its code needs {}",
                    bytes.len(),
                    place.size
                ));
            }
        }
        let buffer = (kind == SlotKind::Buffer).then(|| {
            buffers += 1;
            buffers - 1
        });
        slots.push(BufferSlot { offset: place.offset, size: place.size, kind, buffer });
    }
    let hex = block.iter().map(|b| format!("{b:02x}")).collect();
    Ok(Arguments { hex, slots })
}

/// Writes the files, the checksums last. A folder without checksums is not a bundle.
fn publish(
    folder: &Path,
    manifest: &Manifest,
    data: &[u8],
    code: &[CodeObject],
) -> Result<Exported, BundleError> {
    let codes = folder.join("code");
    std::fs::create_dir(&codes).map_err(io(&codes))?;
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(|e| BundleError::Io { path: folder.join(MANIFEST), source: e.into() })?;
    let objects =
        manifest.code.iter().zip(code).map(|(listed, code)| (listed.file.as_str(), code.bytes()));
    let mut bytes = 0;
    let mut sums = String::new();
    let own = [(DATA, data), (MANIFEST, text.as_slice())];
    for (name, content) in FIXED_FILES.into_iter().chain(own).chain(objects) {
        let path = folder.join(name);
        std::fs::write(&path, content).map_err(io(&path))?;
        bytes += content.len() as u64;
        sums.push_str(&format!("{}  {name}\n", Digest::of(content)));
    }
    let path = folder.join(SUMS);
    std::fs::write(&path, &sums).map_err(io(&path))?;
    Ok(Exported {
        cases: manifest.cases.len(),
        code: code.len(),
        bytes: bytes + sums.len() as u64,
        left_out: manifest.left_out.iter().map(|l| l.name.clone()).collect(),
    })
}
