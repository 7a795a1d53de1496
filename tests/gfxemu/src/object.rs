//! A code object as a loader uses it, and the initial state of a wave from the kernel descriptor.

use object::{Object, ObjectSegment, ObjectSymbol};

/// A kernel of a code object.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bytes that a loader copies into memory, starting at address 0 of the code object.
    pub image: Vec<u8>,
    /// Address of the kernel's first instruction.
    pub entry: u64,
    /// Address after the kernel's last instruction.
    pub code_end: u64,
    /// The descriptor's first resource word.
    pub resources: u32,
    /// The first of the two registers with the address of the arguments.
    pub argument_pointer: u16,
    /// Number of user registers. The block numbers are in the registers after them.
    pub user_registers: u16,
    /// Which block numbers (x, y, z) the kernel receives.
    pub block_ids: [bool; 3],
    /// Whether subnormal f32 are flushed.
    pub flushes: bool,
    /// The kernel's scratch memory, if it has any.
    pub scratch: Option<ScratchUse>,
    /// Bytes of LDS that the kernel declares.
    pub lds: u32,
    /// Number of lanes in a wave, as compiled.
    pub wave: u32,
}

/// Scratch memory of a kernel: bytes of each lane, and the registers that the kernel receives.
#[derive(Clone, Copy, Debug)]
pub struct ScratchUse {
    /// Bytes of each lane.
    pub bytes: u32,
    /// The first of the four registers with the descriptor of the buffer of all waves.
    pub buffer: Option<u16>,
    /// The first of the two registers with the address for `flat_` instructions.
    pub flat: Option<u16>,
    /// The register with the wave's offset in the buffer.
    pub offset: Option<u16>,
}

/// Number of user registers for each bit of the descriptor's properties. Bit 3 is the argument
/// pointer.
const USERS: [u16; 7] = [4, 2, 2, 2, 2, 2, 1];

/// Checks the arithmetic modes of the first resource word: round to nearest even, subnormals kept.
/// Returns whether subnormal f32 are flushed as sources and results, as compilers choose for gfx8.
/// The error names any other mode.
pub fn modes(resources: u32) -> Result<bool, String> {
    let rounding = ["to the nearest", "up", "down", "to zero"];
    for (shift, bits) in [(12, "32"), (14, "16 and 64")] {
        let mode = (resources >> shift & 3) as usize;
        if mode != 0 {
            return Err(format!("rounds {bits} bits {}", rounding[mode]));
        }
    }
    let single = resources >> 16 & 3 == 0;
    for (shift, bits) in [(16, "32"), (18, "16 and 64")].into_iter().skip(usize::from(single)) {
        let flushed = ["sources and results", "results", "sources"];
        if let Some(what) = flushed.get((resources >> shift & 3) as usize) {
            return Err(format!("flushes subnormal {what} of {bits} bits"));
        }
    }
    Ok(single)
}

impl Kernel {
    /// The kernel `symbol` of the code object in `file`.
    pub fn read(file: &[u8], symbol: &str) -> Result<Kernel, String> {
        let elf = object::File::parse(file).map_err(|e| format!("no code object: {e}"))?;
        let mut image = Vec::new();
        for segment in elf.segments() {
            let bytes = segment.data().map_err(|e| e.to_string())?;
            let (from, whole) = (segment.address() as usize, segment.size() as usize);
            if from + whole > 1 << 30 {
                return Err(format!("a segment that ends at {:#x}", from + whole));
            }
            image.resize(image.len().max(from + whole), 0);
            image[from..from + bytes.len()].copy_from_slice(bytes);
        }
        let find = |name: &str| {
            elf.symbols()
                .chain(elf.dynamic_symbols())
                .find(|s| s.name() == Ok(name))
                .map(|s| (s.address(), s.size()))
        };
        let (at, _) = find(&format!("{symbol}.kd")).ok_or_else(|| format!("no kernel {symbol}"))?;
        let (code, code_size) = find(symbol).ok_or_else(|| format!("no code of {symbol}"))?;
        let d: [u8; 64] = image
            .get(at as usize..at as usize + 64)
            .and_then(|d| d.try_into().ok())
            .ok_or("a descriptor outside of the image")?;
        let word = |o: usize| u32::from_le_bytes(std::array::from_fn(|i| d[o + i]));
        let entry = i64::from_le_bytes(std::array::from_fn(|i| d[16 + i]));
        let (resources, second, properties) = (word(48), word(52), word(56) & 0xffff);
        let flushes =
            modes(resources).map_err(|which| format!("{symbol} {which}, which is not emulated"))?;
        let before: u16 = (0..3).filter(|b| properties >> b & 1 == 1).map(|b| USERS[b]).sum();
        if properties >> 3 & 1 == 0 {
            return Err(format!("{symbol} is not given its arguments' address"));
        }
        let user_registers = (second >> 1 & 31) as u16;
        let block_ids: [bool; 3] = std::array::from_fn(|a| second >> (7 + a) & 1 == 1);
        let has = |bit: u32| properties >> bit & 1 == 1;
        let scratch = (second & 1 == 1).then(|| {
            let before_flat: u16 = (0..5).filter(|&b| has(b)).map(|b| USERS[b as usize]).sum();
            // The offset is the last of the registers that the hardware sets. Families with a
            // buffer get it.
            let set = block_ids.iter().filter(|id| **id).count() as u16 + (second >> 10 & 1) as u16;
            ScratchUse {
                bytes: word(4),
                buffer: has(0).then_some(0),
                flat: has(5).then_some(before_flat),
                offset: has(0).then_some(user_registers + set),
            }
        });
        Ok(Kernel {
            flushes,
            scratch,
            entry: at.wrapping_add_signed(entry),
            code_end: code + code_size,
            image,
            resources,
            argument_pointer: before,
            user_registers,
            block_ids,
            lds: word(0),
            wave: if properties >> 10 & 1 == 1 { 32 } else { 64 },
        })
    }
}
