//! The formats. Sources of the layouts: the GGUF specification's type list and ggml's published block layouts; MXFP4 is the OCP
//! Microscaling specification's with ggml's nibble order.

use super::{BlockFormat, BlockScale, Encoding, Format, GroupScale, Offset, Plane, Value};

const fn plane(at: u16, bits: u8, run: u16) -> Plane {
    Plane { at, bits, run }
}

/// Non-linear 4-bit values of IQ4_NL and IQ4_XS.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// FP4 (E2M1) values, doubled so that they are integers; [`BlockScale::HalfE8M0`] takes the factor back.
const FP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A block of 32 with nibbles at `at` and the scale in front: the shape of the legacy formats.
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

/// A super-block of 256 with group scales: the shape of the K formats.
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

/// Every format that kjit computes with, in the order of their ids.
pub const ALL: &[Format] = &[
    Format { name: "F32", ggml_id: 0, encoding: Encoding::F32 },
    Format { name: "F16", ggml_id: 1, encoding: Encoding::F16 },
    Format { name: "Q4_0", ggml_id: 2, encoding: small(18, &[plane(2, 4, 16)], Value::Biased(8), Offset::None) },
    Format { name: "Q4_1", ggml_id: 3, encoding: small(20, &[plane(4, 4, 16)], Value::Biased(0), Offset::Plus(2)) },
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
    Format { name: "Q8_0", ggml_id: 8, encoding: small(34, &[plane(2, 8, 32)], Value::Signed, Offset::None) },
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
            GroupScale::Planes { low: plane(96, 4, 8), high: Some(plane(104, 2, 4)), bias: 32, signed: false },
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
    Format { name: "IQ4_NL", ggml_id: 20, encoding: small(18, &[plane(2, 4, 16)], Value::Table(&IQ4), Offset::None) },
    Format {
        name: "IQ4_XS",
        ggml_id: 23,
        encoding: super_block(
            136,
            &[plane(8, 4, 16)],
            Value::Table(&IQ4),
            32,
            0,
            GroupScale::Planes { low: plane(4, 4, 1), high: Some(plane(2, 2, 1)), bias: 32, signed: false },
            Offset::None,
        ),
    },
    Format { name: "BF16", ggml_id: 30, encoding: Encoding::BF16 },
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
];

/// Gives a macro the ids of all block formats, behind what it is given: for code that takes a format as a type, written once and made for each.
#[macro_export]
macro_rules! block_format_ids {
    ($then:ident!($($given:tt)*)) => {
        $then!($($given)* 2 3 6 7 8 10 11 12 13 14 20 23 39)
    };
}

/// The ids above are those of the table, no more and no fewer.
const _: () = {
    macro_rules! list {
        ($($id:literal)*) => { [$($id),*] };
    }
    let ids = block_format_ids!(list!());
    let (mut i, mut at) = (0, 0);
    while i < ALL.len() {
        if matches!(ALL[i].encoding, Encoding::Blocks(_)) {
            assert!(at < ids.len() && ids[at] == ALL[i].ggml_id, "a block format whose id is not in block_format_ids");
            at += 1;
        }
        i += 1;
    }
    assert!(at == ids.len(), "an id in block_format_ids that is no block format's");
};
