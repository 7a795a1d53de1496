//! A launch: its size, its least work, its block, its grid and the arguments that follow from them.

use kjit_engine::Geometry;

/// The part of a launch that is not in the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// New tokens, or rows: one for each sequence in decoding. For kernels without a width, rows of
    /// 4096 elements; for kernels that only read, MiB.
    pub tokens: usize,
    /// Tokens that are in the cache before them.
    pub past: usize,
}

impl Size {
    /// One token, or row.
    pub const ONE: Size = Size { tokens: 1, past: 0 };
    /// A prompt's tokens when a kernel is timed alone.
    pub const CHUNK: Size = Size { tokens: 512, past: 0 };
}

/// The least work of a launch: the inputs of a roofline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes of memory that must be read or written, each once.
    pub bytes: u64,
    /// Multiplications and additions of products.
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

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads.
    pub threads: u32,
    /// Dynamic LDS, in bytes.
    pub shared: u32,
}

impl Block {
    /// A block without dynamic LDS.
    pub const fn of(wave: u32, threads: u32) -> Block {
        Block { wave, threads, shared: 0 }
    }
}

/// Blocks in x, y, z, and the arguments that follow from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Arguments by name.
    pub numbers: Vec<(&'static str, u32)>,
    /// Working memory.
    pub memory: Vec<Memory>,
    /// Blocks wait for each other: all must be resident, and the previous launch must have ended.
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

    /// With an argument.
    pub fn number(mut self, name: &'static str, value: u32) -> Grid {
        self.numbers.push((name, value));
        self
    }

    /// With blocks that wait for each other, or not.
    pub const fn cooperative(mut self, on: bool) -> Grid {
        self.cooperative = on;
        self
    }

    /// With `bytes` bytes of working memory; none for 0.
    pub fn memory(mut self, name: &'static str, bytes: usize) -> Grid {
        self.memory.push(Memory { name, bytes, zeroed: false });
        self
    }

    /// With `count` counters: u32, zero before the first launch and after every one.
    pub fn counters(self, name: &'static str, count: usize) -> Grid {
        self.zeroed(name, 4 * count)
    }

    /// With `bytes` bytes that are zero before the first launch and after every one.
    pub fn zeroed(mut self, name: &'static str, bytes: usize) -> Grid {
        self.memory.push(Memory { name, bytes, zeroed: true });
        self
    }
}

/// Working memory of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Its argument.
    pub name: &'static str,
    /// Bytes; 0: the argument is null.
    pub bytes: usize,
    /// Zero before the first launch and after every one.
    pub zeroed: bool,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// Arguments that follow from the grid, by name.
    pub numbers: Vec<(&'static str, u32)>,
    /// Working memory.
    pub memory: Vec<Memory>,
}

impl Launch {
    /// A launch of this block and grid. It may start before the previous kernel has ended: all
    /// kernels here wait for their inputs, except those whose blocks wait for each other.
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
