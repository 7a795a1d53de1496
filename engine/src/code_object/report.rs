//! What a kernel costs, as the compile matrix lists it: read from the code object, computed from
//! the target's table.

use super::{CodeObject, KernelInfo};
use crate::arch::{Occupancy, Target};

/// One kernel on one target.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    /// The source's name.
    pub source: String,
    /// The kernel's symbol.
    pub kernel: String,
    /// What it was compiled for: `gfx90a`, `sm_90a`.
    pub arch: String,
    /// Lanes of a wave.
    pub wave: u32,
    /// Compiler and version.
    pub compiler: String,
    /// Seconds that the compile of its source took.
    pub seconds: f64,
    /// Bytes of the code object (all kernels of the source).
    pub bytes: u64,
    /// Vector registers a lane (AMD: VGPRs).
    pub registers: u32,
    /// Accumulation registers a lane (AMD CDNA).
    pub agprs: u32,
    /// Scalar registers a wave (AMD).
    pub sgprs: u32,
    /// Registers spilled, where it is known.
    pub spills: Option<u32>,
    /// Scratch bytes a lane.
    pub scratch: u32,
    /// Static LDS / shared memory a block, bytes.
    pub lds: u32,
    /// Threads a block it was compiled for.
    pub threads: u32,
    /// What fits a compute unit at that block size, dynamic LDS included.
    pub occupancy: Occupancy,
}

impl KernelInfo {
    /// Occupancy on a target in blocks of `threads`, with `dynamic` bytes of LDS given at launch.
    /// `wave` counts where the code object does not tell.
    #[must_use]
    pub fn occupancy(&self, target: &Target, threads: u32, dynamic: u32, wave: u32) -> Occupancy {
        let shared = self.shared.saturating_add(dynamic);
        target.occupancy(threads, self.all_registers(), shared, self.wave.unwrap_or(wave))
    }
}

impl CodeObject {
    /// What each kernel in it costs on a target, with `dynamic` bytes of LDS given at launch. The
    /// block size is the one that the kernel was compiled for (its launch bound); the target's
    /// largest where it states none.
    #[must_use]
    pub fn report(&self, target: &Target, dynamic: u32) -> Vec<KernelReport> {
        let report = |kernel: &KernelInfo| {
            let threads = kernel.max_threads.unwrap_or(target.arch().max_threads);
            KernelReport {
                source: self.name().to_owned(),
                kernel: kernel.name.clone(),
                arch: self.compile_id().to_owned(),
                wave: kernel.wave.unwrap_or(self.wave()),
                compiler: self.compiler().to_owned(),
                seconds: self.compile_time().as_secs_f64(),
                bytes: self.bytes().len() as u64,
                registers: kernel.registers,
                agprs: kernel.agprs,
                sgprs: kernel.sgprs,
                spills: kernel.spills,
                scratch: kernel.local,
                lds: kernel.shared,
                threads,
                occupancy: kernel.occupancy(target, threads, dynamic, self.wave()),
            }
        };
        self.kernels().iter().map(report).collect()
    }
}
