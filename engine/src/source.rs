//! A kernel's source: a main file, its headers, and the names of its kernels.

use crate::error::{Error, Result};
use crate::non_exhaustive::NonExhaustive;
use std::borrow::Cow;
use std::collections::BTreeMap;

type Text = Cow<'static, str>;

/// The source of one or more kernels. Headers are found by the name in `#include "name"`. Only
/// headers that the main file includes, directly or indirectly, are used (for the compiler and for
/// the key). `#include <name>` is left to the compiler, whose bundled headers are part of its
/// identity. Include paths are not supported.
///
/// ```
/// use kjit_engine::Source;
/// let source = Source::new("saxpy", "saxpy.hip", "#include \"kjit.h\"\nKERNEL saxpy() {}")
///     .file("kjit.h", "#define KERNEL extern \"C\" __global__ void")
///     .entry("saxpy");
/// assert_eq!(source.reached()?.len(), 1);
/// # Ok::<(), kjit_engine::Error>(())
/// ```
#[derive(Clone, Debug, Eq)]
pub struct Source {
    name: Text,
    main: (Text, Text),
    headers: BTreeMap<Text, Text>,
    entries: Vec<Text>,
}

/// Strings with equal addresses are not compared: kernels share 445 KB of headers.
impl PartialEq for Source {
    fn eq(&self, other: &Source) -> bool {
        let same = |a: &Text, b: &Text| std::ptr::eq::<str>(a.as_ref(), b.as_ref()) || a == b;
        same(&self.name, &other.name)
            && same(&self.main.0, &other.main.0)
            && same(&self.main.1, &other.main.1)
            && self.entries == other.entries
            && self.headers.len() == other.headers.len()
            && self
                .headers
                .iter()
                .zip(&other.headers)
                .all(|(a, b)| same(a.0, b.0) && same(a.1, b.1))
    }
}

impl Source {
    /// A source: a name for messages and listings, and the main file with its contents.
    #[must_use]
    pub fn new(name: impl Into<Text>, file: impl Into<Text>, text: impl Into<Text>) -> Source {
        Source {
            name: name.into(),
            main: (file.into(), text.into()),
            headers: BTreeMap::new(),
            entries: Vec::new(),
        }
    }

    /// Adds a header for `#include "name"`. A later header with the same name replaces it.
    #[must_use]
    pub fn file(mut self, name: impl Into<Text>, text: impl Into<Text>) -> Source {
        self.headers.insert(name.into(), text.into());
        self
    }

    /// Adds the header `words.h`, for plain CUDA or HIP sources. It defines names that are built
    /// into run-time compilers but not into a bare clang (AMD without ROCm): from `__global__`,
    /// `threadIdx` and `blockDim` to shuffles, atomics, and functions of f32 and f16. docs/embed.md
    /// lists them. With a bare clang, `printf` is an error that names it.
    #[must_use]
    pub fn words(self) -> Source {
        self.file("words.h", include_str!("words.h"))
    }

    /// Names a kernel (an `extern "C"` function) that the code object must contain.
    #[must_use]
    pub fn entry(mut self, name: impl Into<Text>) -> Source {
        self.entries.push(name.into());
        self
    }

    /// The name for messages, listings and cache metadata.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The main file's name.
    #[must_use]
    pub fn main_file(&self) -> &str {
        &self.main.0
    }

    /// The contents of the main file.
    #[must_use]
    pub fn main_text(&self) -> &str {
        &self.main.1
    }

    /// The kernels that the code object must contain.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(AsRef::as_ref)
    }

    /// The headers that the main file includes, directly or indirectly, sorted by name.
    ///
    /// # Errors
    /// [`Error::Source`] if an included header is missing.
    pub fn reached(&self) -> Result<Vec<(&str, &str)>> {
        let mut found: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open = vec![(self.main_file(), self.main_text())];
        while let Some((file, text)) = open.pop() {
            // Every plan calls this for each kernel, so lines without a '#' are skipped by a byte
            // search.
            for (at, _) in text.match_indices('#') {
                let Some(name) = quoted_include(text, at) else { continue };
                if found.contains_key(name) || name == self.main_file() {
                    continue;
                }
                let Some((key, text)) = self.headers.get_key_value(name) else {
                    return Err(Error::Source {
                        kernel: self.name().to_owned(),
                        why: format!(
                            "{file} line {}: the file of #include \"{name}\" is missing",
                            text.get(..at).unwrap_or_default().matches('\n').count() + 1
                        ),
                    });
                };
                found.insert(key.as_ref(), text.as_ref());
                open.push((key.as_ref(), text.as_ref()));
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Bytes of source that the compiler reads: the main file and its headers (each counted once).
    /// Missing headers are ignored here; [`Source::reached`] reports them.
    #[must_use]
    pub fn length(&self) -> usize {
        let included = self
            .reached()
            .unwrap_or_default()
            .into_iter()
            .map(|(_, text)| text.len())
            .sum::<usize>();
        self.main_text().len() + included
    }

    /// The main file for the compiler: the constants as `#define`s, then the source with `#line 1`,
    /// so that messages have the line numbers of the original file.
    #[must_use]
    pub fn render(&self, constants: &Constants, options: &Options) -> String {
        let mut text = String::with_capacity(self.main_text().len() + 512);
        text.push_str(&format!("#define KJ_WAVE {}\n", options.wave));
        for (name, value) in constants.iter() {
            text.push_str(&format!("#define {name} {value}\n"));
        }
        text.push_str(&format!(
            "#line 1 \"{}\"\n",
            self.main_file().replace(['"', '\\', '\n'], "_")
        ));
        text.push_str(self.main_text());
        text
    }
}

/// The name in `#include "name"`, if the `#` at this offset begins such a line. Spaces are allowed
/// as in the preprocessor.
fn quoted_include(text: &str, at: usize) -> Option<&str> {
    let (before, behind) = (text.get(..at)?, text.get(at + 1..)?);
    let mut blank = before.bytes().rev().take_while(|byte| *byte != b'\n');
    if !blank.all(|byte| byte.is_ascii_whitespace()) {
        return None;
    }
    let line = behind.split('\n').next()?;
    let rest = line.trim_start().strip_prefix("include")?.trim_start();
    rest.strip_prefix('"')?.split('"').next()
}

/// The value of a constant, written exactly into the source.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// An integer.
    Int(i64),
    /// A float as a literal that the compiler reads without rounding. [`Constants::set`] refuses
    /// infinities and NaN.
    Float(f32),
    /// Literal tokens: a type, an identifier, a brace list.
    Text(String),
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // C++ has no literal for i64::MIN.
            Value::Int(i64::MIN) => f.write_str("(-9223372036854775807LL - 1)"),
            Value::Int(v) if i32::try_from(*v).is_ok() && *v >= 0 => write!(f, "{v}"),
            Value::Int(v) if i32::try_from(*v).is_ok() => write!(f, "({v})"),
            Value::Int(v) => write!(f, "({v}LL)"),
            // Rust's shortest literal that parses to the same value. With the exponent it is a C++
            // float literal.
            Value::Float(v) => write!(f, "({v:e}f)"),
            Value::Text(text) => f.write_str(text),
        }
    }
}

macro_rules! value_from_int {
    ($($t:ty),*) => {$(
        impl From<$t> for Value {
            fn from(v: $t) -> Value { Value::Int(i64::from(v)) }
        }
    )*};
}
value_from_int!(i8, i16, i32, i64, u8, u16, u32, bool);

impl From<f32> for Value {
    fn from(v: f32) -> Value {
        Value::Float(v)
    }
}
impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::Text(v.to_owned())
    }
}
impl From<String> for Value {
    fn from(v: String) -> Value {
        Value::Text(v)
    }
}
impl TryFrom<usize> for Value {
    type Error = std::num::TryFromIntError;
    fn try_from(v: usize) -> Result<Value, std::num::TryFromIntError> {
        i64::try_from(v).map(Value::Int)
    }
}

/// The constants of a compilation, sorted by name, so that the key does not depend on their order.
/// They must not depend on facts of a device (units, clocks, memory); those are launch arguments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constants {
    values: BTreeMap<Text, Value>,
    /// Constants that the source itself defines, for messages and manifests.
    told: BTreeMap<Text, Value>,
    /// The first error, returned by [`Constants::check`], so that calls can be chained.
    wrong: Option<String>,
}

impl Constants {
    /// An empty set.
    #[must_use]
    pub fn new() -> Constants {
        Constants::default()
    }

    /// Sets `name`, replacing an earlier value. [`Constants::check`], and so the compile, fails for
    /// a name that is not an identifier, a reserved name (`KJ_WAVE`), a value with several lines or
    /// a float that is not finite.
    #[must_use]
    pub fn set(mut self, name: impl Into<Text>, value: impl Into<Value>) -> Constants {
        let (name, value) = (name.into(), value.into());
        let identifier = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let wrong = match &value {
            _ if !identifier => Some(format!(
                "the constant's name '{}' is not an identifier",
                name.escape_default()
            )),
            _ if name == "KJ_WAVE" => {
                Some("KJ_WAVE comes from the options, not from the constants".to_owned())
            }
            Value::Float(v) if !v.is_finite() => {
                Some(format!("the constant {name} is {v}, not a finite number"))
            }
            Value::Text(t) if t.contains(['\n', '\r', '\\']) => {
                Some(format!("the constant {name} has a line break or backslash"))
            }
            _ => None,
        };
        self.wrong = self.wrong.or(wrong);
        self.values.insert(name, value);
        self
    }

    /// Records, for display, a constant that the source itself defines (in a rendered header). It
    /// is shown with the others, but not defined again. It does not change the key, which depends
    /// on the source.
    #[must_use]
    pub fn tell(mut self, name: impl Into<Text>, value: impl Into<Value>) -> Constants {
        self.told.insert(name.into(), value.into());
        self
    }

    /// The constants recorded by [`Constants::tell`], sorted by name.
    pub fn told(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.told.iter().map(|(n, v)| (n.as_ref(), v))
    }

    /// Checks the constants.
    ///
    /// # Errors
    /// The first invalid name or value, as a sentence.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// The constants, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(n, v)| (n.as_ref(), v))
    }

    /// The value of a constant.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }
}

impl std::fmt::Display for Constants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (name, value)) in self.iter().chain(self.told()).enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// The options that change the meaning of the code. Each compiler has its own flags for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Lanes per wave, one of the target's widths; the kernel sees it as `KJ_WAVE`.
    pub wave: u32,
    /// Allow contractions, reciprocals and flushes that IEEE forbids.
    pub fast_math: bool,
    /// Compile for the architecture-specific instruction set (`sm_90` → `sm_90a`) if the target has
    /// one.
    pub arch_specific: bool,
    /// Feature flags of the target that the code depends on (`xnack`).
    pub features: Vec<Text>,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl Options {
    /// Options for waves of `wave` lanes; everything else is off.
    #[must_use]
    pub fn wave(wave: u32) -> Options {
        Options {
            wave,
            fast_math: false,
            arch_specific: false,
            features: Vec::new(),
            _more: NonExhaustive::default(),
        }
    }

    /// Sets fast math.
    #[must_use]
    pub fn fast_math(mut self, on: bool) -> Options {
        self.fast_math = on;
        self
    }

    /// Sets the use of architecture-specific instructions.
    #[must_use]
    pub fn arch_specific(mut self, on: bool) -> Options {
        self.arch_specific = on;
        self
    }

    /// Adds a dependence on a feature flag of the target.
    #[must_use]
    pub fn feature(mut self, name: impl Into<Text>) -> Options {
        self.features.push(name.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reached_headers_count_and_include_cycles_end() {
        let s = Source::new(
            "k",
            "k.hip",
            "#include \"a.h\"\n  #  include \"b.h\"\r\n#include <c.h>\nx #include \"d.h\"\n#",
        )
        .file("a.h", "#include \"b.h\"")
        .file("b.h", "#include \"a.h\"")
        .file("unused.h", "x");
        assert_eq!(
            s.reached().unwrap().iter().map(|(n, _)| *n).collect::<Vec<_>>(),
            ["a.h", "b.h"]
        );
    }

    #[test]
    fn missing_header_is_named_with_file_and_line() {
        let s = Source::new("k", "k.hip", "#include \"a.h\"").file("a.h", "\n#include \"gone.h\"");
        let error = s.reached().unwrap_err().to_string();
        assert!(error.contains("a.h line 2") && error.contains("gone.h"), "{error}");
    }

    #[test]
    fn constants_are_sorted_and_floats_round_trip() {
        let eps = 1e-5f32;
        let c = Constants::new()
            .set("Z", 2)
            .set("EPS", eps)
            .set("A", -1)
            .set("T", "unsigned char")
            .set("B", 1i64 << 40);
        assert_eq!(c.to_string(), "A=(-1) B=(1099511627776LL) EPS=(1e-5f) T=unsigned char Z=2");
        for bits in [0u32, 1, 0x8000_0000, 0x0080_0000, 0x7f7f_ffff, 0x3f80_0001, 0x358637bd] {
            let text = Value::Float(f32::from_bits(bits)).to_string();
            let number = text.trim_start_matches('(').trim_end_matches("f)");
            assert_eq!(number.parse::<f32>().unwrap().to_bits(), bits, "{text}");
        }
        let rendered = Source::new("k", "k.hip", "line one").render(&c, &Options::wave(64));
        assert!(rendered.starts_with("#define KJ_WAVE 64\n#define A (-1)\n"));
        assert!(rendered.ends_with("#line 1 \"k.hip\"\nline one"));
    }

    #[test]
    fn wrong_constants_are_refused_by_name() {
        for (c, word) in [
            (Constants::new().set("1A", 1), "1A"),
            (Constants::new().set("KJ_WAVE", 32), "KJ_WAVE"),
            (Constants::new().set("EPS", f32::NAN), "EPS"),
            (Constants::new().set("T", "a\n#define B"), "T"),
        ] {
            assert!(c.check().unwrap_err().contains(word));
        }
    }
}
