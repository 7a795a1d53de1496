//! The common part of hiprtc and clang: both are LLVM with the AMDGPU target.

use super::discover::loader_folders;
use crate::arch::Target;
use crate::source::Options;
use object::read::elf::{Dyn, FileHeader};
use object::{LittleEndian, ReadCache, elf};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The options of a compile, without source and headers. They contain no path.
pub(super) fn arguments(compile_id: &str, options: &Options) -> Vec<String> {
    let mut arguments =
        vec![format!("--offload-arch={compile_id}"), "-O3".to_owned(), "-std=c++17".to_owned()];
    // Version 6 is the default of clang 22 and needs a newer runtime. The versions differ in hidden
    // arguments, which kjit's kernels do not read.
    arguments.push("-mcode-object-version=5".to_owned());
    // RDNA runs both widths, with 32 as the compiler's default. GCN and CDNA have only 64 and no
    // such flag.
    let both = Target::parse(compile_id).is_ok_and(|t| t.waves().len() > 1);
    if both && options.wave == 64 {
        arguments.push("-mwavefrontsize64".to_owned());
    }
    if options.fast_math {
        // The effect of nvrtc's --use_fast_math. -ffast-math would assume that NaN and infinity
        // never occur.
        let flags = [
            "-ffp-contract=fast",
            "-freciprocal-math",
            "-fapprox-func",
            "-fgpu-flush-denormals-to-zero",
        ];
        arguments.extend(flags.map(str::to_owned));
    }
    arguments
}

/// The libraries of the compiler that `file` loads, without system libraries. Their bytes influence
/// the output. They are searched as by the loader: in the folder of the file that needs them (the
/// `RUNPATH` of compilers contains only that) or on the loader's path.
pub(super) fn libraries(file: &Path) -> Vec<PathBuf> {
    const OURS: &[&str] = &["libamd_comgr", "libhiprtc", "libLLVM", "libclang", "libamdhip64"];
    let mut found = BTreeSet::new();
    let mut open = vec![file.to_owned()];
    while let Some(file) = open.pop() {
        let own = file
            .parent()
            .into_iter()
            .flat_map(|f| [f.to_owned(), f.join("../lib"), f.join("../lib64")]);
        let folders: Vec<PathBuf> = own.chain(loader_folders().iter().cloned()).collect();
        for name in needed(&file).unwrap_or_default() {
            if !OURS.iter().any(|ours| name.starts_with(ours)) {
                continue;
            }
            let place = folders.iter().find_map(|f| f.join(&name).canonicalize().ok());
            if let Some(place) = place.filter(|p| found.insert(p.clone())) {
                open.push(place);
            }
        }
    }
    found.into_iter().collect()
}

/// The `DT_NEEDED` entries of a file. Only the headers are read, because the file may have a
/// hundred megabytes.
fn needed(file: &Path) -> Option<Vec<String>> {
    let cache = ReadCache::new(std::fs::File::open(file).ok()?);
    let header = elf::FileHeader64::<LittleEndian>::parse(&cache).ok()?;
    let sections = header.sections(LittleEndian, &cache).ok()?;
    let (entries, strings) = sections.dynamic(LittleEndian, &cache).ok()??;
    let strings = sections.strings(LittleEndian, &cache, strings).ok()?;
    let needed = entries.iter().filter(|e| e.tag(LittleEndian) == elf::DT_NEEDED);
    Some(
        needed
            .filter_map(|e| {
                Some(String::from_utf8_lossy(e.string(LittleEndian, strings).ok()?).into_owned())
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wave_64_flag_is_only_used_on_rdna() {
        let has = |id: &str, wave| {
            arguments(id, &Options::wave(wave)).contains(&"-mwavefrontsize64".to_owned())
        };
        assert!(has("gfx1100", 64) && has("gfx1010:xnack-", 64));
        assert!(!has("gfx1100", 32) && !has("gfx90a:xnack-", 64));
    }

    #[test]
    fn fast_math_flags_preserve_nan_and_infinity() {
        let fast = arguments("gfx942", &Options::wave(64).fast_math(true));
        assert!(fast.len() > arguments("gfx942", &Options::wave(64)).len());
        assert!(fast.iter().all(|a| !a.contains("finite") && a != "-ffast-math"), "{fast:?}");
    }
}
