//! A vector of 32 floats on every CPU: two AVX-512 registers, four AVX2, eight NEON, or an array.
//! Kernels are written once over [`Vector`] and compiled for each instruction set; [`Isa::best`]
//! chooses at run time.
//!
//! A kernel is a [`Job`]. Its `run` is inlined into a function with the `target_feature` attribute,
//! so that its intrinsics become instructions instead of calls. 32 lanes are a row of registers in
//! the matrix kernel's tile, and the block length of most weight formats.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx_probe;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_codes;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_codes;
#[cfg(target_arch = "x86_64")]
mod avx512_integers;
#[cfg(target_arch = "x86_64")]
mod avx512_interleaved;
mod codes;
#[cfg(target_arch = "x86_64")]
mod eight;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_codes;
mod plain;
mod scales;
#[cfg(test)]
mod tests;
mod tile_arguments;
mod tiles;
mod vector;

pub use codes::unsigned;
pub use tile_arguments::{InterleavedTile, Tile, WordTile};
pub use tiles::{ByteBlock, TILE_ROWS, TILE_UNIT, TileBlock, TileJob, Tiles};
pub use vector::{CHUNK, CHUNK_BYTES, Job, LANES, Vector, WordJob, WordKernel};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// [`Kind::Avx512`] with AMX tiles.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Emulated tiles, for tests.
    #[cfg(test)]
    PlainTiles,
}

/// An instruction set that this CPU has. Only [`Isa::available`] and [`Isa::best`] create it, after
/// querying the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

impl Isa {
    /// All instruction sets of this CPU, from the plain one to the best one.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "other CPUs have only the plain one")]
        let mut all = vec![Isa(Kind::Plain)];
        #[cfg(target_arch = "x86_64")]
        {
            if avx2::present() {
                all.push(Isa(Kind::Avx2));
            }
            if avx512::present() {
                all.push(Isa(Kind::Avx512));
            }
            #[cfg(target_os = "linux")]
            if amx_probe::present() {
                all.push(Isa(Kind::Amx));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if neon::present() {
            all.push(Isa(Kind::Neon));
        }
        all
    }

    /// The instruction sets with tiles: the emulated one, and AMX if this CPU has it.
    #[cfg(test)]
    pub fn with_tiles() -> Vec<Isa> {
        let here = Isa::available().into_iter().filter(|isa| isa.has_tiles());
        std::iter::once(Isa(Kind::PlainTiles)).chain(here).collect()
    }

    /// The best instruction set of this CPU.
    pub fn best() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa(Kind::Plain))
    }

    /// `plain`, `avx2`, `avx512`, `amx` or `neon`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(test)]
            Kind::PlainTiles => "plain tiles",
        }
    }

    /// The prefetch distance in bytes, for products with few tokens. 0: no software prefetch.
    ///
    /// Measured on one core (2026-11-24). A Xeon (Sapphire Rapids) reads 5.5 to 6 GB/s by plain
    /// loads. It reads 10 GB/s, its limit, with a prefetch 4 KB ahead: 64 weights of Q4_1 take 4.1
    /// ns instead of 7.2, 64 of Q4_K 3.6 ns instead of 6.3. A distance of 8 KB is not faster. On an
    /// EPYC the hardware prefetcher is enough: 3.2 ns, with software prefetch 4.1 ns.
    pub fn ahead(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => avx512::ahead(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => avx512::ahead(),
            _ => 0,
        }
    }

    /// Whether [`Isa::run_words`] can run jobs.
    pub fn has_words(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx512 || self.has_tiles();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether [`Isa::run_tiles`] can run jobs.
    pub fn has_tiles(self) -> bool {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => true,
            #[cfg(test)]
            Kind::PlainTiles => true,
            _ => false,
        }
    }

    /// Runs a job that uses tiles, if [`Isa::has_tiles`].
    ///
    /// # Safety
    /// The job's requirements on its fields hold.
    #[inline]
    pub unsafe fn run_tiles<J: TileJob>(self, job: J) {
        match self.0 {
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { amx::enter(job) },
            // SAFETY: the plain vector needs no instruction set; the caller guarantees the job's
            // requirements.
            #[cfg(test)]
            Kind::PlainTiles => unsafe { job.run::<plain::Plain>() },
            _ => drop(job),
        }
    }

    /// Runs a job with int16 products, if [`Isa::has_words`].
    ///
    /// # Safety
    /// The job's requirements on its fields hold.
    #[inline]
    pub unsafe fn run_words<J: WordJob>(self, job: J) {
        match self.0 {
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::enter_words(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { avx512::enter_words(job) },
            _ => drop(job),
        }
    }

    /// Runs a job with this instruction set.
    ///
    /// # Safety
    /// The job's requirements on its fields hold.
    #[inline]
    pub unsafe fn run<J: Job>(self, job: J) -> J::Out {
        match self.0 {
            // SAFETY: the plain vector needs no instruction set; the caller guarantees the job's
            // requirements.
            Kind::Plain => unsafe { plain::enter(job) },
            // SAFETY: the plain vector needs no instruction set; the caller guarantees the job's
            // requirements.
            #[cfg(test)]
            Kind::PlainTiles => unsafe { plain::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { avx512::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon::enter(job) },
        }
    }
}
