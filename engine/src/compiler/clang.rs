//! clang with the AMDGPU target and lld, without ROCm. Kernels need no vendor header and no device
//! library (`-nogpuinc -nogpulib`).

use super::amdgpu;
use super::compiled::{Compiled, Probe};
use super::discover::{CandidateList, folders_of, on_path};
use super::interface::{Backend, Compiler};
use super::protocol::Request;
use super::scratch::scratch;
use crate::arch::Vendor;
use crate::source::Options;
use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The clang compiler kind.
pub(super) struct Kind;

/// Names that are searched on PATH. The newest version is used; a name without a number is last.
const NAMES: &[&str] =
    &["clang-23", "clang-22", "clang-21", "clang-20", "clang-19", "clang", "amdclang"];

/// Older versions do not support RDNA 4.
const OLDEST: u32 = 19;

/// Options that make clang compile HIP source to one plain code object without ROCm. Without
/// `-fuse-cuid=none`, symbol names contain a hash of the file's path, so the bytes would depend on
/// the folder.
const BARE: &[&str] = &[
    "-x",
    "hip",
    "--offload-device-only",
    "--no-gpu-bundle-output",
    "-nogpuinc",
    "-nogpulib",
    "-fno-color-diagnostics",
    "-fuse-cuid=none",
];

impl Compiler for Kind {
    fn kind(&self) -> &'static str {
        "clang"
    }

    fn vendor(&self) -> Vendor {
        Vendor::Amd
    }

    fn places(&self, explicit: Option<&Path>) -> CandidateList {
        let mut places = CandidateList::new(NAMES);
        places.explicit("--compiler-path", explicit.map(Path::to_owned));
        places.variable("KJIT_CLANG");
        places.below_variable("ROCM_PATH", &["llvm/bin", "lib/llvm/bin"]);
        for folder in folders_of("PATH") {
            places.folder("PATH", &folder);
        }
        places.folder("usual folder", Path::new("/opt/rocm/llvm/bin"));
        places
    }

    fn major_of(&self, file: &Path) -> Option<u32> {
        // Examples: `/usr/lib/llvm-19/bin/clang`, `/usr/bin/clang-19`.
        let number = |part: &std::ffi::OsStr| {
            let (name, number) = part.to_str()?.rsplit_once('-')?;
            ["clang", "llvm"].contains(&name).then(|| number.parse().ok())?
        };
        file.iter().rev().find_map(number)
    }

    fn suits_driver(&self, _major: u32, _driver: Option<(u32, u32)>) -> bool {
        true // an option sets the code-object version
    }

    fn companions(&self, file: &Path, _version: (u32, u32)) -> Vec<PathBuf> {
        let mut files = amdgpu::libraries(file);
        if let Some(linker) = linker(file).and_then(|f| f.canonicalize().ok()) {
            files.extend(amdgpu::libraries(&linker));
            files.push(linker);
        }
        files.sort();
        files.dedup();
        files
    }

    fn arguments(&self, compile_id: &str, options: &Options) -> Vec<String> {
        let bare = BARE.iter().map(|a| (*a).to_owned());
        bare.chain(amdgpu::arguments(compile_id, options)).collect()
    }

    fn needs(&self, _version: (u32, u32)) -> BTreeMap<String, String> {
        // Code-object version 5: Debian's ROCm 5.2 supports its hidden arguments; older releases do
        // not.
        BTreeMap::from([("driver".to_owned(), "5.2".to_owned())])
    }

    fn package(&self) -> &'static str {
        "clang 19 or newer with lld (Debian: clang-19 lld-19; KJIT_CLANG names the file)"
    }

    fn spills(&self, _log: &str) -> BTreeMap<String, u32> {
        BTreeMap::new() // the code object states the requirements
    }
}

/// The linker that clang runs: from the same folder if it exists there, otherwise from PATH.
fn linker(clang: &Path) -> Option<PathBuf> {
    let beside = clang.parent().map(|f| f.join("lld")).filter(|f| f.is_file());
    beside.or_else(|| on_path("lld"))
}

/// The clang executable.
pub(super) struct ClangCompiler {
    file: PathBuf,
}

impl ClangCompiler {
    pub fn open(file: &Path) -> Result<ClangCompiler, String> {
        Ok(ClangCompiler { file: file.to_owned() })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        // Sets English messages that do not depend on the width of the terminal. No configuration
        // file or variable may add flags.
        command
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .env_remove("CCC_OVERRIDE_OPTIONS")
            .arg("--no-default-config");
        for variable in [
            "CPATH",
            "C_INCLUDE_PATH",
            "CPLUS_INCLUDE_PATH",
            "CLANG_CONFIG_FILE_SYSTEM_DIR",
            "HIP_PATH",
            "ROCM_PATH",
        ] {
            command.env_remove(variable);
        }
        // SAFETY: prctl is async-signal-safe and takes numbers only. clang ends together with the
        // process that started it.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        command
    }

    fn output(&self, command: &mut Command) -> Result<Output, String> {
        command.output().map_err(|e| format!("{}: {e}", self.file.display()))
    }

    fn run(&self, request: &Request) -> Result<ClangOutcome, String> {
        let folder = tempfile::Builder::new()
            .prefix("kjit-clang-")
            .tempdir_in(scratch())
            .map_err(|e| e.to_string())?;
        let write = |name: &str, text: &str| {
            // Sources contain these names. They must not lead out of the folder.
            let plain =
                Path::new(name).components().all(|c| matches!(c, std::path::Component::Normal(_)));
            if !plain {
                return Err(format!("the file name '{name}' is not a plain relative path"));
            }
            let file = folder.path().join(name);
            file.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(|e| e.to_string())?;
            std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))
        };
        write(&request.file, &request.source)?;
        for (name, text) in &request.headers {
            write(name, text)?;
        }
        const OUT: &str = "kjit-out.co";
        // The compiler runs inside the folder, so that no path of this machine gets into the code
        // object.
        let output = self.output(
            self.command()
                .current_dir(folder.path())
                // If clang is killed, its files for the linker remain; this folder is removed in
                // any case.
                .env("TMPDIR", folder.path())
                .args(&request.arguments)
                .args(["-I.", "-c"])
                .arg(&request.file)
                .args(["-o", OUT]),
        )?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            let code =
                std::fs::read(folder.path().join(OUT)).map_err(|e| format!("its output: {e}"))?;
            return Ok(ClangOutcome::Answered(Compiled::Code { code, log }));
        }
        if output.status.signal().is_some() || !in_source(&log) {
            // This is written to the log of this process, which is stored with the error.
            eprint!("{log}");
        }
        if let Some(signal) = output.status.signal() {
            return Ok(ClangOutcome::Killed(format!(
                "was killed by signal {signal}: {}",
                first_error(&log)
            )));
        }
        if in_source(&log) {
            Ok(ClangOutcome::Answered(Compiled::Refused { log }))
        } else {
            Err(first_error(&log))
        }
    }

    /// Runs clang again if it was killed: the system may have killed it for lack of memory, and the
    /// memory may be free again.
    fn run_twice(&self, request: &Request) -> Result<Compiled, String> {
        if let ClangOutcome::Answered(compiled) = self.run(request)? {
            return Ok(compiled);
        }
        match self.run(request)? {
            ClangOutcome::Answered(compiled) => Ok(compiled),
            ClangOutcome::Killed(how) => Err(format!("{how}, twice")),
        }
    }
}

/// The outcome of a clang process.
enum ClangOutcome {
    Answered(Compiled),
    Killed(String),
}

/// Whether the log reports an error at a line of the source. All other errors are errors of the
/// compiler or the machine.
fn in_source(log: &str) -> bool {
    log.lines().any(|l| l.contains(": error:") && !l.starts_with("clang"))
}

fn first_error(log: &str) -> String {
    let line = log.lines().find(|l| l.contains("error")).or_else(|| log.lines().next());
    line.unwrap_or("no output").trim().to_owned()
}

impl Backend for ClangCompiler {
    fn probe(&self) -> Result<Probe, String> {
        let output = self.output(self.command().arg("--version"))?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = output.split_once("clang version ").map(|(_, v)| v).unwrap_or_default();
        let mut numbers = version.split(['.', ' ', '-']).map(|n| n.parse::<u32>().ok());
        let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
            return Err(format!("not a clang: {}", output.lines().next().unwrap_or("no output")));
        };
        if major < OLDEST {
            return Err(format!("clang {major}.{minor} is older than {OLDEST}"));
        }
        let cpus = self.output(self.command().args([
            "--target=amdgcn-amd-amdhsa",
            "-nogpulib",
            "--print-supported-cpus",
        ]))?;
        let cpus = [cpus.stdout, cpus.stderr].concat();
        let ids: Vec<String> = String::from_utf8_lossy(&cpus)
            .split_whitespace()
            .filter(|word| {
                word.strip_prefix("gfx").is_some_and(|n| n.bytes().all(|b| b.is_ascii_hexdigit()))
            })
            .map(str::to_owned)
            .collect();
        let Some(first) = ids.iter().find(|id| *id == "gfx900").or_else(|| ids.first()) else {
            return Err(format!("clang {major}.{minor} has no AMDGPU target"));
        };
        // Compiles and links, so that a missing lld is found here and not while a model opens.
        let request = Request {
            file: "probe.hip".to_owned(),
            source: "extern \"C\" __attribute__((global)) void probe() {}\n".to_owned(),
            headers: Vec::new(),
            arguments: Kind.arguments(first, &Options::wave(64)),
        };
        match self.compile(&request) {
            Compiled::Code { .. } => Ok(Probe { version: (major, minor), ids }),
            Compiled::Refused { log } => {
                Err(format!("clang {major}.{minor}: {}", first_error(&log)))
            }
            Compiled::Broken { why } => Err(format!("clang {major}.{minor}: {why}")),
        }
    }

    fn compile(&self, request: &Request) -> Compiled {
        self.run_twice(request).unwrap_or_else(|why| Compiled::Broken { why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clang_major_version_is_parsed_from_file_name() {
        let major = |name| Kind.major_of(Path::new(name));
        assert_eq!(major("/usr/lib/llvm-19/bin/clang"), Some(19));
        assert_eq!(major("/usr/bin/clang-22"), Some(22));
        assert_eq!(major("/opt/rocm-6.4.1/lib/llvm/bin/clang-19"), Some(19));
        assert_eq!(major("/usr/local/bin/clang"), None);
        assert_eq!(major("/opt/rocm-6.4.1/llvm/bin/clang"), None);
    }

    #[test]
    fn clang_identity_covers_compiler_and_linker_libraries() {
        let found = crate::compiler::candidates::candidates(&Kind, None, None).0;
        let Some(clang) = found.iter().find(|c| c.file.starts_with("/usr/lib/llvm-19")) else {
            eprintln!("SKIPPED: Debian's clang-19 is not here ({found:?})");
            return;
        };
        let files = Kind.companions(&clang.file, (19, 1));
        let has = |part: &str| files.iter().any(|f| f.to_string_lossy().contains(part));
        assert!(has("libLLVM") && has("libclang-cpp") && has("lld"), "{files:?}");
        assert!(
            files.iter().all(|f| f.is_file()
                && *f != clang.file
                && !f.to_string_lossy().contains("libc.so")),
            "{files:?}"
        );
    }

    #[test]
    fn source_name_outside_folder_is_refused() {
        let opened = ClangCompiler::open(Path::new("/nonexistent/clang")).unwrap();
        let header = |name: &str| Request {
            file: "k.hip".into(),
            source: String::new(),
            headers: vec![(name.into(), String::new())],
            arguments: Vec::new(),
        };
        for name in ["../x.h", "/tmp/x.h", "a/../../x.h"] {
            match opened.compile(&header(name)) {
                Compiled::Broken { why } => assert!(why.contains("plain relative"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
