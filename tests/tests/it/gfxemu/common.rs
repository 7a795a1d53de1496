//! Helpers of the emulator tests: kernels in assembly language.

use gfxemu::machine::{Fault, Launch, Machine};
use gfxemu::memory::Memory;
use gfxemu::object::Kernel;
use gfxemu::region::Region;
use gfxemu::target::Target;
use std::process::Command;

/// Whether clang and LLVM's disassembler are available; prints a line if not.
pub fn ready() -> bool {
    if let Err(why) = gfxemu::llvm::available() {
        eprintln!("SKIPPED: {why}");
        return false;
    }
    let found =
        Command::new("clang-19").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIPPED: no clang-19 (Debian: clang-19 lld-19)");
    }
    found
}

/// One block of two waves, on gfx1100.
pub const RDNA3: Assembly =
    Assembly { arch: "gfx1100", wave: 32, lds: 0, grid: 1, block: 64, one_cache: false };
/// One block of two waves, on gfx942.
pub const CDNA3: Assembly =
    Assembly { arch: "gfx942", wave: 64, lds: 0, grid: 1, block: 128, one_cache: false };

/// A kernel for eight blocks of one wave. Each adds to a counter, and the last one sums what all
/// have stored. The u32 0 to 7 are the values of the blocks, 8 is the counter, 9 the sum.
pub const LAST_BLOCK: &str = "s_load_b64 s[4:5], s[0:1], 0x0
v_mov_b32 v1, 0
s_lshl_b32 s6, s2, 2
s_add_i32 s7, s2, 1
v_mov_b32 v2, s7
v_mov_b32 v3, s6
v_mov_b32 v4, 1
s_mov_b32 exec_lo, 1
s_waitcnt lgkmcnt(0)
global_store_b32 v3, v2, s[4:5]
s_waitcnt_vscnt null, 0x0
global_atomic_add_u32 v5, v1, v4, s[4:5] offset:32 glc
s_waitcnt vmcnt(0)
buffer_gl1_inv
buffer_gl0_inv
v_readfirstlane_b32 s8, v5
s_cmp_lg_u32 s8, 7
s_cbranch_scc1 .Lover
global_load_b128 v[8:11], v1, s[4:5]
global_load_b128 v[12:15], v1, s[4:5] offset:16
s_waitcnt vmcnt(0)
v_add3_u32 v8, v8, v9, v10
v_add3_u32 v8, v8, v11, v12
v_add3_u32 v8, v8, v13, v14
v_add_nc_u32 v8, v8, v15
global_store_b32 v1, v8, s[4:5] offset:36
.Lover:";

/// Translates assembly for gfx11 to assembly for gfx942.
pub fn cdna(body: &str) -> String {
    body.replace("b64", "dwordx2")
        .replace("b128", "dwordx4")
        .replace("store_b32", "store_dword")
        .replace("_add_nc_u32", "_add_u32")
        .replace("exec_lo", "exec")
        .replace("s_mov_b32 exec,", "s_mov_b64 exec,")
        .replace("atomic_add_u32", "atomic_add")
        .replace("glc", "sc0")
        .replace("s_waitcnt_vscnt null, 0x0", "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)")
        .replace("buffer_gl1_inv\nbuffer_gl0_inv", "buffer_inv sc1")
}

/// A kernel in assembly language: `s[0:1]` is the address of the arguments, `s2` is the block
/// number.
pub struct Assembly {
    /// The architecture.
    pub arch: &'static str,
    /// Lanes of a wave.
    pub wave: u32,
    /// Bytes of LDS per block.
    pub lds: u32,
    /// Number of blocks, and number of threads in each.
    pub grid: u32,
    pub block: u32,
    /// RDNA: whether all waves of a block use one cache.
    pub one_cache: bool,
}

impl Assembly {
    /// Assembles kernels with clang.
    fn assemble(&self, bodies: &[&str]) -> Vec<Kernel> {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("k.s");
        let object = folder.path().join("k.co");
        let mut options = String::new();
        if self.arch.starts_with("gfx1") {
            options += &format!(".amdhsa_wavefront_size32 {}\n", u32::from(self.wave == 32));
            options +=
                &format!(".amdhsa_workgroup_processor_mode {}\n", u32::from(!self.one_cache));
        }
        if matches!(self.arch, "gfx90a" | "gfx942") {
            options += ".amdhsa_accum_offset 32\n";
        }
        // 16 bytes of scratch memory for each lane, if a body uses it.
        if bodies.iter().any(|body| body.contains("scratch_store")) {
            options += ".amdhsa_enable_private_segment 1\n";
            options += ".amdhsa_private_segment_fixed_size 16\n";
        }
        if bodies.iter().any(|body| body.contains("buffer_store")) {
            options += ".amdhsa_user_sgpr_private_segment_buffer 1\n";
            options += ".amdhsa_system_sgpr_private_segment_wavefront_offset 1\n";
            options += ".amdhsa_private_segment_fixed_size 16\n";
        }
        let mut text = String::new();
        for (i, body) in bodies.iter().enumerate() {
            let body = body.replace(".L", &format!(".L{i}"));
            text += &format!(
                ".text\n.globl k{i}\n.p2align 8\n.type \
                 k{i},@function\nk{i}:\n{body}\ns_endpgm\n.Lend{i}:\n\
                 .size k{i}, .Lend{i}-k{i}\n\
                 .rodata\n.p2align 6\n.amdhsa_kernel k{i}\n.amdhsa_next_free_vgpr \
                 32\n.amdhsa_next_free_sgpr 32\n\
                 .amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_group_segment_fixed_size {}\n\
                 .amdhsa_system_sgpr_workgroup_id_x 1\n.amdhsa_float_denorm_mode_32 \
                 3\n{options}.end_amdhsa_kernel\n",
                self.lds
            );
        }
        std::fs::write(&source, text).unwrap();
        let width = if !self.arch.starts_with("gfx1") {
            Vec::new()
        } else if self.wave == 64 {
            vec!["-mwavefrontsize64"]
        } else {
            vec!["-mno-wavefrontsize64"]
        };
        let out = Command::new("clang-19")
            .args([
                "-x",
                "assembler",
                "--target=amdgcn-amd-amdhsa",
                &format!("-mcpu={}", self.arch),
                "-o",
            ])
            .arg(&object)
            .arg(&source)
            .args(width)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let file = std::fs::read(&object).unwrap();
        (0..bodies.len()).map(|i| Kernel::read(&file, &format!("k{i}")).unwrap()).collect()
    }

    /// Runs a kernel with a buffer of `words` zeros. Its address is the only argument.
    fn run(&self, kernel: Kernel, words: usize, seed: u64, loose: bool) -> Result<Memory, Fault> {
        let base = 0x10_0000;
        let (buffer, arguments) = (0x2000_0000u64, 0x3000_0000);
        let regions = vec![
            Region::new("code", base, kernel.image.clone(), false),
            Region::new("buffer", buffer, vec![0; 4 * words], true),
            Region::new("arguments", arguments, buffer.to_le_bytes().to_vec(), false),
        ];
        let launch = Launch {
            grid: [self.grid, 1, 1],
            block: [self.block, 1, 1],
            lds: self.lds as usize,
            cooperative: false,
            arguments,
            seed,
            limit: 1_000_000,
        };
        let target = Target::new(self.arch, self.wave).unwrap();
        let mut machine = Machine::new(target, kernel, base).unwrap();
        machine.loose = loose;
        machine.run(&launch, regions).map(|(memory, _)| memory)
    }

    /// Hazards after a matrix instruction on any path.
    pub fn too_early(&self, body: &str) -> Vec<String> {
        let kernel = self.assemble(&[body]).remove(0);
        let target = Target::new(self.arch, self.wave).unwrap();
        Machine::new(target, kernel, 0x10_0000).unwrap().too_early()
    }

    /// Runs the kernel once per seed in loose mode: the seed chooses when stores become visible,
    /// and memory rules are not checked.
    pub fn loose(&self, body: &str, words: usize, seeds: std::ops::Range<u64>) -> Vec<Vec<u32>> {
        let kernel = self.assemble(&[body]).remove(0);
        let run = |seed| self.run(kernel.clone(), words, seed, true);
        seeds
            .map(|seed| {
                content(&run(seed).unwrap_or_else(|fault| panic!("{}: {fault}\n{body}", self.arch)))
            })
            .collect()
    }

    /// Runs the kernel, which must succeed. Returns the buffer.
    pub fn right(&self, body: &str, words: usize) -> Vec<u32> {
        self.by_seed(body, words, 1..2).remove(0)
    }

    /// Runs the kernel with each seed; each run must succeed.
    pub fn by_seed(&self, body: &str, words: usize, seeds: std::ops::Range<u64>) -> Vec<Vec<u32>> {
        let kernel = self.assemble(&[body]).remove(0);
        seeds.map(|seed| self.good(kernel.clone(), body, words, seed)).collect()
    }

    /// Runs the kernel with several seeds. Each run must fail with a message that contains `what`
    /// (alternatives separated by `|`).
    pub fn wrong(&self, body: &str, words: usize, what: &str) {
        self.bad(&self.assemble(&[body]).remove(0), body, words, what);
    }

    /// The first kernel must succeed, all others must fail.
    pub fn only_the_first(&self, bodies: &[&str], words: usize, what: &str) {
        for (i, kernel) in self.assemble(bodies).into_iter().enumerate() {
            if i == 0 {
                self.good(kernel, bodies[i], words, 1);
            } else {
                self.bad(&kernel, bodies[i], words, what);
            }
        }
    }

    fn good(&self, kernel: Kernel, body: &str, words: usize, seed: u64) -> Vec<u32> {
        let run = self.run(kernel, words, seed, false);
        content(&run.unwrap_or_else(|fault| panic!("{}: {fault}\n{body}", self.arch)))
    }

    fn bad(&self, kernel: &Kernel, body: &str, words: usize, what: &str) {
        for seed in 1..6 {
            match self.run(kernel.clone(), words, seed, false) {
                Ok(_) => panic!("{} seed {seed}: no fault in\n{body}", self.arch),
                Err(fault) => assert!(
                    what.split('|').any(|w| fault.what.contains(w)),
                    "{} seed {seed}: {fault}, not {what:?}",
                    self.arch
                ),
            }
        }
    }
}

fn content(memory: &Memory) -> Vec<u32> {
    let region = memory.regions.iter().find(|r| r.what == "buffer").unwrap();
    region.bytes.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
}
