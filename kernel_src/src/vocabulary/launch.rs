//! A launch: its size, its least work, its block, its grid and the arguments that depend on them.

use kjit_engine::Geometry;

/// The part of a launch that is not in the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// New tokens, or rows: one for each sequence in decoding. For kernels without a width, rows of
    /// 4096 elements; for kernels that only read, MiB.
    pub tokens: usize,
    /// Number of tokens that are in the cache before them.
    pub past: usize,
}

impl Size {
    /// One token or row.
    pub const ONE: Size = Size { tokens: 1, past: 0 };
    /// Number of prompt tokens if a kernel is timed alone.
    pub const CHUNK: Size = Size { tokens: 512, past: 0 };
}

/// The least work of a launch: the inputs of a roofline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes of memory that must be read or written, each counted once.
    pub bytes: u64,
    /// Multiplications and additions in products.
    pub operations: u64,
}

impl Work {
    /// Work of `bytes` bytes without products.
    pub const fn moves(bytes: usize) -> Work {
        Work { bytes: bytes as u64, operations: 0 }
    }

    /// The least microseconds at these GB/s and TFLOP/s.
    #[must_use]
    pub fn floor_us(&self, gb_per_s: f64, tflop_per_s: f64) -> f64 {
        (self.bytes as f64 / (gb_per_s * 1e3)).max(self.operations as f64 / (tflop_per_s * 1e6))
    }
}

/// The size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Lanes in a wave.
    pub wave: u32,
    /// Number of threads.
    pub threads: u32,
    /// Bytes of dynamic LDS.
    pub shared: u32,
}

impl Block {
    /// A block without dynamic LDS.
    pub const fn of(wave: u32, threads: u32) -> Block {
        Block { wave, threads, shared: 0 }
    }
}

/// Blocks in x, y, z, and the arguments that depend on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Number of blocks in x, y, z.
    pub blocks: [u32; 3],
    /// Arguments by name.
    pub numbers: Vec<(&'static str, u32)>,
    /// Working memory.
    pub memory: Vec<Memory>,
    /// Whether blocks wait for each other. Then all must be resident, and the previous launch must
    /// have ended.
    pub cooperative: bool,
}

impl Grid {
    /// A grid of blocks without arguments.
    pub fn of(blocks: [u32; 3]) -> Grid {
        Grid {
            blocks: blocks.map(|n| n.max(1)),
            numbers: vec![],
            memory: vec![],
            cooperative: false,
        }
    }

    /// Adds an argument.
    pub fn number(mut self, name: &'static str, value: u32) -> Grid {
        self.numbers.push((name, value));
        self
    }

    /// Sets whether blocks wait for each other.
    pub const fn cooperative(mut self, on: bool) -> Grid {
        self.cooperative = on;
        self
    }

    /// Adds `bytes` bytes of working memory; no memory for 0.
    pub fn memory(mut self, name: &'static str, bytes: usize) -> Grid {
        self.memory.push(Memory { name, bytes, zeroed: false });
        self
    }

    /// Adds `count` counters: u32, zero before the first launch and after each launch.
    pub fn counters(self, name: &'static str, count: usize) -> Grid {
        self.zeroed(name, 4 * count)
    }

    /// Adds `bytes` bytes that are zero before the first launch and after each launch.
    pub fn zeroed(mut self, name: &'static str, bytes: usize) -> Grid {
        self.memory.push(Memory { name, bytes, zeroed: true });
        self
    }
}

/// Working memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Name of its argument.
    pub name: &'static str,
    /// Number of bytes; 0: the argument is null.
    pub bytes: usize,
    /// Whether it is zero before the first launch and after each launch.
    pub zeroed: bool,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// Arguments that depend on the grid, by name.
    pub numbers: Vec<(&'static str, u32)>,
    /// Working memory.
    pub memory: Vec<Memory>,
}

impl Launch {
    /// A launch of this block and grid. It may start before the previous kernel has ended: all
    /// kernels wait for their inputs, except those whose blocks wait for each other.
    pub fn of(block: Block, grid: Grid) -> Launch {
        let Grid { blocks, numbers, memory, cooperative } = grid;
        let geometry = Geometry::of(blocks, [block.threads, 1, 1]).shared(block.shared);
        Launch {
            geometry: geometry.dependent(!cooperative).cooperative(cooperative),
            numbers,
            memory,
        }
    }
}
