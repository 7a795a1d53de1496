//! What emulating the machine code found, and no other test can see: where a compiler moves an instruction to. Simulated devices run
//! the source, and there it is right.

use kjit_engine::{Config, Constants, Engine, Isolation, Job, Options, Source, Target, Vendor};
use std::path::Path;

/// A sum over a wave that only some lanes use: what attention does with its parts.
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
    let number = |at: usize, size: usize| elf[at..at + size].iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
    let (headers, size, count, names) = (number(40, 8), number(58, 2), number(60, 2), number(62, 2));
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

/// Leaves lanes out: `v_cmpx_…` (VOPC, operations from 0x80 on) or `s_and_saveexec_b64` (SOP1, operation 0x21).
fn leaves_lanes_out(word: u32) -> bool {
    (word >> 25 == 0x3e && word >> 24 & 1 == 1) || word & 0xff80_ff00 == 0xbe80_2100
}

/// What fills the section behind the code.
const S_CODE_END: u32 = 0xbf9f_0000;

#[test]
fn lanes_exchange_across_the_halves_of_a_wave_before_any_of_them_is_left_out() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("machine-code-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = Config::new().cache_dir(&folder).isolation(Isolation::InProcess).compiler_kind("clang");
    let engine = Engine::new(config);
    if engine.compilers(Vendor::Amd).found.is_empty() {
        eprintln!("SKIPPED: no clang with the AMDGPU target (Debian: clang-19 lld-19)");
        return;
    }
    for arch in ["gfx1100", "gfx1201"] {
        let source = Source::new("sum", "sum.hip", SUM).file("kjit.h", include_str!("../gpu/kjit.h")).entry("sum");
        let constants = Constants::new().set("KJ_BLOCK", 64);
        let job = Job::new(source, constants, Options::wave(64), Target::parse(arch).unwrap());
        let words = text(engine.compile(&job).unwrap().bytes());
        let places = |what: fn(u32) -> bool| words.iter().position(|&w| what(w));
        let (exchange, branch) = (places(permlane64), places(leaves_lanes_out));
        let listing =
            || words.iter().take_while(|&&w| w != S_CODE_END).map(|w| format!("{w:08x}")).collect::<Vec<_>>().join(" ");
        assert!(exchange.is_some() && branch.is_some(), "{arch}: {exchange:?} {branch:?} in {}", listing());
        assert!(exchange < branch, "{arch}: word {exchange:?} behind word {branch:?} of {}", listing());
    }
    let _ = std::fs::remove_dir_all(&folder);
}
