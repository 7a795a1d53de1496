//! Reads NVIDIA's cubins: ELF files whose `.nv.info` sections describe the arguments and resources
//! of kernels.
//!
//! NVIDIA does not document the attributes. The numbers below are from the output of nvrtc 12 and
//! 13 for sm_75 to sm_120, compared with `ptxas -v`; tests compile kernels with known values.

use super::info::{ArgInfo, KernelInfo};
use object::elf;
use object::read::elf::{ElfFile64, SectionHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};
use std::collections::HashMap;

/// ELF machine number of CUDA.
pub(super) const MACHINE: u16 = 190;

// Attribute numbers.
const MAX_THREADS: u8 = 0x05;
const FRAME_SIZE: u8 = 0x11;
const KPARAM_INFO: u8 = 0x17;
const REGCOUNT: u8 = 0x2f;

/// Bytes of shared memory that the linker puts before the kernel's shared memory from sm_90 on.
const RESERVED_SHARED: u64 = 1024;

/// The kernels of a cubin, sorted by name, or the reason why the bytes are invalid.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<KernelInfo>, String> {
    let file =
        ElfFile64::<LittleEndian>::parse(bytes).map_err(|e| format!("not an ELF file: {e}"))?;
    let names: HashMap<u32, &str> = file
        .symbols()
        .filter_map(|s| Some((u32::try_from(s.index().0).ok()?, s.name().ok()?)))
        .collect();
    let mut kernels: HashMap<String, KernelInfo> = HashMap::new();
    for section in file.sections() {
        let Ok(name) = section.name() else { continue };
        if let Some(kernel) = name.strip_prefix(".nv.info.") {
            let data = section.data().map_err(|e| format!("{name}: {e}"))?;
            let info = kernels.entry(kernel.to_owned()).or_default();
            kernel_attributes(data, info).map_err(|why| format!("{name}: {why}"))?;
        }
    }
    for section in file.sections() {
        let Ok(name) = section.name() else { continue };
        if name == ".nv.info" {
            let data = section.data().map_err(|e| format!("{name}: {e}"))?;
            for attribute in Attributes(data) {
                let (number, value) = attribute.map_err(|why| format!("{name}: {why}"))?;
                let (Some(symbol), Some(count)) = (word(value, 0), word(value, 4)) else {
                    continue;
                };
                let Some(info) = names.get(&symbol).and_then(|n| kernels.get_mut(*n)) else {
                    continue;
                };
                match number {
                    REGCOUNT => info.registers = count,
                    FRAME_SIZE => info.local = count,
                    _ => {}
                }
            }
        } else if let Some(info) = name.strip_prefix(".nv.shared.").and_then(|k| kernels.get_mut(k))
        {
            // Only newer linkers add the reserved kilobyte in front. They mark it with a section.
            let reserved = file.section_by_name(".nv.shared.reserved.0").is_some();
            let own = if reserved {
                section.size().saturating_sub(RESERVED_SHARED)
            } else {
                section.size()
            };
            info.shared =
                u32::try_from(own).map_err(|_| format!("{name}: {own} bytes of shared memory"))?;
        }
    }
    // The attributes are valid only if the kernel's `.text` exists.
    let mut found: Vec<KernelInfo> = Vec::with_capacity(kernels.len());
    for (name, mut info) in kernels {
        let text = file
            .section_by_name(&format!(".text.{name}"))
            .ok_or_else(|| format!("kernel {name} has no code"))?;
        if text.elf_section_header().sh_type(LittleEndian) != elf::SHT_PROGBITS || text.size() == 0
        {
            return Err(format!("kernel {name} has no code"));
        }
        info.args.sort_by_key(|a| a.offset);
        info.wave = Some(32);
        info.name = name;
        found.push(info);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn kernel_attributes(data: &[u8], info: &mut KernelInfo) -> Result<(), String> {
    let mut ordinals: Vec<(u16, ArgInfo)> = Vec::new();
    for attribute in Attributes(data) {
        let (number, value) = attribute?;
        match number {
            KPARAM_INFO => {
                let (Some(place), Some(flags)) = (word(value, 4), word(value, 8)) else {
                    return Err("truncated argument description".to_owned());
                };
                let ordinal = (place & 0xffff) as u16;
                // Bits 18 to 31 are the size. Arguments above 4 KiB, which do not occur, store more
                // bits in a second field.
                ordinals.push((
                    ordinal,
                    ArgInfo { offset: place >> 16, size: flags >> 18, kind: None },
                ));
            }
            MAX_THREADS => {
                let axes = [word(value, 0), word(value, 4), word(value, 8)];
                info.max_threads =
                    axes.into_iter().try_fold(1u32, |all, axis| all.checked_mul(axis?));
            }
            _ => {}
        }
    }
    ordinals.sort_by_key(|(ordinal, _)| *ordinal);
    for (expected, (ordinal, _)) in ordinals.iter().enumerate() {
        if usize::from(*ordinal) != expected {
            return Err(format!("argument {expected} is missing or described twice"));
        }
    }
    info.args = ordinals.into_iter().map(|(_, a)| a).collect();
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Iterates over a list of attributes: a format byte, a number byte, then nothing, a byte, a half
/// word, or a counted block.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u8, &'a [u8]), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&[format, number, low, high], rest) = match self.0 {
            [] => return None,
            bytes => match bytes.split_first_chunk::<4>() {
                Some(split) => split,
                None => {
                    self.0 = &[];
                    return Some(Err("truncated attribute".to_owned()));
                }
            },
        };
        let len = usize::from(u16::from_le_bytes([low, high]));
        match format {
            // No value, a byte or a half word: all are in these four bytes.
            1..=3 => {
                let value = self.0.get(2..4).unwrap_or_default();
                self.0 = rest;
                Some(Ok((number, value)))
            }
            4 => match rest.split_at_checked(len) {
                Some((value, rest)) => {
                    self.0 = rest;
                    Some(Ok((number, value)))
                }
                None => {
                    self.0 = &[];
                    Some(Err(format!(
                        "attribute {number:#x} needs {len} bytes, but {} remain",
                        rest.len()
                    )))
                }
            },
            _ => {
                self.0 = &[];
                Some(Err(format!("attribute format {format} is unknown")))
            }
        }
    }
}
