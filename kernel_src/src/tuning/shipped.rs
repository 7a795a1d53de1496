//! Choices that were measured on real cards and are shipped: `kernel_src/tuning/measured.tsv`, one a line, by architecture and spec. They go
//! before what [`families`](super::families) says for all sizes. `kjit bench MODEL --kernels --tune --rows FILE` writes such lines.

use super::{Tuning, space};
use crate::spec::Spec;
use kjit_engine::Target;
use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

const TEXT: &str = include_str!("../../tuning/measured.tsv");

/// A line that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}; a line is: architecture, spec, tuning, where it was measured, with tabs between")]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

/// A shipped choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    /// `sm_90`.
    pub arch: &'a str,
    /// The [`Spec`]'s text.
    pub spec: &'a str,
    /// The [`Tuning`]'s text.
    pub tuning: &'a str,
    /// The card, the day, and what was gained.
    pub measured: &'a str,
}

/// The lines of a table; `#` starts a comment.
pub fn rows(text: &str) -> impl Iterator<Item = Result<Row<'_>, BadLine>> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
    lines.map(|(i, l)| match l.split('\t').collect::<Vec<_>>().as_slice() {
        &[arch, spec, tuning, measured] => Ok(Row { arch, spec, tuning, measured }),
        fields => {
            Err(BadLine { line: i + 1, why: if fields.len() < 4 { "too few fields" } else { "too many fields" } })
        }
    })
}

/// The shipped table.
pub fn all() -> impl Iterator<Item = Result<Row<'static>, BadLine>> {
    rows(TEXT)
}

struct Choice {
    text: &'static str,
    found: OnceLock<Option<Tuning>>,
}

/// By architecture, then by spec. A test holds every line; one that is wrong all the same counts for nothing.
static CHOICES: LazyLock<HashMap<&str, HashMap<&str, Choice>>> = LazyLock::new(|| {
    let mut table: HashMap<&str, HashMap<&str, Choice>> = HashMap::new();
    for row in all().flatten() {
        let choice = Choice { text: row.tuning, found: OnceLock::new() };
        table.entry(row.arch).or_default().insert(row.spec, choice);
    }
    table
});

/// What is shipped for this spec on this target, as its family's tuning.
pub(crate) fn choice<S, T>(spec: &S, target: &Target) -> Option<T>
where
    S: Clone + Into<Spec>,
    T: TryFrom<Tuning>,
{
    let specs = CHOICES.get(target.id())?;
    let spec: Spec = spec.clone().into();
    let choice = specs.get(spec.to_string().as_str())?;
    let find = || space::candidates(&spec, target).into_iter().find(|t| t.to_string() == choice.text);
    choice.found.get_or_init(find).and_then(|t| t.try_into().ok())
}
