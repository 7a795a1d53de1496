//! Block formats as types.

use kjit_formats::format::{ALL, BlockFormat, Encoding};

/// A format as a type.
pub trait FormatType {
    /// The description of the format.
    const BLOCK: BlockFormat;
}

/// The format with this GGUF type id.
pub struct Id<const ID: u32>;

impl<const ID: u32> FormatType for Id<ID> {
    const BLOCK: BlockFormat = block_format(ID);
}

#[expect(clippy::panic, reason = "evaluated at compile time")]
const fn block_format(id: u32) -> BlockFormat {
    let mut i = 0;
    while i < ALL.len() {
        if ALL[i].ggml_id == id
            && let Encoding::Blocks(b) = ALL[i].encoding
        {
            assert!(b.elems == 32 || b.elems == 256 || b.is_scattered());
            return b;
        }
        i += 1;
    }
    panic!("no such block format")
}

/// Evaluates an expression with `$f` as the type of a block format, for each format in the table;
/// another expression for all others.
macro_rules! with_format {
    ($format:expr, $f:ident => $body:expr, else $other:expr) => {
        kjit_formats::block_format_ids!(with_format!(@ $format, $f, $body, $other,))
    };
    (@ $format:expr, $f:ident, $body:expr, $other:expr, $($id:literal)*) => {
        match $format.ggml_id {
            $($id => { type $f = $crate::format_type::Id<$id>; $body })*
            _ => $other,
        }
    };
}

pub(super) use with_format;
