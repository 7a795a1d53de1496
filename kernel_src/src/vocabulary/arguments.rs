//! The arguments of a launch, declared once for each family: their order, names and kinds.

/// The most weights of a product's launch.
pub const MOST_SEGMENTS: usize = 3;

/// The type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pointer, which may be null.
    Pointer,
    /// 32 bits.
    U32,
    /// 64 bits.
    U64,
    /// f32.
    F32,
}

/// An argument's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// Name of the argument.
    pub name: &'static str,
    /// Type of the argument.
    pub kind: Kind,
}

/// The arguments of a launch, generic over their type: a plan's bindings, a case's data, an
/// embedder's buffers. `arguments!` declares them once.
pub trait Arguments<A>: Sized {
    /// The arguments in the kernel's order.
    const DECLARED: &'static [Declared];

    /// The values in that order.
    fn list(self) -> Vec<A>;
}

/// The arguments of a family with optional pages. Without pages the last one, a table of pages, is
/// absent.
pub(crate) fn with_table<A: Arguments<()>>(paged: bool) -> &'static [Declared] {
    let all = A::DECLARED;
    all.get(..all.len() - usize::from(!paged)).unwrap_or(all)
}

/// The arguments of a product for each of its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentArgs<A> {
    /// Row records.
    pub w: A,
    /// An f32 for each row, or null.
    pub b: A,
    /// Results of the weight; null for the second weight of a gated unit.
    pub y: A,
}

/// Declares the arguments of a kernel family: a struct with a field for each argument, generic over
/// the type of its fields. `segments` between two lists means the weights of a product, `w0, b0,
/// y0, w1, …`, three times.
macro_rules! arguments {
    ($(#[$doc:meta])* $name:ident { $($(#[$d:meta])* $field:ident: $kind:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name<A> { $($(#[$d])* pub $field: A,)* }

        impl<A> $crate::vocabulary::arguments::Arguments<A> for $name<A> {
            const DECLARED: &'static [$crate::vocabulary::arguments::Declared] = {
                use $crate::vocabulary::arguments::{Declared, Kind};
                &[$(Declared { name: stringify!($field), kind: Kind::$kind }),*]
            };

            fn list(self) -> Vec<A> {
                vec![$(self.$field),*]
            }
        }
    };
    ($(#[$doc:meta])* $name:ident {
        $($(#[$d:meta])* $field:ident: $kind:ident,)*
    } segments {
        $($(#[$d2:meta])* $field2:ident: $kind2:ident,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name<A> {
            $($(#[$d])* pub $field: A,)*
            /// The weights, their biases and their results; null after the last one.
            pub segments: [
                $crate::vocabulary::arguments::SegmentArgs<A>;
                $crate::vocabulary::arguments::MOST_SEGMENTS
            ],
            $($(#[$d2])* pub $field2: A,)*
        }

        impl<A> $crate::vocabulary::arguments::Arguments<A> for $name<A> {
            const DECLARED: &'static [$crate::vocabulary::arguments::Declared] = {
                use $crate::vocabulary::arguments::{Declared, Kind};
                const fn pointer(name: &'static str) -> Declared {
                    Declared { name, kind: Kind::Pointer }
                }
                &[
                    $(Declared { name: stringify!($field), kind: Kind::$kind },)*
                    pointer("w0"), pointer("b0"), pointer("y0"),
                    pointer("w1"), pointer("b1"), pointer("y1"),
                    pointer("w2"), pointer("b2"), pointer("y2"),
                    $(Declared { name: stringify!($field2), kind: Kind::$kind2 },)*
                ]
            };

            fn list(self) -> Vec<A> {
                let mut all = vec![$(self.$field),*];
                all.extend(self.segments.into_iter().flat_map(|s| [s.w, s.b, s.y]));
                all.extend([$(self.$field2),*]);
                all
            }
        }
    };
}
pub(crate) use arguments;
