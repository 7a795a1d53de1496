//! Every tensor type that has an id in ggml: name and block size, but not the meaning of its bits.
//!
//! A reader needs this to locate and list the tensors of any file, also tensors of types that kjit
//! cannot decode. [`format`](mod@crate::format) describes the bits of a block, for the types that
//! kjit supports.

use crate::format;
use std::fmt;

/// A tensor type of ggml: `block_elems` adjacent elements of a row are stored in `block_bytes`
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgmlType {
    /// Number of the type in ggml, as stored in files.
    pub id: u32,
    /// Name of the type in ggml.
    pub name: &'static str,
    /// Elements in a block; a row is a whole number of blocks.
    pub block_elems: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl GgmlType {
    /// The type with ggml's number `id`; `None` if no type in use has this number (see
    /// [`retired`]).
    pub fn by_id(id: u32) -> Option<&'static GgmlType> {
        ALL.iter().find(|t| t.id == id)
    }

    /// The type with this name, in upper or lower case.
    pub fn by_name(name: &str) -> Option<&'static GgmlType> {
        ALL.iter().find(|t| t.name.eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `elems` elements; `None` if the row is not a whole number of blocks, or if
    /// the size overflows.
    pub fn row_bytes(&self, elems: u64) -> Option<u64> {
        let block = u64::from(self.block_elems);
        if !elems.is_multiple_of(block) {
            return None;
        }
        (elems / block).checked_mul(u64::from(self.block_bytes))
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// The name of a type that ggml removed from files; its number is not used again.
pub fn retired(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return None,
    })
}

const fn ty(id: u32, name: &'static str, block_elems: u32, block_bytes: u32) -> GgmlType {
    GgmlType { id, name, block_elems, block_bytes }
}

/// The types in use that [`format`] does not describe, by id. Sizes are from the structs in ggml's
/// `ggml-common.h`.
const OTHERS: &[GgmlType] = &[
    ty(9, "Q8_1", 32, 36),
    ty(15, "Q8_K", 256, 292),
    ty(24, "I8", 1, 1),
    ty(25, "I16", 1, 2),
    ty(26, "I32", 1, 4),
    ty(27, "I64", 1, 8),
    ty(28, "F64", 1, 8),
];

/// All types in use, by id: the formats, and the others.
pub static ALL: [GgmlType; format::ALL.len() + OTHERS.len()] = {
    let mut all = [ty(0, "", 1, 1); format::ALL.len() + OTHERS.len()];
    let (mut f, mut o) = (0, 0);
    while f + o < all.len() {
        let next = if f < format::ALL.len() { Some(&format::ALL[f]) } else { None };
        let at = f + o;
        all[at] = match next {
            Some(known) if o == OTHERS.len() || known.ggml_id <= OTHERS[o].id => {
                assert!(
                    o == OTHERS.len() || known.ggml_id < OTHERS[o].id,
                    "a type is in both lists"
                );
                f += 1;
                ty(
                    known.ggml_id,
                    known.name,
                    known.block_elems() as u32,
                    known.block_bytes() as u32,
                )
            }
            _ => {
                o += 1;
                OTHERS[o - 1]
            }
        };
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ggml_ids_ascend_and_are_used_or_retired() {
        assert!(ALL.windows(2).all(|w| w[0].id < w[1].id));
        for id in 0..=ALL[ALL.len() - 1].id {
            assert!(GgmlType::by_id(id).is_some() != retired(id).is_some(), "id {id}");
        }
    }

    #[test]
    fn every_format_has_a_matching_ggml_type() {
        for f in format::ALL {
            let t = GgmlType::by_name(f.name).unwrap();
            let sizes = (t.block_elems as usize, t.block_bytes as usize);
            assert_eq!(
                (t.id, sizes),
                (f.ggml_id, (f.block_elems(), f.block_bytes())),
                "{}",
                f.name
            );
        }
    }

    #[test]
    fn row_with_partial_block_has_no_size() {
        let q4_k = GgmlType::by_name("q4_k").unwrap();
        assert_eq!(q4_k.row_bytes(512), Some(288));
        assert_eq!(q4_k.row_bytes(511), None);
        assert_eq!(GgmlType::by_name("F64").unwrap().row_bytes(u64::MAX), None);
    }
}
