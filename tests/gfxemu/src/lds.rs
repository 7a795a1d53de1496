//! A block's LDS: its bytes, their undefined bits and the last accesses to them. Detects waves that
//! access the same byte without a barrier between them.

/// An access: the number of the wave, its phase (number of barriers so far), and the number of its
/// LDS operation.
#[derive(Clone, Copy, Debug)]
struct LdsAccess {
    wave: u16,
    phase: u32,
    operation: u32,
}

const NO_WAVE: u16 = u16::MAX;
/// Several waves in the same phase.
const SEVERAL_WAVES: u16 = u16::MAX - 1;
const NONE: LdsAccess = LdsAccess { wave: NO_WAVE, phase: 0, operation: 0 };

/// The kind of an LDS operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Reads and writes in one step. The order of atomics does not matter.
    Atomic,
}

/// The wave that makes an LDS access, and the time.
#[derive(Clone, Copy, Debug)]
pub struct WaveAccess {
    /// The wave's number in its block.
    pub wave: u16,
    /// Number of barriers that the wave has passed.
    pub phase: u32,
    /// The number of its LDS operation.
    pub operation: u32,
}

/// LDS of a block.
#[derive(Debug)]
pub struct Lds {
    bytes: Vec<u8>,
    bad: Vec<u8>,
    writers: Vec<LdsAccess>,
    atomic: Vec<bool>,
    readers: Vec<LdsAccess>,
    /// The number of the last LDS operation that was complete at the last barrier, for each wave.
    pub settled: Vec<u32>,
}

impl Lds {
    /// LDS of `size` unwritten bytes.
    pub fn new(size: usize, waves: usize, mut random: impl FnMut() -> u8) -> Lds {
        Lds {
            bytes: (0..size).map(|_| random()).collect(),
            bad: vec![0xff; size],
            writers: vec![NONE; size],
            atomic: vec![false; size],
            readers: vec![NONE; size],
            settled: vec![0; waves],
        }
    }

    fn range(&self, at: u32, size: usize) -> Result<std::ops::Range<usize>, String> {
        let range = at as usize..at as usize + size;
        if range.end > self.bytes.len() {
            return Err(format!(
                "{size} bytes of LDS at {at:#x}; the block has {:#x}",
                self.bytes.len()
            ));
        }
        let aligned = if size == 12 { 16 } else { size.max(1) };
        if !(at as usize).is_multiple_of(aligned) {
            return Err(format!("{size} bytes of LDS at {at:#x}, which is not aligned"));
        }
        Ok(range)
    }

    /// Whether the access `touch` certainly precedes the current access of `who`.
    fn ordered(&self, touch: &LdsAccess, who: &WaveAccess) -> Result<(), &'static str> {
        if touch.wave == NO_WAVE || touch.wave == who.wave {
            Ok(())
        } else if touch.phase == who.phase {
            Err("with no barrier between")
        } else if touch.wave != SEVERAL_WAVES && touch.operation > self.settled[touch.wave as usize]
        {
            Err("and did not wait for that before the barrier")
        } else {
            Ok(())
        }
    }

    fn look(
        &mut self,
        range: std::ops::Range<usize>,
        who: &WaveAccess,
        kind: Kind,
    ) -> Result<(), String> {
        for i in range {
            let (writer, reader) = (self.writers[i], self.readers[i]);
            let both_atomic = kind == Kind::Atomic && self.atomic[i];
            if !both_atomic && let Err(why) = self.ordered(&writer, who) {
                return Err(format!("LDS byte {i:#x}: wave {} wrote it {why}", name(writer.wave)));
            }
            if kind != Kind::Read
                && let Err(why) = self.ordered(&reader, who)
            {
                return Err(format!("LDS byte {i:#x}: wave {} read it {why}", name(reader.wave)));
            }
            let now = LdsAccess { wave: who.wave, phase: who.phase, operation: who.operation };
            if kind == Kind::Read {
                let other =
                    reader.wave != NO_WAVE && reader.wave != who.wave && reader.phase == who.phase;
                self.readers[i] =
                    LdsAccess { wave: if other { SEVERAL_WAVES } else { who.wave }, ..now };
            } else {
                let other = both_atomic && writer.wave != who.wave && writer.phase == who.phase;
                self.writers[i] =
                    LdsAccess { wave: if other { SEVERAL_WAVES } else { who.wave }, ..now };
                self.atomic[i] = kind == Kind::Atomic;
            }
        }
        Ok(())
    }

    /// Reads bytes with their undefined bits.
    pub fn read(
        &mut self,
        who: &WaveAccess,
        at: u32,
        out: &mut [u8],
        bad: &mut [u8],
    ) -> Result<(), String> {
        let range = self.range(at, out.len())?;
        self.look(range.clone(), who, Kind::Read)?;
        out.copy_from_slice(&self.bytes[range.clone()]);
        bad.copy_from_slice(&self.bad[range]);
        Ok(())
    }

    /// Writes bytes with their undefined bits.
    pub fn write(
        &mut self,
        who: &WaveAccess,
        at: u32,
        bytes: &[u8],
        bad: &[u8],
    ) -> Result<(), String> {
        let range = self.range(at, bytes.len())?;
        self.look(range.clone(), who, Kind::Write)?;
        self.bytes[range.clone()].copy_from_slice(bytes);
        self.bad[range].copy_from_slice(bad);
        Ok(())
    }

    /// Changes 4 or 8 bytes. Returns the old value.
    pub fn atomic(
        &mut self,
        who: &WaveAccess,
        at: u32,
        size: usize,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, String> {
        let range = self.range(at, size)?;
        self.look(range.clone(), who, Kind::Atomic)?;
        if self.bad[range.clone()].iter().any(|&b| b != 0) {
            return Err(format!("an atomic on undefined LDS at {at:#x}"));
        }
        let mut old = [0; 8];
        old[..size].copy_from_slice(&self.bytes[range.clone()]);
        let old = u64::from_le_bytes(old);
        self.bytes[range].copy_from_slice(&change(old).to_le_bytes()[..size]);
        Ok(old)
    }
}

fn name(wave: u16) -> String {
    if wave == SEVERAL_WAVES { "several".into() } else { wave.to_string() }
}
