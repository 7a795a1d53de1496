//! What a family of kernels is: one module that implements [`Family`], and one row of the registry
//! in [`spec`](crate::spec).
//!
//! All that goes by family goes through this trait: specialising, launching, tuning, timing, cases,
//! the compile matrix. So a family that is in the registry is in all of them.

use crate::cases::{Case, Random};
use crate::kernel::{Kernel, SpecError, require};
use crate::matrix::Samples;
use crate::persistent::{Inside, Step};
use crate::spec::Spec;
use crate::tuning::shipped::{self, Table};
use kjit_engine::{Geometry, Target};
use std::fmt::{self, Debug};
use std::hash::Hash;

/// A family of kernels. A value of it is a *spec*: what is computed, at which sizes, and perhaps by
/// which tuning.
pub trait Family: Clone + Eq + Hash + Debug + Into<Spec> + TryFrom<Spec> + 'static {
    /// Its name: the first word of a spec's text.
    const NAME: &'static str;
    /// How the work is cut: what does not change what is computed.
    type Tuning: Variant;
    /// The arguments of a launch, in the kernel's order.
    type Args<A>: Arguments<A>;

    /// What is computed, at which sizes, without the name and without the tuning: tuning is kept by
    /// it, so two specs that compute the same have one text, and two texts are two kernels.
    ///
    /// # Errors
    /// Only the formatter's.
    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The tuning that the spec names itself.
    fn own(&self) -> Option<Self::Tuning>;

    /// The same spec with another tuning of its own; `None`: the one that was measured best, else
    /// the family's.
    #[must_use]
    fn with(self, tuning: Option<Self::Tuning>) -> Self;

    /// Where the family starts for this spec, whatever was measured.
    ///
    /// # Errors
    /// Sizes that it does not cover.
    fn usual(&self, target: &Target) -> Result<Self::Tuning, SpecError>;

    /// Whether the target can run the spec so.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    fn check(&self, _target: &Target, _tuning: &Self::Tuning) -> Result<(), SpecError> {
        Ok(())
    }

    /// What is worth trying: small lists, since each is compiled, checked and timed. Some may not
    /// fit the target.
    fn candidates(&self, target: &Target) -> Vec<Self::Tuning>;

    /// The block of a launch: known without any source being rendered.
    ///
    /// # Errors
    /// More LDS than the target has.
    fn block(&self, target: &Target, tuning: &Self::Tuning) -> Result<Block, SpecError>;

    /// The kernel: text, constants, entry. The tuning was checked.
    ///
    /// # Errors
    /// Weights that cannot be laid out.
    fn render(
        &self,
        target: &Target,
        tuning: &Self::Tuning,
        block: Block,
    ) -> Result<Kernel, SpecError>;

    /// The arguments of a launch: the last one of [`Family::Args`] may be such that only some specs
    /// have it.
    fn declared(&self) -> &'static [Declared] {
        <Self::Args<()> as Arguments<()>>::DECLARED
    }

    /// The grid on a device of `units` compute units, and the arguments that follow from it.
    ///
    /// # Errors
    /// More blocks than a grid has.
    fn grid(
        &self,
        target: &Target,
        tuning: &Self::Tuning,
        units: u32,
        size: Size,
    ) -> Result<Grid, SpecError>;

    /// The step in a kernel of many steps, for one token of one sequence.
    ///
    /// # Errors
    /// It is only launched by itself.
    fn inside(&self, _target: &Target, _inside: Inside) -> Result<Step, SpecError> {
        Err(SpecError::Unsupported {
            kernel: Self::NAME,
            why: "it has no part in a persistent kernel".to_owned(),
        })
    }

    /// What a launch must move and compute, at the least.
    fn work(&self, size: Size) -> Work;

    /// The size at which it is timed by itself, with `depth` tokens in the cache.
    fn timed_at(&self, depth: usize) -> Size {
        Size { tokens: 1, past: depth }
    }

    /// A case of this size, whose oracle is fast enough for matrices of a real model.
    ///
    /// # Errors
    /// A kernel that cannot be specialised.
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError>;

    /// The family's cases at a wave width of the target: small, odd, at every border.
    ///
    /// # Errors
    /// A kernel that cannot be specialised.
    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError>;

    /// The family's kernels at the sizes of real models: the compile matrix.
    ///
    /// # Errors
    /// A kernel that cannot be specialised.
    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError>;

    /// The tuning in force: the spec's own, else what is shipped for it, else the family's.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    fn tuning(&self, target: &Target) -> Result<Self::Tuning, SpecError> {
        self.tuning_by(shipped::table(), target)
    }

    /// The same by another table than the shipped one.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    fn tuning_by(&self, table: &Table, target: &Target) -> Result<Self::Tuning, SpecError> {
        let tuning = match self.own().or_else(|| table.choice(self, target)) {
            Some(tuning) => tuning,
            None => self.usual(target)?,
        };
        self.check(target, &tuning)?;
        Ok(tuning)
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// What the family does not cover, by name.
    fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let tuning = self.tuning(target)?;
        let block = self.block(target, &tuning)?;
        self.render(target, &tuning, block)
    }

    /// Whether there is a kernel: renders nothing.
    fn covered(&self, target: &Target) -> bool {
        self.tuning(target).and_then(|t| self.block(target, &t)).is_ok()
    }

    /// The launch on a device of `units` compute units: renders nothing.
    ///
    /// # Errors
    /// As [`Family::kernel`]; more blocks than a grid has.
    fn launch(&self, target: &Target, units: u32, size: Size) -> Result<Launch, SpecError> {
        let tuning = self.tuning(target)?;
        let block = self.block(target, &tuning)?;
        Ok(Launch::of(block, self.grid(target, &tuning, units.max(1), size)?))
    }
}

/// What a launch depends on that is no part of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// New tokens, or rows: one for each sequence that is decoded. Of what knows no width, rows of
    /// 4096 elements; of what only reads, MiB.
    pub tokens: usize,
    /// Tokens that are in the cache before them.
    pub past: usize,
}

/// What a launch has to do, however it does it: the inputs of a roofline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes of memory that must be read or written, each once.
    pub bytes: u64,
    /// Multiplications and additions of products.
    pub operations: u64,
}

impl Work {
    /// Of so many bytes, with no products.
    pub(crate) const fn moves(bytes: usize) -> Work {
        Work { bytes: bytes as u64, operations: 0 }
    }

    /// Microseconds that it takes at least at so many GB/s and TFLOP/s.
    #[must_use]
    pub fn floor_us(&self, gb_per_s: f64, tflop_per_s: f64) -> f64 {
        (self.bytes as f64 / (gb_per_s * 1e3)).max(self.operations as f64 / (tflop_per_s * 1e6))
    }
}

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads.
    pub threads: u32,
    /// Dynamic LDS, in bytes.
    pub shared: u32,
}

impl Block {
    /// A block without dynamic LDS.
    pub(crate) const fn of(wave: u32, threads: u32) -> Block {
        Block { wave, threads, shared: 0 }
    }
}

/// Blocks in x, y, z, and the arguments that follow from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Arguments by name.
    pub numbers: Vec<(&'static str, u32)>,
    /// Working memory.
    pub memory: Vec<Memory>,
    /// Blocks wait for each other: all must be resident, and the launch before must have ended.
    pub cooperative: bool,
}

impl Grid {
    /// Blocks alone.
    pub(crate) fn of(blocks: [u32; 3]) -> Grid {
        Grid {
            blocks: blocks.map(|n| n.max(1)),
            numbers: vec![],
            memory: vec![],
            cooperative: false,
        }
    }

    /// With an argument that follows.
    pub(crate) fn number(mut self, name: &'static str, value: u32) -> Grid {
        self.numbers.push((name, value));
        self
    }

    /// With blocks that wait for each other, or not.
    pub(crate) const fn cooperative(mut self, on: bool) -> Grid {
        self.cooperative = on;
        self
    }

    /// With working memory of so many bytes; none for 0.
    pub(crate) fn memory(mut self, name: &'static str, bytes: usize) -> Grid {
        self.memory.push(Memory { name, bytes, zeroed: false });
        self
    }

    /// With so many counters: u32, zero before the first launch and after every one.
    pub(crate) fn counters(self, name: &'static str, count: usize) -> Grid {
        self.zeroed(name, 4 * count)
    }

    /// With so many bytes that are zero before the first launch and after every one.
    pub(crate) fn zeroed(mut self, name: &'static str, bytes: usize) -> Grid {
        self.memory.push(Memory { name, bytes, zeroed: true });
        self
    }
}

/// Working memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The argument that it is for.
    pub name: &'static str,
    /// Bytes; 0: the argument is null.
    pub bytes: usize,
    /// Zero before the first launch and after every one.
    pub zeroed: bool,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// Arguments that follow from the grid, by name.
    pub numbers: Vec<(&'static str, u32)>,
    /// Working memory.
    pub memory: Vec<Memory>,
}

impl Launch {
    /// A block and its grid. It may start before the kernel before it has ended: all kernels here
    /// wait by themselves, but for those whose blocks wait for each other.
    pub(crate) fn of(block: Block, grid: Grid) -> Launch {
        let Grid { blocks, numbers, memory, cooperative } = grid;
        let geometry = Geometry::of(blocks, [block.threads, 1, 1]).shared(block.shared);
        Launch {
            geometry: geometry.dependent(!cooperative).cooperative(cooperative),
            numbers,
            memory,
        }
    }
}

/// A tuning.
pub trait Variant: Copy + Eq + Hash + Debug + 'static {
    /// Whether there is anything to choose.
    const CHOICE: bool = true;

    /// The fields by name, `wave: 32, block: 512, …`; of an enum with the variant's name.
    fn text(&self) -> String {
        let text = format!("{self:?}");
        let name = std::any::type_name::<Self>().rsplit("::").next().unwrap_or_default();
        match text.strip_prefix(name).and_then(|t| t.strip_prefix(" { ")) {
            Some(fields) => fields.trim_end_matches([' ', '}']).to_owned(),
            None => text,
        }
    }
}

/// The tuning of a family without a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fixed;

impl Variant for Fixed {
    const CHOICE: bool = false;
}

/// The tuning of a family whose only choice is the width of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wave {
    /// Lanes in a wave.
    pub wave: u32,
}

impl Variant for Wave {}

impl Wave {
    /// The target's own.
    pub(crate) fn usual(target: &Target) -> Wave {
        Wave { wave: target.default_wave() }
    }

    pub(crate) fn check(self, kernel: &'static str, target: &Target) -> Result<(), SpecError> {
        require(target.waves().contains(&self.wave), kernel, || {
            format!("wave {} on {target}", self.wave)
        })
    }

    /// All widths.
    pub(crate) fn all(target: &Target) -> Vec<Wave> {
        target.waves().iter().map(|&wave| Wave { wave }).collect()
    }
}

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pointer, perhaps null.
    Pointer,
    /// 32 bits.
    U32,
    /// 64 bits.
    U64,
    /// Single precision.
    F32,
}

/// An argument's declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// The arguments of a launch, whatever an argument is made of: a plan's bindings, a case's data, an
/// embedder's buffers. Declared once, by [`arguments!`](crate::arguments).
pub trait Arguments<A>: Sized {
    /// The arguments in the kernel's order.
    const DECLARED: &'static [Declared];

    /// Their values in that order.
    fn list(self) -> Vec<A>;
}

/// The arguments of what may lie in pages: where nothing does, all but the last, a table of pages.
pub(crate) fn with_table<A: Arguments<()>>(paged: bool) -> &'static [Declared] {
    let all = A::DECLARED;
    all.get(..all.len() - usize::from(!paged)).unwrap_or(all)
}

/// What a product takes for each of its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentArgs<A> {
    /// Row records.
    pub w: A,
    /// An f32 for each row, or null.
    pub b: A,
    /// Its results; null for the second weight of a gated unit.
    pub y: A,
}

/// Declares the arguments of a kernel family: a struct with a field for each, generic over what an
/// argument is. `segments` between two lists stands for the weights of a product, `w0, b0, y0, w1,
/// …`, three times.
#[macro_export]
macro_rules! arguments {
    ($(#[$doc:meta])* $name:ident { $($(#[$d:meta])* $field:ident: $kind:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name<A> { $($(#[$d])* pub $field: A,)* }

        impl<A> $crate::family::Arguments<A> for $name<A> {
            const DECLARED: &'static [$crate::family::Declared] =
                &[$($crate::family::Declared { name: stringify!($field), kind: $crate::family::Kind::$kind }),*];

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
            /// The weights, their biases and their results; null behind the last.
            pub segments: [$crate::family::SegmentArgs<A>; $crate::segments::MOST],
            $($(#[$d2])* pub $field2: A,)*
        }

        impl<A> $crate::family::Arguments<A> for $name<A> {
            const DECLARED: &'static [$crate::family::Declared] = {
                use $crate::family::{Declared, Kind};
                const fn pointer(name: &'static str) -> Declared {
                    Declared { name, kind: Kind::Pointer }
                }
                &[
                    $(Declared { name: stringify!($field), kind: Kind::$kind },)*
                    pointer("w0"), pointer("b0"), pointer("y0"), pointer("w1"), pointer("b1"), pointer("y1"),
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

/// The items of [`Family`] that a family with a field `tuning` has alike.
macro_rules! choice {
    ($tuning:ty) => {
        type Tuning = $tuning;

        fn own(&self) -> Option<$tuning> {
            self.tuning
        }

        fn with(mut self, tuning: Option<$tuning>) -> Self {
            self.tuning = tuning;
            self
        }
    };
}
pub(crate) use choice;

/// The items of [`Family`] where the only choice is the width of a wave.
macro_rules! choice_of_wave {
    () => {
        $crate::family::choice!($crate::family::Wave);

        fn usual(&self, target: &Target) -> Result<Self::Tuning, SpecError> {
            Ok($crate::family::Wave::usual(target))
        }

        fn candidates(&self, target: &Target) -> Vec<Self::Tuning> {
            $crate::family::Wave::all(target)
        }
    };
}
pub(crate) use choice_of_wave;

/// The items of [`Family`] where there is no choice.
macro_rules! no_choice {
    () => {
        type Tuning = $crate::family::Fixed;

        fn own(&self) -> Option<Self::Tuning> {
            None
        }

        fn with(self, _: Option<Self::Tuning>) -> Self {
            self
        }

        fn usual(&self, _: &Target) -> Result<Self::Tuning, SpecError> {
            Ok($crate::family::Fixed)
        }

        fn candidates(&self, _: &Target) -> Vec<Self::Tuning> {
            vec![]
        }
    };
}
pub(crate) use no_choice;
