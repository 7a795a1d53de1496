//! LLVM's disassembler through its C interface: the shared library that Debian's clang-19 stands on
//! has it, so no tool is needed besides.

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

/// Names of the library, newest first. `KJIT_LIBLLVM` comes before all of them.
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

/// LLVM promises little about threads, and disassembling is a small part of a run: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library, opened once, with its AMDGPU target made known.
fn llvm() -> Result<&'static Llvm, String> {
    static OPEN: OnceLock<Result<Llvm, String>> = OnceLock::new();
    OPEN.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Llvm, String> {
    let chosen = std::env::var("KJIT_LIBLLVM").ok();
    // gfx targets of the tests are compiled by clang 19; a newer LLVM disassembles them as well.
    let names: Vec<&str> = match &chosen {
        Some(name) => vec![name],
        None => NAMES[1..].iter().chain(&NAMES[..1]).copied().collect(),
    };
    for name in &names {
        // SAFETY: LLVM's library has no initialisers that ask anything of the program.
        let Ok(library) = (unsafe { Library::new(*name) }) else { continue };
        for part in [
            "LLVMInitializeAMDGPUTargetInfo",
            "LLVMInitializeAMDGPUTargetMC",
            "LLVMInitializeAMDGPUDisassembler",
        ] {
            // SAFETY: LLVM's C interface: these take nothing, return nothing and may be called once
            // each.
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

/// Whether there is an LLVM to disassemble with, else why not.
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
    /// For `arch` ("gfx1100") at `wave` lanes.
    pub fn new(arch: &str, wave: u32) -> Result<Disassembler, String> {
        let llvm = llvm()?;
        let _alone = alone();
        let symbol = |name: &str| format!("LLVM's library has no {name}");
        let features = if arch.starts_with("gfx9") {
            String::new()
        } else {
            format!("+wavefrontsize{wave},-wavefrontsize{}", 96 - wave)
        };
        let texts =
            ["amdgcn-amd-amdhsa", arch, &features].map(|t| CString::new(t).unwrap_or_default());
        // SAFETY: the signatures are those of llvm-c/Disassembler.h; the strings outlive the call,
        // which copies them.
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

    /// The first instruction of `code`, which lies at `pc`: its text and its bytes.
    pub fn at(&self, code: &[u8], pc: u64) -> Result<(String, usize), String> {
        let _alone = alone();
        let mut bytes = code[..code.len().min(24)].to_vec();
        let mut out = [0 as c_char; 512];
        // SAFETY: both buffers are ours and as long as said; LLVM ends the text with 0.
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
        // SAFETY: the context was made by the same library and is used by nobody else.
        unsafe { (self.dispose)(self.context) }
    }
}
