//! Constants as the GPU's code sees them: structs of them, which its steps are templates over, and
//! the enums that both sides name.

use crate::activations::{Form, Prologue};
use crate::combine::Combine;
use crate::format::grids::Grid;
use crate::format::{
    BlockScale, Encoding, Field as Bits, GroupScale, Offset, Plane, Turn, Value, down,
};
use crate::kv::KvStorage;
use crate::layout::{Blocks, Groups, Layout, Vectors};
use crate::map::{Function, Map};
use crate::norm::NormKind;
use crate::route::Gating;
use crate::segments::{Gate, Results};
use kjit_engine::{Constants, Value as Constant};
use std::fmt::Write;

/// An enum that the GPU's code has under the same name, with the same variants (without their
/// data).
pub trait GpuEnum {
    /// The variant, as the GPU's code names it.
    fn name(&self) -> &'static str;
}

/// Enums, and a header with all of them. A variant that is left out does not compile.
macro_rules! gpu_enums {
    ($(#[$doc:meta])* $header:ident = $file:literal; $($type:ident { $($variant:ident),* $(,)? })*) => {
        $(#[$doc])*
        pub(crate) const $header: &str = concat!(
            "// ", $file, ": the enums of the same names in kernel_src/src.\n#pragma once\n",
            $("enum class ", stringify!($type), " : unsigned { ", $(stringify!($variant), ", ",)* "};\n",)*
        );
        $(impl GpuEnum for $type {
            fn name(&self) -> &'static str {
                match self {
                    $($type::$variant { .. } => concat!(stringify!($type), "::", stringify!($variant)),)*
                }
            }
        })*
    };
}

gpu_enums! {
    /// The header `enums.h`.
    ENUMS = "enums.h";
    BlockScale { F16, HalfE8M0, F16Down, SplitF16Down, Down }
    Blocks { None, Half, HalfPair, HalfE8M0 }
    Combine { Add, Silu, Gelu }
    Encoding { F32, F16, BF16, Blocks }
    Form { Quantised, Plain }
    Gate { None, Silu, Gelu }
    GroupScale { One, Planes, SixBitPairs, NibblePair, Odd, Ue4m3 }
    Groups { None, BytePair, NibblePair, Signed16, Signed32, Odd16, InSigns, InHigh, Ue4m3 }
    KvStorage { F32, F16, Q8_0 }
    NormKind { Rms, Layer }
    Offset { None, Plus, MinusScaled }
    Prologue { None, Norm, Silu, Gelu }
    Results { Singles, Tiles, Panels }
    Turn { Signs, ShiftEach, ShiftAll }
}

gpu_enums! {
    /// The header `row_enums.h`, of what works on rows: by itself, since what is in a kernel's
    /// headers is part of its key.
    ROW_ENUMS = "row_enums.h";
    Function {
        Identity, Silu, GeluTanh, Relu, ReluSquared, Sigmoid, Tanh, Softplus, Clamp, SoftCap, ClampedSilu, Xielu,
        Above, Sqrt,
    }
    Gating { Softmax, Sigmoid, Chosen }
    Map { Act, Affine, Gate, AddChosen, Spread, Sum, Slice, Concat, Dot, FromTiles, Rotate, Temper }
}

/// A field of a [`Shape`]: its type in the GPU's code, and its value.
#[derive(Debug, Clone, PartialEq)]
enum Field {
    Number(i64),
    Signed(i32),
    Flag(bool),
    Real(f32),
    Choice(&'static str),
    Inner(Shape),
    Alias(&'static str),
    Grid(&'static Grid),
}

/// A struct of constants: what a step of the GPU's code is a template over.
///
/// ```
/// use kjit_kernels::activations::Prologue;
/// use kjit_kernels::render::Shape;
/// let shape = Shape::new().number("COLS", 4096).flag("BIAS", false).choice("PROLOGUE", &Prologue::Norm);
/// assert_eq!(
///     shape.render("Shape"),
///     "struct Shape {
///     static constexpr u32 COLS = 4096;
///     static constexpr bool BIAS = false;
///     static constexpr Prologue PROLOGUE = Prologue::Norm;
/// };
/// "
/// );
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shape {
    note: String,
    fields: Vec<(&'static str, Field)>,
}

impl Shape {
    /// An empty one.
    #[must_use]
    pub fn new() -> Shape {
        Shape::default()
    }

    fn with(mut self, name: &'static str, field: Field) -> Shape {
        debug_assert!(self.fields.iter().all(|(n, _)| *n != name), "{name} twice");
        self.fields.push((name, field));
        self
    }

    /// A comment above the struct.
    #[must_use]
    pub fn note(mut self, text: String) -> Shape {
        self.note = text;
        self
    }

    /// A `u32`.
    #[must_use]
    pub fn number(self, name: &'static str, value: impl TryInto<i64>) -> Shape {
        // Sizes beyond i64 do not come out of any spec; saturating keeps the text valid, and the
        // compiler refuses it as a u32.
        self.with(name, Field::Number(value.try_into().unwrap_or(i64::MAX)))
    }

    /// An `i32`.
    #[must_use]
    pub fn signed(self, name: &'static str, value: impl Into<i32>) -> Shape {
        self.with(name, Field::Signed(value.into()))
    }

    /// A `bool`.
    #[must_use]
    pub fn flag(self, name: &'static str, value: bool) -> Shape {
        self.with(name, Field::Flag(value))
    }

    /// A `float`; must be finite.
    #[must_use]
    pub fn real(self, name: &'static str, value: f32) -> Shape {
        self.with(name, Field::Real(value))
    }

    /// A variant of an enum.
    #[must_use]
    pub fn choice(self, name: &'static str, value: &impl GpuEnum) -> Shape {
        self.with(name, Field::Choice(value.name()))
    }

    /// A struct inside, `Shape::NAME` to the GPU's code.
    #[must_use]
    pub fn inner(self, name: &'static str, shape: Shape) -> Shape {
        self.with(name, Field::Inner(shape))
    }

    /// Another name of an earlier struct inside.
    #[must_use]
    pub fn alias(self, name: &'static str, of: &'static str) -> Shape {
        self.with(name, Field::Alias(of))
    }

    /// The vectors of a codebook, which a function of this name answers: words, the first weight's
    /// byte lowest.
    #[must_use]
    pub fn grid(self, name: &'static str, grid: &'static Grid) -> Shape {
        self.with(name, Field::Grid(grid))
    }

    /// All fields of another one behind these.
    #[must_use]
    pub fn and(self, other: Shape) -> Shape {
        other.fields.into_iter().fold(self, |shape, (name, field)| shape.with(name, field))
    }

    /// The struct's text.
    #[must_use]
    pub fn render(&self, name: &str) -> String {
        let mut text = String::new();
        self.render_into(&mut text, name, "");
        text
    }

    fn render_into(&self, text: &mut String, name: &str, indent: &str) {
        if !self.note.is_empty() {
            let _ = writeln!(text, "{indent}// {}", self.note);
        }
        let _ = writeln!(text, "{indent}struct {name} {{");
        for (name, field) in &self.fields {
            let (kind, value) = match field {
                Field::Signed(n) => ("i32", n.to_string()),
                Field::Number(n) => {
                    ("u32", if *n > i64::from(i32::MAX) { format!("{n}u") } else { n.to_string() })
                }
                Field::Flag(flag) => ("bool", flag.to_string()),
                Field::Real(v) => ("float", Constant::Float(*v).to_string()),
                Field::Choice(choice) => {
                    (choice.split(':').next().unwrap_or_default(), (*choice).to_owned())
                }
                Field::Inner(shape) => {
                    shape.render_into(text, name, &format!("{indent}    "));
                    continue;
                }
                Field::Grid(grid) => {
                    let _ = writeln!(
                        text,
                        "{indent}    STEP const u32* {name}() {{ return GRID_{}; }}",
                        grid.name
                    );
                    continue;
                }
                Field::Alias(of) => {
                    let _ = writeln!(text, "{indent}    using {name} = {of};");
                    continue;
                }
            };
            let _ = writeln!(text, "{indent}    static constexpr {kind} {name} = {value};");
        }
        let _ = writeln!(text, "{indent}}};");
    }

    /// The header `shape.h` of a kernel of one step.
    #[must_use]
    pub fn header(&self) -> String {
        format!(
            "#pragma once\n#include \"enums.h\"\n#include \"kjit.h\"\n\n{}{}",
            self.tables(),
            self.render("Shape")
        )
    }

    /// The tables that the struct's functions answer, each once; they stand before it.
    #[must_use]
    pub fn tables(&self) -> String {
        let mut grids = Vec::new();
        self.grids(&mut grids);
        let mut text = String::new();
        for grid in grids {
            let words = grid.vector / 4;
            let _ = writeln!(
                text,
                "alignas(8) TABLE u32 GRID_{}[{}] = {{",
                grid.name,
                grid.entries.len() * words
            );
            for line in grid.entries.chunks(8 / words) {
                for word in line
                    .iter()
                    .flat_map(|entry| [*entry as u32, (entry >> 32) as u32].into_iter().take(words))
                {
                    let _ = write!(text, "0x{word:08x},");
                }
                text.push('\n');
            }
            text.push_str("};\n\n");
        }
        text
    }

    fn grids(&self, into: &mut Vec<&'static Grid>) {
        for (_, field) in &self.fields {
            match field {
                Field::Grid(grid) if !into.contains(grid) => into.push(grid),
                Field::Inner(shape) => shape.grids(into),
                _ => {}
            }
        }
    }

    /// Tells of its fields wherever the constants are shown.
    #[must_use]
    pub fn tell(&self, constants: Constants) -> Constants {
        self.fields.iter().fold(constants, |c, (name, field)| match field {
            Field::Number(n) => c.tell(*name, *n),
            Field::Signed(n) => c.tell(*name, *n),
            Field::Flag(flag) => c.tell(*name, *flag),
            Field::Real(v) => c.tell(*name, *v),
            Field::Choice(choice) => c.tell(*name, *choice),
            Field::Inner(_) | Field::Alias(_) | Field::Grid(_) => c,
        })
    }
}

/// The constants that `gpu/weights.h` takes as a format.
#[must_use]
pub fn weights(layout: &Layout) -> Shape {
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
    // A code that counts twice is one whose bits begin at the second.
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

/// The constants of the sections of a codebook, and its vectors.
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

/// The constants that `gpu/repack.h` takes: where the file's blocks have what.
#[must_use]
pub fn raw(layout: &Layout) -> Shape {
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
        BlockScale::Down(_) => 0, // not read: the layout has none
    };
    let offset = match b.offset {
        Offset::None => 0, // not read: the layout has none
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

/// A field of a block, as [`Bits::of`] reads it.
fn bits(field: Bits) -> Shape {
    Shape::new()
        .number("AT", field.at)
        .number("STEP_BYTES", field.step)
        .number("PER", field.per)
        .number("SHIFT", field.shift)
        .number("EACH", field.each)
        .number("BITS", field.bits)
}
