//! The simulated HIP device: builds its library and runs tests in processes that use it as their
//! HIP runtime.

use kjit_engine::arch::{ARCHS, Vendor};
use kjit_engine::{Config, Engine, Isolation};
use kjit_model::gpu::plan::{Plan, Program};
use sha2::{Digest, Sha256};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable in the process of a simulated test: the name of the test.
const CHILD_VARIABLE: &str = "HIPSIM_TEST";

/// Sources of the simulator, in the order of the compiler's command line.
const UNITS: &[&str] = &[
    "device.cpp",
    "memory.cpp",
    "stream.cpp",
    "graph.cpp",
    "module.cpp",
    "compile.cpp",
    "hiprtc.cpp",
    "rocblas.cpp",
    "rccl.cpp",
];
const HEADERS: &[&str] = &["kernel.h", "exec.h", "sim.h", "compile.h", "object.h", "sha256.h"];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hipsim")
}

fn compiler() -> String {
    std::env::var("HIPSIM_CXX").unwrap_or_else(|_| "c++".to_owned())
}

/// Compiles `units` with `flags` to `name` in `folder`, unless the file exists. Returns its path.
fn build(folder: &Path, name: &str, units: &[&str], flags: &[&str]) -> Result<PathBuf, String> {
    let say = |what: &Path, why: String| format!("{}: {why}", what.display());
    let mut hash = Sha256::new();
    for file in units.iter().chain(HEADERS) {
        let file = sources().join(file);
        hash.update(std::fs::read(&file).map_err(|e| say(&file, e.to_string()))?);
    }
    let place = format!("-DHIPSIM_FOLDER=\"{}\"", sources().display());
    let amd = ARCHS.iter().filter(|a| a.vendor == Vendor::Amd).map(|a| format!("\"{}\"", a.id));
    let isas = format!("-DHIPSIM_ISAS={}", amd.collect::<Vec<_>>().join(","));
    hash.update(format!("{} {place} {isas}", flags.join(" ")));
    let hash: String = hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
    let folder = folder.join("hipsim");
    std::fs::create_dir_all(&folder).map_err(|e| say(&folder, e.to_string()))?;
    let made = folder.join(format!("{hash}-{name}"));
    // Several test processes start simultaneously: one builds, the others wait for the lock.
    let lock = File::create(folder.join("lock")).map_err(|e| say(&folder, e.to_string()))?;
    lock.lock().map_err(|e| say(&folder, e.to_string()))?;
    if made.is_file() {
        return Ok(made);
    }
    let temporary = made.with_extension("new");
    let out = Command::new(compiler())
        .args([
            "-std=c++17",
            "-O2",
            "-g1",
            "-fPIC",
            "-fvisibility=hidden",
            "-pthread",
            &place,
            &isas,
        ])
        .args(flags)
        .args(units)
        .args(["-ldl", "-o"])
        .arg(&temporary)
        .current_dir(sources())
        .output()
        .map_err(|e| {
            format!("{}: {e} (Debian: g++; HIPSIM_CXX names another compiler)", compiler())
        })?;
    if !out.status.success() {
        return Err(format!(
            "the simulated device does not compile:\n{}",
            String::from_utf8_lossy(&out.stderr)
        ));
    }
    std::fs::rename(&temporary, &made).map_err(|e| say(&made, e.to_string()))?;
    Ok(made)
}

/// The set-up of the process of a simulated test.
#[derive(Clone, Debug)]
pub struct Setup {
    devices: String,
    old: bool,
    variables: Vec<(String, String)>,
}

impl Setup {
    /// A set-up with these devices, comma-separated: `gfx1100,gfx942:sramecc+:xnack-`.
    #[must_use]
    pub fn devices(devices: &str) -> Setup {
        Setup { devices: devices.to_owned(), old: false, variables: Vec::new() }
    }

    /// Offers only the symbols of ROCm 5: no `R0600` properties, no cooperative launch, no graph
    /// upload.
    #[must_use]
    pub fn rocm5(mut self) -> Setup {
        self.old = true;
        self
    }

    /// Sets an environment variable: `HIPSIM_MEMORY`, `HIPSIM_FAIL`, …
    #[must_use]
    pub fn set(mut self, name: &str, value: impl Into<String>) -> Setup {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Gives a process the simulated HIP runtime, hiprtc and clang, built in `temporary` (a
    /// `CARGO_TARGET_TMPDIR`).
    ///
    /// # Panics
    /// The simulator cannot be built.
    pub fn apply<'a>(&self, temporary: &str, command: &'a mut Command) -> &'a mut Command {
        let temporary = Path::new(temporary);
        let flags: &[&str] = if self.old { &["-shared", "-DHIPSIM_ROCM5"] } else { &["-shared"] };
        let name = if self.old { "libhipsim.so.5.2.0" } else { "libhipsim.so.6.2.0" };
        let library = build(temporary, name, UNITS, flags).unwrap_or_else(|why| panic!("{why}"));
        let clang = build(temporary, "clang", &["clang.cpp", "compile.cpp"], &[])
            .unwrap_or_else(|why| panic!("{why}"));
        command
            .env("KJIT_HIP_LIBRARY", &library)
            .env("KJIT_HIPRTC_LIBRARY", &library)
            .env("KJIT_ROCBLAS_LIBRARY", &library)
            .env("KJIT_RCCL_LIBRARY", &library)
            .env("KJIT_CLANG", clang)
            .env("HIPSIM_DIR", temporary.join("hipsim").join("compiled"))
            .env("HIPSIM_DEVICES", &self.devices)
            // The kernel of a whole token takes long to compile for the CPU.
            .env("KJIT_PROVE", "kernels")
            .env_remove("HIP_VISIBLE_DEVICES")
            .env_remove("ROCR_VISIBLE_DEVICES")
            .envs(self.variables.iter().map(|(n, v)| (n, v)))
    }

    /// Whether this is the process that [`Setup::run`] started for a test.
    #[must_use]
    pub fn inside(test: &str) -> bool {
        std::env::var_os(CHILD_VARIABLE).is_some_and(|inside| inside == test)
    }

    /// Runs `body` in a new process with the simulated HIP runtime and hiprtc. `test` is the
    /// calling test's name, `temporary` its `CARGO_TARGET_TMPDIR`. On machines other than x86-64 it
    /// prints that the test was skipped.
    ///
    /// # Panics
    /// The test fails. The message contains its output.
    pub fn run(&self, test: &str, temporary: &str, body: impl FnOnce()) {
        if Setup::inside(test) {
            return body();
        }
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            eprintln!("SKIPPED {test}: the simulated device's checks need x86-64 Linux");
            return;
        }
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD_VARIABLE, test);
        let output = self
            .apply(temporary, &mut command)
            .output()
            .unwrap_or_else(|e| panic!("the test's process: {e}"));
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let (passed, one) = (output.status.success(), said.contains("1 passed"));
        eprintln!("{said}");
        assert!(passed && one, "{test} on simulated {}: {}\n{said}", self.devices, output.status);
    }
}

/// An engine with its cache in `dir` that compiles with `kind` (`hiprtc` or `clang`) in processes
/// of `worker`. It tries no forms of a token.
#[must_use]
pub fn engine(dir: &Path, worker: &str, kind: &str) -> Engine {
    Engine::new(config(dir, worker, kind).without_trial())
}

/// As [`engine`], with the trial of forms.
#[must_use]
pub fn trying(dir: &Path, worker: &str, kind: &str) -> Engine {
    Engine::new(config(dir, worker, kind))
}

fn config(dir: &Path, worker: &str, kind: &str) -> Config {
    Config::new()
        .cache(kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir))
        .isolation(Isolation::Worker(PathBuf::from(worker)))
        .compiler_kind(kind)
        .jobs(std::thread::available_parallelism().map_or(2, usize::from))
}

/// Folder of compiled code objects that simulated tests keep between runs.
#[must_use]
pub fn cache(temporary: &str) -> PathBuf {
    Path::new(temporary).join("hipsim").join("cache")
}

/// Numbers of objects that are alive in the simulated runtime.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Device and page-locked allocations.
    pub allocations: u64,
    /// Size of these allocations in bytes.
    pub bytes: u64,
    /// Streams.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Loaded code objects.
    pub modules: u64,
    /// Captured graphs.
    pub graphs: u64,
    /// Instantiated graphs.
    pub execs: u64,
}

/// Functions of the simulated runtime for tests, for use inside [`Setup::run`].
pub struct Simulated(libloading::Library);

impl Simulated {
    /// The library that the engine uses in this process.
    ///
    /// # Panics
    /// It is called outside [`Setup::run`].
    #[must_use]
    pub fn here() -> Simulated {
        let file = std::env::var_os("KJIT_HIP_LIBRARY")
            .unwrap_or_else(|| panic!("not inside of Setup::run"));
        // SAFETY: the library belongs to this crate, and its initialisers do nothing.
        Simulated(unsafe { libloading::Library::new(file) }.unwrap_or_else(|e| panic!("{e}")))
    }

    fn call<T: Copy>(&self, name: &str) -> T {
        // SAFETY: each caller below gives the type from device.cpp.
        *unsafe { self.0.get::<T>(name.as_bytes()) }.unwrap_or_else(|e| panic!("{e}"))
    }

    /// Counts the objects that are alive.
    #[must_use]
    pub fn alive(&self) -> Alive {
        let mut alive = Alive::default();
        // SAFETY: the signature in device.cpp; the function writes one struct.
        unsafe { self.call::<unsafe extern "C" fn(*mut Alive)>("hipsim_alive")(&mut alive) };
        alive
    }

    /// Makes the `n`-th future call of this name fail with `code`.
    pub fn fail(&self, call: &CStr, n: u32, code: i32) {
        // SAFETY: the signature in device.cpp; the function copies the name.
        unsafe {
            self.call::<unsafe extern "C" fn(*const c_char, c_uint, c_int)>("hipsim_fail")(
                call.as_ptr(),
                n,
                code,
            );
        }
    }

    /// Poisons the memory that a plan's launches share, except its counters. So a run fails if it
    /// depends on data of the previous run.
    ///
    /// # Panics
    /// The number of allocations with that size is not one.
    pub fn poison(&self, plan: &Plan) {
        let counters = |p: &Program| {
            let zeroed = p.buffers.iter().filter(|b| b.zeroed);
            zeroed
                .map(|b| [p.base + b.offset, p.base + b.offset + b.bytes].map(|n| n as usize))
                .collect::<Vec<_>>()
        };
        let keep: Vec<[usize; 2]> = plan.programs().into_iter().flat_map(counters).collect();
        // SAFETY: the signature in device.cpp; the function reads the given number of pairs.
        let found = unsafe {
            let poison = self
                .call::<unsafe extern "C" fn(usize, *const [usize; 2], usize) -> usize>(
                    "hipsim_poison",
                );
            poison(plan.arena() as usize, keep.as_ptr(), keep.len())
        };
        assert_eq!(found, 1, "allocations of {} bytes", plan.arena());
    }

    /// Number of calls of a function so far.
    #[must_use]
    pub fn calls(&self, call: &CStr) -> u32 {
        // SAFETY: the signature in device.cpp.
        unsafe {
            self.call::<unsafe extern "C" fn(*const c_char) -> c_uint>("hipsim_calls")(
                call.as_ptr(),
            )
        }
    }

    /// Runs all later launches as machine code on `gfxemu`.
    pub fn emulate(&self) {
        // SAFETY: the signature in device.cpp; the function is static.
        unsafe {
            self.call::<unsafe extern "C" fn(crate::emulated::Emulate)>("hipsim_emulate")(
                crate::emulated::launch,
            );
        }
    }

    /// The fault message of a device; empty if there was no fault.
    #[must_use]
    pub fn fault(&self, device: i32) -> String {
        let mut text = [0 as c_char; 1024];
        // SAFETY: the signature in device.cpp; the function writes at most the given number of
        // bytes, including the zero.
        unsafe {
            self.call::<unsafe extern "C" fn(c_int, *mut c_char, usize) -> usize>("hipsim_fault")(
                device,
                text.as_mut_ptr(),
                text.len(),
            );
        }
        // SAFETY: zero-terminated: the buffer was zeroed, and snprintf terminates its output.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    }
}
