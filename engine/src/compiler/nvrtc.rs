//! nvrtc: NVIDIA's run-time compiler. It compiles directly to machine code (cubin), not to PTX.

use super::compiled::{Compiled, Probe};
use super::discover::{CandidateList, glob_children, python_sites};
use super::interface::{Backend, Compiler};
use super::protocol::Request;
use crate::arch::Vendor;
use crate::source::Options;
use libloading::Library;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

/// The nvrtc compiler kind.
pub(super) struct Nvrtc;

/// Sonames: the newest major version first, and last the name without a version.
const NAMES: &[&str] = &["libnvrtc.so.14", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

impl Compiler for Nvrtc {
    fn kind(&self) -> &'static str {
        "nvrtc"
    }

    fn vendor(&self) -> Vendor {
        Vendor::Nvidia
    }

    fn places(&self, explicit: Option<&Path>) -> CandidateList {
        let mut places = CandidateList::new(NAMES);
        places.explicit("--compiler-path", explicit.map(Path::to_owned));
        places.variable("KJIT_NVRTC_LIBRARY");
        for variable in ["CUDA_PATH", "CUDA_HOME"] {
            places
                .below_variable(variable, &["lib64", "targets/x86_64-linux/lib", "lib", "lib/x64"]);
        }
        places.loader_path();
        places.folder("usual folder", Path::new("/usr/local/cuda/lib64"));
        for version in glob_children(Path::new("/usr/local"), "cuda-") {
            places.folder("usual folder", &version.join("lib64"));
        }
        places.folder("usual folder", Path::new("/opt/cuda/lib64"));
        places.folder("usual folder", Path::new("/usr/lib/cuda/lib64"));
        places.later(|places| {
            for site in python_sites() {
                for wheel in glob_children(&site.join("nvidia"), "") {
                    places.folder("Python package", &wheel.join("lib"));
                }
            }
        });
        places
    }

    fn major_of(&self, file: &Path) -> Option<u32> {
        let name = file.file_name()?.to_str()?;
        name.split_once(".so.")?.1.split('.').next()?.parse().ok()
    }

    fn suits_driver(&self, major: u32, driver: Option<(u32, u32)>) -> bool {
        driver.is_none_or(|(of_driver, _)| major <= of_driver)
    }

    fn companions(&self, file: &Path, version: (u32, u32)) -> Vec<PathBuf> {
        let name = format!("libnvrtc-builtins.so.{}.{}", version.0, version.1);
        file.parent().map(|folder| folder.join(name)).filter(|p| p.is_file()).into_iter().collect()
    }

    fn arguments(&self, compile_id: &str, options: &Options) -> Vec<String> {
        let mut arguments =
            vec![format!("--gpu-architecture={compile_id}"), "--std=c++17".to_owned()];
        if options.fast_math {
            arguments.push("--use_fast_math".to_owned());
        }
        // With this option the log contains registers and spills. `warm -v` shows them and tests
        // check them.
        arguments.push("--ptxas-options=-v".to_owned());
        arguments
    }

    fn needs(&self, version: (u32, u32)) -> BTreeMap<String, String> {
        // Machine code runs on every driver of its major version (minor version compatibility) and
        // on newer ones.
        BTreeMap::from([("driver".to_owned(), format!("{}.0", version.0))])
    }

    fn package(&self) -> &'static str {
        "pip install nvidia-cuda-nvrtc (for driver 12: nvidia-cuda-nvrtc-cu12), or NVIDIA's CUDA toolkit"
    }

    fn spills(&self, log: &str) -> BTreeMap<String, u32> {
        let mut spills = BTreeMap::new();
        let mut kernel = None;
        for line in log.lines() {
            if let Some((_, name)) = line.split_once("Function properties for ") {
                kernel = Some(name.trim().to_owned());
            } else if let Some((before, _)) = line.split_once(" bytes spill stores") {
                let bytes = before.rsplit([' ', ',']).next().and_then(|n| n.parse::<u32>().ok());
                if let (Some(kernel), Some(bytes)) = (kernel.take(), bytes) {
                    spills.insert(kernel, bytes / 4);
                }
            }
        }
        spills
    }
}

type Program = *mut c_void;

macro_rules! functions {
    ($($name:ident($($t:ty),*);)*) => {
        /// The functions in use. Results are numbers, because an enum could not represent a code
        /// that is newer than the enum.
        #[allow(non_snake_case, reason = "the vendor's names")]
        struct Functions {
            $($name: unsafe extern "C" fn($($t),*) -> c_int,)*
            nvrtcGetErrorString: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        impl Functions {
            fn load(library: &'static Library) -> Result<Functions, String> {
                // SAFETY: for all lookups: signatures are as in nvrtc.h, unchanged since CUDA 11.2,
                // and the library is never closed.
                unsafe fn get<T: Copy>(library: &'static Library, name: &str) -> Result<T, String> {
                    // SAFETY: the caller gives the type that the vendor's header declares.
                    unsafe { library.get::<T>(name.as_bytes()) }.map(|s| *s).map_err(|_| format!("the function {name} is missing"))
                }
                // SAFETY: signatures are as in nvrtc.h, and the library is never closed.
                unsafe {
                    Ok(Functions {
                        $($name: get(library, stringify!($name))?,)*
                        nvrtcGetErrorString: get(library, "nvrtcGetErrorString")?,
                    })
                }
            }
        }
    };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int);
    nvrtcGetNumSupportedArchs(*mut c_int);
    nvrtcGetSupportedArchs(*mut c_int);
    nvrtcCreateProgram(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
    nvrtcCompileProgram(Program, c_int, *const *const c_char);
    nvrtcGetProgramLogSize(Program, *mut usize);
    nvrtcGetProgramLog(Program, *mut c_char);
    nvrtcGetCUBINSize(Program, *mut usize);
    nvrtcGetCUBIN(Program, *mut c_char);
    nvrtcDestroyProgram(*mut Program);
}

/// nvrtc's code for errors in the source.
const COMPILATION: c_int = 6;

/// The opened library.
pub(super) struct NvrtcLibrary {
    functions: Functions,
}

impl NvrtcLibrary {
    pub fn open(file: &Path) -> Result<NvrtcLibrary, String> {
        // SAFETY: loading runs the library's initialisers. The file was named by the user or found
        // as NVIDIA's compiler.
        let library =
            unsafe { Library::new(file) }.map_err(|e| format!("{}: {e}", file.display()))?;
        // The library is never closed, because it has thread-local state.
        let library: &'static Library = Box::leak(Box::new(library));
        let functions =
            Functions::load(library).map_err(|why| format!("{}: {why}", file.display()))?;
        Ok(NvrtcLibrary { functions })
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: returns a static, terminated string for every code.
        let text = unsafe { (self.functions.nvrtcGetErrorString)(code) };
        let says = if text.is_null() {
            "unknown error".into()
        } else {
            // SAFETY: not null, static and terminated.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        Err(format!("{call}: {says} (code {code})"))
    }

    fn run(&self, request: &Request) -> Result<Compiled, String> {
        let terminated = |what: &str, text: &str| {
            CString::new(text).map_err(|_| format!("{what} contains a zero byte"))
        };
        let f = &self.functions;
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
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (name_list, text_list, option_list) =
            (pointers(&names), pointers(&texts), pointers(&options));
        let int =
            |n: usize| c_int::try_from(n).map_err(|_| "too many headers or options".to_owned());

        let mut guard = ProgramGuard { functions: f, program: null_mut() };
        // SAFETY: terminated strings and arrays of the stated lengths, alive during the call, which
        // copies them.
        let code = unsafe {
            (f.nvrtcCreateProgram)(
                &mut guard.program,
                source.as_ptr(),
                file.as_ptr(),
                int(texts.len())?,
                if texts.is_empty() { null() } else { text_list.as_ptr() },
                if names.is_empty() { null() } else { name_list.as_ptr() },
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        // SAFETY: the program was just created; the array has that many terminated strings.
        let code = unsafe {
            (f.nvrtcCompileProgram)(guard.program, int(options.len())?, option_list.as_ptr())
        };
        // SAFETY: size and bytes belong to one program, which does not change in between.
        let log = self.bytes("log", &guard, f.nvrtcGetProgramLogSize, f.nvrtcGetProgramLog)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if code == COMPILATION {
            return Ok(Compiled::Refused { log });
        }
        // Errors such as wrong options write no compile log.
        self.check("nvrtcCompileProgram", code).map_err(|why| format!("{why} {log}"))?;
        let code = self.bytes("cubin", &guard, f.nvrtcGetCUBINSize, f.nvrtcGetCUBIN)?;
        if code.is_empty() {
            return Err("nvrtc generated no machine code (is the architecture virtual?)".to_owned());
        }
        Ok(Compiled::Code { code, log })
    }

    fn bytes(
        &self,
        what: &str,
        guard: &ProgramGuard<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program is alive; writes one size.
        self.check(what, unsafe { size(guard.program, &mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: the program is alive; writes the number of bytes that it just returned.
        self.check(what, unsafe { get(guard.program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

/// A program that is destroyed on drop.
struct ProgramGuard<'a> {
    functions: &'a Functions,
    program: Program,
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created by nvrtcCreateProgram and destroyed once.
            let _ = unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.program) };
        }
    }
}

impl Backend for NvrtcLibrary {
    fn probe(&self) -> Result<Probe, String> {
        let f = &self.functions;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: writes two ints.
        self.check("nvrtcVersion", unsafe { (f.nvrtcVersion)(&mut major, &mut minor) })?;
        // SAFETY: writes one int.
        self.check("nvrtcGetNumSupportedArchs", unsafe {
            (f.nvrtcGetNumSupportedArchs)(&mut count)
        })?;
        let mut archs: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: writes the number of ints that it just returned.
        self.check("nvrtcGetSupportedArchs", unsafe {
            (f.nvrtcGetSupportedArchs)(archs.as_mut_ptr())
        })?;
        // The ids with suffix `a` are not listed. From 9.0 on they exist together with the base id.
        let ids = archs.iter().flat_map(|n| {
            let base = format!("sm_{n}");
            let specific = (*n >= 90).then(|| format!("sm_{n}a"));
            std::iter::once(base).chain(specific)
        });
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        Ok(Probe { version: (number(major), number(minor)), ids: ids.collect() })
    }

    fn compile(&self, request: &Request) -> Compiled {
        self.run(request).unwrap_or_else(|why| Compiled::Broken { why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvrtc_major_version_is_parsed_from_file_name() {
        let major = |name| Nvrtc.major_of(Path::new(name));
        assert_eq!(major("/x/libnvrtc.so.13"), Some(13));
        assert_eq!(major("/x/libnvrtc.so.12.9.86"), Some(12));
        assert_eq!(major("/x/libnvrtc.so"), None);
        assert!(
            Nvrtc.suits_driver(12, Some((13, 0)))
                && Nvrtc.suits_driver(14, None)
                && !Nvrtc.suits_driver(13, Some((12, 9)))
        );
    }

    #[test]
    fn spills_are_parsed_from_log_per_kernel() {
        let log = "ptxas info    : Compiling entry function 'spill' for 'sm_90a'\n\
                   ptxas info    : Function properties for spill\n\
                   ptxas         .     992 bytes stack frame, 1756 bytes spill stores, 1784 bytes \
                   spill loads\n\
                   ptxas info    : Function properties for none\n\
                   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill \
                   loads\n";
        assert_eq!(
            Nvrtc.spills(log),
            BTreeMap::from([("none".to_owned(), 0), ("spill".to_owned(), 439)])
        );
    }
}
