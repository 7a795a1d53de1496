//! Tests whether a compiler copies accumulation registers of gfx908 correctly, from the machine
//! code of a small kernel.
//!
//! gfx908 copies accumulation registers to each other through a vector register. LLVM before July
//! 2025 (including clang 19; pull request 149291) may use a vector register that was never written.
//! 14 of 16 cases of attention were wrong when their machine code was emulated; with clang 22 all
//! were right. The version is not a reliable test: vendors use different version numbers, and
//! distributions add patches.

use kjit_engine::{Constants, Job, Options, Source, Target};

/// The small kernel, if this target needs the test.
#[must_use]
pub fn probe_job(target: &Target) -> Option<Job> {
    let plain = target.arch().has("copies-agprs").then(|| target.clone())?;
    let source =
        Source::new("copies", "copies.hip", include_str!("../gpu/copies.hip")).entry("copies");
    Some(Job::new(source, Constants::new(), Options::wave(64), plain))
}

/// Whether the compiled kernel has such copies, and each reads a register that an earlier
/// instruction has written. Unknown code counts as not sound.
#[must_use]
pub fn copies_are_correct(code: &[u8]) -> bool {
    text(code).is_some_and(sound)
}

/// The words in section `.text` of a 64-bit ELF file.
fn text(elf: &[u8]) -> Option<&[[u8; 4]]> {
    let number = |at: usize, size: usize| {
        let bytes = elf.get(at..at.checked_add(size)?)?;
        usize::try_from(bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b))).ok()
    };
    let (headers, size, count, names) =
        (number(40, 8)?, number(58, 2)?, number(60, 2)?, number(62, 2)?);
    let header = |i: usize| headers.checked_add(i.checked_mul(size)?);
    let strings = number(header(names)?.checked_add(24)?, 8)?;
    let of = (0..count).find_map(|i| {
        let at = header(i)?;
        let name = strings.checked_add(number(at, 4)?)?;
        elf.get(name..)?.starts_with(b".text\0").then_some(at)
    })?;
    let (start, length) = (number(of.checked_add(24)?, 8)?, number(of.checked_add(32)?, 8)?);
    Some(elf.get(start..start.checked_add(length)?)?.as_chunks().0)
}

fn sound(text: &[[u8; 4]]) -> bool {
    let words: Vec<u32> = text.iter().map(|w| u32::from_le_bytes(*w)).collect();
    let (mut written, mut copies, mut at) = ([false; 256], 0, 0);
    while let Some(&word) = words.get(at) {
        let next = words.get(at + 1).copied().unwrap_or(0);
        if word & 0xffff_0000 == ACCVGPR_WRITE && next & 0x100 != 0 {
            copies += 1;
            if !written.get((next & 0xff) as usize).is_some_and(|w| *w) {
                return false;
            }
        }
        let (first, many) = writes(word, next);
        written.iter_mut().skip(first).take(many).for_each(|w| *w = true);
        at += length(word);
    }
    copies > 0
}

/// `v_accvgpr_write_b32` and `v_accvgpr_read_b32` (VOP3P).
const ACCVGPR_WRITE: u32 = 0xd3d9_0000;
const ACCVGPR_READ: u32 = 0xd3d8_0000;

/// Vector registers that an instruction of gfx9 writes: the first, and their number. Covers the
/// instructions that compilers use for the small kernel; all others write none.
fn writes(word: u32, next: u32) -> (usize, usize) {
    let (low, high) = ((word & 0xff) as usize, (next >> 24) as usize);
    match (word >> 26, word >> 25) {
        // VOPC and v_readfirstlane_b32 write no vector register.
        (_, 0x3e) => (0, 0),
        (_, 0x3f) if word >> 9 & 0xff == 2 => (0, 0),
        (0..=0x1f, _) => ((word >> 17 & 0xff) as usize, 1),
        (0x34, _) if word & 0xffff_0000 == ACCVGPR_READ => (low, 1),
        // Other VOP3P: packed arithmetic. Matrix instructions write accumulation registers.
        (0x34, _) if word >> 23 == 0x1a7 => (low, usize::from(word >> 16 & 0x7f < 0x40)),
        // VOP3: low opcodes are comparisons; v_readlane_b32 is above them. v_lshlrev_b64 and
        // v_mad_u64_u32 write two registers.
        (0x34, _) => match word >> 16 & 0x3ff {
            0..0x100 | 0x289 => (0, 0),
            0x1e8 | 0x1e9 | 0x28f..=0x291 => (low, 2),
            _ => (low, 1),
        },
        // LDS: ds_read_…
        (0x36, _) => match word >> 17 & 0xff {
            54 | 57..=60 => (high, 1),
            55 | 56 | 118 => (high, 2),
            119 | 120 | 255 => (high, 4),
            _ => (0, 0),
        },
        // global_load_… and flat_load_…
        (0x37, _) => match word >> 18 & 0x7f {
            16..=20 => (high, 1),
            many @ 21..=23 => (high, many as usize - 19),
            _ => (0, 0),
        },
        _ => (0, 0),
    }
}

/// Number of words of an instruction of gfx9.
fn length(word: u32) -> usize {
    const LITERAL: u32 = 255;
    let (first, second) = (word & 0xff, word >> 8 & 0xff);
    let two = match word >> 23 {
        0x17d => first == LITERAL,                      // SOP1
        0x17e => first == LITERAL || second == LITERAL, // SOPC
        0x17f => false,                                 // SOPP
        _ => match word >> 26 {
            // VOP1, VOP2, VOPC: a literal, SDWA, DPP; v_madmk and v_madak also have a constant.
            0..=0x1f => {
                let constant = matches!(word >> 25, 0x17 | 0x18 | 0x24 | 0x25);
                constant || matches!(word & 0x1ff, 249 | 250 | LITERAL)
            }
            0x20..=0x2b => first == LITERAL || second == LITERAL, // SOP2
            0x2c..=0x2f => word >> 23 & 0x1f == 20,               // SOPK: s_setreg_imm32_b32
            0x35 => false,                                        // VINTRP
            _ => true,                                            // SMEM, VOP3, LDS, memory
        },
    };
    1 + usize::from(two)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(words: &[u32]) -> bool {
        sound(&words.iter().map(|w| w.to_le_bytes()).collect::<Vec<_>>())
    }

    /// `v_accvgpr_write_b32 a7, v11`, and the reverse read.
    const WRITE: [u32; 2] = [0xd3d9_4007, 0x1800_010b];
    const READ: [u32; 2] = [0xd3d8_400b, 0x1800_0105];
    /// `v_accvgpr_write_b32 a1, 0`.
    const ZERO: [u32; 2] = [0xd3d9_4001, 0x1800_0080];

    #[test]
    fn copy_is_sound_only_after_a_write() {
        assert!(says(&[READ, WRITE].concat()));
        assert!(!says(&WRITE));
        assert!(!says(&[WRITE, READ].concat()));
        // Code without a copy is not sound.
        assert!(!says(&[READ, ZERO].concat()));
        // v_mul_f32 v11, v1, v2; v_mov_b32 v11, 1; the same with a literal that looks like an
        // instruction; ds_read_b64 v[10:11]; global_load_dwordx4 v[8:11].
        let others: [&[u32]; 5] = [
            &[0x0a16_0501],
            &[0x7e16_0281],
            &[0x7e16_02ff, 0xd3d9_4007],
            &[0xd8ec_0000, 0x0a00_0001],
            &[0xdc5c_8000, 0x0804_0000],
        ];
        for other in others {
            assert!(says(&[other, &WRITE].concat()), "{other:x?}");
        }
        // v_cmp_gt_f32 vcc, v1, v2; v_readfirstlane_b32 s11, v1; ds_write_b32 v11, v11; s_mov_b32
        // s11, 0; v_mov_b32 v12, 1.
        let others: [&[u32]; 5] = [
            &[0x7c88_0501],
            &[0x7e16_0501],
            &[0xd81a_0000, 0x0000_0b0b],
            &[0xbe8b_0080],
            &[0x7e18_0281],
        ];
        for other in others {
            assert!(!says(&[other, &WRITE].concat()), "{other:x?}");
        }
    }

    #[test]
    fn invalid_code_object_is_not_sound() {
        for bytes in [&b""[..], b"\x7fELF", &[0xff; 64], &[0xff; 4096]] {
            assert!(!copies_are_correct(bytes));
        }
    }

    #[test]
    fn only_gfx908_with_unknown_compiler_needs_the_check() {
        let asked = |id| probe_job(&Target::parse(id).unwrap()).is_some();
        assert!(asked("gfx908") && asked("gfx908:xnack-"));
        assert!(!asked("gfx908:sound-copies") && !asked("gfx90a") && !asked("sm_90"));
    }
}
