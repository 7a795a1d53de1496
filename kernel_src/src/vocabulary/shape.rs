//! Constants for the GPU's code: structs (the template arguments of its steps) and enums, which
//! both sides define.

use kjit_engine::{Constants, Value as Constant};
use kjit_formats::format::grids::Grid;
use std::fmt::Write;

/// An enum that the GPU's code also has, with the same name and variants (without their data).
pub trait GpuEnum {
    /// The variant's name in the GPU's code.
    fn name(&self) -> &'static str;
}

/// Whether a header has this declaration, ignoring white space.
pub(crate) const fn declares(header: &str, declaration: &str) -> bool {
    let (header, declaration) = (header.as_bytes(), declaration.as_bytes());
    let mut start = 0;
    while start < header.len() {
        let (mut h, mut d) = (start, 0);
        loop {
            while d < declaration.len() && declaration[d].is_ascii_whitespace() {
                d += 1;
            }
            if d == declaration.len() {
                return true;
            }
            while h < header.len() && header[h].is_ascii_whitespace() {
                h += 1;
            }
            if h == header.len() || header[h] != declaration[d] {
                break;
            }
            (h, d) = (h + 1, d + 1);
        }
        start += 1;
    }
    false
}

/// Implements [`GpuEnum`] for an enum of a header of `kernel_src/gpu`. It does not compile if the
/// header's enum has different variants or a different order.
macro_rules! gpu_enum {
    ($header:ident: $type:ident { $($variant:ident),* $(,)? }) => {
        impl $crate::vocabulary::shape::GpuEnum for $type {
            fn name(&self) -> &'static str {
                match self {
                    $($type::$variant { .. } => {
                        concat!(stringify!($type), "::", stringify!($variant))
                    })*
                }
            }
        }

        const _: () = assert!(
            $crate::vocabulary::shape::declares(
                $crate::vocabulary::files::$header,
                concat!(
                    "enum class ", stringify!($type), ": unsigned {",
                    $(stringify!($variant), ",",)* "};"
                ),
            ),
            concat!("the header declares ", stringify!($type), " with different variants"),
        );
    };
}
pub(crate) use gpu_enum;

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

/// A struct of constants: the template argument of a step of the GPU's code.
///
/// ```
/// use kjit_kernels::activations::Prologue;
/// use kjit_kernels::shape::Shape;
/// let shape = Shape::new().number("COLS", 4096).flag("BIAS", false);
/// let shape = shape.choice("PROLOGUE", &Prologue::Norm);
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
    /// An empty struct.
    #[must_use]
    pub fn new() -> Shape {
        Shape::default()
    }

    fn with(mut self, name: &'static str, field: Field) -> Shape {
        debug_assert!(self.fields.iter().all(|(n, _)| *n != name), "{name} twice");
        self.fields.push((name, field));
        self
    }

    /// Adds a comment above the struct.
    #[must_use]
    pub fn note(mut self, text: String) -> Shape {
        self.note = text;
        self
    }

    /// Adds a `u32`.
    #[must_use]
    pub fn number(self, name: &'static str, value: impl TryInto<i64>) -> Shape {
        // Specs have no sizes beyond i64. The saturated value is a valid literal, which the
        // compiler rejects as a u32.
        self.with(name, Field::Number(value.try_into().unwrap_or(i64::MAX)))
    }

    /// Adds an `i32`.
    #[must_use]
    pub fn signed(self, name: &'static str, value: impl Into<i32>) -> Shape {
        self.with(name, Field::Signed(value.into()))
    }

    /// Adds a `bool`.
    #[must_use]
    pub fn flag(self, name: &'static str, value: bool) -> Shape {
        self.with(name, Field::Flag(value))
    }

    /// Adds a `float`; it must be finite.
    #[must_use]
    pub fn real(self, name: &'static str, value: f32) -> Shape {
        self.with(name, Field::Real(value))
    }

    /// Adds a variant of an enum.
    #[must_use]
    pub fn choice(self, name: &'static str, value: &impl GpuEnum) -> Shape {
        self.with(name, Field::Choice(value.name()))
    }

    /// Adds a nested struct, `Shape::NAME` in the GPU's code.
    #[must_use]
    pub fn inner(self, name: &'static str, shape: Shape) -> Shape {
        self.with(name, Field::Inner(shape))
    }

    /// Adds an alias for an earlier nested struct.
    #[must_use]
    pub fn alias(self, name: &'static str, of: &'static str) -> Shape {
        self.with(name, Field::Alias(of))
    }

    /// Adds a function with this name that returns the vectors of a codebook: words with the first
    /// weight in the lowest byte.
    #[must_use]
    pub fn grid(self, name: &'static str, grid: &'static Grid) -> Shape {
        self.with(name, Field::Grid(grid))
    }

    /// Appends all fields of `other`.
    #[must_use]
    pub fn and(self, other: Shape) -> Shape {
        other.fields.into_iter().fold(self, |shape, (name, field)| shape.with(name, field))
    }

    /// The source of the struct.
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

    /// The tables that the functions of the struct return, each once; they are placed before it.
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

    /// Adds the fields to the constants, for display only.
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
