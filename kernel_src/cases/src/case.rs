//! A case: a kernel, a launch, its arguments, and the expected results.

use crate::content::Content;
use crate::expect::{Expect, Storage, Tolerance};
use kjit_engine::{Arg, Geometry, HostArg, Target};
use kjit_kernels::arguments::{Arguments, Declared, Kind};
use kjit_kernels::kernel::require;
use kjit_kernels::launch::Launch;
use kjit_kernels::spec::Spec;
use kjit_kernels::{Family, Kernel, Size, SpecError};

/// One launch and its expected results.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name in messages: family, sizes, formats.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// The launch.
    pub geometry: Geometry,
    /// Arguments in order.
    pub args: Vec<CaseArg>,
    /// Declarations of the arguments.
    pub declared: &'static [Declared],
}

/// An argument.
#[derive(Debug, Clone)]
pub enum CaseArg {
    /// A device buffer.
    Buffer {
        /// Name in messages.
        name: &'static str,
        /// Contents before the launch.
        before: Content,
        /// Expected contents after the launch.
        expect: Expect,
    },
    /// The null pointer.
    Null,
    /// A u32.
    U32(u32),
    /// A u64.
    U64(u64),
    /// An f32.
    F32(f32),
}

impl CaseArg {
    /// The type of the argument.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            CaseArg::Buffer { .. } | CaseArg::Null => Kind::Pointer,
            CaseArg::U32(_) => Kind::U32,
            CaseArg::U64(_) => Kind::U64,
            CaseArg::F32(_) => Kind::F32,
        }
    }
}

/// A number that the launch sets ([`Launch::numbers`]). Working memory that the launch sets is
/// [`CaseArg::Null`] before.
pub(crate) const FOLLOWS: CaseArg = CaseArg::U32(0);

impl Case {
    /// A case of this launch. Numbers and memory of the launch become arguments.
    pub(crate) fn of<F: Family>(
        name: String,
        spec: &F,
        target: &Target,
        launch: Launch,
        args: F::Args<CaseArg>,
    ) -> Result<Case, SpecError> {
        let (kernel, geometry, mut args) = (spec.kernel(target)?, launch.geometry, args.list());
        let declared = spec.declared();
        args.truncate(declared.len());
        let mut case = Case { name, kernel, geometry, args, declared };
        case.follow(F::NAME, launch)?;
        Ok(case)
    }

    /// Changes this case to `spec`, the same computation with a different tuning. Working memory
    /// grows if the variant needs more, and never shrinks.
    ///
    /// # Errors
    /// As for the family; a family without variants.
    pub fn vary(
        &mut self,
        spec: &Spec,
        target: &Target,
        units: u32,
        size: Size,
    ) -> Result<(), SpecError> {
        require(spec.tuning(target).is_some(), spec.family(), || {
            "the family has no variants".to_owned()
        })?;
        self.kernel = spec.kernel(target)?;
        self.follow(spec.family(), spec.launch(target, units, size)?)
    }

    /// Sets the arguments that follow from a launch.
    fn follow(&mut self, family: &'static str, launch: Launch) -> Result<(), SpecError> {
        let Launch { geometry, numbers, memory } = launch;
        let declared = self.declared;
        let place = |name| {
            let place = declared.iter().position(|d| d.name == name);
            place.ok_or_else(|| SpecError::Unsupported {
                kernel: family,
                why: format!("there is no argument '{name}'"),
            })
        };
        for (name, value) in numbers {
            self.args[place(name)?] = CaseArg::U32(value);
        }
        for m in memory {
            let (fill, expect) =
                if m.zeroed { (0, Expect::Same) } else { (0xff, Expect::Anything) };
            match &mut self.args[place(m.name)?] {
                CaseArg::Buffer { before, .. } if before.len() < m.bytes => {
                    before.grow(m.bytes, fill)
                }
                arg @ CaseArg::Null if m.bytes > 0 => {
                    *arg = CaseArg::Buffer {
                        name: m.name,
                        before: Content::filled(fill, m.bytes),
                        expect,
                    };
                }
                _ => {}
            }
        }
        self.geometry = geometry;
        Ok(())
    }

    /// The arguments for the engine's `Stream::call`; [`Case::check`] takes its result.
    #[must_use]
    pub fn host_args(&self) -> Vec<HostArg<'_>> {
        fn host(arg: &CaseArg) -> HostArg<'_> {
            match arg {
                CaseArg::Buffer { before, .. } => HostArg::Buffer(before),
                CaseArg::Null => HostArg::Value(Arg::Null),
                CaseArg::U32(v) => HostArg::Value(Arg::from(*v)),
                CaseArg::U64(v) => HostArg::Value(Arg::from(*v)),
                CaseArg::F32(v) => HostArg::Value(Arg::from(*v)),
            }
        }
        self.args.iter().map(host).collect()
    }

    /// This case with error bounds multiplied by `times`.
    #[must_use]
    pub fn with_bounds(mut self, times: f64) -> Case {
        for arg in &mut self.args {
            let CaseArg::Buffer { expect, .. } = arg else { continue };
            if let Expect::Real { tolerance, .. } | Expect::Columns { tolerance, .. } = expect {
                tolerance.norm *= times;
                tolerance.each *= times;
            }
        }
        self
    }

    /// Compares the buffers after the launch, in the order of the arguments, with the expected
    /// contents.
    ///
    /// # Errors
    /// The first difference, as a sentence.
    pub fn check(&self, after: &[Vec<u8>]) -> Result<(), String> {
        self.hold(after.iter().map(|a| Some(a.as_slice())).collect())
    }

    /// As [`Case::check`], if some buffers were not read back.
    ///
    /// # Errors
    /// The first difference, as a sentence.
    pub fn check_some(&self, after: &[Option<Vec<u8>>]) -> Result<(), String> {
        self.hold(after.iter().map(Option::as_deref).collect())
    }

    fn hold(&self, after: Vec<Option<&[u8]>>) -> Result<(), String> {
        let buffers: Vec<_> = self
            .args
            .iter()
            .filter_map(|a| match a {
                CaseArg::Buffer { name, before, expect } => Some((*name, before, expect)),
                _ => None,
            })
            .collect();
        if buffers.len() != after.len() {
            return Err(format!(
                "{}: {} of {} buffers were read back",
                self.name,
                after.len(),
                buffers.len()
            ));
        }
        for ((name, before, expect), got) in buffers.into_iter().zip(after) {
            let Some(got) = got else { continue };
            expect
                .held((before.len(), || before), got)
                .map_err(|why| format!("{}: buffer {name}: {why}", self.name))?;
        }
        Ok(())
    }
}

/// An input that must not change.
pub(crate) fn input(name: &'static str, bytes: impl Into<Content>) -> CaseArg {
    CaseArg::Buffer { name, before: bytes.into(), expect: Expect::Same }
}

/// An f32 input.
pub(crate) fn floats(name: &'static str, values: &[f32]) -> CaseArg {
    input(name, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// An f32 input, or null for no values.
pub(crate) fn optional(name: &'static str, values: &[f32]) -> CaseArg {
    if values.is_empty() { CaseArg::Null } else { floats(name, values) }
}

/// A u32 input.
pub(crate) fn words(name: &'static str, values: &[u32]) -> CaseArg {
    input(name, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// An output, filled with poison before the launch.
pub(crate) fn output(
    name: &'static str,
    storage: Storage,
    want: Vec<f64>,
    tolerance: Tolerance,
) -> CaseArg {
    CaseArg::Buffer {
        name,
        before: Content::filled(0xff, want.len() * storage.size()),
        expect: Expect::Real { storage, want, tolerance },
    }
}
