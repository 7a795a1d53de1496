//! The two keys of a code object: for the request, and for the exact build.

use crate::arch::Target;
use crate::error::{Error, Result};
use crate::source::{Constants, Options, Source};
use kjit_cache::{BuildKey, Digest, Key};

/// Version of the contract between kernels and the engine (definitions before a kernel, passing of
/// arguments). It is incremented when old machine code can no longer be launched correctly.
pub const KERNEL_ABI: u32 = 1;

/// A compile job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The source.
    pub source: Source,
    /// The compile-time constants.
    pub constants: Constants,
    /// Wave width, fast math and others.
    pub options: Options,
    /// The target.
    pub target: Target,
}

impl Job {
    /// Creates a job.
    #[must_use]
    pub fn new(source: Source, constants: Constants, options: Options, target: Target) -> Job {
        Job { source, constants, options, target }
    }

    /// The id for the compiler.
    ///
    /// # Errors
    /// [`Error::Target`] for a feature flag that the target does not state.
    pub fn compile_id(&self) -> Result<String> {
        let features: Vec<&str> = self.options.features.iter().map(AsRef::as_ref).collect();
        self.target.compile_id(self.options.arch_specific, &features)
    }

    /// Checks for errors before compiling.
    ///
    /// # Errors
    /// [`Error::Source`], [`Error::Target`].
    pub fn check(&self) -> Result<()> {
        let fail = |why: String| Err(Error::Source { kernel: self.source.name().to_owned(), why });
        if let Err(why) = self.constants.check() {
            return fail(why);
        }
        if !self.target.waves().contains(&self.options.wave) {
            return fail(format!(
                "waves of {} on {}, which has {:?}",
                self.options.wave,
                self.target,
                self.target.waves()
            ));
        }
        self.source.reached()?;
        self.compile_id().map(|_| ())
    }

    /// The source key: source and headers, sorted constants, semantic options, compile target, ABI.
    /// It contains no path, no time, and no property that requires a device.
    ///
    /// # Errors
    /// See [`Job::check`].
    pub fn source_key(&self) -> Result<Key> {
        self.check()?;
        let mut key = Key::builder("kjit kernel source")
            .field("abi", KERNEL_ABI.to_string())
            .field("name", self.source.name())
            .field("vendor", self.target.vendor().name())
            .field("target", self.compile_id()?)
            .field("wave", self.options.wave.to_string())
            .field("fast-math", if self.options.fast_math { "yes" } else { "no" })
            .content("main", self.source.main_text())
            // The compiler's output may contain the file name (`#line`, `__FILE__`).
            .field("main file", self.source.main_file());
        for (name, text) in self.source.reached()? {
            key = key.field("header", name).content("text", text);
        }
        Ok(key.sorted("constant", self.constants.iter().map(|(n, v)| (n, v.to_string()))).finish())
    }
}

/// The build key: the source key, the digest of the compiler, and all its arguments.
pub(crate) fn build_key(
    source: &Key,
    kind: &str,
    identity: Digest,
    arguments: &[String],
) -> BuildKey {
    BuildKey::new(source, |mut key| {
        key = key.field("compiler", kind).field("identity", identity.hex());
        for argument in arguments {
            key = key.field("argument", argument);
        }
        key
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let source = Source::new("k", "k.hip", "#include \"a.h\"\nint x;")
            .file("a.h", "int a;")
            .file("b.h", "int b;");
        Job::new(
            source,
            Constants::new().set("N", 4),
            Options::wave(32),
            Target::parse("sm_90").unwrap(),
        )
    }

    #[test]
    fn source_key_depends_exactly_on_the_generated_code() {
        let base = job().source_key().unwrap().digest();
        let differs = |change: &dyn Fn(&mut Job)| {
            let mut other = job();
            change(&mut other);
            other.source_key().unwrap().digest() != base
        };
        assert!(differs(&|j| j.constants = Constants::new().set("N", 5)));
        assert!(differs(&|j| j.constants = Constants::new().set("M", 4)));
        assert!(differs(&|j| j.options.fast_math = true));
        assert!(differs(&|j| j.options.arch_specific = true));
        assert!(differs(&|j| j.target = Target::parse("sm_89").unwrap()));
        assert!(differs(&|j| j.source = j.source.clone().file("a.h", "int a; ")));
        assert!(differs(&|j| j.source = Source::new("k", "k.hip", "int x;")));
        // These have no effect: a header that is not included, the order of constants, and the
        // suffix of sm_90a without an option that needs it.
        assert!(!differs(&|j| j.source = j.source.clone().file("b.h", "changed")));
        assert!(!differs(&|j| j.target = Target::parse("sm_90a").unwrap()));
    }

    #[test]
    fn key_contains_a_wave_width_of_the_target() {
        let amd = |wave| Job {
            options: Options::wave(wave),
            target: Target::parse("gfx1100").unwrap(),
            ..job()
        };
        assert_ne!(amd(32).source_key().unwrap().digest(), amd(64).source_key().unwrap().digest());
        let error = Job { options: Options::wave(64), ..job() }.source_key().unwrap_err();
        assert!(error.to_string().contains("waves of 64 on sm_90a"), "{error}");
    }

    #[test]
    fn key_contains_only_features_used_by_the_kernel() {
        let digest = |target: &str, features: &[&'static str]| {
            let options = Options {
                features: features.iter().map(|f| (*f).into()).collect(),
                ..Options::wave(64)
            };
            let job = Job { options, target: Target::parse(target).unwrap(), ..job() };
            job.source_key().unwrap().digest()
        };
        let (on, off) = ("gfx90a:sramecc+:xnack+", "gfx90a:sramecc+:xnack-");
        assert_ne!(digest(on, &["xnack"]), digest(off, &["xnack"]));
        assert_ne!(digest(on, &["xnack"]), digest(on, &[]));
        assert_eq!(digest(on, &[]), digest(off, &[]));
        assert_eq!(digest(on, &[]), digest("gfx90a", &[]));
    }

    #[test]
    fn build_key_depends_on_compiler_and_flags() {
        let source = job().source_key().unwrap();
        let flags = ["-O3".to_owned()];
        let a = build_key(&source, "nvrtc", Digest::of(b"one"), &flags);
        assert_eq!(a.source(), &source);
        assert_ne!(a.digest(), build_key(&source, "nvrtc", Digest::of(b"two"), &flags).digest());
        assert_ne!(a.digest(), build_key(&source, "nvrtc", Digest::of(b"one"), &[]).digest());
        assert_ne!(a.digest(), build_key(&source, "clang", Digest::of(b"one"), &flags).digest());
    }
}
