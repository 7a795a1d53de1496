//! Reads AMD's code objects. They are ELF files with a note; a MessagePack map in it describes the
//! arguments and resources of each kernel.
//!
//! The format is in LLVM's `AMDGPUUsage`, "Code Object V3 to V6 Metadata". Versions 3 to 6 use the
//! same field names.

use super::info::{ArgInfo, ArgKind, KernelInfo};
use crate::arch::ARCHS;
use object::read::elf::{ElfFile64, SectionHeader};
use object::{LittleEndian, Object, ObjectSymbol};
use rmpv::ValueRef;
use std::collections::HashSet;

/// ELF machine number of AMDGPU.
pub(super) const MACHINE: u16 = 224;

/// Note type of the metadata, under the name `AMDGPU`.
const NT_AMDGPU_METADATA: u32 = 32;

/// Maximum nesting of the metadata.
const MOST_DEPTH: usize = 16;

/// The kernels of a code object, sorted by name, or the reason why the bytes are invalid.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<KernelInfo>, String> {
    let file =
        ElfFile64::<LittleEndian>::parse(bytes).map_err(|e| format!("not an ELF file: {e}"))?;
    let note = metadata(&file)?;
    let mut rest = note;
    let root = rmpv::decode::read_value_ref_with_max_depth(&mut rest, MOST_DEPTH)
        .map_err(|e| format!("its metadata is not MessagePack: {e}"))?;
    let root = Map::of(&root).ok_or("its metadata is not a map")?;
    let target = root.text("amdhsa.target").unwrap_or_default();
    let symbols: HashSet<&str> = file
        .symbols()
        .chain(file.dynamic_symbols())
        .filter(|s| s.is_definition())
        .filter_map(|s| s.name().ok())
        .collect();
    let mut kernels = Vec::new();
    for kernel in root.list("amdhsa.kernels") {
        let kernel = Map::of(kernel).ok_or("a kernel's metadata is not a map")?;
        let info = describe(&kernel, target)?;
        // A launch needs the kernel descriptor, so its symbol must exist as well.
        for symbol in [kernel.text(".symbol").unwrap_or_default(), &info.name] {
            if !symbols.contains(symbol) {
                return Err(format!("kernel {} has no symbol '{symbol}'", info.name));
            }
        }
        kernels.push(info);
    }
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(kernels)
}

/// Version of the code object. `EI_ABIVERSION` of the ELF header is 1 for version 3, 2 for version
/// 4, and so on.
pub(super) fn version(bytes: &[u8]) -> Option<u32> {
    const EI_ABIVERSION: usize = 8;
    bytes.get(EI_ABIVERSION).map(|v| u32::from(*v) + 2)
}

/// The metadata's bytes.
fn metadata<'d>(file: &ElfFile64<'d, LittleEndian>) -> Result<&'d [u8], String> {
    for section in file.sections() {
        let header = section.elf_section_header();
        let notes = header.notes(LittleEndian, file.data()).map_err(|e| format!("notes: {e}"))?;
        let Some(mut notes) = notes else { continue };
        while let Some(note) = notes.next().map_err(|e| format!("notes: {e}"))? {
            if note.name() == b"AMDGPU" && note.n_type(LittleEndian) == NT_AMDGPU_METADATA {
                return Ok(note.desc());
            }
        }
    }
    Err("no AMDGPU metadata note".to_owned())
}

fn describe(kernel: &Map<'_>, target: &str) -> Result<KernelInfo, String> {
    let name = kernel.text(".name").ok_or("a kernel without a name")?.to_owned();
    let number = |key: &str| match kernel.get(key) {
        None => Ok(None),
        Some(value) => {
            let n = value.as_u64().and_then(|n| u32::try_from(n).ok());
            n.map(Some).ok_or_else(|| format!("kernel {name}: {key} is not a number"))
        }
    };
    let need = |key: &str| number(key)?.ok_or_else(|| format!("kernel {name}: {key} is missing"));
    let block = need(".kernarg_segment_size")?;
    let mut args = Vec::new();
    for (index, arg) in kernel.list(".args").iter().enumerate() {
        let wrong = |what: &str| format!("kernel {name}: argument {index} {what}");
        let arg = Map::of(arg).ok_or_else(|| wrong("is not a map"))?;
        let value = |key: &str| {
            let n = arg.get(key).and_then(|v| v.as_u64()).and_then(|n| u32::try_from(n).ok());
            n.ok_or_else(|| wrong(&format!("has no {key}")))
        };
        let word = arg.text(".value_kind").ok_or_else(|| wrong("has no .value_kind"))?;
        if word.starts_with("hidden_") {
            continue; // the runtime sets it
        }
        let (offset, size) = (value(".offset")?, value(".size")?);
        if offset.checked_add(size).is_none_or(|end| end > block) {
            return Err(wrong(&format!("is outside the argument block of {block} bytes")));
        }
        let kind = match word {
            "global_buffer" if size == 8 => Some(ArgKind::Buffer),
            "by_value" => Some(ArgKind::Value),
            // Images, queues, dynamic LDS pointers: kjit's kernels have no such arguments, and a
            // launch cannot pass them.
            _ => {
                return Err(wrong(&format!("is a {word} of {size} bytes, which kjit cannot pass")));
            }
        };
        args.push(ArgInfo { offset, size, kind });
    }
    args.sort_by_key(|a| a.offset);
    let agprs = number(".agpr_count")?.unwrap_or(0);
    let total = need(".vgpr_count")?;
    // amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-
    let id = target
        .rsplit('-')
        .find_map(|part| part.split(':').next().filter(|id| id.starts_with("gfx")));
    let one_file = ARCHS.iter().any(|a| Some(a.id) == id && a.one_register_file());
    Ok(KernelInfo {
        args,
        arg_bytes: Some(block),
        // LLVM writes VGPRs + AGPRs if both are in one register file, otherwise the larger number.
        registers: if one_file { total.saturating_sub(agprs) } else { total },
        agprs,
        one_file,
        sgprs: need(".sgpr_count")?,
        shared: need(".group_segment_fixed_size")?,
        local: need(".private_segment_fixed_size")?,
        // Only the oldest compilers omit this field. Zero is written explicitly.
        spills: number(".vgpr_spill_count")?
            .map(|v| Ok::<_, String>(v.saturating_add(number(".sgpr_spill_count")?.unwrap_or(0))))
            .transpose()?,
        wave: Some(need(".wavefront_size")?),
        max_threads: number(".max_flat_workgroup_size")?,
        name,
    })
}

/// A MessagePack map with string keys.
struct Map<'a>(&'a [(ValueRef<'a>, ValueRef<'a>)]);

impl<'a> Map<'a> {
    fn of(value: &'a ValueRef<'a>) -> Option<Map<'a>> {
        match value {
            ValueRef::Map(pairs) => Some(Map(pairs)),
            _ => None,
        }
    }

    fn get(&self, key: &str) -> Option<&'a ValueRef<'a>> {
        self.0
            .iter()
            .find(|(k, _)| matches!(k, ValueRef::String(s) if s.as_str() == Some(key)))
            .map(|(_, v)| v)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            ValueRef::String(text) => text.as_str(),
            _ => None,
        }
    }

    fn list(&self, key: &str) -> &'a [ValueRef<'a>] {
        match self.get(key) {
            Some(ValueRef::Array(list)) => list,
            _ => &[],
        }
    }
}
