//! Tunings that were measured on real cards and are shipped: `kernel_src/tuning/measured.tsv`, one
//! per line, by architecture and spec. They override the family's default
//! ([`Family::usual`](super::family::Family::usual)). `kjit bench MODEL --kernels --tune --rows
//! FILE` writes such lines.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

const TEXT: &str = include_str!("../../tuning/measured.tsv");

/// A malformed line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: {why}; a line is: architecture, spec, tuning, where it was measured, with tabs between"
)]
pub struct BadLine {
    /// Line number, from 1.
    pub line: usize,
    /// The fault of the line.
    pub why: &'static str,
}

/// A shipped tuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    /// Architecture, such as `sm_90`.
    pub arch: &'a str,
    /// The [`Spec`](crate::spec::Spec) as a string.
    pub spec: &'a str,
    /// The [`Tuning`](crate::spec::Tuning) as a string.
    pub tuning: &'a str,
    /// The card, the date, and the gain.
    pub measured: &'a str,
}

/// The lines of a table; `#` starts a comment.
pub fn rows(text: &str) -> impl Iterator<Item = Result<Row<'_>, BadLine>> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
    lines.map(|(i, l)| match l.split('\t').collect::<Vec<_>>().as_slice() {
        &[arch, spec, tuning, measured] => Ok(Row { arch, spec, tuning, measured }),
        fields => Err(BadLine {
            line: i + 1,
            why: if fields.len() < 4 { "too few fields" } else { "too many fields" },
        }),
    })
}

/// The shipped table.
pub fn all() -> impl Iterator<Item = Result<Row<'static>, BadLine>> {
    rows(TEXT)
}

/// A tuning of the table, and its index in the family's list after the first look-up.
#[derive(Debug)]
pub(super) struct ShippedTuning {
    pub(super) text: String,
    pub(super) place: OnceLock<Option<usize>>,
}

/// Tunings by architecture, then by spec. A test checks every shipped line; a wrong line has no
/// effect.
#[derive(Debug, Default)]
pub struct Table {
    pub(super) choices: HashMap<String, HashMap<String, ShippedTuning>>,
}

impl Table {
    /// Parses a table of tunings.
    #[must_use]
    pub fn of(text: &str) -> Table {
        let mut table = Table::default();
        for row in rows(text).flatten() {
            let choice = ShippedTuning { text: row.tuning.to_owned(), place: OnceLock::new() };
            table
                .choices
                .entry(row.arch.to_owned())
                .or_default()
                .insert(row.spec.to_owned(), choice);
        }
        table
    }
}

static SHIPPED: LazyLock<Table> = LazyLock::new(|| Table::of(TEXT));

/// The shipped table.
pub(crate) fn table() -> &'static Table {
    &SHIPPED
}
