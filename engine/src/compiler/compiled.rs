//! The results of a compiler.

/// The properties of an opened compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    pub version: (u32, u32),
    /// Compile ids without feature flags. Empty if the compiler cannot list them.
    pub ids: Vec<String>,
}

/// The result of a compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compiled {
    /// Machine code and the compiler's log.
    Code { code: Vec<u8>, log: String },
    /// The source has errors, which are in the log.
    Refused { log: String },
    /// The compiler itself failed.
    Broken { why: String },
}
