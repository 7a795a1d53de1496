//! Compiler faults found by emulating the machine code: a compiler moves an instruction. No other
//! test can detect them: simulated devices run the source, which is correct.

use kjit_engine::{Config, Constants, Engine, Isolation, Job, Options, Source, Target, Vendor};
use kjit_kernels::Family;
use kjit_kernels::flash::FlashSpec;
use kjit_kernels::heads::Scores;
use kjit_kernels::kv::{KvLayout, KvStorage};
use std::path::PathBuf;

/// A sum over a wave that only some lanes use, as attention does with its parts.
const SUM: &str = r#"
#include "kjit.h"
KERNEL sum(float* p) {
    u32 t = thread_id();
    float v = p[t] * 2.0f;
    v += wave_xor(v, 16);
    v += wave_xor(v, 32);
    if (t < 16) p[t] = v;
}
"#;

/// 32-bit words of the `.text` section of a 64-bit ELF file.
fn text(elf: &[u8]) -> Vec<u32> {
    let number = |at: usize, size: usize| {
        elf[at..at + size].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b))
    };
    let (headers, size, count, names) =
        (number(40, 8), number(58, 2), number(60, 2), number(62, 2));
    let header = |i: usize| headers + i * size;
    let strings = number(header(names) + 24, 8);
    let is_text = |i: &usize| elf[strings + number(header(*i), 4)..].starts_with(b".text\0");
    let of = header((0..count).find(is_text).expect("a .text section"));
    let (start, length) = (number(of + 24, 8), number(of + 32, 8));
    elf[start..start + length].as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
}

/// `v_permlane64_b32` (VOP1, operation 0x67).
fn permlane64(word: u32) -> bool {
    word & 0xfe01_fe00 == 0x7e00_ce00
}

/// Disables lanes: `v_cmpx_…` (VOPC, operations from 0x80 on) or `s_and_saveexec_b64` (SOP1,
/// operation 0x21).
fn masks_lanes(word: u32) -> bool {
    (word >> 25 == 0x3e && word >> 24 & 1 == 1) || word & 0xff80_ff00 == 0xbe80_2100
}

/// The padding after the code.
const S_CODE_END: u32 = 0xbf9f_0000;

/// Matrix instructions of CDNA, and those that read and write their accumulation registers (VOP3P,
/// operations from 0x40 on).
fn accumulates(word: u32) -> bool {
    word >> 23 == 0x1a7 && word >> 16 & 0x7f >= 0x40
}

/// Debian's clang 19 is tested: it copies accumulation registers of gfx908 through a vector
/// register that it does not write.
#[test]
fn clang_19_miscompiles_gfx908_accumulation_register_copies() {
    let Some((engine, folder)) = clang("copies") else { return };
    let target = Target::parse("gfx908").unwrap();
    let major = engine.compiler_for(&target).unwrap().compiler.version.0;
    let code = engine.compile(&kjit_kernels::agpr_copy_check::probe_job(&target).unwrap()).unwrap();
    assert!(
        text(code.bytes()).into_iter().filter(|&w| accumulates(w)).count() > 10,
        "the check does not detect the fault"
    );
    if major == 19 {
        assert!(!kjit_kernels::agpr_copy_check::copies_are_correct(code.bytes()));
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// Attention does not use such copies if the compiler was not tested (`Product::of_attention`).
#[test]
fn gfx908_attention_avoids_accumulation_registers() {
    let Some((engine, folder)) = clang("gfx908") else { return };
    let spec = |heads, kv_heads, head_dim, storage| FlashSpec {
        heads,
        kv: KvLayout { heads: kv_heads, head_dim, storage },
        scale: 0.125,
        scores: Scores::default(),
        paged: false,
        tuning: None,
    };
    for spec in [
        spec(9, 3, 64, KvStorage::F16),
        spec(32, 8, 128, KvStorage::Q8_0),
        spec(8, 4, 256, KvStorage::F16),
    ] {
        let count = |arch| {
            let target = Target::parse(arch).unwrap();
            let code = engine.compile(&spec.kernel(&target).unwrap().job(&target)).unwrap();
            text(code.bytes()).into_iter().filter(|&w| accumulates(w)).count()
        };
        assert_eq!(count("gfx908"), 0, "{spec:?}");
        assert!(count("gfx90a") > 0, "{spec:?}: the code has no MFMA instructions");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// Instructions around the write-back of a cache.
#[derive(Debug, Clone, Copy, PartialEq)]
enum WriteBack {
    /// `buffer_wbl2` (MUBUF, operation 0x28).
    WritesBack,
    /// `s_waitcnt` with vmcnt(0), for stores and for the write-back.
    Waits,
    /// `global_atomic_…`, `flat_atomic_…` (operations from 0x40 on), `s_barrier`: signal to others
    /// that earlier stores are visible.
    Tells,
}

fn mark(word: u32) -> Option<WriteBack> {
    match word {
        w if w & 0xfffc_0000 == 0xe0a0_0000 => Some(WriteBack::WritesBack),
        w if w & 0xffff_c00f == 0xbf8c_0000 => Some(WriteBack::Waits),
        w if w >> 26 == 0x37 && w >> 18 & 0x7f >= 0x40 => Some(WriteBack::Tells),
        0xbf8a_0000 => Some(WriteBack::Tells),
        _ => None,
    }
}

/// A wave of gfx942 writes its stores back to memory that all dies see, waits for completion, and
/// only then arrives at the barrier after which one thread signals the other blocks. LLVM before
/// 2026 omits that wait if this thread has no store in flight, as for the write-backs after that
/// barrier: the thread has already waited for its stores. Before the barrier the wait is present,
/// because there are stores.
#[test]
fn gfx942_waits_for_write_back_before_signalling() {
    let Some((engine, folder)) = clang("gfx942") else { return };
    let target = Target::parse("gfx942").unwrap();
    let all = kjit_kernel_cases::matrix::representative(&target).unwrap();
    let told = ["attend 32/8 × 128 F16", "attend 9/3 × 64 Q8_0", "argmax"];
    let samples: Vec<_> = all.into_iter().filter(|s| told.contains(&s.name.as_str())).collect();
    assert_eq!(samples.len(), told.len());
    for sample in samples {
        let words = text(engine.compile(&sample.kernel.job(&target)).unwrap().bytes());
        let marks: Vec<WriteBack> = words.iter().filter_map(|w| mark(*w)).collect();
        let back = marks.iter().position(|m| *m == WriteBack::WritesBack);
        let back = back.unwrap_or_else(|| panic!("{}: the code has no write-back", sample.name));
        assert_eq!(
            marks.get(back + 1..back + 3),
            Some(&[WriteBack::Waits, WriteBack::Tells][..]),
            "{}: {marks:?}",
            sample.name
        );
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// An engine that compiles with clang, and the folder of its cache; `None`, with a message, without
/// clang.
fn clang(name: &str) -> Option<(Engine, PathBuf)> {
    let folder = std::env::temp_dir().join(format!("machine-code-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config =
        Config::new().cache_dir(&folder).isolation(Isolation::InProcess).compiler_kind("clang");
    let engine = Engine::new(config);
    if engine.compilers(Vendor::Amd).found.is_empty() {
        eprintln!("SKIPPED: no clang with the AMDGPU target (Debian: clang-19 lld-19)");
        return None;
    }
    Some((engine, folder))
}

#[test]
fn wave_halves_exchange_before_lanes_are_masked() {
    let Some((engine, folder)) = clang("lanes") else { return };
    for arch in ["gfx1100", "gfx1201"] {
        let source = Source::new("sum", "sum.hip", SUM)
            .file("kjit.h", include_str!("../../../gpu/kjit.h"))
            .entry("sum");
        let constants = Constants::new().set("KJ_BLOCK", 64);
        let job = Job::new(source, constants, Options::wave(64), Target::parse(arch).unwrap());
        let words = text(engine.compile(&job).unwrap().bytes());
        let places = |what: fn(u32) -> bool| words.iter().position(|&w| what(w));
        let (exchange, branch) = (places(permlane64), places(masks_lanes));
        let listing = || {
            words
                .iter()
                .take_while(|&&w| w != S_CODE_END)
                .map(|w| format!("{w:08x}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert!(
            exchange.is_some() && branch.is_some(),
            "{arch}: {exchange:?} {branch:?} in {}",
            listing()
        );
        assert!(
            exchange < branch,
            "{arch}: word {exchange:?} is after word {branch:?} of {}",
            listing()
        );
    }
    let _ = std::fs::remove_dir_all(&folder);
}
