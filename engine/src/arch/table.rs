//! The table of architectures: one row for each. A new card needs one new line here.
//!
//! Sources: NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities" (technical specifications
//! per compute capability), and LLVM's `AMDGPUUsage` and `AMDGPUBaseInfo` (allocation granules,
//! waves per SIMD).

/// The vendor of a device. It determines the driver and the compilers; all other facts are in the
/// rows of [`ARCHS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vendor {
    /// NVIDIA: CUDA driver, nvrtc; code objects are cubins.
    Nvidia,
    /// AMD: HIP runtime, hiprtc or clang; code objects are AMDGPU ELF files.
    Amd,
}

impl Vendor {
    /// The vendor's word in keys, device names (`cuda:0`, `rocm:0`) and messages.
    #[must_use]
    pub fn device_word(self) -> &'static str {
        match self {
            Vendor::Nvidia => "cuda",
            Vendor::Amd => "rocm",
        }
    }

    /// The vendor's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
        }
    }
}

/// The matrix instructions of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixUnit {
    /// No matrix instructions.
    None,
    /// `mma.sync` (NVIDIA, one warp).
    MmaSync,
    /// `wgmma` (NVIDIA sm_90a, four warps); `mma.sync` exists too.
    Wgmma,
    /// MFMA (AMD CDNA, wave 64).
    Mfma,
    /// WMMA of gfx11: each half of the wave holds its own copy of the inputs.
    Wmma,
    /// WMMA of gfx12: inputs are not duplicated, so the register layout differs from gfx11.
    Wmma12,
    /// WMMA of gfx1250: like gfx12, with twice the depth.
    Wmma1250,
}

impl MatrixUnit {
    /// The name that is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MatrixUnit::None => "none",
            MatrixUnit::MmaSync => "mma.sync",
            MatrixUnit::Wgmma => "wgmma",
            MatrixUnit::Mfma => "mfma",
            MatrixUnit::Wmma => "wmma (gfx11)",
            MatrixUnit::Wmma12 => "wmma (gfx12)",
            MatrixUnit::Wmma1250 => "wmma (gfx1250)",
        }
    }
}

/// The instruction for a dot product of four bytes with four bytes, added to an i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dot {
    /// No instruction: bytes are multiplied and added one by one.
    None,
    /// `dp4a` (NVIDIA).
    Dp4a,
    /// `v_dot4_i32_i8` (AMD, signed × signed).
    Sdot4,
    /// `v_dot4_i32_iu8` (AMD gfx11 and later; the sign of each side is selectable).
    Sudot4,
}

impl Dot {
    /// The name that is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dot::None => "none",
            Dot::Dp4a => "dp4a",
            Dot::Sdot4 => "sdot4",
            Dot::Sudot4 => "sudot4",
        }
    }
}

/// The limits of a compute unit. They are the inputs of the occupancy calculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitLimits {
    /// Number of SIMDs per unit. A unit is an SM, a CU, or on RDNA a work-group processor; NVIDIA's
    /// SIMDs are sub-partitions. Each SIMD has its own waves and registers.
    pub simds: u32,
    /// Maximum resident waves per SIMD.
    pub waves_per_simd: u32,
    /// Maximum resident blocks per unit.
    pub blocks: u32,
    /// Vector registers per SIMD, counted as 32-bit registers of one lane at the *narrowest* wave
    /// width.
    pub registers_per_simd: u32,
    /// Allocation granularity of registers per lane, at the narrowest wave width.
    pub register_granule: u32,
    /// LDS / shared memory per unit in bytes, shared by all its blocks.
    pub shared: u32,
    /// Allocation granularity of LDS / shared memory in bytes.
    pub shared_granule: u32,
    /// Bytes of shared memory that the system reserves per block.
    pub shared_reserved: u32,
}

/// A card with the peak rates of its data sheet. They give rooflines of kernels that have not run
/// on a card. No card reaches them; measurements show how much is reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// Architecture of the card.
    pub arch: &'static str,
    /// Name of the card.
    pub name: &'static str,
    /// Memory bandwidth in GB/s.
    pub gb_per_s: f64,
    /// Dense f16 rate with f32 sums, in 10¹² operations per second; of the matrix unit if there is
    /// one.
    pub tflop_per_s: f64,
    /// Number of compute units (for RDNA, CUs: two CUs are one unit of [`UnitLimits`]). 0: no
    /// instruction bound is computed.
    pub units: u32,
    /// The highest clock in MHz; 0 if unknown.
    pub mhz: u32,
}

/// An architecture.
#[derive(Debug)]
pub struct Arch {
    /// The vendor.
    pub vendor: Vendor,
    /// The id for compilers: `sm_90`, `gfx90a`.
    pub id: &'static str,
    /// The id with architecture-specific instructions (`sm_90a`) of the same device, if there is
    /// one.
    pub specific: Option<&'static str>,
    /// The row whose facts are used, if the id is not in the table.
    pub fallback_row: Option<&'static str>,
    /// The difference from the chip's own row, as printed in targets: `:no-matrix`, `:no-dot`
    /// ([`Target::without`](super::Target::without)), `:f32`
    /// ([`Target::f32_alone`](super::Target::f32_alone)), `:sound-copies`
    /// ([`Target::with_sound_copies`](super::Target::with_sound_copies)).
    pub variant: &'static str,
    /// Well-known cards of this architecture.
    pub cards: &'static str,
    /// One of these cards, with the rates of its data sheet.
    pub card: Option<Card>,
    /// Wave (warp) widths that kernels can be compiled for; the first is the default.
    pub waves: &'static [u32],
    /// Matrix instructions.
    pub matrix: MatrixUnit,
    /// Instruction for byte dot products.
    pub dot: Dot,
    /// Maximum threads per block.
    pub max_threads: u32,
    /// Maximum LDS / shared memory per block in bytes (on NVIDIA, the opt-in maximum of dynamic
    /// shared memory).
    pub shared_per_block: u32,
    /// Shared memory per block without opting in, in bytes; the limit of static declarations.
    pub shared_static: u32,
    /// Maximum vector registers per lane.
    pub max_registers: u32,
    /// The limits of a compute unit.
    pub unit: UnitLimits,
    /// Feature flags that an id can carry (`xnack`, `sramecc`), with `+` or `-`.
    pub features: &'static [&'static str],
    /// Further abilities by name, such as asynchronous global-to-shared copies and dependent
    /// launches; see [`Arch::has`].
    pub abilities: &'static [&'static str],
}

impl Arch {
    /// Sets the card with GB/s and TFLOP/s.
    const fn card(mut self, name: &'static str, gb_per_s: f64, tflop_per_s: f64) -> Arch {
        self.card = Some(Card { arch: self.id, name, gb_per_s, tflop_per_s, units: 0, mhz: 0 });
        self
    }

    /// Sets the card's compute units and highest clock, from the same data sheet.
    const fn at(mut self, units: u32, mhz: u32) -> Arch {
        if let Some(card) = &mut self.card {
            card.units = units;
            card.mhz = mhz;
        }
        self
    }

    /// Whether vector and accumulation registers are in one register file (MFMA from gfx90a on).
    /// The register count of a kernel then includes both.
    #[must_use]
    pub fn one_register_file(&self) -> bool {
        self.matrix == MatrixUnit::Mfma && self.max_registers > 256
    }

    /// Whether the architecture has an ability: `bf16`, `fp8`, `cp.async`, `bulk-copy`, `pdl`,
    /// `packed-f16`, `permlane64`, `copies-agprs` (accumulation registers are copied through a
    /// vector register, and some compilers do not write that register first), `f32-alone` (kernels
    /// must not use instructions that read or produce f16), `integrated` (the GPU is part of a
    /// processor and shares its memory).
    #[must_use]
    pub fn has(&self, ability: &str) -> bool {
        self.abilities.contains(&ability)
    }

    /// `sm_90` → 90, `sm_120` → 120; `None` for ids of other vendors.
    #[must_use]
    pub fn sm(&self) -> Option<u32> {
        self.id.strip_prefix("sm_").and_then(|n| n.parse().ok())
    }
}

/// Rows are equal if their id and variant are equal.
impl PartialEq for Arch {
    fn eq(&self, other: &Arch) -> bool {
        self.id == other.id && self.variant == other.variant
    }
}

impl Eq for Arch {}

impl std::hash::Hash for Arch {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.id, self.variant).hash(state);
    }
}

const KB: u32 = 1024;

/// A row for an NVIDIA architecture. `waves` is the number of resident warps per SM.
#[allow(clippy::too_many_arguments, reason = "a table row: the arguments are its columns")]
const fn sm(
    id: &'static str,
    specific: Option<&'static str>,
    cards: &'static str,
    matrix: MatrixUnit,
    waves: u32,
    blocks: u32,
    shared: u32,
    abilities: &'static [&'static str],
) -> Arch {
    let turing = shared == 64 * KB;
    Arch {
        vendor: Vendor::Nvidia,
        id,
        specific,
        fallback_row: None,
        variant: "",
        cards,
        card: None,
        waves: &[32],
        matrix,
        dot: Dot::Dp4a,
        max_threads: 1024,
        // From sm_80 on the system reserves 1 KB per block. On sm_75 a block can use all 64 KB.
        shared_per_block: if turing { 64 * KB } else { shared - KB },
        shared_static: 48 * KB,
        max_registers: 255,
        unit: UnitLimits {
            simds: 4,
            waves_per_simd: waves / 4,
            blocks,
            registers_per_simd: 512, // 16384 registers of 32 bits / 32 lanes
            register_granule: 8,
            shared,
            shared_granule: if turing { 256 } else { 128 },
            shared_reserved: if turing { 0 } else { KB },
        },
        features: &[],
        abilities,
    }
}

/// A row for GCN or CDNA (wave width 64, 4 SIMDs per CU).
#[allow(clippy::too_many_arguments, reason = "a table row: the arguments are its columns")]
const fn gcn(
    id: &'static str,
    cards: &'static str,
    matrix: MatrixUnit,
    dot: Dot,
    waves_per_simd: u32,
    registers: u32,
    shared: u32,
    features: &'static [&'static str],
    abilities: &'static [&'static str],
) -> Arch {
    Arch {
        vendor: Vendor::Amd,
        id,
        specific: None,
        fallback_row: None,
        variant: "",
        cards,
        card: None,
        waves: &[64],
        matrix,
        dot,
        max_threads: 1024,
        shared_per_block: shared,
        shared_static: shared,
        // From gfx90a on, VGPRs and AGPRs share one file of 512 registers; earlier chips address
        // 256.
        max_registers: registers,
        unit: UnitLimits {
            simds: 4,
            waves_per_simd,
            blocks: 40, // 16 barriers per SIMD group; waves limit blocks of one wave
            registers_per_simd: registers,
            register_granule: if registers == 512 { 8 } else { 4 },
            shared,
            shared_granule: if shared > 64 * KB { 1280 } else { 512 },
            shared_reserved: 0,
        },
        features,
        abilities,
    }
}

/// A row for RDNA (default wave width 32, 64 possible). The unit is the work-group processor: two
/// CUs with 2 SIMDs each. Compilers let a block use both CUs, and HIP counts work-group processors
/// (48 on a card with 96 CUs).
#[allow(clippy::too_many_arguments, reason = "a table row: the arguments are its columns")]
const fn rdna(
    id: &'static str,
    cards: &'static str,
    matrix: MatrixUnit,
    dot: Dot,
    waves_per_simd: u32,
    registers: u32,
    granule: u32,
    features: &'static [&'static str],
    abilities: &'static [&'static str],
) -> Arch {
    Arch {
        vendor: Vendor::Amd,
        id,
        specific: None,
        fallback_row: None,
        variant: "",
        cards,
        card: None,
        waves: &[32, 64],
        matrix,
        dot,
        max_threads: 1024,
        shared_per_block: 64 * KB,
        shared_static: 64 * KB,
        max_registers: 256,
        unit: UnitLimits {
            simds: 4,
            waves_per_simd,
            blocks: 64,
            registers_per_simd: registers, // at wave 32; half of it at wave 64
            register_granule: granule,
            shared: 128 * KB,
            shared_granule: 512,
            shared_reserved: 0,
        },
        features,
        abilities,
    }
}

/// CDNA 5: the instructions of RDNA 4, wave width 32 only, four SIMDs per unit as in CDNA, more
/// registers and LDS. Occupancy according to clang 22: 64 registers for 16 waves per SIMD, 80 for
/// 12, 256 for 4; LDS in blocks of 2 KB.
const fn cdna5(id: &'static str, cards: &'static str) -> Arch {
    let (registers, shared) = (1024, 320 * KB);
    let row = rdna(id, cards, Wmma1250, Sudot4, 16, registers, 16, NO_FLAGS, CDNA5);
    Arch {
        waves: &[32],
        shared_per_block: shared,
        shared_static: shared,
        max_registers: registers,
        unit: UnitLimits { shared, shared_granule: 2 * KB, ..row.unit },
        ..row
    }
}

const SRAM_XNACK: &[&str] = &["sramecc", "xnack"];
const NO_FLAGS: &[&str] = &[];
const XNACK: &[&str] = &["xnack"];
const NOTHING: &[&str] = &[];
const PACKED: &[&str] = &["packed-f16"];
const PACKED_APU: &[&str] = &["integrated", "packed-f16"];
const PACKED_BF: &[&str] = &["packed-f16", "bf16"];
const CDNA1: &[&str] = &["packed-f16", "bf16", "copies-agprs"];
const CDNA3: &[&str] = &["packed-f16", "bf16", "fp8"];
const CDNA5: &[&str] = &["packed-f16", "bf16", "fp8"];
const RDNA3: &[&str] = &["packed-f16", "bf16", "permlane64"];
const RDNA3_APU: &[&str] = &["bf16", "integrated", "packed-f16", "permlane64"];
const RDNA4: &[&str] = &["packed-f16", "bf16", "fp8", "permlane64"];
const AMPERE: &[&str] = &["bf16", "cp.async", "packed-f16"];
const ADA: &[&str] = &["bf16", "cp.async", "fp8", "packed-f16"];
const HOPPER: &[&str] = &["bf16", "bulk-copy", "cp.async", "fp8", "packed-f16", "pdl"];

use Dot::{None as NoDot, Sdot4, Sudot4};
use MatrixUnit::{Mfma, MmaSync, None as NoMatrix, Wgmma, Wmma, Wmma12, Wmma1250};

/// All architectures that kjit compiles for.
pub static ARCHS: &[Arch] = &[
    //  id        -a form          cards                             matrix  warps blocks shared
    sm("sm_75", None, "RTX 20, GTX 16, T4", MmaSync, 32, 16, 64 * KB, PACKED)
        .card("T4", 320.0, 65.0),
    sm("sm_80", None, "A100, A30", MmaSync, 64, 32, 164 * KB, AMPERE).card(
        "A100 80 GB",
        2039.0,
        312.0,
    ),
    sm("sm_86", None, "RTX 30, A10, A40, A6000", MmaSync, 48, 16, 100 * KB, AMPERE)
        .card("A40", 696.0, 149.7),
    sm("sm_87", None, "Jetson Orin", MmaSync, 48, 16, 164 * KB, AMPERE),
    sm("sm_89", None, "RTX 40, L4, L40", MmaSync, 48, 24, 100 * KB, ADA).card("L40", 864.0, 181.0),
    sm("sm_90", Some("sm_90a"), "H100, H200, GH200", Wgmma, 64, 32, 228 * KB, HOPPER)
        .card("H200", 4800.0, 989.0),
    sm("sm_100", Some("sm_100a"), "B100, B200, GB200", MmaSync, 64, 32, 228 * KB, HOPPER)
        .card("B200", 8000.0, 2250.0),
    sm("sm_103", Some("sm_103a"), "B300, GB300", MmaSync, 64, 32, 228 * KB, HOPPER),
    sm("sm_120", Some("sm_120a"), "RTX 50, RTX PRO Blackwell", MmaSync, 48, 24, 100 * KB, HOPPER),
    sm("sm_121", Some("sm_121a"), "GB10 (DGX Spark)", MmaSync, 48, 24, 100 * KB, HOPPER),
    //   id       cards                            matrix    dot   waves  regs LDS
    gcn(
        "gfx803",
        "RX 470 to RX 590, Radeon Pro WX 7100",
        NoMatrix,
        NoDot,
        10,
        256,
        64 * KB,
        NO_FLAGS,
        NOTHING,
    )
    .card("RX 580", 256.0, 6.2)
    .at(36, 1340),
    gcn("gfx900", "Vega 56, Vega 64, MI25", NoMatrix, NoDot, 10, 256, 64 * KB, XNACK, PACKED)
        .card("RX Vega 64", 484.0, 25.3)
        .at(64, 1546),
    gcn(
        "gfx902",
        "Ryzen 2000G and 3000G (Vega 8, 11)",
        NoMatrix,
        NoDot,
        10,
        256,
        64 * KB,
        XNACK,
        PACKED_APU,
    )
    .card("Vega 11, DDR4-2933", 46.9, 3.5)
    .at(11, 1250),
    gcn("gfx906", "Radeon VII, MI50, MI60", NoMatrix, Sdot4, 10, 256, 64 * KB, SRAM_XNACK, PACKED)
        .card("MI50", 1024.0, 26.5)
        .at(60, 1725),
    gcn("gfx908", "MI100", Mfma, Sdot4, 10, 256, 64 * KB, SRAM_XNACK, CDNA1)
        .card("MI100", 1229.0, 184.6)
        .at(120, 1502),
    gcn("gfx90a", "MI210, MI250, MI250X", Mfma, Sdot4, 8, 512, 64 * KB, SRAM_XNACK, PACKED_BF)
        .card("MI210", 1638.0, 181.0)
        .at(104, 1700),
    gcn(
        "gfx90c",
        "Ryzen 4000 and 5000 (Vega 6 to 8)",
        NoMatrix,
        NoDot,
        10,
        256,
        64 * KB,
        XNACK,
        PACKED_APU,
    )
    .card("Vega 8, DDR4-3200", 51.2, 4.1)
    .at(8, 2000),
    gcn("gfx942", "MI300A, MI300X, MI325X", Mfma, Sdot4, 8, 512, 64 * KB, SRAM_XNACK, CDNA3)
        .card("MI300X", 5300.0, 1307.4)
        .at(304, 2100),
    gcn("gfx950", "MI350X, MI355X", Mfma, Sdot4, 8, 512, 160 * KB, SRAM_XNACK, CDNA3)
        .card("MI355X", 8000.0, 2516.6)
        .at(256, 2400),
    //    id       cards                                 matrix  dot  waves  regs granule
    rdna("gfx1010", "RX 5700, RX 5700 XT", NoMatrix, NoDot, 20, 1024, 8, XNACK, PACKED)
        .card("RX 5700 XT", 448.0, 19.5)
        .at(40, 1905),
    rdna("gfx1011", "Radeon Pro V520, 5600M", NoMatrix, Sdot4, 20, 1024, 8, XNACK, PACKED)
        .card("Radeon Pro V520", 512.0, 14.7)
        .at(36, 1600),
    rdna("gfx1012", "RX 5300, RX 5500, RX 5500 XT", NoMatrix, Sdot4, 20, 1024, 8, XNACK, PACKED)
        .card("RX 5500 XT", 224.0, 10.4)
        .at(22, 1845),
    rdna("gfx1030", "RX 6800, RX 6900 XT, W6800", NoMatrix, Sdot4, 16, 1024, 16, NO_FLAGS, PACKED)
        .card("RX 6900 XT", 512.0, 46.1)
        .at(80, 2250),
    rdna(
        "gfx1031",
        "RX 6700, RX 6700 XT, RX 6750 XT",
        NoMatrix,
        Sdot4,
        16,
        1024,
        16,
        NO_FLAGS,
        PACKED,
    )
    .card("RX 6700 XT", 384.0, 26.4)
    .at(40, 2581),
    rdna(
        "gfx1032",
        "RX 6600, RX 6600 XT, RX 6650 XT, W6600",
        NoMatrix,
        Sdot4,
        16,
        1024,
        16,
        NO_FLAGS,
        PACKED,
    )
    .card("RX 6600 XT", 256.0, 21.2)
    .at(32, 2589),
    rdna("gfx1034", "RX 6400, RX 6500 XT, W6400", NoMatrix, Sdot4, 16, 1024, 16, NO_FLAGS, PACKED)
        .card("RX 6500 XT", 144.0, 11.5)
        .at(16, 2815),
    rdna("gfx1035", "Radeon 660M, 680M", NoMatrix, Sdot4, 16, 1024, 16, NO_FLAGS, PACKED_APU)
        .card("Radeon 680M, DDR5-4800", 76.8, 7.4)
        .at(12, 2400),
    rdna(
        "gfx1036",
        "Ryzen 7000 and 9000 (two units)",
        NoMatrix,
        Sdot4,
        16,
        1024,
        16,
        NO_FLAGS,
        PACKED_APU,
    )
    .card("two units of a Ryzen 7000, DDR5-5200", 83.2, 1.1)
    .at(2, 2200),
    rdna("gfx1100", "RX 7900 XTX, W7900", Wmma, Sudot4, 16, 1536, 24, NO_FLAGS, RDNA3)
        .card("RX 7900 XTX", 960.0, 122.8)
        .at(96, 2500),
    rdna("gfx1101", "RX 7800 XT, RX 7700 XT, W7700", Wmma, Sudot4, 16, 1536, 24, NO_FLAGS, RDNA3)
        .card("RX 7800 XT", 624.0, 74.7)
        .at(60, 2430),
    rdna("gfx1102", "RX 7600, W7600", Wmma, Sudot4, 16, 1024, 16, NO_FLAGS, RDNA3)
        .card("RX 7600", 288.0, 43.5)
        .at(32, 2655),
    rdna("gfx1103", "Radeon 780M", Wmma, Sudot4, 16, 1024, 16, NO_FLAGS, RDNA3_APU)
        .card("Radeon 780M, DDR5-5600", 89.6, 16.6)
        .at(12, 2700),
    rdna("gfx1150", "Radeon 880M, 890M", Wmma, Sudot4, 16, 1024, 16, NO_FLAGS, RDNA3_APU)
        .card("Radeon 890M, LPDDR5X-7500", 120.0, 23.8)
        .at(16, 2900),
    rdna(
        "gfx1151",
        "Radeon 8050S, 8060S (Strix Halo)",
        Wmma,
        Sudot4,
        16,
        1536,
        24,
        NO_FLAGS,
        RDNA3_APU,
    )
    .card("Radeon 8060S", 256.0, 59.4)
    .at(40, 2900),
    rdna("gfx1152", "Radeon 840M, 860M", Wmma, Sudot4, 16, 1024, 16, NO_FLAGS, RDNA3_APU)
        .card("Radeon 860M, LPDDR5X-8000", 128.0, 12.3)
        .at(8, 3000),
    rdna("gfx1153", "Radeon 820M, 840M", Wmma, Sudot4, 16, 1024, 16, NO_FLAGS, RDNA3_APU)
        .card("Radeon 840M, LPDDR5X-8000", 128.0, 5.9)
        .at(4, 2900),
    rdna("gfx1200", "RX 9060 XT", Wmma12, Sudot4, 16, 1536, 24, NO_FLAGS, RDNA4)
        .card("RX 9060 XT", 320.0, 102.6)
        .at(32, 3130),
    rdna("gfx1201", "RX 9070, RX 9070 XT", Wmma12, Sudot4, 16, 1536, 24, NO_FLAGS, RDNA4)
        .card("RX 9070 XT", 640.0, 194.6)
        .at(64, 2970),
    // No rates: there is no data sheet with f16 rates.
    cdna5("gfx1250", "MI430X, MI440X, MI455X"),
];
