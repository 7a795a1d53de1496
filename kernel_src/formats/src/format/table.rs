//! The formats. Sources of the layouts: the type list of the GGUF specification and ggml's
//! published block layouts. MXFP4 is defined by the OCP Microscaling specification, with ggml's
//! nibble order. Q2_0 has ggml's block size. A fork that published files before ggml had the type
//! used blocks of 128 weights in 34 bytes with the same id. In such a file tensors overlap or end
//! early, which is an error.

use super::{
    BlockFormat, BlockScale, Codebook, Encoding, Field, Format, GroupScale, Offset, Plane, Turn,
    Value, grids,
};

const fn plane(at: u16, bits: u8, run: u16) -> Plane {
    Plane { at, bits, run }
}

/// Non-linear 4-bit values of IQ4_NL and IQ4_XS.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// FP4 (E2M1) values, doubled so that they are integers; [`BlockScale::HalfE8M0`] has the factor ½.
const FP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A block of 32 with nibbles at `at` and the scale before them: the structure of the legacy
/// formats.
const fn small(bytes: usize, planes: &'static [Plane], value: Value, offset: Offset) -> Encoding {
    Encoding::Blocks(BlockFormat {
        elems: 32,
        bytes,
        planes,
        value,
        group: 32,
        scale: BlockScale::F16(0),
        group_scale: GroupScale::One,
        offset,
    })
}

/// A super-block of 256 with group scales: the structure of the K formats.
const fn super_block(
    bytes: usize,
    planes: &'static [Plane],
    value: Value,
    group: usize,
    scale_at: u16,
    group_scale: GroupScale,
    offset: Offset,
) -> Encoding {
    Encoding::Blocks(BlockFormat {
        elems: 256,
        bytes,
        planes,
        value,
        group,
        scale: BlockScale::F16(scale_at),
        group_scale,
        offset,
    })
}

/// A format of 256 weights with a codebook.
const fn vectors(
    bytes: usize,
    book: &'static Codebook,
    group: usize,
    scale: BlockScale,
    group_scale: GroupScale,
) -> Encoding {
    let value = Value::Codebook(book);
    Encoding::Blocks(BlockFormat {
        elems: 256,
        bytes,
        planes: &[],
        value,
        group,
        scale,
        group_scale,
        offset: Offset::None,
    })
}

/// A format with only a block scale.
const fn one_scale(
    elems: usize,
    bytes: usize,
    planes: &'static [Plane],
    value: Value,
    scale_at: u16,
) -> Encoding {
    let (scale, group_scale) = (BlockScale::F16(scale_at), GroupScale::One);
    Encoding::Blocks(BlockFormat {
        elems,
        bytes,
        planes,
        value,
        group: elems,
        scale,
        group_scale,
        offset: Offset::None,
    })
}

/// A byte for each element.
const fn bytes(at: u16) -> Field {
    Field { at, step: 1, per: 1, shift: 0, each: 8, bits: 8 }
}

/// `per` contiguous elements of `bits` bits, from bit `shift` on, in each word of `step` bytes.
const fn packed(at: u16, step: u16, per: u16, shift: u16, bits: u16) -> Field {
    Field { at, step, per, shift, each: bits, bits }
}

/// Fields in nibbles: the `bits` bits from bit `shift` on.
const fn nibbles(at: u16, shift: u16, bits: u16) -> Field {
    Field { at, step: 1, per: 2, shift, each: 4, bits }
}

/// A word with four indices, then a word with four times seven signs and a 4-bit scale.
const IQ2_XXS: Codebook = Codebook {
    grid: &grids::IQ2_XXS,
    low: Field { at: 2, step: 8, per: 4, shift: 0, each: 8, bits: 8 },
    high: None,
    turn: Turn::Signs(packed(6, 8, 4, 0, 7)),
};

/// Nine bits of index and seven signs in each word.
const IQ2_XS: Codebook = Codebook {
    grid: &grids::IQ2_XS,
    low: packed(2, 2, 1, 0, 9),
    high: None,
    turn: Turn::Signs(packed(2, 2, 1, 9, 7)),
};

const IQ2_S: Codebook = Codebook {
    grid: &grids::IQ2_S,
    low: bytes(2),
    high: Some(packed(66, 1, 4, 0, 2)),
    turn: Turn::Signs(bytes(34)),
};

const IQ3_XXS: Codebook = Codebook {
    grid: &grids::IQ3_XXS,
    low: bytes(2),
    high: None,
    turn: Turn::Signs(packed(66, 4, 4, 0, 7)),
};

const IQ3_S: Codebook = Codebook {
    grid: &grids::IQ3_S,
    low: bytes(2),
    high: Some(packed(66, 1, 8, 0, 1)),
    turn: Turn::Signs(bytes(74)),
};

/// Each word of two bytes has four times three index bits, three scale bits and a shift.
const IQ1_S: Codebook = Codebook {
    grid: &grids::IQ1,
    low: bytes(2),
    high: Some(packed(34, 2, 4, 0, 3)),
    turn: Turn::ShiftAll(packed(34, 2, 1, 15, 1)),
};

/// Three bits of index and a shift in each nibble.
const IQ1_M: Codebook = Codebook {
    grid: &grids::IQ1,
    low: bytes(0),
    high: Some(nibbles(32, 0, 3)),
    turn: Turn::ShiftEach(nibbles(32, 3, 1)),
};

/// Every format that kjit supports, in the order of ids.
pub const ALL: &[Format] = &[
    Format { name: "F32", ggml_id: 0, encoding: Encoding::F32 },
    Format { name: "F16", ggml_id: 1, encoding: Encoding::F16 },
    Format {
        name: "Q4_0",
        ggml_id: 2,
        encoding: small(18, &[plane(2, 4, 16)], Value::Biased(8), Offset::None),
    },
    Format {
        name: "Q4_1",
        ggml_id: 3,
        encoding: small(20, &[plane(4, 4, 16)], Value::Biased(0), Offset::Plus(2)),
    },
    Format {
        name: "Q5_0",
        ggml_id: 6,
        encoding: small(22, &[plane(6, 4, 16), plane(2, 1, 1)], Value::Biased(16), Offset::None),
    },
    Format {
        name: "Q5_1",
        ggml_id: 7,
        encoding: small(24, &[plane(8, 4, 16), plane(4, 1, 1)], Value::Biased(0), Offset::Plus(2)),
    },
    Format {
        name: "Q8_0",
        ggml_id: 8,
        encoding: small(34, &[plane(2, 8, 32)], Value::Signed, Offset::None),
    },
    Format {
        name: "Q2_K",
        ggml_id: 10,
        encoding: super_block(
            84,
            &[plane(16, 2, 32)],
            Value::Biased(0),
            16,
            80,
            GroupScale::NibblePair(0),
            Offset::MinusScaled(82),
        ),
    },
    Format {
        name: "Q3_K",
        ggml_id: 11,
        encoding: super_block(
            110,
            &[plane(32, 2, 32), plane(0, 1, 32)],
            Value::Biased(4),
            16,
            108,
            GroupScale::Planes {
                low: plane(96, 4, 8),
                high: Some(plane(104, 2, 4)),
                bias: 32,
                signed: false,
            },
            Offset::None,
        ),
    },
    Format {
        name: "Q4_K",
        ggml_id: 12,
        encoding: super_block(
            144,
            &[plane(16, 4, 32)],
            Value::Biased(0),
            32,
            0,
            GroupScale::SixBitPairs(4),
            Offset::MinusScaled(2),
        ),
    },
    Format {
        name: "Q5_K",
        ggml_id: 13,
        encoding: super_block(
            176,
            &[plane(48, 4, 32), plane(16, 1, 32)],
            Value::Biased(0),
            32,
            0,
            GroupScale::SixBitPairs(4),
            Offset::MinusScaled(2),
        ),
    },
    Format {
        name: "Q6_K",
        ggml_id: 14,
        encoding: super_block(
            210,
            &[plane(0, 4, 64), plane(128, 2, 32)],
            Value::Biased(32),
            16,
            208,
            GroupScale::Planes { low: plane(192, 8, 16), high: None, bias: 0, signed: true },
            Offset::None,
        ),
    },
    Format {
        name: "IQ2_XXS",
        ggml_id: 16,
        encoding: vectors(
            66,
            &IQ2_XXS,
            32,
            BlockScale::F16Down(0, 3),
            GroupScale::Odd(packed(6, 8, 1, 28, 4)),
        ),
    },
    Format {
        name: "IQ2_XS",
        ggml_id: 17,
        encoding: vectors(
            74,
            &IQ2_XS,
            16,
            BlockScale::F16Down(0, 3),
            GroupScale::Odd(nibbles(66, 0, 4)),
        ),
    },
    Format {
        name: "IQ3_XXS",
        ggml_id: 18,
        encoding: vectors(
            98,
            &IQ3_XXS,
            32,
            BlockScale::F16Down(0, 2),
            GroupScale::Odd(packed(66, 4, 1, 28, 4)),
        ),
    },
    Format {
        name: "IQ1_S",
        ggml_id: 19,
        encoding: vectors(
            50,
            &IQ1_S,
            32,
            BlockScale::F16Down(0, 3),
            GroupScale::Odd(packed(34, 2, 1, 12, 3)),
        ),
    },
    Format {
        name: "IQ4_NL",
        ggml_id: 20,
        encoding: small(18, &[plane(2, 4, 16)], Value::Table(&IQ4), Offset::None),
    },
    Format {
        name: "IQ3_S",
        ggml_id: 21,
        encoding: vectors(
            110,
            &IQ3_S,
            32,
            BlockScale::F16Down(0, 0),
            GroupScale::Odd(nibbles(106, 0, 4)),
        ),
    },
    Format {
        name: "IQ2_S",
        ggml_id: 22,
        encoding: vectors(
            82,
            &IQ2_S,
            16,
            BlockScale::F16Down(0, 3),
            GroupScale::Odd(nibbles(74, 0, 4)),
        ),
    },
    Format {
        name: "IQ4_XS",
        ggml_id: 23,
        encoding: super_block(
            136,
            &[plane(8, 4, 16)],
            Value::Table(&IQ4),
            32,
            0,
            GroupScale::Planes {
                low: plane(4, 4, 1),
                high: Some(plane(2, 2, 1)),
                bias: 32,
                signed: false,
            },
            Offset::None,
        ),
    },
    Format {
        name: "IQ1_M",
        ggml_id: 29,
        encoding: vectors(
            56,
            &IQ1_M,
            16,
            BlockScale::SplitF16Down(48, 3),
            GroupScale::Odd(packed(48, 2, 4, 0, 3)),
        ),
    },
    Format { name: "BF16", ggml_id: 30, encoding: Encoding::BF16 },
    Format { name: "TQ1_0", ggml_id: 34, encoding: one_scale(256, 54, &[], Value::Ternary, 52) },
    Format {
        name: "TQ2_0",
        ggml_id: 35,
        encoding: one_scale(256, 66, &[plane(0, 2, 32)], Value::Biased(1), 64),
    },
    Format {
        name: "MXFP4",
        ggml_id: 39,
        encoding: Encoding::Blocks(BlockFormat {
            elems: 32,
            bytes: 17,
            planes: &[plane(1, 4, 16)],
            value: Value::Table(&FP4_DOUBLED),
            group: 32,
            scale: BlockScale::HalfE8M0(0),
            group_scale: GroupScale::One,
            offset: Offset::None,
        }),
    },
    Format {
        name: "NVFP4",
        ggml_id: 40,
        encoding: Encoding::Blocks(BlockFormat {
            elems: 64,
            bytes: 36,
            planes: &[plane(4, 4, 8)],
            value: Value::Table(&FP4_DOUBLED),
            group: 16,
            scale: BlockScale::Down(10),
            group_scale: GroupScale::Ue4m3(0),
            offset: Offset::None,
        }),
    },
    Format {
        name: "Q1_0",
        ggml_id: 41,
        encoding: one_scale(128, 18, &[plane(2, 1, 1)], Value::Doubled(1), 0),
    },
    Format {
        name: "Q2_0",
        ggml_id: 42,
        encoding: one_scale(64, 18, &[plane(2, 2, 1)], Value::Biased(1), 0),
    },
];

impl Format {
    /// The format with this GGUF type id, if kjit supports it.
    pub fn by_id(ggml_id: u32) -> Option<&'static Format> {
        ALL.iter().find(|f| f.ggml_id == ggml_id)
    }

    /// The format with this name, in upper or lower case (`q4_k`, `Q4_K`).
    pub fn by_name(name: &str) -> Option<&'static Format> {
        ALL.iter().find(|f| f.name.eq_ignore_ascii_case(name))
    }
}

/// Passes to a macro, after its other arguments, the ids of the block formats whose codes are in
/// runs of sixteen bytes or in a word of 32 bits. It is for code that has the format as a type:
/// written once, instantiated for each.
#[macro_export]
macro_rules! block_format_ids {
    ($then:ident!($($given:tt)*)) => {
        $then!($($given)* 2 3 6 7 8 10 11 12 13 14 20 23 35 39)
    };
}

/// As `block_format_ids!`, with the ids of the other block formats: codebooks, digits of base 3,
/// neighbouring codes in one byte, runs of eight.
#[macro_export]
macro_rules! scattered_format_ids {
    ($then:ident!($($given:tt)*)) => {
        $then!($($given)* 16 17 18 19 21 22 29 34 40 41 42)
    };
}

/// The ids above are exactly the ids of the table, each in the right list.
const _: () = {
    macro_rules! list {
        ($($id:literal)*) => { [$($id),*] };
    }
    let (ids, others) = (block_format_ids!(list!()), scattered_format_ids!(list!()));
    let (mut i, mut at, mut other) = (0, 0, 0);
    while i < ALL.len() {
        if let Encoding::Blocks(b) = ALL[i].encoding {
            if b.is_scattered() {
                assert!(
                    other < others.len() && others[other] == ALL[i].ggml_id,
                    "an id not in scattered_format_ids"
                );
                other += 1;
            } else {
                assert!(
                    at < ids.len() && ids[at] == ALL[i].ggml_id,
                    "a block format whose id is not in block_format_ids"
                );
                at += 1;
            }
        }
        i += 1;
    }
    assert!(
        at == ids.len() && other == others.len(),
        "a list contains an id that is not a block format"
    );
};
