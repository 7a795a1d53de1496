//! Rows for chips that are not in the table, with facts that are true for their whole family.

use super::table::{ARCHS, Arch, Dot, MatrixUnit, Vendor};
use std::sync::{Mutex, PoisonError};

/// See [`Arch::has`].
const COPIES: &str = "copies-agprs";

/// See [`Arch::variant`].
const F32: &str = ":f32";

/// Rows that this process created, at most one per id and variant.
static MADE: Mutex<Vec<&'static Arch>> = Mutex::new(Vec::new());

/// The row of an AMD id that is not in the table: `gfx`, major version, minor version, and a
/// stepping without a row. It has the facts of the least capable row of the family: the fewest
/// registers, and no matrix unit or byte dot product if any chip of the family lacks it. If no row
/// has the minor version, the new row has neither of the two. All other code runs on all chips of a
/// major version.
pub(super) fn row(id: &str) -> Option<&'static Arch> {
    let digits = id.strip_prefix("gfx")?;
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if !(3..=4).contains(&digits.len()) || !digits.bytes().all(hex) {
        return None;
    }
    let mut rows = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arch) = rows.iter().find(|a| a.id == id && a.variant.is_empty()) {
        return Some(arch);
    }
    let of = |start: &str| {
        let same = ARCHS.iter().filter(|a| {
            a.vendor == Vendor::Amd && a.id.len() == id.len() && a.id.starts_with(start)
        });
        same.min_by_key(|a| {
            (
                a.matrix != MatrixUnit::None,
                a.dot != Dot::None,
                a.max_registers,
                a.unit.registers_per_simd,
            )
        })
    };
    let minor = id.get(..id.len() - 1)?;
    let arch = match of(minor) {
        Some(row) => Arch {
            fallback_row: Some(row.id),
            id: leaked(id),
            cards: "not in kjit's table",
            card: None,
            ..*row
        },
        None => {
            let row = of(id.get(..id.len() - 2)?)?;
            let (matrix, dot) = (MatrixUnit::None, Dot::None);
            Arch {
                fallback_row: Some(row.id),
                id: leaked(id),
                cards: "not in kjit's table",
                card: None,
                matrix,
                dot,
                ..*row
            }
        }
    };
    let arch: &'static Arch = Box::leak(Box::new(arch));
    rows.push(arch);
    Some(arch)
}

/// The variant of a chip that computes in f32 and integers only: without matrix unit, dot products,
/// and instructions that read or produce f16. The result does not depend on the compiler.
pub(super) fn f32_alone(arch: &'static Arch) -> &'static Arch {
    if arch.variant == F32 {
        return arch;
    }
    let mut rows = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arch) = rows.iter().find(|a| a.id == arch.id && a.variant == F32) {
        return arch;
    }
    let left = arch.abilities.iter().copied().filter(|a| !["packed-f16", COPIES].contains(a));
    let row: &'static Arch = Box::leak(Box::new(Arch {
        variant: F32,
        matrix: MatrixUnit::None,
        dot: Dot::None,
        abilities: kept(left.chain(["f32-alone"]).collect()),
        ..*arch
    }));
    rows.push(row);
    row
}

/// The variant of a chip without its matrix unit, its byte dot product, or both.
pub(super) fn without(arch: &'static Arch, matrix: bool, dot: bool) -> &'static Arch {
    if arch.variant == F32 {
        return arch;
    }
    let ChipFeatures { matrix: has_matrix, dot: has_dot, sound } = features_of(arch);
    let matrix = (matrix || arch.variant.contains("no-matrix")) && has_matrix;
    let dot = (dot || arch.variant.contains("no-dot")) && has_dot;
    variant(arch, matrix, dot, sound)
}

/// The variant of a chip whose compiler is known to copy accumulation registers correctly.
pub(super) fn with_sound_copies(arch: &'static Arch) -> &'static Arch {
    if !arch.has(COPIES) {
        return arch;
    }
    variant(arch, arch.variant.contains("no-matrix"), arch.variant.contains("no-dot"), true)
}

/// The variant of a chip whose compiler may copy accumulation registers incorrectly.
pub(super) fn without_sound_copies(arch: &'static Arch) -> &'static Arch {
    let plain = ARCHS.iter().find(|a| features_of(arch).sound && a.id == arch.id);
    let (matrix, dot) = (arch.variant.contains("no-matrix"), arch.variant.contains("no-dot"));
    plain.map_or(arch, |plain| variant(plain, matrix, dot, false))
}

fn variant(arch: &'static Arch, matrix: bool, dot: bool, sound: bool) -> &'static Arch {
    let words = [(matrix, ":no-matrix"), (dot, ":no-dot"), (sound, ":sound-copies")];
    let text: String = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
    if text == arch.variant {
        return arch;
    }
    if let Some(own) = ARCHS.iter().find(|a| text.is_empty() && a.id == arch.id) {
        return own;
    }
    let mut rows = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arch) = rows.iter().find(|a| a.id == arch.id && a.variant == text) {
        return arch;
    }
    let mut row = Arch { variant: leaked(&text), ..*arch };
    if matrix {
        row.matrix = MatrixUnit::None;
    }
    if dot {
        row.dot = Dot::None;
    }
    if sound {
        row.abilities = kept(arch.abilities.iter().copied().filter(|a| *a != COPIES).collect());
    }
    let row: &'static Arch = Box::leak(Box::new(row));
    rows.push(row);
    row
}

/// The abilities of a chip regardless of its variant, and whether its row has sound copies.
struct ChipFeatures {
    matrix: bool,
    dot: bool,
    sound: bool,
}

fn features_of(arch: &Arch) -> ChipFeatures {
    let has_option = |what: &str| arch.variant.contains(what);
    ChipFeatures {
        matrix: arch.matrix != MatrixUnit::None || has_option("no-matrix"),
        dot: arch.dot != Dot::None || has_option("no-dot"),
        sound: has_option("sound-copies"),
    }
}

fn kept(abilities: Vec<&'static str>) -> &'static [&'static str] {
    Box::leak(abilities.into_boxed_slice())
}

/// A copy that is never freed. There are few ids of four hexadecimal digits, and a machine has one
/// or two.
fn leaked(id: &str) -> &'static str {
    Box::leak(id.to_owned().into_boxed_str())
}
