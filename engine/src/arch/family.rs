//! Chips that the table has no row for: what is true of all of their family is true of them.

use super::table::{ARCHS, Arch, Dot, MatrixUnit, Vendor};
use std::sync::{Mutex, PoisonError};

/// Rows that were made in this process, at most one for each id and what it does without.
static MADE: Mutex<Vec<&'static Arch>> = Mutex::new(Vec::new());

/// The row for an AMD id that is not in the table: `gfx`, the major and minor version, and a stepping that no
/// row has. Its facts are those of the row of its family that needs least: the fewest registers, no matrix
/// unit and no byte dot if any of the family lacks them. Where no row has its minor version, that row without
/// either: everything else of ours runs on all chips of a major version.
pub(super) fn row(id: &str) -> Option<&'static Arch> {
    let digits = id.strip_prefix("gfx")?;
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if !(3..=4).contains(&digits.len()) || !digits.bytes().all(hex) {
        return None;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arch) = made.iter().find(|a| a.id == id && a.lacks.is_empty()) {
        return Some(arch);
    }
    let of = |start: &str| {
        let same =
            ARCHS.iter().filter(|a| a.vendor == Vendor::Amd && a.id.len() == id.len() && a.id.starts_with(start));
        same.min_by_key(|a| {
            (a.matrix != MatrixUnit::None, a.dot != Dot::None, a.max_registers, a.unit.registers_per_simd)
        })
    };
    let minor = id.get(..id.len() - 1)?;
    let arch = match of(minor) {
        Some(row) => Arch { stands_in: Some(row.id), id: leaked(id), cards: "not in kjit's table", card: None, ..*row },
        None => {
            let row = of(id.get(..id.len() - 2)?)?;
            let (matrix, dot) = (MatrixUnit::None, Dot::None);
            Arch {
                stands_in: Some(row.id),
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
    made.push(arch);
    Some(arch)
}

/// The row of a chip that is to do without its matrix unit, its byte dot product, or both.
pub(super) fn without(arch: &'static Arch, matrix: bool, dot: bool) -> &'static Arch {
    let matrix = (matrix || arch.lacks.contains("no-matrix")) && had(arch).0;
    let dot = (dot || arch.lacks.contains("no-dot")) && had(arch).1;
    let lacks = match (matrix, dot) {
        (false, false) => return arch,
        (true, false) => ":no-matrix",
        (false, true) => ":no-dot",
        (true, true) => ":no-matrix:no-dot",
    };
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arch) = made.iter().find(|a| a.id == arch.id && a.lacks == lacks) {
        return arch;
    }
    let mut row = Arch { lacks, ..*arch };
    if matrix {
        row.matrix = MatrixUnit::None;
    }
    if dot {
        row.dot = Dot::None;
    }
    let row: &'static Arch = Box::leak(Box::new(row));
    made.push(row);
    row
}

/// Whether a chip has a matrix unit and a byte dot product, whatever its row does without.
fn had(arch: &Arch) -> (bool, bool) {
    let lacks = |what: &str| arch.lacks.contains(what);
    (arch.matrix != MatrixUnit::None || lacks("no-matrix"), arch.dot != Dot::None || lacks("no-dot"))
}

/// Kept for the process: of four hexadecimal digits there are few, and a machine has one or two.
fn leaked(id: &str) -> &'static str {
    Box::leak(id.to_owned().into_boxed_str())
}
