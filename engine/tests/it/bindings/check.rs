//! Checks a list of signatures against the vendor's header, by compiling assertions with a C++
//! compiler.

use hip_sys::Signature;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that contains `header`; prints a skip message if there is none.
pub fn headers(header: &str) -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut places: Vec<PathBuf> =
        std::env::var_os("KJIT_ROCM_HEADERS").map(PathBuf::from).into_iter().collect();
    places.push(repository.join(".tools/rocm-headers/usr/include"));
    places.extend(["/opt/rocm/include", "/usr/include"].map(PathBuf::from));
    let found = places.iter().find(|p| p.join(header).is_file()).cloned();
    if found.is_none() {
        eprintln!(
            "SKIPPED: no {header} (scripts/fetch-rocm-headers fetches ROCm's headers; KJIT_ROCM_HEADERS names a folder)"
        );
    }
    found
}

/// Converts a Rust type of the lists to C++.
pub fn cpp(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(to) = rust.strip_prefix("*mut ") {
        return format!("{}*", cpp(to));
    }
    if let Some(to) = rust.strip_prefix("*const ") {
        return format!("{} const*", cpp(to));
    }
    match rust {
        "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "usize" => "size_t",
        "f32" => "float",
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "u64" => "unsigned long long",
        name => name,
    }
    .to_owned()
}

/// Lines that compile only if the header declares each call with exactly these types.
pub fn assertions(result: &str, calls: &[Signature], without: &[&str]) -> String {
    let mut text = String::new();
    for call in calls.iter().filter(|c| !without.contains(&c.name)) {
        let types: Vec<String> = call.arguments.iter().map(|t| cpp(t)).collect();
        text.push_str(&format!(
            "{result} (*check_{0})({1}) = &{0};\n",
            call.name,
            types.join(", ")
        ));
    }
    text
}

/// Compiles the text. The error is the compiler's output.
pub fn compile(include: &Path, text: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = folder.path().join("check.cpp");
    std::fs::write(&file, text).map_err(|e| e.to_string())?;
    let output = Command::new("c++")
        .args([
            "-std=c++17",
            "-fsyntax-only",
            "-w",
            "-D__HIP_PLATFORM_AMD__",
            "-D__HIP_PLATFORM_HCC__",
            "-isystem",
        ])
        .arg(include)
        .arg(&file)
        .output()
        .map_err(|e| format!("c++: {e}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
