//! Instructions that launches execute, counted on the emulator of AMD machine code (`tests/gfxemu`)
//! by `scripts/issue-bounds`: for the decode products among the samples (`kjit-kernel-cases`), on
//! one card of each architecture. A kernel that was compiled to other code has no counts.

use kjit_engine::arch::issue::Executed;

/// Architecture, sample, bytes of its code object, counts.
const COUNTED: &str = include_str!("issue.tsv");

/// The instructions that a launch of the sample with this name executes, if the same code object
/// was counted.
#[must_use]
pub fn executed(arch: &str, name: &str, code: u64) -> Option<Executed> {
    all().find(|row| (row.arch, row.name, row.code) == (arch, name, code)).map(|row| row.executed)
}

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counted {
    /// The architecture.
    pub arch: &'static str,
    /// The sample's name.
    pub name: &'static str,
    /// Bytes of its code object.
    pub code: u64,
    /// Bytes that the launch must move.
    pub moves: u64,
    /// Lanes of a wave.
    pub wave: u32,
    /// The counts.
    pub executed: Executed,
}

/// All rows of the table.
pub fn all() -> impl Iterator<Item = Counted> {
    COUNTED.lines().filter(|line| !line.starts_with('#')).filter_map(counted)
}

fn counted(line: &'static str) -> Option<Counted> {
    let mut cells = line.split('\t');
    let (arch, name) = (cells.next()?, cells.next()?);
    let (code, moves, wave) =
        (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
    let mut number = || cells.next()?.parse::<f64>().ok();
    let executed = Executed {
        vector: number()?,
        slow: number()?,
        scalar: number()?,
        matrix: number()?,
        lds: number()?,
        lds_bytes: number()?,
        memory: number()?,
        memory_bytes: number()?,
    };
    Some(Counted { arch, name, code, moves, wave, executed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_issue_line_is_parsed() {
        let lines = COUNTED.lines().filter(|line| !line.starts_with('#')).count();
        assert!(lines > 0);
        assert_eq!(all().count(), lines);
    }
}
