//! The description of a compiler.

/// A usable compiler, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompilerInfo {
    /// `nvrtc`, `hiprtc`, `clang`.
    pub kind: String,
    /// Version.
    pub version: (u32, u32),
    /// The file, with symbolic links resolved.
    pub file: std::path::PathBuf,
    /// How it was found: the variable, `loader path`, `Python package`.
    pub via: String,
    /// Architectures that the compiler reports; empty if it cannot list them.
    pub knows: Vec<String>,
}
