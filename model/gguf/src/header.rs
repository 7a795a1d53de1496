//! Parses the header of one GGUF file: the metadata, and the offsets of all tensors. Everything
//! that is indexed later is checked here.

use super::cursor::{Cursor, UnexpectedEnd};
use super::error::ErrorKind;
use super::metadata::Metadata;
use super::tensors::{self, TensorInfo};
use super::value::Value;

/// The default alignment of tensors.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Minimum size of a key: its length, a key of one byte, a type, a value of one byte.
const MIN_KEY: u64 = 8 + 1 + 4 + 1;

/// The metadata and tensors of one file, with their offsets.
pub(crate) struct GgufHeader {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) alignment: u64,
    pub(crate) data_start: u64,
}

impl GgufHeader {
    /// A header without metadata, for a file whose tensor offsets are already known.
    pub(crate) fn of(tensors: Vec<TensorInfo>) -> GgufHeader {
        GgufHeader {
            version: 3,
            metadata: Metadata::default(),
            tensors,
            alignment: 8,
            data_start: 0,
        }
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<GgufHeader, ErrorKind> {
        if bytes.is_empty() {
            return Err(ErrorKind::Empty);
        }
        let mut cursor = Cursor::new(bytes);
        let header = |s: UnexpectedEnd| s.inside(|| "the header".into());
        match cursor.take(4) {
            Ok(b"GGUF") => {}
            Ok(b"FUGG") => return Err(ErrorKind::BigEndian),
            _ => return Err(ErrorKind::NotGguf { looks: looks_like(bytes) }),
        }
        let version = cursor.u32().map_err(header)?;
        check_version(version)?;
        let (tensors_at, n_tensors) = (cursor.at(), cursor.u64().map_err(header)?);
        let (keys_at, n_keys) = (cursor.at(), cursor.u64().map_err(header)?);
        let fits = |what: &str, at, count: u64, least: u64, left| match count.checked_mul(least) {
            // Indices by name are u32.
            Some(bytes) if bytes <= left && count < u64::from(u32::MAX) => Ok(()),
            _ => Err(ErrorKind::Count { what: what.into(), at, count, left }),
        };
        fits("the number of tensors", tensors_at, n_tensors, tensors::MIN_ENTRY, cursor.left())?;
        fits("the number of metadata keys", keys_at, n_keys, MIN_KEY, cursor.left())?;
        let metadata = Metadata::read(&mut cursor, n_keys)?;
        let alignment = alignment(&metadata, bytes)?;
        // The number is checked again after the keys, when fewer bytes are left.
        fits("the number of tensors", tensors_at, n_tensors, tensors::MIN_ENTRY, cursor.left())?;
        let mut tensors = tensors::read(&mut cursor, n_tensors)?;
        let data_start = cursor.at().next_multiple_of(alignment);
        tensors::place(&mut tensors, data_start, alignment, bytes.len() as u64)?;
        Ok(GgufHeader { version, metadata, tensors, alignment, data_start })
    }
}

fn check_version(version: u32) -> Result<(), ErrorKind> {
    match version {
        2 | 3 => Ok(()),
        // A version with swapped bytes. Real versions are small numbers.
        v if v != 0 && v.trailing_zeros() >= 16 => Err(ErrorKind::BigEndian),
        1 => Err(ErrorKind::Version {
            version,
            hint: "this version is from August 2023, convert the model again",
        }),
        0 => Err(ErrorKind::Version { version, hint: "damaged, download it again" }),
        _ => Err(ErrorKind::Version { version, hint: "the file is newer than kjit, or damaged" }),
    }
}

/// Guesses the format of a file without the magic `GGUF`.
fn looks_like(bytes: &[u8]) -> String {
    let head = bytes.get(..bytes.len().min(64)).unwrap_or(bytes);
    let le_header =
        head.get(..8).and_then(|b| b.try_into().ok()).map_or(u64::MAX, u64::from_le_bytes);
    if [&b"lmgg"[..], b"tjgg", b"fmgg", b"algg"].iter().any(|m| head.starts_with(m)) {
        "it is a GGML file (the format before GGUF): convert the model again".into()
    } else if head.starts_with(b"PK\x03\x04") {
        "it is a zip archive (a PyTorch checkpoint, or a packed download): convert or unpack it"
            .into()
    } else if head.starts_with(b"\x1f\x8b")
        || head.starts_with(b"\x28\xb5\x2f\xfd")
        || head.starts_with(b"\xfd7zXZ")
    {
        "it is a compressed file: unpack it".into()
    } else if head.starts_with(b"version https://git-lfs") {
        "it is a Git LFS pointer, not the model: download the file (git lfs pull)".into()
    } else if head.get(8) == Some(&b'{') && le_header <= bytes.len() as u64 {
        "it is a safetensors file: \
         use the path of its folder, which needs config.json and tokenizer.json"
            .into()
    } else if head.trim_ascii_start().starts_with(b"<") {
        "it is a web page (perhaps an error page), not a model: download it again".into()
    } else if is_text(head) {
        let first: String = String::from_utf8_lossy(head)
            .chars()
            .take_while(|c| !c.is_control())
            .take(24)
            .collect();
        format!("it starts with the text {first:?}")
    } else {
        let first: Vec<String> = head.iter().take(4).map(|b| format!("{b:02x}")).collect();
        format!("it starts with the bytes {} instead of 'GGUF'", first.join(" "))
    }
}

fn is_text(head: &[u8]) -> bool {
    // The last character may be incomplete.
    let text = match std::str::from_utf8(head) {
        Ok(text) => Some(text),
        Err(e) if e.error_len().is_none() => {
            head.get(..e.valid_up_to()).and_then(|b| std::str::from_utf8(b).ok())
        }
        Err(_) => None,
    };
    text.is_some_and(|t| {
        !t.is_empty() && t.chars().all(|c| !c.is_control() || c.is_ascii_whitespace())
    })
}

/// Reads `general.alignment`, or returns the default. The format requires a multiple of 8, and ggml
/// a power of two; kjit requires both.
fn alignment(metadata: &Metadata, file: &[u8]) -> Result<u64, ErrorKind> {
    let key = "general.alignment";
    let Some(entry) = metadata.get(key) else { return Ok(DEFAULT_ALIGNMENT) };
    let Some(Value::Int(value)) = entry.value(file) else {
        let found = entry.describe();
        return Err(ErrorKind::WrongType {
            key: key.into(),
            at: entry.at,
            found,
            want: "an integer",
        });
    };
    match u64::try_from(value) {
        Ok(a) if a.is_power_of_two() && (8..=1 << 30).contains(&a) => Ok(a),
        _ => Err(ErrorKind::BadValue {
            key: key.into(),
            at: entry.at,
            value: value.to_string(),
            why: "expected a power of two, at least 8: damaged, or written by a broken converter"
                .into(),
        }),
    }
}
