//! The resources of a kernel, as listed in the compile matrix. They are read from the code object
//! and the row of the target.

use super::CodeObject;
use super::info::KernelInfo;
use crate::arch::{Occupancy, Target};

/// A kernel on a target.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelReport {
    /// The source's name.
    pub source: String,
    /// The kernel's symbol.
    pub kernel: String,
    /// The architecture id of the compile: `gfx90a`, `sm_90a`.
    pub arch: String,
    /// Lanes per wave.
    pub wave: u32,
    /// Compiler and version.
    pub compiler: String,
    /// Seconds of compiling its source.
    pub seconds: f64,
    /// Bytes of the code object (all kernels of the source).
    pub bytes: u64,
    /// Vector registers per lane (AMD: VGPRs).
    pub registers: u32,
    /// Accumulation registers per lane (AMD CDNA).
    pub agprs: u32,
    /// Scalar registers per wave (AMD).
    pub sgprs: u32,
    /// Spilled registers, if known.
    pub spills: Option<u32>,
    /// Scratch bytes per lane.
    pub scratch: u32,
    /// Static LDS / shared memory per block in bytes.
    pub lds: u32,
    /// Threads per block.
    pub threads: u32,
    /// Occupancy at that block size, including dynamic LDS.
    pub occupancy: Occupancy,
}

impl KernelInfo {
    /// Occupancy on a target with blocks of `threads` and `dynamic` bytes of LDS at launch. `wave`
    /// is used if the code object does not state its width.
    #[must_use]
    pub fn occupancy(&self, target: &Target, threads: u32, dynamic: u32, wave: u32) -> Occupancy {
        let shared = self.shared.saturating_add(dynamic);
        target.occupancy(threads, self.all_registers(), shared, self.wave.unwrap_or(wave))
    }
}

impl CodeObject {
    /// The resources of each kernel on a target, with `dynamic` bytes of LDS at launch. The block
    /// size is the kernel's launch bound, or the target's maximum if it has none.
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
