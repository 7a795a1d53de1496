//! The shape of a launch.

/// Grid and block of a launch. Plain arithmetic, no device: kernel authors return it, the executor
/// launches it.
///
/// ```
/// use kjit_engine::Geometry;
/// let g = Geometry::new(132, 256).shared(4096).dependent(true);
/// assert_eq!(g.threads(), 256);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z. Our kernels have it as the constant `KJ_BLOCK` and never read
    /// it.
    pub block: [u32; 3],
    /// Dynamic LDS / shared memory a block gets, in bytes.
    pub shared: u32,
    /// All blocks must be resident at once (kernels with a grid barrier); refused when they cannot
    /// be.
    pub cooperative: bool,
    /// May start before the kernel before it in the stream has ended (programmatic dependent
    /// launch): the kernel must wait by itself before it reads what that one wrote. Drivers without
    /// it order the two as usual.
    pub dependent: bool,
}

impl Geometry {
    /// `grid` blocks of `block` threads, in one dimension.
    #[must_use]
    pub const fn new(grid: u32, block: u32) -> Geometry {
        Geometry::of([grid, 1, 1], [block, 1, 1])
    }

    /// In up to three dimensions.
    #[must_use]
    pub const fn of(grid: [u32; 3], block: [u32; 3]) -> Geometry {
        Geometry { grid, block, shared: 0, cooperative: false, dependent: false }
    }

    /// With dynamic shared memory, in bytes.
    #[must_use]
    pub const fn shared(mut self, bytes: u32) -> Geometry {
        self.shared = bytes;
        self
    }

    /// With all blocks resident at once.
    #[must_use]
    pub const fn cooperative(mut self, on: bool) -> Geometry {
        self.cooperative = on;
        self
    }

    /// As a dependent launch.
    #[must_use]
    pub const fn dependent(mut self, on: bool) -> Geometry {
        self.dependent = on;
        self
    }

    /// Threads of a block.
    #[must_use]
    pub fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    /// Blocks of the grid.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        // Three u32 can pass u64; a saturated count is refused like any other that is too large.
        self.grid.iter().fold(1u64, |all, &n| all.saturating_mul(u64::from(n)))
    }
}
