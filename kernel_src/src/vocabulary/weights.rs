//! Constants of a block format and its row records for the GPU's code.

use crate::vocabulary::shape::{Shape, gpu_enum};
use kjit_formats::format::{
    BlockScale, Encoding, Field as Bits, GroupScale, Offset, Plane, Turn, Value, down,
};
use kjit_formats::layout::{Blocks, Groups, Layout, Vectors};

gpu_enum!(ENUMS: BlockScale { F16, HalfE8M0, F16Down, SplitF16Down, Down });
gpu_enum!(ENUMS: Blocks { None, Half, HalfPair, HalfE8M0 });
gpu_enum!(ENUMS: Encoding { F32, F16, BF16, Blocks });
gpu_enum!(ENUMS: GroupScale { One, Planes, SixBitPairs, NibblePair, Odd, Ue4m3 });
gpu_enum!(ENUMS: Groups {
    None, BytePair, NibblePair, Signed16, Signed32, Odd16, InSigns, InHigh, Ue4m3,
});
gpu_enum!(ENUMS: Offset { None, Plus, MinusScaled });
gpu_enum!(ENUMS: Turn { Signs, ShiftEach, ShiftAll });

/// The constants of `gpu/weights.h`.
#[must_use]
pub fn records(layout: &Layout) -> Shape {
    let format = layout.format;
    let block = layout.block();
    let mut shape = Shape::new()
        .note(format!("{format} rows of {}", layout.cols))
        .number("UNIT", layout.unit())
        .number("UNITS", layout.units())
        .number("ROW_BYTES", layout.row_bytes)
        .number("GROUPS_AT", layout.groups_at)
        .number("BLOCKS_AT", layout.blocks_at)
        .choice("GROUPS", &layout.groups)
        .choice("BLOCKS", &layout.blocks)
        .number("BLOCK_32", (format.block_elems() / 32).max(1))
        .choice("ENCODING", &format.encoding);
    for (field, section) in ["C1", "C2", "C4", "C8"].into_iter().zip(layout.codes) {
        shape = shape.number(field, section.map_or(i64::from(u32::MAX), |at| at as i64));
    }
    let low = |bits: u8| {
        let planes = block.map_or(&[][..], |b| b.planes);
        planes.iter().take_while(|p| p.bits != bits).map(|p| i64::from(p.bits)).sum::<i64>()
    };
    let (bias, table) = match block.map(|b| b.value) {
        Some(Value::Biased(bias)) => (bias, None),
        Some(Value::Table(table)) => (0, Some(table)),
        Some(Value::Doubled(bias)) => (bias, None),
        Some(Value::Ternary) => (1, None),
        Some(Value::Codebook(book)) => (book.bias() as i8, None),
        Some(Value::Signed) | None => (0, None),
    };
    // The bits of a doubled code are one position higher.
    let doubled = i64::from(matches!(block.map(|b| b.value), Some(Value::Doubled(_))));
    shape = shape
        .number("C1_LOW", low(1) + doubled)
        .number("C2_LOW", low(2) + doubled)
        .flag("LOOKUP", table.is_some());
    for (i, field) in ["T0", "T1", "T2", "T3"].into_iter().enumerate() {
        let bytes = |t: &[i8; 16]| u32::from_le_bytes([0, 1, 2, 3].map(|b| t[4 * i + b] as u8));
        shape = shape.number(field, table.map_or(0, bytes));
    }
    shape = shape.choice("OFFSET", &block.map_or(Offset::None, |b| b.offset)).signed("BIAS", bias);
    match (&layout.vectors, block.map(|b| b.scale)) {
        (Some(v), Some(BlockScale::F16Down(_, by) | BlockScale::SplitF16Down(_, by))) => {
            shape.and(vectors(v)).real("DOWN", down(by))
        }
        _ => shape,
    }
}

/// The constants of a codebook's sections, and its vectors.
fn vectors(v: &Vectors) -> Shape {
    let at = |at: Option<usize>| at.map_or(i64::from(u32::MAX), |at| at as i64);
    Shape::new()
        .number("VECTOR", v.book.grid.vector)
        .number("INDEX_AT", v.index)
        .number("SIGNS_AT", at(v.signs))
        .number("SIGN_BITS", v.sign_bits)
        .flag("INDEX_IN_SIGNS", v.index_in_signs)
        .number("HIGH_AT", at(v.high))
        .number("HIGH_BYTES", v.high_bytes)
        .number("HIGH_BITS", v.high_bits())
        .number("HIGH_STEP", v.high_step)
        .number("SHIFT_AT", v.shift.0)
        .number("SHIFT_STEP", v.shift.1)
        .grid("grid", v.book.grid)
}

/// The constants of `gpu/repack.h`: offsets of all fields in the file's blocks.
#[must_use]
pub fn blocks(layout: &Layout) -> Shape {
    let format = layout.format;
    let shape =
        Shape::new().number("BLOCK", format.block_elems()).number("BYTES", format.block_bytes());
    let Some(b) = layout.block() else { return shape };
    let plane = |shape: Shape, [at, bits, run]: [&'static str; 3], p: Option<&Plane>| {
        let p = p.copied().unwrap_or(Plane { at: 0, bits: 0, run: 1 });
        shape.number(at, p.at).number(bits, p.bits).number(run, p.run)
    };
    let names = [
        (1, ["C1_AT", "C1_BITS", "C1_RUN"]),
        (2, ["C2_AT", "C2_BITS", "C2_RUN"]),
        (4, ["C4_AT", "C4_BITS", "C4_RUN"]),
        (8, ["C8_AT", "C8_BITS", "C8_RUN"]),
    ];
    let shape = names.into_iter().fold(shape, |shape, (bits, names)| {
        plane(shape, names, b.planes.iter().find(|p| p.bits == bits))
    });
    let (at, low, high, bias) = match &b.group_scale {
        GroupScale::One | GroupScale::Odd(_) => (0, None, None, 0),
        GroupScale::SixBitPairs(at) | GroupScale::NibblePair(at) | GroupScale::Ue4m3(at) => {
            (*at, None, None, 0)
        }
        GroupScale::Planes { low, high, bias, .. } => (0, Some(low), high.as_ref(), *bias),
    };
    let shape = plane(shape, ["LOW_AT", "LOW_BITS", "LOW_RUN"], low);
    let shape = plane(shape, ["HIGH_AT", "HIGH_BITS", "HIGH_RUN"], high);
    let scale = match b.scale {
        BlockScale::F16(at) | BlockScale::HalfE8M0(at) => at,
        BlockScale::F16Down(at, _) | BlockScale::SplitF16Down(at, _) => at,
        BlockScale::Down(_) => 0, // not used: the layout lacks block scales
    };
    let offset = match b.offset {
        Offset::None => 0, // not used: the layout lacks offsets
        Offset::Plus(at) | Offset::MinusScaled(at) => at,
    };
    let shape = shape
        .number("GROUP", b.group)
        .choice("GROUP_SCALE", &b.group_scale)
        .number("GROUP_SCALE_AT", at)
        .signed("GROUP_BIAS", bias)
        .number("SCALE_AT", scale)
        .number("OFFSET_AT", offset)
        .choice("SCALE", &b.scale)
        .flag("TERNARY", matches!(b.value, Value::Ternary));
    let (Value::Codebook(book), GroupScale::Odd(odd)) = (b.value, b.group_scale) else {
        return shape;
    };
    let (Turn::Signs(turn) | Turn::ShiftEach(turn) | Turn::ShiftAll(turn)) = book.turn;
    shape
        .choice("TURN", &book.turn)
        .number("LOW_INDEX_BITS", book.low.bits)
        .inner("Low", bits(book.low))
        .inner("High", bits(book.high.unwrap_or(Bits { bits: 0, ..book.low })))
        .inner("Turned", bits(turn))
        .inner("Odd", bits(odd))
}

/// A field of a block, as read by [`Bits::of`].
fn bits(field: Bits) -> Shape {
    Shape::new()
        .number("AT", field.at)
        .number("STEP_BYTES", field.step)
        .number("PER", field.per)
        .number("SHIFT", field.shift)
        .number("EACH", field.each)
        .number("BITS", field.bits)
}
