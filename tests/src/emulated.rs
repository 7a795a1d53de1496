//! Runs launches of the simulated device as machine code on `gfxemu`: the callback of
//! `hipsim_emulate`.

use gfxemu::machine::{Launch, Machine};
use gfxemu::object::Kernel;
use gfxemu::region::Region;
use gfxemu::target::Target;
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A buffer of the simulated device.
#[repr(C)]
pub struct SimulatedBuffer {
    at: *mut u8,
    bytes: usize,
}

/// The type `Emulate` in sim.h of hipsim.
pub type Emulate = unsafe extern "C" fn(
    *const c_char,
    *const u8,
    usize,
    *const c_char,
    *const c_uint,
    c_uint,
    c_uint,
    c_int,
    *const u8,
    usize,
    *const SimulatedBuffer,
    usize,
    u64,
    *mut c_char,
    usize,
) -> c_int;

/// Addresses of the code object and of the arguments. No process has mapped memory there.
const CODE: u64 = 0x1000;
const ARGUMENTS: u64 = 0x4000_0000_0000_0000;

static LAUNCHES: AtomicU64 = AtomicU64::new(0);
static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);

/// Number of launches emulated in this process, and of the instructions that their waves executed.
#[must_use]
pub fn counts() -> (u64, u64) {
    (LAUNCHES.load(Ordering::Relaxed), INSTRUCTIONS.load(Ordering::Relaxed))
}

static LOOSE: AtomicBool = AtomicBool::new(false);

/// For all later launches: if `yes`, the seed of a launch chooses when its stores arrive, and a
/// missing wait changes the result ([`Machine::loose`]). If not, the rules of visibility are
/// checked.
pub fn choose_order_of_stores(yes: bool) {
    LOOSE.store(yes, Ordering::Relaxed);
}

/// Hash of the code object, symbol, architecture.
type Key = (Vec<u8>, String, String);

thread_local! {
    /// Kernels decoded by this thread, by code object and symbol.
    static MACHINES: RefCell<HashMap<Key, Machine>> = RefCell::default();
}

/// A launch to emulate.
struct EmulatedLaunch<'a> {
    arch: &'a str,
    object: &'a [u8],
    symbol: &'a str,
    launch: Launch,
    regions: Vec<Region>,
}

fn run(asked: EmulatedLaunch) -> Result<(), String> {
    let arch = asked.arch.split(':').next().unwrap_or_default();
    let key = (Sha256::digest(asked.object).to_vec(), asked.symbol.to_owned(), arch.to_owned());
    MACHINES.with_borrow_mut(|machines| {
        let machine = match machines.entry(key) {
            std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                let kernel = Kernel::read(asked.object, asked.symbol)?;
                place.insert(Machine::new(Target::new(arch, kernel.wave)?, kernel, CODE)?)
            }
        };
        let mut regions = asked.regions;
        machine.loose = LOOSE.load(Ordering::Relaxed);
        let (at, image) = machine.image();
        regions.push(Region::new("code", at, image.to_vec(), false));
        let mut launch = asked.launch;
        launch.lds += machine.static_lds();
        let (_, instructions) =
            machine.run(&launch, regions).map_err(|fault| format!("{}: {fault}", asked.symbol))?;
        LAUNCHES.fetch_add(1, Ordering::Relaxed);
        INSTRUCTIONS.fetch_add(instructions, Ordering::Relaxed);
        Ok(())
    })
}

/// Runs a launch of the simulated device as machine code.
///
/// # Safety
/// The caller is hipsim: strings are zero-terminated, arrays have the given lengths, and nothing
/// else accesses the memory during the call.
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn launch(
    arch: *const c_char,
    object: *const u8,
    object_bytes: usize,
    symbol: *const c_char,
    grid: *const c_uint,
    threads: c_uint,
    lds: c_uint,
    cooperative: c_int,
    arguments: *const u8,
    argument_bytes: usize,
    memory: *const SimulatedBuffer,
    regions: usize,
    seed: u64,
    error: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: the caller promises zero-terminated strings.
    let (arch, symbol) = unsafe {
        (CStr::from_ptr(arch).to_string_lossy(), CStr::from_ptr(symbol).to_string_lossy())
    };
    // SAFETY: the caller promises arrays of these lengths.
    let (object, grid, arguments, memory) = unsafe {
        (
            std::slice::from_raw_parts(object, object_bytes),
            std::slice::from_raw_parts(grid, 3),
            if argument_bytes == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(arguments, argument_bytes)
            },
            if regions == 0 { &[] } else { std::slice::from_raw_parts(memory, regions) },
        )
    };
    let mut block = arguments.to_vec();
    // Space for hidden arguments. The kernels do not read them.
    block.resize(block.len().next_multiple_of(8) + 256, 0);
    // SAFETY: the caller promises buffers of these lengths that nothing else accesses during the
    // call.
    let lent = memory
        .iter()
        .enumerate()
        .map(|(i, m)| unsafe { Region::lent(format!("allocation {i}"), m.at, m.bytes, true) });
    let mut regions: Vec<Region> = lent.collect();
    regions.push(Region::new("arguments", ARGUMENTS, block, false));
    let launch = Launch {
        grid: [grid[0], grid[1], grid[2]],
        block: [threads, 1, 1],
        lds: lds as usize,
        cooperative: cooperative != 0,
        arguments: ARGUMENTS,
        seed,
        limit: 2_000_000_000,
    };
    let asked = EmulatedLaunch { arch: &arch, object, symbol: &symbol, launch, regions };
    // A panic must not cross into C++.
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(asked)));
    let why = match result {
        Ok(Ok(())) => return 0,
        Ok(Err(why)) => why,
        Err(_) => "the emulator panicked".to_owned(),
    };
    let bytes = why.as_bytes();
    let length = bytes.len().min(room.saturating_sub(1));
    // SAFETY: `text` has `room` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), error, length);
        *error.add(length) = 0;
    }
    1
}
