//! Split models: `NAME-00001-of-00003.gguf` and so on, each a GGUF file with some of the tensors.

use std::path::{Path, PathBuf};

use super::error::{Error, ErrorKind};
use super::value::Value;
use crate::part::Part;

/// A part's number and the number of parts.
struct PartNumber {
    no: u64,
    count: u64,
}

/// Opens the other parts of a split model; empty if the model is whole.
pub(crate) fn open_others(first: &Part) -> Result<Vec<Part>, Error> {
    let fail = |part: &Part, why: String| Error::new(&part.path, ErrorKind::Split(why));
    let Some(PartNumber { no, count }) = part_number(first)? else { return Ok(Vec::new()) };
    if count <= 1 {
        return Ok(Vec::new());
    }
    let Some(prefix) = prefix(&first.path, no, count) else {
        return Err(fail(
            first,
            format!(
                "is part {} of {count} according to its metadata: \
                 it must be named NAME-{:05}-of-{count:05}.gguf, \
                 with the other parts in the same folder",
                no + 1,
                no + 1
            ),
        ));
    };
    if no != 0 {
        let name = part_path(&first.path, &prefix, 0, count);
        return Err(fail(
            first,
            format!("is part {} of {count}: open the first part, {}", no + 1, name.display()),
        ));
    }
    let mut parts = Vec::new();
    for i in 1..count {
        let path = part_path(&first.path, &prefix, i, count);
        if !path.exists() {
            return Err(fail(
                first,
                format!(
                    "is part 1 of {count}, but part {}, {}, is not in the same folder",
                    i + 1,
                    path.display()
                ),
            ));
        }
        let part = Part::open(&path)?;
        match part_number(&part)? {
            Some(s) if s.no == i && s.count == count => parts.push(part),
            Some(s) => {
                return Err(fail(
                    &part,
                    format!(
                        "is part {} of {} according to its metadata, not {} of {count}",
                        s.no + 1,
                        s.count,
                        i + 1
                    ),
                ));
            }
            None => {
                return Err(fail(
                    &part,
                    format!("has no split.no or split.count: it is not part {} of {count}", i + 1),
                ));
            }
        }
    }
    if let Some(want) = number(first, "split.tensors.count")? {
        let have: u64 =
            std::iter::once(first).chain(&parts).map(|p| p.layout.tensors.len() as u64).sum();
        if have != want {
            return Err(fail(
                first,
                format!(
                    "has split.tensors.count {want}, but its {count} parts contain {have} tensors"
                ),
            ));
        }
    }
    Ok(parts)
}

fn part_number(part: &Part) -> Result<Option<PartNumber>, Error> {
    let Some(count) = number(part, "split.count")? else { return Ok(None) };
    let Some(no) = number(part, "split.no")? else {
        // A file that is not split may state that it is part 1 of 1.
        if count <= 1 {
            return Ok(None);
        }
        return Err(Error::new(&part.path, ErrorKind::MissingKey { key: "split.no".into() }));
    };
    if count > 99_999 || (no >= count && count > 0) {
        return Err(Error::new(
            &part.path,
            ErrorKind::Split(format!("has split.no {no} and split.count {count}: damaged")),
        ));
    }
    Ok(Some(PartNumber { no, count }))
}

fn number(part: &Part, key: &str) -> Result<Option<u64>, Error> {
    let Some(entry) = part.layout.metadata.get(key) else { return Ok(None) };
    let fail = |kind| Err(Error::new(&part.path, kind));
    match entry.value(&part.map) {
        Some(Value::Int(v)) => match u64::try_from(v) {
            Ok(v) => Ok(Some(v)),
            Err(_) => fail(ErrorKind::BadValue {
                key: key.into(),
                at: entry.at,
                value: v.to_string(),
                why: "must not be negative".into(),
            }),
        },
        _ => fail(ErrorKind::WrongType {
            key: key.into(),
            at: entry.at,
            found: entry.describe(),
            want: "an integer",
        }),
    }
}

fn suffix(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// The file name before `-00001-of-00003.gguf`.
fn prefix(path: &Path, no: u64, count: u64) -> Option<String> {
    Some(path.file_name()?.to_str()?.strip_suffix(&suffix(no, count))?.to_owned())
}

fn part_path(sibling: &Path, prefix: &str, no: u64, count: u64) -> PathBuf {
    sibling.with_file_name(format!("{prefix}{}", suffix(no, count)))
}
