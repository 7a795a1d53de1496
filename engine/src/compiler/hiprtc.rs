//! hiprtc: AMD's run-time compiler. It aborts the process for an unknown architecture. So the list
//! of architectures is read from comgr, the compiler that hiprtc uses, and hiprtc runs in a child
//! process anyway.

use super::amdgpu;
use super::compiled::{Compiled, Probe};
use super::discover::{CandidateList, glob_children, python_sites};
use super::interface::{Backend, Compiler};
use super::protocol::Request;
use crate::arch::Vendor;
use crate::source::Options;
use hiprtc_sys::{Comgr, HIPRTC_ERROR_COMPILATION, Hiprtc, SEARCH, hiprtcProgram};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

/// The hiprtc compiler kind.
pub(super) struct Kind;

impl Compiler for Kind {
    fn kind(&self) -> &'static str {
        "hiprtc"
    }

    fn vendor(&self) -> Vendor {
        Vendor::Amd
    }

    fn places(&self, explicit: Option<&Path>) -> CandidateList {
        let mut places = CandidateList::new(SEARCH.names);
        places.explicit("--compiler-path", explicit.map(Path::to_owned));
        places.variable(SEARCH.variable);
        for variable in ["ROCM_PATH", "HIP_PATH"] {
            places.below_variable(variable, &["lib", "lib64"]);
        }
        places.loader_path();
        for folder in hip_sys::usual_folders() {
            places.folder("usual folder", &folder);
        }
        places.later(|places| {
            for site in python_sites() {
                for folder in hip_sys::WHEEL_FOLDERS {
                    places.folder("Python package", &site.join(folder));
                }
            }
        });
        places
    }

    fn major_of(&self, file: &Path) -> Option<u32> {
        version_in_name(file).map(|(major, _)| major)
    }

    fn suits_driver(&self, major: u32, driver: Option<(u32, u32)>) -> bool {
        driver.is_none_or(|(of_driver, _)| major <= of_driver)
    }

    fn companions(&self, file: &Path, _version: (u32, u32)) -> Vec<PathBuf> {
        let mut files = amdgpu::libraries(file);
        // Files that are loaded at run time and are therefore not in the library's list of needed
        // libraries: its headers and, from ROCm 6 on, comgr.
        let beside = |prefix| file.parent().map(|f| glob_children(f, prefix)).unwrap_or_default();
        for found in beside("libhiprtc-builtins.so").into_iter().chain(beside("libamd_comgr.so")) {
            let Ok(found) = found.canonicalize() else { continue };
            if !files.contains(&found) {
                files.extend(amdgpu::libraries(&found));
                files.push(found);
            }
        }
        files.sort();
        files.dedup();
        files
    }

    fn arguments(&self, compile_id: &str, options: &Options) -> Vec<String> {
        amdgpu::arguments(compile_id, options)
    }

    fn needs(&self, version: (u32, u32)) -> BTreeMap<String, String> {
        BTreeMap::from([("driver".to_owned(), format!("{}.0", version.0))])
    }

    fn package(&self) -> &'static str {
        "AMD's ROCm (Debian: libamdhip64-5 libhiprtc-builtins5 rocm-device-libs)"
    }

    fn spills(&self, _log: &str) -> BTreeMap<String, u32> {
        BTreeMap::new() // the code object states the requirements
    }
}

/// `libhiprtc.so.6.2.41133` → (6, 2).
fn version_in_name(file: &Path) -> Option<(u32, u32)> {
    let name = file.file_name()?.to_str()?;
    let mut parts = name.split_once(".so.")?.1.split('.').map(|n| n.parse().ok());
    Some((parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// The opened library.
pub(super) struct HiprtcLibrary {
    hiprtc: Hiprtc,
}

impl HiprtcLibrary {
    pub fn open(file: &Path) -> Result<HiprtcLibrary, String> {
        Ok(HiprtcLibrary { hiprtc: Hiprtc::open_file(file).map_err(|e| e.to_string())? })
    }

    fn run(&self, request: &Request) -> Result<Compiled, String> {
        let terminated = |what: &str, text: &str| {
            CString::new(text).map_err(|_| format!("{what} contains a zero byte"))
        };
        let told = |error: hip_sys::Error| error.to_string();
        let source = terminated("the source", &request.source)?;
        let file = terminated("the file's name", &request.file)?;
        let mut names = Vec::new();
        let mut texts = Vec::new();
        for (name, text) in &request.headers {
            names.push(terminated("a header's name", name)?);
            texts.push(terminated("a header", text)?);
        }
        let options = request
            .arguments
            .iter()
            .map(|a| terminated("an option", a))
            .collect::<Result<Vec<_>, _>>()?;
        let pointers =
            |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<*const c_char>>();
        let (mut names, mut texts) = (pointers(&names), pointers(&texts));
        let mut options = pointers(&options);
        let int =
            |n: usize| c_int::try_from(n).map_err(|_| "too many headers or options".to_owned());

        let mut guard = ProgramGuard { hiprtc: &self.hiprtc, program: null_mut() };
        // SAFETY: terminated strings and arrays of the stated lengths, alive during the call, which
        // copies them. The CStrings of the pointers live to the end of this function, since
        // shadowing does not drop them.
        unsafe {
            self.hiprtc.hiprtcCreateProgram(
                &mut guard.program,
                source.as_ptr(),
                file.as_ptr(),
                int(texts.len())?,
                texts.as_mut_ptr(),
                names.as_mut_ptr(),
            )
        }
        .map_err(told)?;
        // SAFETY: the program was just created; the array has that many terminated strings.
        let compiled = unsafe {
            self.hiprtc.hiprtcCompileProgram(
                guard.program,
                int(options.len())?,
                options.as_mut_ptr(),
            )
        };
        let mut len = 0;
        // SAFETY: the program is alive; writes one size.
        unsafe { self.hiprtc.hiprtcGetProgramLogSize(guard.program, &mut len) }.map_err(told)?;
        let mut log = vec![0u8; len];
        if len > 0 {
            // SAFETY: writes the number of bytes that it just returned.
            unsafe { self.hiprtc.hiprtcGetProgramLog(guard.program, log.as_mut_ptr().cast()) }
                .map_err(told)?;
        }
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        match compiled {
            Err(error) if error.code() == Some(HIPRTC_ERROR_COMPILATION) => {
                return Ok(Compiled::Refused { log });
            }
            Err(error) => return Err(format!("{error} {log}")),
            Ok(()) => {}
        }
        let mut len = 0;
        // SAFETY: the program is alive; writes one size.
        unsafe { self.hiprtc.hiprtcGetCodeSize(guard.program, &mut len) }.map_err(told)?;
        let mut code = vec![0u8; len];
        // SAFETY: writes the number of bytes that it just returned.
        unsafe { self.hiprtc.hiprtcGetCode(guard.program, code.as_mut_ptr().cast()) }
            .map_err(told)?;
        Ok(Compiled::Code { code, log })
    }
}

/// A program that is destroyed on drop.
struct ProgramGuard<'a> {
    hiprtc: &'a Hiprtc,
    program: hiprtcProgram,
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created by hiprtcCreateProgram and destroyed once. An error here has no
            // remedy.
            let _ = unsafe { self.hiprtc.hiprtcDestroyProgram(&mut self.program) };
        }
    }
}

impl Backend for HiprtcLibrary {
    fn probe(&self) -> Result<Probe, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { self.hiprtc.hiprtcVersion(&mut major, &mut minor) }.map_err(|e| e.to_string())?;
        // hiprtc reports version 9.0 in every ROCm; the file name has the real version.
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        let version =
            version_in_name(&self.hiprtc.opened().place).unwrap_or((number(major), number(minor)));
        // If comgr cannot be queried, the list is empty; hiprtc may then abort in the child
        // process.
        let ids =
            Comgr::beside(self.hiprtc.opened()).and_then(|comgr| comgr.isas()).unwrap_or_default();
        Ok(Probe { version, ids })
    }

    fn compile(&self, request: &Request) -> Compiled {
        self.run(request).unwrap_or_else(|why| Compiled::Broken { why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::candidates::candidates;
    use crate::compiler::protocol::{ChildRequest, ChildResponse};
    use crate::compiler::worker::{Isolation, Limits, Workers};
    use crate::error::Error;
    use std::time::Duration;

    /// A worker service with the `kjit-cc` next to this test, and the installed hiprtc.
    fn here() -> Option<(Workers, String)> {
        let file = candidates(&Kind, None, None).0.first().map(|c| c.file.display().to_string());
        let exe = std::env::current_exe().unwrap();
        let built = exe.ancestors().skip(1).take(2).any(|f| f.join("kjit-cc").is_file());
        if file.is_none() || !built {
            eprintln!("SKIPPED: hiprtc {file:?}, kjit-cc built: {built}");
        }
        let limits = Limits { timeout: Duration::from_secs(120), memory: 16 << 30 };
        file.filter(|_| built).map(|file| (Workers::new(Isolation::Children, limits), file))
    }

    fn compile(file: &str, arch: &str) -> ChildRequest {
        let request = Request {
            file: "k.hip".to_owned(),
            source: "extern \"C\" __global__ void k(float* x) { x[0] = 1; }".to_owned(),
            headers: Vec::new(),
            arguments: Kind.arguments(arch, &Options::wave(64)),
        };
        ChildRequest::Compile { kind: "hiprtc".to_owned(), file: file.to_owned(), request }
    }

    #[test]
    fn hiprtc_identity_covers_comgr_llvm_and_builtins() {
        let Some((_, file)) = here() else { return };
        let files = Kind.companions(Path::new(&file), (5, 2));
        let has = |part: &str| files.iter().any(|f| f.to_string_lossy().contains(part));
        assert!(has("libamd_comgr") && has("libhiprtc-builtins"), "{files:?}");
        if file.starts_with("/usr/lib/x86_64-linux-gnu") {
            assert!(has("libLLVM"), "Debian's comgr is linked to it: {files:?}");
        }
    }

    #[test]
    fn hiprtc_abort_is_one_error_and_next_compile_works() {
        let Some((workers, file)) = here() else { return };
        let ask = ChildRequest::Probe { kind: "hiprtc".to_owned(), file: file.clone() };
        let (ChildResponse::Probe(Ok(probe)), _) = workers.ask("(probe)", "hiprtc", &ask).unwrap()
        else {
            panic!("no probe")
        };
        assert!(probe.ids.contains(&"gfx90a".to_owned()), "{probe:?}");
        // The engine never requests this, because of the probe. This tests what happens if it did.
        let unknown = ["gfx1100", "gfx1999"]
            .into_iter()
            .find(|id| !probe.ids.iter().any(|known| known == id))
            .unwrap();
        match workers.ask("k", "hiprtc", &compile(&file, unknown)) {
            Err(error @ Error::Worker { .. }) => {
                let text = error.to_string();
                eprintln!("{text}");
                if let Error::Worker { log: Some(log), .. } = &error {
                    std::fs::remove_dir_all(log.parent().unwrap()).unwrap();
                }
                assert!(
                    text.contains("killed by signal 6 (it aborted), twice") && !text.contains('\n'),
                    "{text}"
                );
            }
            // A hiprtc that refuses and does not abort is also correct.
            Ok((
                ChildResponse::Compiled(Compiled::Refused { .. } | Compiled::Broken { .. }),
                _,
            )) => {}
            other => panic!("{other:?}"),
        }
        let (answer, _) = workers.ask("k", "hiprtc", &compile(&file, "gfx90a")).unwrap();
        assert!(matches!(answer, ChildResponse::Compiled(Compiled::Code { .. })), "{answer:?}");
    }

    #[test]
    fn rocm_version_is_parsed_from_file_name() {
        let version = |name| version_in_name(Path::new(name));
        assert_eq!(version("/opt/rocm/lib/libhiprtc.so.6.2.41133"), Some((6, 2)));
        assert_eq!(version("/usr/lib/libamdhip64.so.5.2.21153-0"), Some((5, 2)));
        assert_eq!(version("libhiprtc.so.7"), Some((7, 0)));
        assert_eq!(version("libhiprtc.so"), None);
    }
}
