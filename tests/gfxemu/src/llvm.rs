//! LLVM's disassembler through its C interface. Debian's clang-19 depends on the shared library, so
//! no other tool is needed.

use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

type Create = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    *const c_char,
    *mut c_void,
    c_int,
    *const c_void,
    *const c_void,
) -> *mut c_void;
type Disassemble =
    unsafe extern "C" fn(*mut c_void, *mut u8, u64, u64, *mut c_char, usize) -> usize;
type Dispose = unsafe extern "C" fn(*mut c_void);

/// Names of the library, newest first. `KJIT_LIBLLVM` takes precedence.
const NAMES: [&str; 5] = [
    "libLLVM.so.22.1",
    "libLLVM-19.so.1",
    "libLLVM.so.19.1",
    "libLLVM-19.so",
    "/usr/lib/llvm-19/lib/libLLVM.so",
];

struct Llvm {
    library: Library,
}

/// A lock around LLVM calls: LLVM guarantees little about threads. Disassembly takes a small part
/// of a run.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library with its AMDGPU target initialised, opened once.
fn llvm() -> Result<&'static Llvm, String> {
    static OPEN: OnceLock<Result<Llvm, String>> = OnceLock::new();
    OPEN.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Llvm, String> {
    let chosen = std::env::var("KJIT_LIBLLVM").ok();
    // The tests compile for gfx targets with clang 19; a newer LLVM can disassemble them too.
    let names: Vec<&str> = match &chosen {
        Some(name) => vec![name],
        None => NAMES[1..].iter().chain(&NAMES[..1]).copied().collect(),
    };
    for name in &names {
        // SAFETY: the initialisers of LLVM's library depend on nothing in this program.
        let Ok(library) = (unsafe { Library::new(*name) }) else { continue };
        for part in [
            "LLVMInitializeAMDGPUTargetInfo",
            "LLVMInitializeAMDGPUTargetMC",
            "LLVMInitializeAMDGPUDisassembler",
        ] {
            // SAFETY: these functions of LLVM's C interface take no arguments, return nothing, and
            // may be called once.
            unsafe {
                let Ok(call) = library.get::<unsafe extern "C" fn()>(part.as_bytes()) else {
                    return Err(format!(
                        "{name} has no {part}: it was built without the AMDGPU target"
                    ));
                };
                call();
            }
        }
        return Ok(Llvm { library });
    }
    Err(format!("no LLVM library ({}); Debian: clang-19", names.join(", ")))
}

/// Whether LLVM is available; the error is the reason why not.
pub fn available() -> Result<(), String> {
    llvm().map(|_| ())
}

/// A disassembler for one architecture and wave width.
pub struct Disassembler {
    context: *mut c_void,
    disassemble: Symbol<'static, Disassemble>,
    dispose: Symbol<'static, Dispose>,
}

impl Disassembler {
    /// A disassembler for `arch` ("gfx1100") with `wave` lanes.
    pub fn new(arch: &str, wave: u32) -> Result<Disassembler, String> {
        let llvm = llvm()?;
        let _alone = alone();
        let symbol = |name: &str| format!("LLVM's library has no {name}");
        let features = if arch.starts_with("gfx9") || arch.starts_with("gfx8") {
            String::new()
        } else {
            format!("+wavefrontsize{wave},-wavefrontsize{}", 96 - wave)
        };
        let texts =
            ["amdgcn-amd-amdhsa", arch, &features].map(|t| CString::new(t).unwrap_or_default());
        // SAFETY: the signatures are those of llvm-c/Disassembler.h. LLVM copies the strings, which
        // outlive the call.
        unsafe {
            let create: Symbol<Create> = llvm
                .library
                .get(b"LLVMCreateDisasmCPUFeatures")
                .map_err(|_| symbol("LLVMCreateDisasmCPUFeatures"))?;
            let disassemble = llvm
                .library
                .get(b"LLVMDisasmInstruction")
                .map_err(|_| symbol("LLVMDisasmInstruction"))?;
            let dispose =
                llvm.library.get(b"LLVMDisasmDispose").map_err(|_| symbol("LLVMDisasmDispose"))?;
            let none = std::ptr::null();
            let context = create(
                texts[0].as_ptr(),
                texts[1].as_ptr(),
                texts[2].as_ptr(),
                std::ptr::null_mut(),
                0,
                none,
                none,
            );
            if context.is_null() {
                return Err(format!("LLVM does not know {arch}"));
            }
            Ok(Disassembler { context, disassemble, dispose })
        }
    }

    /// Disassembles the first instruction of `code` at address `pc`: its text and its size in
    /// bytes.
    pub fn at(&self, code: &[u8], pc: u64) -> Result<(String, usize), String> {
        let _alone = alone();
        let mut bytes = code[..code.len().min(24)].to_vec();
        let mut out = [0 as c_char; 512];
        // SAFETY: both buffers belong to this function and have the given lengths; LLVM
        // zero-terminates the text.
        let (size, text) = unsafe {
            let size = (self.disassemble)(
                self.context,
                bytes.as_mut_ptr(),
                bytes.len() as u64,
                pc,
                out.as_mut_ptr(),
                out.len(),
            );
            (size, CStr::from_ptr(out.as_ptr()).to_string_lossy().trim().to_string())
        };
        match size {
            0 => Err(format!("LLVM cannot decode {:02x?}", &bytes[..bytes.len().min(8)])),
            _ => Ok((text, size)),
        }
    }
}

impl Drop for Disassembler {
    fn drop(&mut self) {
        let _alone = alone();
        // SAFETY: this library created the context, and nothing else uses it.
        unsafe { (self.dispose)(self.context) }
    }
}
