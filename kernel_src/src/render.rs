//! A block format as the GPU's code sees it: the constants of `gpu/weights.h` and `gpu/repack.hip`, from the one description.

use crate::format::{BlockScale, Encoding, GroupScale, Offset, Plane, Value};
use crate::layout::{Blocks, Groups, Layout};
use std::fmt::Write;

/// The struct `name` of constants that `gpu/weights.h` takes as a format.
#[must_use]
pub fn weights_struct(name: &str, layout: &Layout) -> String {
    let mut fields = vec![
        ("UNIT", layout.unit() as i64),
        ("UNITS", layout.units() as i64),
        ("ROW_BYTES", layout.row_bytes as i64),
        ("GROUPS_AT", layout.groups_at as i64),
        ("BLOCKS_AT", layout.blocks_at as i64),
        (
            "GROUPS",
            match layout.groups {
                Groups::None => 0,
                Groups::BytePair => 1,
                Groups::NibblePair => 2,
                Groups::Signed16 => 3,
                Groups::Signed32 => 4,
            },
        ),
        (
            "BLOCKS",
            match layout.blocks {
                Blocks::None => 0,
                Blocks::Half => 1,
                Blocks::HalfPair => 2,
                Blocks::HalfE8M0 => 3,
            },
        ),
        ("BLOCK_32", (layout.format.block_elems() / 32).max(1) as i64),
        (
            "PLAIN",
            match layout.format.encoding {
                Encoding::Blocks(_) => 0,
                Encoding::F32 => 1,
                Encoding::F16 => 2,
                Encoding::BF16 => 3,
            },
        ),
    ];
    for (field, section) in ["C1", "C2", "C4", "C8"].into_iter().zip(layout.codes) {
        fields.push((field, section.map_or(i64::from(u32::MAX), |at| at as i64)));
    }
    let block = layout.block();
    let low = |bits: u8| {
        let planes = block.map_or(&[][..], |b| b.planes);
        planes.iter().take_while(|p| p.bits != bits).map(|p| i64::from(p.bits)).sum()
    };
    fields.push(("C1_LOW", low(1)));
    fields.push(("C2_LOW", low(2)));
    let (bias, table) = match block.map(|b| b.value) {
        Some(Value::Biased(bias)) => (i64::from(bias), None),
        Some(Value::Table(table)) => (0, Some(table)),
        Some(Value::Signed) | None => (0, None),
    };
    fields.push(("LOOKUP", i64::from(table.is_some())));
    for (i, field) in ["T0", "T1", "T2", "T3"].into_iter().enumerate() {
        let bytes = |t: &[i8; 16]| u32::from_le_bytes([0, 1, 2, 3].map(|b| t[4 * i + b] as u8));
        fields.push((field, table.map_or(0, |t| i64::from(bytes(t)))));
    }
    fields.push((
        "OFFSET",
        match block.map(|b| b.offset) {
            Some(Offset::Plus(_)) => 1,
            Some(Offset::MinusScaled(_)) => 2,
            Some(Offset::None) | None => 0,
        },
    ));
    let mut text = format!("// {} rows of {}\nstruct {name} {{\n", layout.format, layout.cols);
    for (field, value) in fields {
        let _ = writeln!(text, "    static constexpr u32 {field} = {value}u;");
    }
    let _ = writeln!(text, "    static constexpr i32 BIAS = {bias};\n}};");
    text
}

/// The struct `Raw` of constants that `gpu/repack.hip` takes: where the file's blocks have what.
#[must_use]
pub fn raw_struct(layout: &Layout) -> String {
    let mut text = String::from("struct Raw {\n");
    let mut field = |name: &str, value: i64| {
        let _ = writeln!(text, "    static constexpr i32 {name} = {value};");
    };
    if let Some(b) = layout.block() {
        field("BLOCK", b.elems as i64);
        field("BYTES", b.bytes as i64);
        let mut plane = |name: &str, p: Option<&Plane>| {
            let p = p.copied().unwrap_or(Plane { at: 0, bits: 0, run: 1 });
            field(&format!("{name}_AT"), i64::from(p.at));
            field(&format!("{name}_BITS"), i64::from(p.bits));
            field(&format!("{name}_RUN"), i64::from(p.run));
        };
        for bits in [1, 2, 4, 8] {
            plane(&format!("C{bits}"), b.planes.iter().find(|p| p.bits == bits));
        }
        let (kind, at, low, high, bias) = match &b.group_scale {
            GroupScale::One => (0, 0, None, None, 0),
            GroupScale::SixBitPairs(at) => (1, *at, None, None, 0),
            GroupScale::NibblePair(at) => (2, *at, None, None, 0),
            GroupScale::Planes { low, high, bias, .. } => (3, 0, Some(low), high.as_ref(), *bias),
        };
        plane("LOW", low);
        plane("HIGH", high);
        field("GROUP", b.group as i64);
        field("GROUP_SCALE", kind);
        field("GROUP_SCALE_AT", i64::from(at));
        field("GROUP_BIAS", i64::from(bias));
        let (BlockScale::F16(d) | BlockScale::HalfE8M0(d)) = b.scale;
        field("SCALE_AT", i64::from(d));
        field(
            "OFFSET_AT",
            match b.offset {
                Offset::None => -1,
                Offset::Plus(at) | Offset::MinusScaled(at) => i64::from(at),
            },
        );
    }
    text.push_str("};\n");
    text
}
