//! The shape of a launch.

/// Grid and block of a launch. It needs no device: kernel authors return it, and the executor
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
    /// Threads of a block in x, y, z. In kjit's kernels this is the constant `KJ_BLOCK`; they do
    /// not read the dimensions.
    pub block: [u32; 3],
    /// Dynamic LDS / shared memory per block in bytes.
    pub shared: u32,
    /// Whether all blocks must be resident simultaneously (kernels with a grid barrier). If they
    /// cannot be, the launch is refused.
    pub cooperative: bool,
    /// Whether the kernel may start before the previous one in the stream has ended (programmatic
    /// dependent launch). The kernel must then wait before it reads the results of the other.
    /// Drivers without this feature run them in order.
    pub dependent: bool,
}

impl Geometry {
    /// `grid` blocks of `block` threads, in one dimension.
    #[must_use]
    pub const fn new(grid: u32, block: u32) -> Geometry {
        Geometry::of([grid, 1, 1], [block, 1, 1])
    }

    /// A geometry of up to three dimensions.
    #[must_use]
    pub const fn of(grid: [u32; 3], block: [u32; 3]) -> Geometry {
        Geometry { grid, block, shared: 0, cooperative: false, dependent: false }
    }

    /// Sets the dynamic shared memory in bytes.
    #[must_use]
    pub const fn shared(mut self, bytes: u32) -> Geometry {
        self.shared = bytes;
        self
    }

    /// Requires all blocks to be resident simultaneously.
    #[must_use]
    pub const fn cooperative(mut self, on: bool) -> Geometry {
        self.cooperative = on;
        self
    }

    /// Makes the launch a dependent launch.
    #[must_use]
    pub const fn dependent(mut self, on: bool) -> Geometry {
        self.dependent = on;
        self
    }

    /// Threads per block.
    #[must_use]
    pub fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    /// Blocks in the grid.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        // The product of three u32 can exceed u64. A saturated count is refused as too large.
        self.grid.iter().fold(1u64, |all, &n| all.saturating_mul(u64::from(n)))
    }
}
