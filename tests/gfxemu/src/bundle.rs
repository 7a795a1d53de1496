//! Proof bundles (test cases for a card): reads them from disk, runs them and compares the results
//! with the expected ones.

use crate::machine::{Launch, Machine};
use crate::object::Kernel;
use crate::region::Region;
use crate::target::Target;
use half::f16;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The first address of the emulated memory, and the minimum gap between two buffers.
const FIRST: u64 = 0x1_0000_0000;
const GAP: u64 = 0x10_0000;
const PAGE: u64 = 4096;

#[derive(Debug, Deserialize)]
struct Manifest {
    arch: String,
    code: Vec<Code>,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Code {
    file: String,
    compiler: String,
}

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    code: usize,
    symbol: String,
    wave: u32,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_lds: u32,
    static_lds: u32,
    kernarg_bytes: Option<u32>,
    cooperative: bool,
    arguments: Arguments,
    buffers: Vec<Buffer>,
}

#[derive(Debug, Deserialize)]
struct Arguments {
    hex: String,
    slots: Vec<BufferSlot>,
}

#[derive(Debug, Deserialize)]
struct BufferSlot {
    offset: usize,
    kind: String,
    buffer: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Buffer {
    name: String,
    bytes: usize,
    before: Content,
    after: ExpectedContent,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Content {
    Fill(u8),
    At(usize),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "must_be", rename_all = "snake_case")]
enum ExpectedContent {
    Unchanged,
    Anything,
    Exactly { content: Content },
    Near { storage: Storage, at: usize, values: usize, norm: f64, each: f64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Storage {
    F32,
    F16,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum CaseResult {
    /// All buffers are as expected. The value is the number of executed instructions.
    Right(u64),
    /// A buffer differs from its expected content.
    Wrong(String),
    /// The machine code breaks a rule.
    Fault(String),
    /// An instruction or a property of the kernel is not emulated.
    Unknown(String),
}

/// A bundle for an AMD architecture.
#[derive(Debug)]
pub struct Bundle {
    folder: PathBuf,
    manifest: Manifest,
    data: Vec<u8>,
    /// See [`Target::excused`].
    pub excused: bool,
    /// See [`Machine::loose`].
    pub loose: bool,
}

impl Bundle {
    /// Reads the manifest and the data of the bundle in `folder`. `check_bundle.py` in the bundle
    /// verifies their checksums.
    pub fn open(folder: &Path) -> Result<Bundle, String> {
        let read = |name: &str| {
            std::fs::read(folder.join(name))
                .map_err(|e| format!("{}: {e}", folder.join(name).display()))
        };
        let manifest: Manifest = serde_json::from_slice(&read("manifest.json")?)
            .map_err(|e| format!("{}/manifest.json: {e}", folder.display()))?;
        Ok(Bundle {
            folder: folder.to_path_buf(),
            manifest,
            data: read("data.bin")?,
            excused: false,
            loose: false,
        })
    }

    /// The architecture for which the bundle was made.
    pub fn arch(&self) -> &str {
        &self.manifest.arch
    }

    /// The compiler of the first code object; empty if there is none.
    pub fn compiler(&self) -> &str {
        self.manifest.code.first().map_or("", |code| &code.compiler)
    }

    /// Number of cases.
    pub fn len(&self) -> usize {
        self.manifest.cases.len()
    }

    /// Whether the bundle has no cases.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of a case.
    pub fn name(&self, case: usize) -> &str {
        &self.manifest.cases[case].name
    }

    /// The kernel of a case.
    pub fn symbol(&self, case: usize) -> &str {
        &self.manifest.cases[case].symbol
    }

    /// The number of lanes in a wave of a case.
    pub fn wave(&self, case: usize) -> u32 {
        self.manifest.cases[case].wave
    }

    /// Number of threads in the grid of a case, to sort cases by work.
    pub fn threads(&self, case: usize) -> u64 {
        let c = &self.manifest.cases[case];
        c.grid.iter().chain(&c.block).map(|&n| u64::from(n)).product()
    }

    fn content(&self, content: &Content, bytes: usize) -> Result<Vec<u8>, String> {
        match content {
            Content::Fill(b) => Ok(vec![*b; bytes]),
            Content::At(at) => self
                .data
                .get(*at..at + bytes)
                .map(<[u8]>::to_vec)
                .ok_or_else(|| format!("data.bin ends before {at} + {bytes}")),
        }
    }

    /// The machine for a case, with its code at a fixed address.
    pub fn machine(&self, case: usize) -> Result<Machine, String> {
        let c = &self.manifest.cases[case];
        let path =
            self.folder.join(&self.manifest.code.get(c.code).ok_or("no such code object")?.file);
        let file = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let kernel = Kernel::read(&file, &c.symbol)?;
        if kernel.wave != c.wave || kernel.lds != c.static_lds {
            return Err(format!(
                "the descriptor says wave {} and {} bytes of LDS",
                kernel.wave, kernel.lds
            ));
        }
        let base = FIRST - GAP - (kernel.image.len() as u64).next_multiple_of(PAGE);
        // The part after the architecture names features that the kernels do not use. It is
        // ignored.
        let arch = self.manifest.arch.split(':').next().unwrap_or_default();
        let mut target = Target::new(arch, c.wave)?;
        target.excused = self.excused;
        let mut machine = Machine::new(target, kernel, base)?;
        machine.loose = self.loose;
        Ok(machine)
    }

    /// Runs a case and compares its buffers with the expected ones.
    pub fn run(&self, case: usize, seed: u64) -> CaseResult {
        match self.machine(case) {
            Ok(mut machine) => self.run_on(&mut machine, case, seed),
            Err(why) => CaseResult::Unknown(why),
        }
    }

    /// Runs a case once for each executed instruction whose text contains `part`, with that
    /// instruction skipped. Returns the verdict of each run.
    pub fn run_without(
        &self,
        case: usize,
        part: &str,
        seed: u64,
    ) -> Result<Vec<(String, CaseResult)>, String> {
        let mut machine = self.machine(case)?;
        match self.run_on(&mut machine, case, seed) {
            CaseResult::Right(_) => {}
            other => return Err(format!("with all of them: {other:?}")),
        }
        let mut places = Vec::new();
        for (at, inst) in machine.listing().into_iter().filter(|(at, _)| machine.executed(*at)) {
            let inst = inst?;
            if inst.text.contains(part) {
                places.push((at, inst.text));
            }
        }
        let mut out = Vec::new();
        for (at, text) in places {
            machine.skipped = vec![at];
            out.push((format!("{at:#x} {text}"), self.run_on(&mut machine, case, seed)));
        }
        Ok(out)
    }

    /// Runs a case on a machine that [`Bundle::machine`] made.
    pub fn run_on(&self, machine: &mut Machine, case: usize, seed: u64) -> CaseResult {
        let c = &self.manifest.cases[case];
        let (launch, regions) = match self.lay_out(machine, c, seed) {
            Ok(both) => both,
            Err(why) => return CaseResult::Unknown(why),
        };
        match machine.run(&launch, regions) {
            Ok((memory, instructions)) => {
                for (i, b) in c.buffers.iter().enumerate() {
                    let what = format!("buffer {i} ({})", b.name);
                    let got = memory
                        .regions
                        .iter()
                        .find(|r| r.what == what)
                        .map(|r| &*r.bytes)
                        .unwrap_or_default();
                    match self.wrong(b, got) {
                        Ok(None) => {}
                        Ok(Some(why)) => return CaseResult::Wrong(format!("{what}: {why}")),
                        Err(why) => return CaseResult::Unknown(why),
                    }
                }
                CaseResult::Right(instructions)
            }
            Err(fault) if fault.what.contains("is unknown") => CaseResult::Unknown(fault.what),
            Err(fault) => CaseResult::Fault(fault.what),
        }
    }

    fn lay_out(
        &self,
        machine: &Machine,
        c: &Case,
        seed: u64,
    ) -> Result<(Launch, Vec<Region>), String> {
        let (base, image) = machine.image();
        let mut regions = vec![Region::new("code", base, image.to_vec(), false)];
        let mut at = FIRST;
        let mut place = |bytes: usize| {
            let whole = (bytes as u64).next_multiple_of(256);
            let pages = whole.div_ceil(PAGE).max(1);
            let address = at + pages * PAGE - whole;
            at = (at + pages * PAGE + GAP).next_multiple_of(GAP);
            address
        };
        let mut addresses = Vec::new();
        for (i, b) in c.buffers.iter().enumerate() {
            let address = place(b.bytes);
            addresses.push(address);
            regions.push(Region::new(
                format!("buffer {i} ({})", b.name),
                address,
                self.content(&b.before, b.bytes)?,
                true,
            ));
        }
        let hex = &c.arguments.hex;
        let byte = |i: usize| {
            hex.get(i..i + 2)
                .and_then(|b| u8::from_str_radix(b, 16).ok())
                .ok_or("arguments are not hex")
        };
        let mut block = (0..hex.len() / 2).map(|i| byte(2 * i)).collect::<Result<Vec<u8>, _>>()?;
        // The compiler may load an argument in blocks of 16 bytes, past its end.
        let whole = block.len().max(c.kernarg_bytes.unwrap_or(0) as usize).next_multiple_of(16);
        block.resize(whole, seed as u8);
        for slot in c.arguments.slots.iter().filter(|s| s.kind == "buffer") {
            let address = slot
                .buffer
                .and_then(|b| addresses.get(b))
                .ok_or("an argument without its buffer")?;
            let place = block
                .get_mut(slot.offset..slot.offset + 8)
                .ok_or("an argument behind the block")?;
            place.copy_from_slice(&address.to_le_bytes());
        }
        let arguments = place(block.len());
        regions.push(Region::new("arguments", arguments, block, false));
        let launch = Launch {
            grid: c.grid,
            block: c.block,
            lds: (c.static_lds + c.dynamic_lds) as usize,
            cooperative: c.cooperative,
            arguments,
            seed,
            limit: if machine.skipped.is_empty() { 200_000_000 } else { 2_000_000 },
        };
        Ok((launch, regions))
    }

    /// Compares a buffer after the launch by the rules of the bundle's README.txt; returns the
    /// first error.
    fn wrong(&self, b: &Buffer, got: &[u8]) -> Result<Option<String>, String> {
        let differs = |want: Vec<u8>| {
            let at = (0..b.bytes).find(|&i| got.get(i) != want.get(i))?;
            Some(format!("byte {at} is {:#04x}, not {:#04x}", got[at], want[at]))
        };
        let (storage, at, values, norm, each) = match &b.after {
            ExpectedContent::Anything => return Ok(None),
            ExpectedContent::Unchanged => return Ok(differs(self.content(&b.before, b.bytes)?)),
            ExpectedContent::Exactly { content } => {
                return Ok(differs(self.content(content, b.bytes)?));
            }
            ExpectedContent::Near { storage, at, values, norm, each } => {
                (*storage, *at, *values, *norm, *each)
            }
        };
        let want: Vec<f64> = self
            .content(&Content::At(at), 8 * values)?
            .as_chunks()
            .0
            .iter()
            .map(|w| f64::from_le_bytes(*w))
            .collect();
        let got: Vec<f64> = match storage {
            Storage::F32 => {
                got.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect()
            }
            Storage::F16 => {
                got.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x).to_f64()).collect()
            }
        };
        if got.len() != want.len() {
            return Err(format!("{} values expected of {}", want.len(), got.len()));
        }
        let wanted = || want.iter().filter(|w| !w.is_nan());
        let squares: f64 = wanted().map(|w| w * w).sum();
        let rms = (squares / wanted().count().max(1) as f64).sqrt();
        let mut off = 0.0;
        for (i, (w, g)) in want.iter().zip(&got).enumerate() {
            if w.is_nan() && !g.is_nan() {
                return Ok(Some(format!("element {i} is {g}, but it must not be written")));
            }
            // The negation makes a NaN fail.
            if !w.is_nan() && !((g - w).abs() <= each * rms) {
                return Ok(Some(format!(
                    "element {i} is {g}, not {w} (root mean square {rms:.3e})"
                )));
            }
            if !w.is_nan() {
                off += (g - w) * (g - w);
            }
        }
        let off = off.sqrt() / squares.sqrt().max(f64::MIN_POSITIVE);
        Ok((off > norm).then(|| format!("off by {off:.2e} of its norm, {norm:.0e} allowed")))
    }
}
